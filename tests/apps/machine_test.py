#!/usr/bin/env python3
"""`trireme doctor` and `trireme simulate` as a user starts them: exit codes, what a machine lacks, files that they write."""
import argparse
import json
import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree
from pathlib import Path


def run(binaries, *arguments, code=0, program="trireme", **environment):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "TRIREME_"))} | environment
    if "LD_LIBRARY_PATH" in environment:
        env["LD_LIBRARY_PATH"] += ":" + os.environ.get("LD_LIBRARY_PATH", "")
    done = subprocess.run([f"{binaries}/{program}", *map(str, arguments)], capture_output=True, text=True, env=env)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}, not {code}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""


def doctor(binaries, folder, code=0, **environment):
    out, last = run(binaries, "doctor", "--json", "--folder", folder, code=code, **environment)
    found = json.loads(out)
    assert found["exit_code"] == code and found["works"] == (code == 0)
    for check in found["checks"]:
        assert check["state"] in ("ok", "warning", "missing") and check["value"] and (check["state"] == "ok" or check["advice"]), check
    return {check["name"]: check for check in found["checks"]}, found["verdict"], last


def check_doctor(args, work):
    programs = work / "programs"
    programs.mkdir()
    for name, text in (("mpirun", 'echo "mpirun (Open MPI) 4.1.4"'),
                       ("srun", 'if [ "$1" = --version ]; then echo "slurm 23.11.4"; else echo "MPI plugin types are..."; echo "	none"; echo "	pmix"; fi')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    # Two good GPUs, Open MPI's launcher, Slurm with PMIx.
    checks, verdict, _ = doctor(args.bin, work, PATH=f"{programs}:/usr/bin:/bin", LD_LIBRARY_PATH=args.nvml, TRIREME_DEVICE="cpu")
    assert checks["driver"]["value"] == "580.95.05, for CUDA up to 13.0", checks["driver"]
    gpus = checks["GPUs 0,1"]
    assert gpus["state"] == "ok", gpus
    # A build with CUDA names the kernels that it has for them.
    value = re.sub(", kernels: (hopper|portable, attention by the library)", "", gpus["value"])
    assert value == "NVIDIA H200, 140.4 GiB, up to 1980 MHz (now 345), 700 W, compute capability 9.0, ECC on, persistence on", gpus
    assert checks["peer access"]["state"] == "ok" and checks["Slurm"]["state"] == "ok"
    assert checks["Slurm"]["value"] == "slurm 23.11.4; --mpi: none, pmix", checks["Slurm"]
    assert "mpirun (Open MPI) 4.1.4" in checks["MPI"]["value"]
    # CUDA shows less than the driver has, because TRIREME_DEVICE asks for the CPU.
    assert checks["training uses"]["state"] == "warning" and "the machine has 2 GPUs" in checks["training uses"]["advice"]
    assert "on the CPU" in verdict, verdict
    assert not list(work.glob(".trireme-doctor*")), "the probe is removed"

    checks, verdict, _ = doctor(args.bin, work, code=2, TRIREME_DEVICE="cpu", TRIREME_KERNELS="sm_90")
    assert "TRIREME_KERNELS is 'sm_90'; use hopper, portable or none" in checks["training uses"]["advice"], checks["training uses"]

    # The system description of an MLPerf submission: what the host tells, and what the environment adds.
    out, _ = run(args.bin, "doctor", "--system", LD_LIBRARY_PATH=args.nvml, MLPERF_SUBMISSION_STATUS="cloud", MLPERF_COOLING="air", SLURM_JOB_NUM_NODES="4",
                 **{"MLPERF_ACCELERATOR_ON_CHIP_MEMORIES": "L2 50 MB"})
    assert out.count("\n") == 1, out
    system = json.loads(out)
    assert len(system) == 33, list(system)
    wanted = {"number_of_nodes": "4", "accelerators_per_node": "2", "accelerator_model_name": "NVIDIA H200", "accelerator_frequency": "1980 MHz",
              "accelerator_memory_capacity": "140.4 GiB", "accelerator_on-chip_memories": "L2 50 MB", "cooling": "air", "status": "Available cloud"}
    assert wanted == {key: system[key] for key in wanted}, system
    assert all(system[key] for key in ("host_processors_per_node", "host_processor_model_name", "host_processor_core_count", "host_memory_capacity",
                                       "operating_system", "framework", "other_software_stack")), system
    assert "580.95.05" in system["other_software_stack"], system

    # GPUs that want attention; no programs in PATH; a folder that cannot be written ends with 73.
    empty = work / "empty"
    empty.mkdir()
    checks, verdict, last = doctor(args.bin, "/proc", code=73, PATH=str(empty), LD_LIBRARY_PATH=args.nvml, FAKE_NVML="poor", TRIREME_DEVICE="cpu")
    for word in ("9.0 GiB are used", "nvidia-smi -pl 700", "nvidia-smi -e 1", "nvidia-smi -pm 1"):
        assert word in checks["GPUs 0,1"]["advice"], checks["GPUs 0,1"]
    assert checks["peer access"]["state"] == "warning" and "0-1" in checks["peer access"]["value"]
    assert checks["Slurm"]["state"] == "missing" and checks["MPI"]["state"] in ("missing", "warning")
    assert checks["disk"]["state"] == "missing" and "/proc" in verdict and "/proc" in last


    # A disk of 3 MiB, one with more than a block but less than the probe, one without room; an empty name.
    _, last = run(args.bin, "doctor", "--folder", "", code=2, TRIREME_DEVICE="cpu")
    assert "empty" in last, last
    if os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0:
        small = work / "small"
        small.mkdir()
        for size, state in (("3m", "warning"), ("512k", "missing")):
            script = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
            done = subprocess.run(["unshare", "--mount", "bash", "-c", script, small, f"{args.bin}/trireme", "doctor", "--json", "--folder", small],
                                  capture_output=True, text=True, env={**os.environ, "TRIREME_DEVICE": "cpu"})
            disk = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "disk")
            assert disk["state"] == state and "No space left on device" in disk["value"] and done.returncode == (73 if state == "missing" else 0), (disk, done)
    # A quota ends a file as a limit of its size does; neither ends the program.
    done = subprocess.run(["bash", "-c", f"ulimit -f 4096; exec {args.bin}/trireme doctor --json --folder {work}"], capture_output=True, text=True,
                          env={**os.environ, "TRIREME_DEVICE": "cpu"})
    disk = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "disk")
    assert done.returncode == 0 and disk["state"] == "warning" and "File too large after 4.0 MiB" in disk["value"], (disk, done)


