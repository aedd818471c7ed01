#!/usr/bin/env python3
"""Faults of GPUs: out of memory (F34), invalid CUDA_VISIBLE_DEVICES (F35), dead and hung ranks of NCCL (F1, F4). Exit code 77 = skipped."""
import concurrent.futures
import ctypes
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import fault_site
from fault_site import np

HOST = re.escape(socket.gethostname())


def gpus():
    """The GPUs that this process may use, in the notation of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout if shutil.which("nvidia-smi") else ""
    return re.findall(r"^GPU (\d+)", listed, re.M)


def need_gpus(count):
    found = len(gpus())
    if found < count:
        print(f"SKIPPED: {count} GPU{'s' if count > 1 else ''} needed, this machine has {found}")
        sys.exit(77)


def on_gpus(site, **variables):
    environment = site.environment(**variables)
    if "TRIREME_DEVICE" not in variables:
        del environment["TRIREME_DEVICE"]
    return {name: value for name, value in environment.items() if value is not None}


class Hog:
    """Allocates all of GPU 0's memory except the given number of bytes, through the driver's interface."""

    def __init__(self, leave):
        driver = ctypes.CDLL("libcuda.so.1")
        def call(name, *arguments):
            code = getattr(driver, name)(*arguments)
            assert code == 0, f"{name}: CUDA error {code}"
        device, context, self.memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(free.value - leave))
        self.call = call

    def free(self):
        self.call("cuMemFree_v2", self.memory)


def memory(site):
    """F34: another process holds the GPU: too little for the weights and moments, then too little for the first step only."""
    need_gpus(1)
    np.save(f"{site.work}/long.npy", np.random.default_rng(2).integers(3, 32000, size=(64, 2048)).astype(np.int32))
    with open(f"{site.work}/config.json", "w") as out:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16,
                   "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
                   "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", "hidden_act": "silu"}, out)
    overrides = ["lora=null", "data.seq_length=2048", "batch.micro_batch_size=32", "batch.global_batch_size=32", "model.init=random",
                 "train.max_steps=2", "model.path=config.json", "data.train=long.npy", "data.valid=null", "parallel.recompute=none"]
    for leave, where in ((2, "state"), (12, "step")):
        hog = Hog(leave << 30)
        try:
            begin = time.time()
            done = subprocess.run(site.command(*overrides, f"output.dir=oom{leave}", ranks=0), capture_output=True, text=True, timeout=120,
                                  env=on_gpus(site))
        finally:
            hog.free()
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 2 and "is out of memory: the plan counts weights" in last, (leave, done.returncode, done.stderr[-3000:])
        for word in ("master weights", "moments", "gradients", "activations", "the allocator's peak was", "batch.micro_batch_size: 16"):
            assert word in last, (word, last)
        print(f"{leave} GiB left ({where}): exit 2 after {time.time() - begin:.1f} s: {last}")
    # When the memory is free again the same command runs.
    done = subprocess.run(site.command(*overrides, "output.dir=oom12", ranks=0), capture_output=True, text=True, timeout=120, env=on_gpus(site))
    assert done.returncode == 0 and len(site.metrics("oom12")) == 2, done.stderr[-2000:]


def devices(site):
    """F35: CUDA_VISIBLE_DEVICES with absent GPUs, a GPU twice, or none: the run does not use the CPU without a message."""
    need_gpus(1)
    for visible, expect in (("97", "names 1 GPU, and CUDA shows 0"), ("0,97", "names 2 GPUs, and CUDA shows 1"), ("0,0", "names 2 GPUs, and CUDA shows"),
                            ("GPU-00000000-0000-0000-0000-000000000000", "names 1 GPU, and CUDA shows 0"), ("all", "names 1 GPU, and CUDA shows 0")):
        done = subprocess.run(site.command("output.dir=odd", ranks=0), capture_output=True, text=True, timeout=60, env=on_gpus(site, CUDA_VISIBLE_DEVICES=visible))
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 2 and expect in last and f"CUDA_VISIBLE_DEVICES='{visible}'" in last, (visible, done.returncode, done.stderr[-2000:])
        assert not os.path.exists(f"{site.work}/odd"), visible
        print(f"CUDA_VISIBLE_DEVICES={visible}: exit 2: {last[:170]}")
    # With an empty list the user asks for the CPU, and the run says that it uses the CPU.
    done = subprocess.run(site.command("output.dir=hidden", "train.max_steps=1", ranks=0), capture_output=True, text=True, timeout=60,
                          env=on_gpus(site, CUDA_VISIBLE_DEVICES=""))
    assert done.returncode == 0, done.stderr[-2000:]
    devices_used = site.metrics("hidden", "run")[0]["devices"]
    assert "NVIDIA" not in devices_used[0], devices_used
    done = subprocess.run(site.command("output.dir=typo", ranks=0), capture_output=True, text=True, timeout=60, env=on_gpus(site, TRIREME_DEVICE="gpu0"))
    assert done.returncode == 2 and "TRIREME_DEVICE='gpu0'" in done.stderr, done.stderr
    # Two ranks that see one and the same GPU.
    ranks = start_ranks(site, 2, "shared", CUDA_VISIBLE_DEVICES="0")
    codes, texts = end_ranks(ranks, 60)
    assert all(code == 2 for code in codes) and any("share the GPU" in text for text in texts), (codes, texts)
    print("two ranks on one GPU: exit 2: " + [line for line in texts[0].splitlines() if "share" in line][-1])


def bits(site):
    """train.deterministic: a run in two lives has the bits of one without a break. Rows of several key tiles, whose sums attention's backward orders."""
    need_gpus(1)
    rows = np.random.default_rng(2).integers(3, 32000, size=(64, 1024)).astype(np.int32)
    np.save(f"{site.work}/long.npy", rows)
    with open(f"{site.work}/config.json", "w") as out:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
                   "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", "hidden_act": "silu"}, out)
    common = ["lora=null", "data.seq_length=1024", "batch.micro_batch_size=4", "batch.global_batch_size=8", "model.init=random", "model.path=config.json",
              "data.train=long.npy", "data.valid=null", "schedule.name=constant", "output.save_every_samples=16", "train.deterministic=true"]

    def lives(run, steps, *overrides):
        for step in steps:
            done = subprocess.run(site.command(*common, *overrides, f"output.dir={run}", f"train.max_steps={step}", ranks=0), capture_output=True, text=True,
                                  timeout=120, env=on_gpus(site))
            assert done.returncode == 0, done.stderr[-3000:]
        return [(m["step"], m["loss"], m["grad_norm"]) for m in site.metrics(run)]

    for name, settings in (("bf16", []), ("rowwise", ["precision.linear=fp8"]), ("delayed", ["precision.linear=fp8", "precision.fp8_recipe=delayed"])):
        whole, parts = lives(f"{name}-whole", [12], *settings), lives(f"{name}-parts", [6, 12], *settings)
        assert len(whole) == 12 and whole == parts, f"{name}: {[pair for pair in zip(whole, parts) if pair[0] != pair[1]][:2]}"
        print(f"{name}: 12 steps, in one life and in two: loss {whole[-1][1]!r}, gradient norm {whole[-1][2]!r}")


