"""A trainer started as a user starts it, on the files of a directory."""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from tiny_llama import write_llama

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "parity"))
from needed import needed  # noqa: E402

with needed():
    import numpy as np  # noqa: F401  of the tests


def go_on(pid):
    """Continues a process that its fault (sigstop@…) stops, with the signals that it was sent before: they come exactly there."""
    end = time.time() + 60
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "T":
        assert time.time() < end, f"process {pid} does not stop"
        time.sleep(0.02)
    os.kill(pid, signal.SIGCONT)


def last_line(text):
    return [line for line in text.splitlines() if line.strip()][-1]


class RunSite:
    """`work`/run.yaml is the configuration; a run's output.dir is named relative to `work`."""

    program = ""
    limit_s = 200

    def __init__(self, args, work):
        self.args, self.work = args, work

    def command(self, *overrides, ranks=0, extra=(), program=None):
        launch = []
        if ranks:
            launch = [self.args.mpirun, "-n", str(ranks), "--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
        command = launch + [f"{self.args.bin}/{program or self.program}", "--config", f"{self.work}/run.yaml", *extra]
        for override in overrides:
            command += ["--set", override]
        return command

    def train(self, *overrides, ranks=0, expect=0, extra=(), program=None, **environment):
        done = subprocess.run(self.command(*overrides, ranks=ranks, extra=extra, program=program), capture_output=True, text=True, timeout=self.limit_s,
                              env={**os.environ, **environment})
        assert done.returncode == expect, f"exit {done.returncode}, expected {expect}, of {overrides}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        return done

    def tool(self, *arguments, expect=0):
        """`trireme` with these arguments; relative paths count from `work`."""
        done = subprocess.run([f"{self.args.bin}/trireme", *map(str, arguments)], capture_output=True, text=True, cwd=self.work)
        assert done.returncode == expect, f"exit {done.returncode}, expected {expect}, of {arguments}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        return done

    def make_llama(self, layers, vocabulary, positions):
        """A small model with random weights in `work`/base."""
        write_llama(f"{self.work}/base", vocabulary, layers, positions)

    def metrics(self, run, event="train"):
        return [line for line in map(json.loads, open(f"{self.work}/{run}/metrics.jsonl")) if line["event"] == event]


def main(cases, site):
    """Runs the case that the command line names on a site of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("--case", required=True)
    args = parser.parse_args()
    begin = time.time()
    with tempfile.TemporaryDirectory() as work:
        cases[args.case](site(args, work))
    print(f"{args.case}: {time.time() - begin:.1f} s")