def check_broken(args, work):
    # A driver that does not start. What would end a run ends this as well: GPUs that are named and not there.
    checks, verdict, last = doctor(args.bin, work, code=2, LD_LIBRARY_PATH=args.nvml, FAKE_NVML="broken", CUDA_VISIBLE_DEVICES=",".join(map(str, range(17))))
    assert checks["driver"]["state"] == "missing" and "NVML error 9" in checks["driver"]["value"]
    assert "CUDA_VISIBLE_DEVICES" in verdict and "CUDA_VISIBLE_DEVICES" in last


def check_simulate(args, work):
    model = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
                 num_key_value_heads=4, vocab_size=32000, max_position_embeddings=4096, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False)
    (work / "config.json").write_text(json.dumps(model))
    (work / "run.yaml").write_text("model: {path: .}\ndata: {train: none.npy, seq_length: 2048}\nbatch: {global_batch_size: 512}\noutput: {dir: out}\n")
    base = ["simulate", "--config", work / "run.yaml"]
    out, _ = run(args.bin, *base, "--gpus", "64,8", "--policy", "auto,full", "--output", work / "made/sim.json", "--svg", work / "made/sim.svg")
    assert "strong scaling" in out and "tok/s/GPU" in out, out
    found = json.loads((work / "made/sim.json").read_text())
    assert [(row["gpus"], row["asked"]) for row in found["rows"]] == [(8, "auto"), (8, "full"), (64, "auto"), (64, "full")]
    for row in found["rows"]:
        parts = sum(value for key, value in row.items() if key.endswith("_ms") and key != "step_ms")
        assert abs(parts - row["step_ms"]) < 1e-6 * row["step_ms"], row
    picture = (work / "made/sim.svg").read_text()
    root = xml.etree.ElementTree.fromstring(picture)
    assert root.tag.endswith("svg") and "prefers-color-scheme:dark" in picture and "http" not in picture.replace("http://www.w3.org/2000/svg", "")
    for word in ("Throughput", "Efficiency", "Memory", "auto", "full", ">64<"):
        assert word in picture, word
    # A file of the same tool is replaced, and no other.
    run(args.bin, *base, "--gpus", "8", "--policy", "auto", "--output", work / "made/sim.json", "--svg", work / "made/sim.svg")
    assert len(json.loads((work / "made/sim.json").read_text())["rows"]) == 1
    name = work / os.fsdecode(b"r\xff.yaml")
    name.write_text((work / "run.yaml").read_text())
    run(args.bin, "simulate", "--config", name, "--gpus", "8", "--policy", "auto", "--output", work / "made/bytes.json")
    assert json.loads((work / "made/bytes.json").read_text())["config"] == f"{work}/r\ufffd.yaml"
    (work / "tokenizer.json").write_text('{\n  "version": "1.0",\n  "model": {}\n}\n')
    (work / "logo.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>\n')
    (work / "notes.yaml").write_text("# trireme pays\nlr: 1\n")
    for command, option, name in ((base + ["--gpus", "8"], "--output", "tokenizer.json"), (base + ["--gpus", "8"], "--svg", "logo.svg"), (["calibrate"], "--output", "notes.yaml")):
        before = (work / name).read_text()
        out, last = run(args.bin, *command, option, work / name, code=2)
        assert f"{option} {work}/{name} is there and is no " in last and "name another file" in last and out == "" and (work / name).read_text() == before, last
    for option, name in (("--output", "made"), ("--svg", "new/")):
        _, last = run(args.bin, *base, "--gpus", "8", option, f"{work}/{name}", code=73)
        assert f"{option} {work}/{name} is a directory: name a file" in last, last
    _, last = run(args.bin, *base, "--gpus", "8", "--output", work / "made/one", "--svg", work / "made/../made/one", code=2)
    assert "are one file" in last and not (work / "made/one").exists(), last
    # CLI11's limits let nan and infinities pass; in any tool.
    for option, value in (("--link-gb-s", "nan"), ("--nvlink-gb-s", "inf"), ("--memory-gib", "-nan")):
        _, last = run(args.bin, *base, "--gpus", "8", option, value, code=2)
        assert option in last, last
    _, last = run(args.bin, "calibrate", "--seconds", "nan", code=2)
    assert "finite" in last, last
    for value, text in (("", "an empty value is no number"), ("99999999999999999999", "64 bits")):
        _, last = run(args.bin, "tokenizer", "train", "--input", work / "run.yaml", "--vocab-size", value, "--output", work / "made/tokenizer", code=2)
        assert "--vocab-size: " in last and text in last, last
    _, last = run(args.bin, "generate", "--model", work, "--prompt", "a", "--seed", "-1", code=2)
    assert "--seed: -1 is below 0" in last, last
    for value in ("inf", "1e30", "0"):
        _, last = run(args.bin, "--config", work / "run.yaml", "--dry-run", "--device-memory-gib", value, code=2, program="train_llama")
        assert "--device-memory-gib" in last and "1048576" in last or value == "inf", last
    _, last = run(args.bin, *base, "--gpus", "8", "--policy", "ful", code=2)
    assert "Did you mean 'full'" in last, last


def check_rates(args, work):
    """Files of rates: which plans they change, and what is said of them."""
    model = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=2,
                 num_key_value_heads=2, vocab_size=256, max_position_embeddings=128, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False)
    (work / "config.json").write_text(json.dumps(model))
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': (8, 128), }"
    (work / "train.npy").write_bytes(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117).encode() + b"\n" + bytes(8 * 128 * 4))
    (work / "run.yaml").write_text("model: {path: ., init: random}\ndata: {train: train.npy, seq_length: 128}\nbatch: {global_batch_size: 8}\n"
                                   "train: {max_steps: 1}\noutput: {dir: out}\nparallel: {rates: rates.yaml}\n")
    # Everything of a step but its overhead disappears, so that the prediction is that of the file.
    (work / "rates.yaml").write_text("name: 'NVIDIA Q1'\nbf16_flops: 1e17\nattention_flops: 1e17\nmemory_bytes: 1e14\nstep_overhead: 1.5\nblock_overhead: 0\n")
    out, _ = run(args.bin, "--config", work / "run.yaml", "--dry-run", "--ranks", "2", "--device-memory-gib", "80", program="train_llama")
    assert "predicted step: 1500." in out and f"rates: {work}/rates.yaml, measured on NVIDIA Q1" in out, out
    out, _ = run(args.bin, "--config", work / "run.yaml", "--dry-run", "--ranks", "2", "--device-memory-gib", "80", "--set", "parallel.rates=null", program="train_llama")
    assert "rates: NVIDIA H200, built-in table" in out and "predicted step: 1500." not in out, out
    simulated = ["simulate", "--config", work / "run.yaml", "--gpus", "2", "--policy", "none"]
    out, _ = run(args.bin, *simulated)
    assert "1500." in out and "NVIDIA Q1" in out, out
    out, _ = run(args.bin, *simulated, "--gpu", "H100")
    assert "1500." not in out and "rates: NVIDIA H100, built-in table" in out, out
    # GPUs by their datasheets, whose memory is the limit.
    dry = ["--config", work / "run.yaml", "--dry-run"]
    for name, gib in (("rtx4090", "23.5"), ("A100-80", "79.1"), ("h200", "139.8")):
        out, _ = run(args.bin, *dry, "--device", name, program="train_llama")
        assert f"of {gib} GiB, bf16" in out and "1500." not in out and ("NOT MEASURED" in out) == (name != "h200"), out
        measured, _ = run(args.bin, *simulated, "--device", name, "--output", work / "device.json")
        found = json.loads((work / "device.json").read_text())["machine"]
        assert ("NOT MEASURED" in measured) == (name != "h200") and found["measured"] == (name == "h200") and f"{found['memory_gib']:.1f}" == gib, measured
    out, _ = run(args.bin, *dry, "--device", "b200", "--device-memory-gib", "9", program="train_llama")
    assert "NVIDIA B200 of 9.0 GiB" in out, out
    _, last = run(args.bin, *dry, "--device", "rtx4090", "--device-memory-gib", "0.5", code=2, program="train_llama")
    _, last = run(args.bin, *dry, "--device", "rtx4091", code=2, program="train_llama")
    assert "rtx4090" in last, last
    _, last = run(args.bin, "--config", work / "run.yaml", "--device", "rtx4090", code=2, program="train_llama")
    assert "--device is for --dry-run" in last, last
    for command, program in ((dry, "train_llama"), (simulated, "trireme")):
        _, last = run(args.bin, *command, "--device", "l40s", "--set", "precision.linear=fp8", code=2, program=program)
        assert "need a GPU of compute capability 9.0, and " in last and " has 8.9: set precision.fp8_recipe: tensorwise" in last, last
        _, last = run(args.bin, *command, "--device", "h200", "--set", "precision.linear=fp8", code=2, program=program, TRIREME_KERNELS="none")
        assert "TRIREME_KERNELS is none" in last, last
    (work / "wrong.yaml").write_text("name: x\nbf16_flop: 1e15\nmemory_bytes: 3.9\n")
    _, last = run(args.bin, *simulated, "--rates", work / "wrong.yaml", code=2)
    _, last = run(args.bin, "--config", work / "run.yaml", "--set", f"parallel.rates={work}/none.yaml", "--dry-run", code=2, program="train_llama")
    assert "none.yaml" in last, last
    # There are no rates of CPUs.
    out, last = run(args.bin, "calibrate", "--output", work / "made.yaml", code=2, TRIREME_DEVICE="cpu")
    assert "calibrate measures GPUs" in last and not (work / "made.yaml").exists(), last


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--nvml", required=True, help="folder of the fake libnvidia-ml.so.1")
    parser.add_argument("--case", choices=("doctor", "broken", "simulate", "rates"), required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        {"doctor": check_doctor, "broken": check_broken, "simulate": check_simulate, "rates": check_rates}[args.case](args, Path(work))


if __name__ == "__main__":
    main()