def start_ranks(site, count, name, *overrides, command=None, **variables):
    port = fault_site.reserved_port()
    ranks = []
    for rank in range(count):
        environment = on_gpus(site, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1",
                              MASTER_PORT=str(port.getsockname()[1]), **variables)
        with open(f"{site.work}/{name}-{rank}.txt", "w") as out:
            process = subprocess.Popen(command or site.command(f"output.dir={name}", *overrides, ranks=0), stdout=out, stderr=subprocess.STDOUT, env=environment)
        process.port = port  # reserved while the process is referred to
        ranks.append((process, out.name))
    return ranks


def text_of(ranks):
    return [open(path, errors="replace").read() for _, path in ranks]


def wait_for(ranks, pattern, seconds):
    end = time.time() + seconds
    while not any(re.search(pattern, text) for text in text_of(ranks)):
        if time.time() > end:
            for process, _ in ranks:
                process.kill()
                process.wait()
            raise AssertionError(f"no {pattern!r} after {seconds} s: {text_of(ranks)}")
        time.sleep(0.05)
    return time.time()


def end_ranks(ranks, seconds):
    end, late = time.time() + seconds, []
    for rank, (process, _) in enumerate(ranks):
        try:
            process.wait(max(0.1, end - time.time()))
        except subprocess.TimeoutExpired:
            late.append(rank)
            process.kill()
            process.wait()
    assert not late, f"ranks {late} were still there after {seconds} s: {text_of(ranks)}"
    return [process.returncode for process, _ in ranks], text_of(ranks)


