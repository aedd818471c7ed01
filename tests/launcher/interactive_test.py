"""`trireme launch cluster_type=interactive` in a terminal: signals, Ctrl-Z, stty tostop, kill -9, a stdout that cannot be written.

interactive_test.py BIN [CASE…]. The ranks are scripts that load for a second, take steps, and save on SIGUSR1.
"""
import glob
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CTRL_C, CTRL_Z = b"\x03", b"\x1a"
RANK = """#!/bin/bash
echo begins; sleep 1
trap stop=1 USR1
for ((i = 1; i <= STEPS; i++)); do echo "step $i"; sleep 0.1; [[ -z $stop ]] || { echo saved; exit 75; }; done
"""


class Run:
    """A launch of two ranks, the leader of a session with a terminal."""

    def __init__(self, bin, folder, name, steps, tostop=False, stdout=None):
        self.name, self.folder, self.text = name, f"{folder}/results/{name}", ""
        program = f"{folder}/rank_{name}"
        with open(program, "w") as file:
            file.write(RANK)
        os.chmod(program, 0o755)
        command = [f"{bin}/trireme", "launch", f"{ROOT}/scripts/launch/conf/config.yaml", f"base_results_dir={folder}/results", "cluster=interactive",
                   "cluster_type=interactive", "training=gpt3/126m", f"training.run.name={name}", "training.trainer.num_nodes=1", "training.trainer.devices=2",
                   "training.model.data.data_impl=mock", "training.model.data.data_prefix=[]"]
        environment = dict(os.environ, STEPS=str(steps), TRIREME_PROGRAM=program, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1")
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            if tostop:
                subprocess.run(["stty", "tostop"])
            if stdout:
                os.dup2(os.open(stdout, os.O_WRONLY), 1)
            os.execve(command[0], command, environment)

    def read(self, seconds):
        """What the terminal shows within these seconds."""
        end = time.time() + seconds
        while select.select([self.terminal], [], [], max(0, end - time.time()))[0]:
            try:
                said = os.read(self.terminal, 65536).decode()
            except OSError:  # no process has the terminal any more
                time.sleep(max(0, end - time.time()))
                return
            self.text += said
            print(said, end="", flush=True)

    def processes(self, name):
        found = subprocess.run(["pgrep", "-f", f"{name}.*rank_{self.name} --config"], capture_output=True, text=True).stdout
        return found.split()

    def wait_for(self, condition, seconds=60):
        end = time.time() + seconds
        while not condition():
            assert time.time() < end, f"{self.name}: still waiting after {seconds} s:\n{self.text}"
            self.read(0.02)

    def wait_for_text(self, pattern):
        self.wait_for(lambda: re.search(pattern, self.text))

    def end(self):
        """The exit code, when all processes have ended."""
        status = []
        self.wait_for(lambda: status or (ended := os.waitpid(self.pid, os.WNOHANG))[0] and (status.append(ended[1]) or True), 30)
        self.read(0.1)
        self.wait_for(lambda: not self.processes(""), 10)
        return os.waitstatus_to_exitcode(status[0])

    def log(self):
        return open(glob.glob(f"{self.folder}/log-*.out")[0]).read()


def early(start):
    run = start(1000)
    run.wait_for(lambda: run.processes("^mpirun "))
    os.kill(run.pid, signal.SIGTERM)
    code = run.end()
    assert code in (75, 143), code


def loading(start):
    run = start(1000)
    run.wait_for_text("(?s)begins.*begins")
    os.write(run.terminal, CTRL_C)
    code = run.end()
    assert code == 130 and "a signal stopped it while it loaded" in run.text, code


def suspended(start):
    run = start(1000)
    run.wait_for_text("step 2")
    os.write(run.terminal, CTRL_Z)
    run.read(1)
    shown = len(run.text)
    run.read(1)
    assert len(run.text) == shown, "the ranks go on after Ctrl-Z"
    os.killpg(run.pid, signal.SIGCONT)
    run.wait_for(lambda: "step" in run.text[shown:])
    os.write(run.terminal, CTRL_C)
    code = run.end()
    assert code == 75 and run.log().count("saved") == 2, code


def tostop(start):
    run = start(3, tostop=True)
    assert run.end() == 0
    assert run.log().count("step 3") == 2


def full(start):
    run = start(3, stdout="/dev/full")
    code = run.end()
    assert code == 0 and run.log().count("step 3") == 2, code


def killed(start):
    run = start(1000)
    run.wait_for_text("step 2")
    os.kill(run.pid, signal.SIGKILL)
    assert run.end() == -signal.SIGKILL


if __name__ == "__main__":
    cases = (early, loading, suspended, tostop, full, killed)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            if case.__name__ in sys.argv[2:] or not sys.argv[2:]:
                case(lambda steps, **more: Run(sys.argv[1], folder, case.__name__, steps, **more))
