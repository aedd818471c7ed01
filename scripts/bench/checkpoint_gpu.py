#!/usr/bin/env python3
"""Measures the cost of an asynchronous checkpoint per step in a large full-parameter run on GPUs, and its load time.

    scripts/bench/checkpoint_gpu.py [--gpus 4] [--layers 32] [--before 30] [--write-seconds 60] [--keep-last 2] [--warm] [--folder DIR] [--bin build/release/bin]

The Llama2-7B shape on random weights and tokens, sharded over all GPUs, one process each. The number of layers is reduced if
--keep-last checkpoints and one more do not fit on the disk (such a run is refused) or if writing one would take longer than
--write-seconds. Runs `before` steps without a save, starts one save, and measures the next `before` steps while it is written. Then
the ranks are killed and started again, and load the checkpoint. For comparison dd writes and reads on the same disk with as many
writers as ranks. Results are printed as soon as they are known.
"""
import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np


def events(path, kind):
    found = []
    try:
        for line in open(path):
            if line.endswith("\n"):
                found.append(json.loads(line))
    except OSError:
        pass
    return [event for event in found if event["event"] == kind]


class Ranks:
    def __init__(self, args, work, log, *overrides):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log, self.started = f"{work}/{log}", time.time()
        self.processes = []
        for rank in range(args.gpus):
            environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(args.gpus), LOCAL_WORLD_SIZE=str(args.gpus),
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            command = [f"{args.bin}/train_llama", "--config", f"{work}/run.yaml"]
            for override in overrides:
                command += ["--set", override]
            self.processes.append(subprocess.Popen(command, env=environment, stdout=open(self.log, "ab"), stderr=subprocess.STDOUT))

    def wait_for(self, condition, seconds):
        end = time.time() + seconds
        while not condition():
            if any(process.poll() is not None for process in self.processes) or time.time() > end:
                self.kill()
                sys.exit(f"{open(self.log, errors='replace').read()[-3000:]}\nthe ranks ended, or {seconds} s were not enough")
            time.sleep(0.1)

    def kill(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def rate(size, seconds):
    return f"{size / seconds / 2**30:.2f} GiB/s"


def forget(paths):
    """Drops the files from the page cache; they are already on the disk."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def plain(folder, writers, size):
    """dd with as many writers as ranks: bytes per second written with fsync, and read back."""
    blocks = max(1, size // writers // (1 << 24))

    def at_once(commands):
        begin = time.time()
        for process in [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]:
            process.wait()
        return (writers * blocks << 24) / (time.time() - begin)
    files = [f"{folder}/plain{i}" for i in range(writers)]
    wrote = at_once([["dd", "if=/dev/zero", f"of={path}", "bs=16M", f"count={blocks}", "conv=fsync"] for path in files])
    forget(files)
    read = at_once([["dd", f"if={path}", "of=/dev/null", "bs=16M"] for path in files])
    for path in files:
        os.remove(path)
    return wrote, read


def state_bytes(layers):
    """fp32 master weights and two moments of the 7B shape."""
    return 12 * (layers * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 32000 * 4096 + 4096)


def affordable_layers(args, work, speed):
    for layers in range(args.layers, 0, -1):
        if (args.keep_last + 1.03) * state_bytes(layers) <= shutil.disk_usage(work).free and state_bytes(layers) / speed <= args.write_seconds:
            return layers
    sys.exit(f"{work}: {shutil.disk_usage(work).free / 2**30:.0f} GiB free at {speed / 2**30:.2f} GiB/s: not even one layer")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--before", type=int, default=30)
    parser.add_argument("--write-seconds", type=float, default=60)
    parser.add_argument("--keep-last", type=int, default=2, help="output.keep_last: this many checkpoints and the one being written must fit on the disk")
    parser.add_argument("--plain-gib", type=int, default=8, help="size that dd writes")
    parser.add_argument("--warm", action="store_true", help="load with a warm page cache")
    parser.add_argument("--seconds", type=int, default=300, help="limit of each wait")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    work = tempfile.mkdtemp(dir=args.folder, prefix="checkpoint-")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    ranks = None
    try:
        wrote, read = plain(work, args.gpus, args.plain_gib << 30)
        args.layers = affordable_layers(args, work, wrote)
        print(f"dd, {args.gpus} at once, {args.plain_gib} GiB: write with fsync {wrote / 2**30:.2f} GiB/s, cold read {read / 2**30:.2f} GiB/s; "
              f"{args.layers} layers = {state_bytes(args.layers) / 2**30:.1f} GiB a checkpoint", flush=True)
        json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096, intermediate_size=11008,
                       num_hidden_layers=args.layers, num_attention_heads=32, num_key_value_heads=32, vocab_size=32000,
                       max_position_embeddings=4096, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False,
                       initializer_range=0.02), open(f"{work}/config.json", "w"))
        np.save(f"{work}/train.npy", np.random.default_rng(0).integers(3, 32000, size=(256, 4096)).astype(np.int32))
        steps, every = 100000, args.before * args.gpus
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: ., init: random}}
data: {{train: train.npy, seq_length: 4096}}
batch: {{global_batch_size: {args.gpus}, micro_batch_size: 1}}
optimizer: {{lr: 1.0e-5}}
parallel: {{shard_size: world}}
train: {{max_steps: {steps}}}
output: {{dir: run, save_every_samples: {every}, keep_last: {args.keep_last}}}
logging: {{every_steps: 100}}
""")
        metrics = f"{work}/run/metrics.jsonl"
        ranks = Ranks(args, work, "first.log", *args.set)
        ranks.wait_for(lambda: events(metrics, "train"), args.seconds)
        print(f"first step after {time.time() - ranks.started:.1f} s", flush=True)
        ranks.wait_for(lambda: events(metrics, "save"), args.seconds)
        save = events(metrics, "save")[0]
        ranks.kill()
        times = {event["step"]: event["step_time_s"] for event in events(metrics, "train")}
        # The copy to the host is part of the pause, not of a step's time.
        elapsed, during, step = 0.0, [], save["step"] + 1
        while step in times and step <= 2 * save["step"] and elapsed < save["seconds"] - save["pause_s"]:
            during.append(times[step])
            elapsed += times[step]
            step += 1
        before = [times[s] for s in range(6, save["step"] + 1) if s in times]
        size = save["bytes"]

        def ms(values):
            return f"{statistics.median(values) * 1e3:.1f} ms ({min(values) * 1e3:.1f}-{max(values) * 1e3:.1f}, {len(values)} steps)" if values else "none"
        print(f"{args.gpus} GPUs, {args.layers} layers, a checkpoint of {size / 2**30:.1f} GiB: steps before {ms(before)}; during the save {ms(during)}")
        if during and before:
            print(f"overhead while it is written: median {100 * (statistics.median(during) / statistics.median(before) - 1):+.1f} %, "
                  f"mean {100 * (statistics.mean(during) / statistics.mean(before) - 1):+.1f} %")
        print(f"the step waits {save['pause_s']:.2f} s for the copy ({rate(size, save['pause_s'])} over all ranks), written with fsync in "
              f"{save['write_s']:.1f} s ({rate(size, save['write_s'])}), committed after {save['seconds']:.1f} s", flush=True)
        os.rename(f"{work}/run/metrics.jsonl", f"{work}/first.jsonl")
        checkpoint = f"{work}/run/checkpoints/step-{save['step']:08}"
        if not args.warm:
            forget([f"{checkpoint}/{name}" for name in os.listdir(checkpoint)])
        ranks = Ranks(args, work, "second.log", *args.set)
        ranks.wait_for(lambda: len(events(metrics, "train")) >= 3, args.seconds)
        ranks.kill()
        loaded = re.search(r"checked and loaded in .*", open(f"{work}/second.log", errors="replace").read())
        print(f"load ({'warm' if args.warm else 'cold'} page cache): {loaded[0] if loaded else 'no message in the log'}", flush=True)
    finally:
        if ranks is not None:
            ranks.kill()
        for log in ("first.log", "second.log"):
            if os.path.exists(f"{work}/{log}") and os.environ.get("KEEP_LOGS"):
                shutil.copy(f"{work}/{log}", os.environ["KEEP_LOGS"])
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
