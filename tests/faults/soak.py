#!/usr/bin/env python3
"""Soak test (fault F39): four ranks; every 30 s on average one of them gets SIGKILL, SIGSTOP or SIGTERM, for a number of minutes.

soak.py --bin BIN --mpirun MPIRUN --minutes 20 [--seed 1]

Repeats the same run until the time is up: each must end with the losses and weights of a run without faults, and must leave no process,
no temporary directory and no shared memory. Exit code 77 = skipped.
"""
import argparse
import glob
import os
import random
import signal
import subprocess
import tempfile
import time

import fault_site

# The hang limit allows for a busy machine: four ranks may share two cores with other work.
MEAN_SECONDS, HANG_SECONDS, STEP_SECONDS, STEPS = 30, 15, 0.3, 400
SETTINGS = (f"train.max_steps={STEPS}", "output.save_every_samples=160", f"eval.every_samples={8 * (STEPS // 4)}", "logging.every_steps=50")


def mapped_files():
    found = set()
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            found.update(line.split(None, 5)[-1].strip() for line in open(maps) if "/dev/shm/" in line)
        except OSError:
            pass
    return found


def orphans(work):
    """Processes that outlived their run: any whose command line contains the working directory."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if work in open(path).read() and int(path.split("/")[2]) != os.getpid():
                found.append(path)
        except OSError:
            pass
    return found


class Soak:
    def __init__(self, site, args):
        self.site, self.minutes, self.chance, self.begin = site, args.minutes, random.Random(args.seed), time.time()
        self.lives, self.counts, self.slowest, self.rounds = 0, {"SIGKILL": 0, "SIGSTOP": 0, "SIGTERM": 0}, {}, 0
        self.temporary = f"{site.work}/tmp"
        os.mkdir(self.temporary)

    def left(self):
        return self.minutes * 60 - (time.time() - self.begin)

    def start(self, run, name, **variables):
        return self.site.start(f"output.dir={run}", *SETTINGS, name=name, TMPDIR=self.temporary, **variables)

    def life(self, run_name):
        """One start of the run, until a fault or its end; true when the run is complete."""
        self.lives += 1
        run = self.start(run_name, f"life{self.lives}", TRIREME_HANG_SECONDS=str(HANG_SECONDS),
                         TRIREME_FAULT=f"sleep@step:rank0:{STEP_SECONDS - 0.05:.2f}s")
        run.wait_for(r"weights loaded|resuming after|step \d+/|saved ", 180)
        wait = self.chance.expovariate(1 / MEAN_SECONDS)
        try:
            run.process.wait(wait if wait < self.left() else 900)
        except subprocess.TimeoutExpired:  # still running: inject the fault
            pids = run.pids()
            if len(pids) == 4:
                return self.hurt(run, pids)
        code = run.end(900)
        assert code == 0, f"exit {code}:\n{run.text()[-3000:]}"
        return True

    def hurt(self, run, pids):
        rank, name = self.chance.randrange(4), self.chance.choice(list(self.counts))
        since = time.time()
        os.kill(pids[rank], getattr(signal, name))
        code = run.end(HANG_SECONDS + 10 if name == "SIGSTOP" else 20)
        took = time.time() - since
        self.counts[name] += 1
        self.slowest[name] = max(self.slowest.get(name, 0), took)
        print(f"{time.time() - self.begin:6.0f} s  life {self.lives}: {name} to rank {rank}: exit {code} after {took:.1f} s: "
              f"{run.last_words()[:150]}", flush=True)
        # A run that was at its end when the signal arrived may still succeed.
        expected = {"SIGKILL": (137, 71), "SIGSTOP": (71,), "SIGTERM": (75,)}[name]
        assert code in expected or code == 0, f"exit {code} after {name}:\n{run.text()[-3000:]}"
        return code == 0

    def round(self):
        """A complete run, with as many starts as necessary: the numbers equal those of the run without faults."""
        self.rounds += 1
        run_name, lives = f"parts{self.rounds}", self.lives
        while not self.life(run_name):
            pass
        self.site.same_run("whole", run_name)
        kept = os.listdir(f"{self.site.work}/{run_name}/checkpoints")
        assert not [name for name in kept if ".tmp" in name or "damaged" in name], f"left in checkpoints/: {kept}"
        print(f"{time.time() - self.begin:6.0f} s  run {self.rounds} over after {self.lives - lives} lives: every loss, gradient norm, evaluation "
              "and the weights equal those of the run that was left alone", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    shared_before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as work:
        soak = Soak(fault_site.Site(args, work), args)
        clean = soak.start("whole", "whole")
        assert clean.end(900) == 0, clean.text()[-2000:]
        soak.begin = time.time()
        while soak.left() > 0:
            soak.round()
        print(f"{soak.rounds} runs of {STEPS} steps, {soak.lives} lives in {time.time() - soak.begin:.0f} s, faults {soak.counts}, slowest end "
              f"{({k: round(v, 1) for k, v in soak.slowest.items()})}")
        left = [path for path, _, names in os.walk(soak.temporary) for _ in names]
        assert not left, f"left in TMPDIR: {left}"
        in_use = mapped_files()
        left = [name for name in set(os.listdir("/dev/shm")) - shared_before if f"/dev/shm/{name}" not in in_use and "vader" in name]
        assert not left, f"left in /dev/shm: {left}"
        left = orphans(work)
        assert not left, f"processes left: {left}"
        print("no process, temporary file or shared memory is left")


if __name__ == "__main__":
    main()
