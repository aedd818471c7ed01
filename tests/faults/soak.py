#!/usr/bin/env python3
"""Soak (fault F39): four ranks, and every 30 s on average one of them is killed, stopped or told to end, for so many minutes.

soak.py --bin BIN --mpirun MPIRUN --minutes 20 [--seed 1]

In the end every loss and the weights equal those of a run that was left alone, and nothing is left behind: no process, no temporary
directory, no shared memory. Exit code 77 = skipped.
"""
import argparse
import glob
import os
import random
import signal
import tempfile
import time

import fault_site

MEAN_SECONDS, HANG_SECONDS, STEP_SECONDS = 30, 5, 0.3


def mapped_files():
    found = set()
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            found.update(line.split(None, 5)[-1].strip() for line in open(maps) if "/dev/shm/" in line)
        except OSError:
            pass
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    shared_before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as work:
        site = fault_site.Site(args, work)
        temporary = f"{work}/tmp"
        os.mkdir(temporary)
        steps = int(args.minutes * 60 * 0.7 / STEP_SECONDS)
        settings = (f"train.max_steps={steps}", "output.save_every_samples=160", f"eval.every_samples={8 * (steps // 4)}", "logging.every_steps=50")
        clean = site.start("output.dir=whole", *settings, name="whole", TMPDIR=temporary)
        lives, counts, slowest = 0, {"SIGKILL": 0, "SIGSTOP": 0, "SIGTERM": 0}, {}
        begin = time.time()
        while True:
            lives += 1
            run = site.start("output.dir=parts", *settings, name=f"life{lives}", TMPDIR=temporary,
                             TRIREME_FAULT=f"sleep@step:rank0:{STEP_SECONDS - 0.05:.2f}s", TRIREME_HANG_SECONDS=str(HANG_SECONDS))
            run.wait_for(r"weights loaded|resuming after|step \d+/|saved ", 60)
            wait = chance.expovariate(1 / MEAN_SECONDS)
            try:
                run.process.wait(wait if time.time() - begin + wait < args.minutes * 60 else None)
            except Exception:  # still at work: now something happens to it
                pids = run.pids()
                if len(pids) == 4:
                    rank, name = chance.randrange(4), chance.choice(list(counts))
                    since = time.time()
                    os.kill(pids[rank], getattr(signal, name))
                    code = run.end(HANG_SECONDS + 10)
                    took = time.time() - since
                    counts[name] += 1
                    slowest[name] = max(slowest.get(name, 0), took)
                    print(f"{time.time() - begin:6.0f} s  life {lives}: {name} to rank {rank}: exit {code} after {took:.1f} s: {run.last_words()[:150]}", flush=True)
                    # A run that was at its end when the signal came may still end well.
                    expected = {"SIGKILL": (137, 71), "SIGSTOP": (71,), "SIGTERM": (75,)}[name]
                    assert code in expected or code == 0, f"exit {code} after {name}:\n{run.text()[-3000:]}"
                    if code != 0:
                        continue
            code = run.end(200)
            assert code == 0, f"exit {code}:\n{run.text()[-3000:]}"
            break
        print(f"{lives} lives in {time.time() - begin:.0f} s, faults {counts}, slowest end {({k: round(v, 1) for k, v in slowest.items()})}")
        assert clean.end(600) == 0, clean.text()[-2000:]
        site.same_run("whole", "parts")
        print(f"{steps} steps: every loss, gradient norm, evaluation and the weights equal those of the run that was left alone")
        left = [d for d in os.listdir(f"{work}/parts/checkpoints") if ".tmp" in d or "damaged" in d]
        assert not left, f"left in checkpoints/: {left}"
        left = [path for path, _, names in os.walk(temporary) for _ in names]
        assert not left, f"left in TMPDIR: {left}"
        in_use = mapped_files()
        left = [name for name in set(os.listdir("/dev/shm")) - shared_before if f"/dev/shm/{name}" not in in_use and "vader" in name]
        assert not left, f"left in /dev/shm: {left}"
        assert not run.pids(), run.pids()


if __name__ == "__main__":
    main()
