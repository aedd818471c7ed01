#!/usr/bin/env python3
"""Speed of byte-level BPE on one core: Trireme and Hugging Face `tokenizers` in turn, on the same texts with the same files, which are trained on the spot. Prints a table in MB/s.

usage: scripts/bench/tokenizer.py [--build build/release] [--megabytes 10] [--vocab-size 32000] [--tokenizer tokenizer.json]"""
import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "tokenizer"))
import byte_level as common  # noqa: E402
import tokenizers  # noqa: E402


def measure(probe, name, path, tokenizer, texts, repeats=3):
    size = sum(len(text.encode()) for text in texts) / 1e6
    command = [probe, path, str(repeats)]
    ours, theirs = [], []
    for _ in range(2):  # in turn, twice
        done = subprocess.run(command, input=common.packed(texts), capture_output=True, check=True)
        ours += [float(line.split()[0]) for line in done.stdout.decode().splitlines()]
        for _ in range(repeats):
            start = time.perf_counter()
            tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            theirs.append(time.perf_counter() - start)
    print(f"| {name} | {size:.1f} | {size / min(ours):.1f} | {size / min(theirs):.1f} | {min(theirs) / min(ours):.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--tokenizer", help="a tokenizer.json to use instead of trained ones")
    args = parser.parse_args()
    probe = f"{args.build}/tests/tokenizer_probe"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    texts = common.ordinary_text(int(args.megabytes * 1e6))
    print(f"tokenizers {tokenizers.__version__}, one core, best of 6\n| tokenizer | MB of text | Trireme MB/s | tokenizers MB/s | ratio |\n|---|---|---|---|---|")
    if args.tokenizer:
        return measure(probe, args.tokenizer, args.tokenizer, tokenizers.Tokenizer.from_file(args.tokenizer), texts)
    with tempfile.TemporaryDirectory() as work:
        for kind in ("gpt2", "llama3", "qwen2", "o200k"):
            tokenizer = common.train(kind, texts, args.vocab_size)
            path = f"{work}/{kind}.json"
            tokenizer.save(path)
            measure(probe, f"{kind} pattern, vocabulary of {args.vocab_size}", path, tokenizer, texts)


if __name__ == "__main__":
    main()
