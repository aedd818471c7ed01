#!/usr/bin/env python3
"""The presets of models/decoder/presets: each loads with the program that its head names, prints itself, and plans a run of its model on the GPUs it is for. Standard library only."""
import argparse
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRESETS = ROOT / "models" / "decoder" / "presets"
LLAMA = dict(model_type="llama", max_position_embeddings=4096, rms_norm_eps=1e-5)
LLAMA2_70B = dict(LLAMA, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8)
LLAMA2_7B = dict(LLAMA, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32)
LLAMA31_8B = dict(LLAMA, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                  max_position_embeddings=131072, rope_theta=500000.0,
                  rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192))
GPT3 = dict(model_type="gpt2", n_positions=2048)
GPT3_126M = dict(GPT3, n_embd=768, n_layer=12, n_head=12)
GPT3_5B = dict(GPT3, n_embd=4096, n_layer=24, n_head=32)
QWEN25_14B = dict(model_type="qwen2", hidden_size=5120, intermediate_size=13824, num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8,
                  max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6)
# Presets of small cards, which have to fit on each of these.
DEVICES = {"llama31-8b-lora-24gib": ["rtx3090", "rtx4090"], "qwen25-14b-lora-48gib": ["l40s", "a6000", "rtx6000-ada"]}
# Preset: shape, vocabulary, GPUs, parameters of the base, trained parameters. 103,546,880 is what PEFT reports for the recipe.
EXPECTED = {
    "llama2-70b-lora-mlperf": (LLAMA2_70B, 32000, 8, "68,976,648,192", "44,564,480"),
    "llama2-70b-lora-hf": (LLAMA2_70B, 32008, 8, "68,976,779,264", "103,546,880"),
    "llama2-7b-lora": (LLAMA2_7B, 32000, 1, "6,738,415,616", "16,777,216"),
    "llama31-8b-lora-24gib": (LLAMA31_8B, 128256, 1, "8,030,261,248", "41,943,040"),
    "qwen25-14b-lora-48gib": (QWEN25_14B, 152064, 1, "14,770,033,664", "68,812,800"),
    "llama31-8b-mlperf": (LLAMA31_8B, 128256, 8, "8,030,261,248", "8,030,261,248"),
    # With the vocabulary filled up to 50,304 rows; NeMo's counts.
    "gpt3-126m": (GPT3_126M, 50257, 64, "125,262,336", "125,262,336"),
    "gpt3-5b": (GPT3_5B, 50257, 128, "5,047,558,144", "5,047,558,144"),
}


def write_rows(path, rows, length):
    header = ("{'descr': '<u2', 'fortran_order': False, 'shape': (%d, %d), }" % (rows, length)).ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(2 * rows * length))


def run(args, program, *arguments):
    done = subprocess.run([f"{args.bin}/{program}", *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, TRIREME_DEVICE="cpu"))
    assert done.returncode == 0, f"{arguments}: exit {done.returncode}: {done.stderr[-1500:]}"
    return done.stdout


def without_paths(text):
    return [line for line in text.splitlines() if not line.strip().startswith(("path:", "train:", "valid:", "dir:"))]


def check(args, name, work):
    shape, vocabulary, gpus, parameters, trained = EXPECTED[name]
    file = PRESETS / f"{name}.yaml"
    program = re.search(r"^#   (train_\w+) --config", file.read_text(), re.MULTILINE)[1]
    assert program == ("train_gpt" if name.startswith("gpt") else "train_llama"), program
    printed = run(args, program, "--config", file, "--print-config")
    if name in ("llama2-70b-lora-mlperf", "gpt3-5b"):  # round_trip_test.cpp has every key
        (work / "printed.yaml").write_text(printed)
        assert run(args, program, "--config", work / "printed.yaml", "--print-config") == printed, "what is printed loads as the same"
    length = int(next(line.split(":")[1] for line in printed.splitlines() if "seq_length" in line))
    (work / "config.json").write_text(json.dumps(dict(shape, vocab_size=vocabulary, torch_dtype="bfloat16")))
    write_rows(work / "rows.npy", 64, length)
    settings = [f"--set=model.path={work}/config.json", "--set=model.init=random", f"--set=data.train={work}/rows.npy",
                f"--set=output.dir={work}/out"]
    if "valid: null" not in printed:
        settings.append(f"--set=data.valid={work}/rows.npy")
    if name.startswith("gpt"):  # the disk of a machine for tests may not hold their checkpoints
        settings.append("--set=output.save_every_samples=null")
    if "  samples: null" not in printed:
        settings.append("--set=eval.samples=64")
    if name.endswith("-mlperf"):  # whose closed division fixes the data too
        settings.append("--set=logging.mlperf=false")
    plan = run(args, program, "--config", file, *settings, "--dry-run", "--ranks", gpus, "--device-memory-gib", 139)
    for device in DEVICES.get(name, []):
        plan = run(args, program, "--config", file, *settings, "--dry-run", "--ranks", gpus, "--device", device)
        assert "NOT MEASURED" in plan and "predicted step" in plan, plan
        print(device, next(line for line in plan.splitlines() if "left free" in line).strip())
    assert f"parameters: {parameters} ({trained} trained)" in plan, plan
    assert "memory per rank" in plan and not (work / "out").exists(), plan
    print(name, next(line for line in plan.splitlines() if "total" in line).strip())
    return printed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    assert names == sorted(EXPECTED), names
    texts = {}
    for name in names:
        with tempfile.TemporaryDirectory() as work:
            texts[name] = check(args, name, pathlib.Path(work))
    # The job files and the preset are one experiment.
    for job, preset in (("mlperf_llama2_70b_lora", "llama2-70b-lora-mlperf"), ("mlperf_llama31_8b", "llama31-8b-mlperf")):
        printed = run(args, "train_llama", "--config", ROOT / "scripts" / "slurm" / f"{job}.yaml", "--print-config")
        assert without_paths(printed) == without_paths(texts[preset]), job


if __name__ == "__main__":
    main()
