"""A small model, data and configuration, and ranks of train_llama in which the fault tests inject faults."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
import run_site  # noqa: E402
from run_site import needed, np  # noqa: E402, F401  of the tests
from tiny_llama import write_llama  # noqa: E402

SEQ, VOCAB = 48, 120
LORA = "lora: {r: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, k_proj, v_proj, o_proj]}\n"


def patient(seconds):
    """Seconds of an idle machine, on this one: beside other work everything takes longer."""
    return seconds * (1 + os.getloadavg()[0] / os.cpu_count())


class Ranks:
    """A run under mpirun (or alone) in the background."""

    def __init__(self, command, environment, log):
        self.log, self.started = log, time.time()
        with open(log, "w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True)

    def text(self):
        return open(self.log, errors="replace").read()

    def pids(self):
        """Process of every rank, found by its environment."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                if os.getsid(int(entry)) != self.process.pid and os.getpgid(int(entry)) != self.process.pid:
                    # mpirun starts every rank in a separate process group, so the session identifies them.
                    continue
                command = open(f"/proc/{entry}/cmdline").read().split("\0")
                environment = dict(part.split("=", 1) for part in open(f"/proc/{entry}/environ").read().split("\0") if "=" in part)
            except OSError:
                continue
            if os.path.basename(command[0]) in ("train_llama", "rank_driver"):
                found[int(environment.get("OMPI_COMM_WORLD_RANK", 0))] = int(entry)
        return found

    def wait_for(self, pattern, seconds=60):
        seconds = patient(seconds)
        end = time.time() + seconds
        while time.time() < end:
            if re.search(pattern, self.text()):
                return
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {pattern!r}:\n{self.text()[-3000:]}"
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} after {seconds} s:\n{self.text()[-3000:]}")

    def end(self, seconds):
        """Exit code; every rank must have ended too."""
        seconds, begin = patient(seconds), time.time()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            text = self.text()
            self.kill()
            raise AssertionError(f"still there after {seconds} s:\n{text[-3000:]}")
        while self.pids() and time.time() - begin < seconds:
            time.sleep(0.05)
        left = self.pids()
        self.kill()
        assert not left, f"orphans: {left}"
        self.seconds = time.time() - begin
        return self.process.returncode

    def kill(self):
        for pid in [*self.pids().values(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def last_words(self):
        """The last line of a rank; mpirun's message about a dead process may follow it."""
        lines = [line for line in self.text().splitlines() if re.match(r"(\d\d:\d\d:\d\d )?(rank \d+ |train_llama: |step |eval )", line)]
        return lines[-1] if lines else ""


class Site:
    def __init__(self, args, work, lora=True):
        self.args, self.work = args, work
        write_llama(f"{work}/base", VOCAB)
        rng = np.random.default_rng(5)
        np.save(f"{work}/train.npy", rng.integers(0, VOCAB, size=(40, SEQ)).astype(np.int32))
        np.save(f"{work}/valid.npy", rng.integers(0, VOCAB, size=(28, SEQ)).astype(np.int32))
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base}}
{LORA if lora else ""}data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: 8, micro_batch_size: 1}}
optimizer: {{lr: 1.0e-3}}
train: {{max_steps: 12}}
output: {{dir: run}}
""")

    def launch(self, ranks):
        return [self.args.mpirun, "-n", str(ranks), "--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])

    def command(self, *overrides, ranks=4):
        command = (self.launch(ranks) if ranks else []) + [f"{self.args.bin}/train_llama", "--config", f"{self.work}/run.yaml"]
        for override in overrides:
            command += ["--set", override]
        return command

    def environment(self, **variables):
        return os.environ | {"TRIREME_DEVICE": "cpu", "OMP_NUM_THREADS": "1"} | variables

    def start(self, *overrides, ranks=4, name="log", **variables):
        return Ranks(self.command(*overrides, ranks=ranks), self.environment(**variables), f"{self.work}/{name}.txt")

    def train(self, *overrides, ranks=4, expect=0, seconds=100, name="log", **variables):
        run = self.start(*overrides, ranks=ranks, name=name, **variables)
        code = run.end(seconds)
        assert code == expect, f"exit {code}, expected {expect}:\n{run.text()[-4000:]}"
        return run

    def metrics(self, run, event="train"):
        return [line for line in map(json.loads, open(f"{self.work}/{run}/metrics.jsonl")) if line["event"] == event]

    def checkpoints(self, run):
        folder = f"{self.work}/{run}/checkpoints"
        return sorted(int(name[5:]) for name in os.listdir(folder) if re.fullmatch(r"step-\d+", name)) if os.path.isdir(folder) else []

    def adapter(self, run):
        with open(f"{self.work}/{run}/adapter/adapter_model.safetensors", "rb") as file:
            return file.read()

    def same_run(self, whole, parts):
        a, b = self.metrics(whole), self.metrics(parts)
        assert [m["step"] for m in a] == [m["step"] for m in b], ([m["step"] for m in a], [m["step"] for m in b])
        for x, y in zip(a, b):
            assert x["loss"] == y["loss"] and x["grad_norm"] == y["grad_norm"], (x, y)
        for x, y in zip(self.metrics(whole, "eval"), self.metrics(parts, "eval"), strict=True):
            assert x["step"] == y["step"] and x["loss"] == y["loss"], (x, y)
        assert self.adapter(whole) == self.adapter(parts), "the weights differ"


def reserved_port():
    """A socket whose port no other process gets while it is open: it does not listen, so that a listener with SO_REUSEADDR, as rank 0's is, takes the port."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    return port


def process_shim(work):
    """process_shim.c, compiled for LD_PRELOAD."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("SKIPPED: no C compiler for the shim for the clock and the memory")
        sys.exit(77)
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "process_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", f"{work}/process_shim.so", source], check=True)
    return f"{work}/process_shim.so"


def main(cases):
    run_site.main(cases, Site)