def lost_rank(site, victim, devices):
    """A death or a hang of one of two ranks that only run all-reduces."""
    driver = [f"{site.args.bin}/../tests/rank_driver", "1000000"]
    for fault, limit, words in ((f"sigkill@rank{victim}:step50", 10, rf"rank {victim} on {HOST} \(process \d+\) died in step (49|50)"),
                                (f"crash@rank{victim}:step50", 10, rf"rank {victim} on {HOST} \(process \d+\) died in step (49|50)"),
                                (f"sigstop@rank{victim}:step50", 20, rf"rank {victim} on {HOST} never reached #\d+ all_reduce\[1048576\] on world \(step 50.*stopped"),
                                (f"sleep@reduce:rank{victim}:step50:600s", 20, rf"rank {victim} on {HOST} never reached #\d+ all_reduce\[1048576\] on world \(step 50")):
        kind = fault.split("@")[0]
        ranks = start_ranks(site, 2, f"{kind}{victim}", command=driver, CUDA_VISIBLE_DEVICES=devices, TRIREME_FAULT=fault, TRIREME_HANG_SECONDS="10")
        begin = wait_for(ranks, "fault injected", 60)
        codes, texts = end_ranks(ranks, limit)
        took = time.time() - begin
        expected = {"sigkill": -signal.SIGKILL, "crash": -signal.SIGSEGV}.get(kind, 71)
        assert codes[victim] == expected and codes[1 - victim] == 71, (fault, codes, texts)
        found = [line for text in texts for line in text.splitlines() if re.search(words, line)]
        assert found, (fault, texts)
        if kind == "sleep":
            assert any(f"the training thread of rank {victim} on" in text and "fault_point" in text for text in texts), texts
        print(f"{fault}: all gone after {took:.1f} s, exit codes {codes}: {found[-1][:200]}", flush=True)


def stopped_while_parting(site, victim, devices):
    """A rank that stops at the end, before or during the final barrier: with rendezvous through the store, and through MPI."""
    driver = [f"{site.args.bin}/../tests/rank_driver", "5"]
    words = rf"rank {victim} on {HOST} .*#\d+ (ncclCommDestroy\[0\]|part\[0\]|MPI_Finalize\[0\]|barrier\[0\]|all_gather_host\[\d+\]) on world"
    settings = dict(CUDA_VISIBLE_DEVICES=devices, TRIREME_FAULT=f"sigstop@part:rank{victim}", TRIREME_HANG_SECONDS="10")
    ranks = start_ranks(site, 2, f"part{victim}", command=driver, **settings)
    begin = wait_for(ranks, "fault injected", 60)
    codes, texts = end_ranks(ranks, 20)
    assert codes == [71, 71] and any(re.search(words, text) for text in texts), (codes, texts)
    print(f"sigstop@part:rank{victim}, met through the store: all gone after {time.time() - begin:.1f} s", flush=True)
    run = fault_site.Ranks(site.launch(2) + driver, on_gpus(site, **settings), f"{site.work}/part-mpi{victim}.txt")
    run.wait_for("fault injected", 60)
    code = run.end(20)
    assert code == 71 and re.search(words, run.text()), (code, run.text()[-3000:])
    found = [line for line in run.text().splitlines() if re.search(words, line)]
    print(f"sigstop@part:rank{victim}, under mpirun: all gone after {run.seconds:.1f} s: {found[-1][:200]}", flush=True)


def killed_and_resumed(site, devices):
    """A complete run over NCCL: killed and started again, the numbers equal those of a run without faults."""
    settings = ("output.save_every_samples=16", "logging.every_steps=100", "train.max_steps=12")
    codes, texts = end_ranks(start_ranks(site, 2, "whole", *settings, CUDA_VISIBLE_DEVICES=devices), 120)
    assert codes == [0, 0], texts
    ranks = start_ranks(site, 2, "parts", *settings, CUDA_VISIBLE_DEVICES=devices, TRIREME_FAULT="sigkill@rank1:step8")
    begin = wait_for(ranks, "fault injected", 90)
    codes, texts = end_ranks(ranks, 10)
    took = time.time() - begin
    assert codes == [71, -signal.SIGKILL], (codes, texts)
    codes, texts = end_ranks(start_ranks(site, 2, "parts", *settings, CUDA_VISIBLE_DEVICES=devices), 120)
    assert codes == [0, 0] and "resuming after step" in texts[0], texts
    site.same_run("whole", "parts")
    print(f"train_llama on two GPUs: rank 1 killed in step 8, rank 0 gone after {took:.1f} s, resumed, losses and adapter equal to the bit", flush=True)


def nccl(site):
    """F1, F4 over NCCL: all others gone within 10 s of a death, within T + 10 s of a hang, the last line naming rank, host and step."""
    need_gpus(2)
    # As many pairs at the same time as the machine allows, each on its own GPUs.
    pairs = queue.SimpleQueue()
    names = gpus()
    for first, second in zip(names[::2], names[1::2]):
        pairs.put(f"{first},{second}")

    def on_pair(part, *arguments):
        devices = pairs.get()
        try:
            part(site, *arguments, devices)
        finally:
            pairs.put(devices)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        parts = [pool.submit(on_pair, killed_and_resumed), *(pool.submit(on_pair, part, victim) for part in (lost_rank, stopped_while_parting) for victim in (0, 1))]
    for part in parts:
        part.result()


if __name__ == "__main__":
    fault_site.main({"memory": memory, "devices": devices, "bits": bits, "nccl": nccl})
