#!/usr/bin/env python3
"""What must stay equal to the bit while the engine is rearranged: ten steps of every kind of run on 1, 2 and 4 CPU ranks, the plans of the presets,
--help of every program.

    tests/train/golden.py --bin build/release/bin --mpirun mpirun --record before.json
    tests/train/golden.py --bin build/release/bin --mpirun mpirun --compare before.json

Compare on the machine that recorded: products of another kind of CPU round otherwise."""
import argparse
import hashlib
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("train", "parity", "prepare", "config")]
TIMES = {"step_time_s", "eval_time_s", "samples_per_s", "tokens_per_s", "memory_gib", "mfu"}
TEN = ("train.max_steps=10", "output.save_every_samples=40")
# name: module with the site, settings
RUNS = {
    "lora": ("run_test", ()),
    "lora-fp8": ("run_test", ("precision.linear=fp8",)),
    "full": ("run_test", ("lora=null", "parallel.policy=full", "optimizer.grad_clip=1.0")),
    "full-rowwise": ("run_test", ("lora=null", "precision.linear=fp8", "precision.fp8_recipe=rowwise", "precision.compute=bf16")),
    "gpt": ("gpt_run_test", ("parallel.recompute=norms",)),
    "bert": ("bert_run_test", ()),
    "documents": ("stream_run_test", ()),
    "megatron": ("megatron_run_test", ("batch.micro_batch_size=1",)),
}


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]


def run_results(args, name, ranks):
    module, settings = RUNS[name]
    with tempfile.TemporaryDirectory() as work:
        site = importlib.import_module(module).Site(args, work)
        site.train(*TEN, *settings, ranks=ranks if ranks > 1 else 0)
        lines = [json.loads(line) for line in open(f"{work}/run/metrics.jsonl")]
        kept = [{k: v for k, v in line.items() if k not in TIMES} for line in lines if line["event"] in ("train", "eval")]
        weights = {str(f.relative_to(work)): digest(f) for f in sorted(pathlib.Path(work, "run").rglob("*")) if f.suffix in (".safetensors", ".bin")}
        assert kept and weights, (name, ranks)
        return {"steps": kept, "weights": weights}


def plans(args):
    """--print-config and --dry-run of the presets, without times and without lines that name temporary files or the disk."""
    presets, texts = importlib.import_module("presets_test"), {}
    plain = presets.run

    def recorded(args, program, *arguments):
        text = plain(args, program, *arguments)
        kind = "plan" if "--dry-run" in map(str, arguments) else "configuration"
        texts[f"{name} {kind}"] = [re.sub(r"\(\d+ m?s\)", "", line) for line in text.splitlines() if "/tmp" not in line and " disk" not in line]
        return text

    presets.run = recorded
    for name in presets.EXPECTED:
        with tempfile.TemporaryDirectory() as work:
            presets.check(args, name, pathlib.Path(work))
    return texts


def help_texts(args):
    programs = [[name] for name in ("train_llama", "train_gpt", "train_bert", "trireme")]
    return {" ".join(p): subprocess.run([f"{args.bin}/{p[0]}", *p[1:], "--help"], capture_output=True, text=True).stdout for p in programs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--only", help="kinds of runs, separated by commas")
    parser.add_argument("--record")
    parser.add_argument("--compare")
    args = parser.parse_args()
    os.environ.update(TRIREME_DEVICE="cpu", OMP_NUM_THREADS="1")
    found = {"help": help_texts(args), "plans": plans(args)}
    for name in args.only.split(",") if args.only else RUNS:
        for ranks in (1, 2, 4):
            found[f"{name} on {ranks}"] = run_results(args, name, ranks)
            print(f"{name} on {ranks}: loss {found[f'{name} on {ranks}']['steps'][-1]['loss']}", flush=True)
    if args.record:
        json.dump(found, open(args.record, "w"), indent=1)
    if args.compare:
        want = json.load(open(args.compare))
        differ = [key for key in found if json.loads(json.dumps(found[key])) != want.get(key)]
        for key in differ:
            print(f"{key} differs: {args.compare} has {json.dumps(want.get(key))[:600]}, found {json.dumps(found[key])[:600]}")
        print(f"{len(found)} compared, {len(differ)} differ")
        sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
