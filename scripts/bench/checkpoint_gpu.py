#!/usr/bin/env python3
"""What an asynchronous checkpoint of a large full-parameter run costs its steps, on GPUs; then how fast it is loaded again.

    scripts/bench/checkpoint_gpu.py [--gpus 4] [--layers 32] [--before 250] [--after 20] [--folder DIR] [--bin build/release/bin]

The Llama2-7B shape (fewer --layers where the disk is small: a run is refused where three checkpoints do not fit) on random weights and tokens,
sharded over all GPUs, one process each. `before` steps without a save, one save, its writing beside the steps, `after` more steps; then the
ranks are killed, and started again they load what was saved. Beside it dd writes and reads as many bytes on the same disk. The next save
is due after `before` more steps and waits for the first: give more of them where the disk is slow.
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
            process.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()


def rate(size, seconds):
    return f"{size / seconds / 2**30:.2f} GiB/s"


def plain(folder, writers, size):
    """dd with as many writers as ranks."""
    blocks = max(1, size // writers // (1 << 24))

    def at_once(commands):
        begin = time.time()
        for process in [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]:
            process.wait()
        return rate(writers * blocks << 24, time.time() - begin)
    files = [f"{folder}/plain{i}" for i in range(writers)]
    wrote = at_once([["dd", "if=/dev/zero", f"of={path}", "bs=16M", f"count={blocks}", "conv=fsync"] for path in files])
    read = at_once([["dd", f"if={path}", "of=/dev/null", "bs=16M"] for path in files])
    for path in files:
        os.remove(path)
    return f"dd, {writers} at once: write with fsync {wrote}, read (warm) {read}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--before", type=int, default=250)
    parser.add_argument("--after", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=300, help="limit for each of the two parts")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    work = tempfile.mkdtemp(dir=args.folder, prefix="checkpoint-")
    try:
        json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096, intermediate_size=11008,
                       num_hidden_layers=args.layers, num_attention_heads=32, num_key_value_heads=32, vocab_size=32000,
                       max_position_embeddings=4096, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False,
                       initializer_range=0.02), open(f"{work}/config.json", "w"))
        np.save(f"{work}/train.npy", np.random.default_rng(0).integers(3, 32000, size=(256, 1024)).astype(np.int32))
        steps, every = 100000, args.before * args.gpus
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: ., init: random}}
data: {{train: train.npy, seq_length: 1024}}
batch: {{global_batch_size: {args.gpus}, micro_batch_size: 1}}
optimizer: {{lr: 1.0e-5}}
parallel: {{shard_size: world}}
train: {{max_steps: {steps}}}
output: {{dir: run, save_every_samples: {every}}}
logging: {{every_steps: 100}}
""")
        metrics = f"{work}/run/metrics.jsonl"
        ranks = Ranks(args, work, "first.log", *args.set)
        ranks.wait_for(lambda: events(metrics, "save"), args.seconds)
        save = events(metrics, "save")[0]
        reached = events(metrics, "train")[-1]["step"]
        ranks.wait_for(lambda: events(metrics, "train")[-1]["step"] >= reached + args.after, args.seconds)
        ranks.kill()
        times = {event["step"]: event["step_time_s"] for event in events(metrics, "train")}
        begin = save["step"] + 1
        # A step is beside the save while the writing goes on; the numbers of a step come with the next one's.
        elapsed, during, step = 0.0, [], begin
        while step in times and step <= 2 * save["step"] and elapsed < save["seconds"]:
            during.append(times[step])
            elapsed += times[step]
            step += 1
        before = [times[s] for s in range(6, begin) if s in times]
        size = save["bytes"]

        def ms(values):
            return f"{statistics.median(values) * 1e3:.1f} ms ({min(values) * 1e3:.1f}-{max(values) * 1e3:.1f}, {len(values)} steps)" if values else "none"
        print(f"{args.gpus} GPUs, {args.layers} layers: a checkpoint of {size / 2**30:.1f} GiB")
        print(f"steps before {ms(before)}; beside the save {ms(during)}")
        if during:
            print(f"overhead while it is written: median {100 * (statistics.median(during) / statistics.median(before) - 1):+.1f} %, "
                  f"mean {100 * (statistics.mean(during) / statistics.mean(before) - 1):+.1f} %")
        print(f"the step waits {save['pause_s']:.2f} s for the copy ({rate(size, save['pause_s'])} over all ranks), written with fsync in "
              f"{save['write_s']:.1f} s ({rate(size, save['write_s'])}), committed after {save['seconds']:.1f} s", flush=True)
        os.rename(f"{work}/run/metrics.jsonl", f"{work}/first.jsonl")
        ranks = Ranks(args, work, "second.log", *args.set)
        ranks.wait_for(lambda: len(events(metrics, "train")) >= 3, args.seconds)
        ranks.kill()
        loaded = re.search(r"checked and loaded in .*", open(f"{work}/second.log", errors="replace").read())
        print(f"load (warm page cache): {loaded[0] if loaded else 'nothing said'}", flush=True)
        shutil.rmtree(f"{work}/run")
        print(plain(work, args.gpus, size), flush=True)
    finally:
        for log in ("first.log", "second.log"):
            if os.path.exists(f"{work}/{log}") and os.environ.get("KEEP_LOGS"):
                shutil.copy(f"{work}/{log}", os.environ["KEEP_LOGS"])
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
