#!/usr/bin/env python3
"""Byte-level BPE against Hugging Face `tokenizers`: ids and text of ordinary and hostile strings with tokenizers of the kinds of GPT-2, Llama 3 and Qwen2, the files that we write, and the merges that we learn. Exit code 77 = skipped.

usage: byte_level_parity.py --probe PROGRAM --tools PROGRAM [--slow]"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import byte_level as common
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)


def check_encoding(args, work, size, hostile):
    ordinary = common.ordinary_text(size)
    rng = random.Random(3)
    strings = list(common.hostile_texts(rng, hostile)) + ["", " ", "\n", "a" * 20_000, " " * 20_000, "ab" * 10_000, "\u00e9" * 5_000, "-" * 50_001 + "\n"]
    compared = {"strings": 0, "bytes": 0}
    for kind in ("gpt2", "llama3", "qwen2", "o200k"):
        tokenizer = common.train(kind, ordinary[:40] + strings[:500], 6000 if args.slow else 1500)
        path = work / kind / "tokenizer.json"
        path.parent.mkdir()
        tokenizer.save(str(path))
        texts = strings + ordinary
        if kind in ("gpt2", "qwen2"):
            texts = texts + list(common.every_character(sample=not args.slow))
        if kind == "o200k":  # PCRE2's Unicode version may be older: only characters that both know
            texts = [text for text in texts if all(c < "\u0800" for c in text)]
        wrong = common.differences(args.probe, path, tokenizer, texts)
        assert not wrong, f"{kind}: {len(wrong)} of {len(texts)} differ: {wrong[0]!r}"[:3000]
        compared["strings"] += len(texts)
        compared["bytes"] += sum(len(text.encode()) for text in texts)
        if kind == "gpt2":
            check_files(args, work, tokenizer, strings[:300])
    print("equal:", compared)


def check_files(args, work, tokenizer, texts):
    """vocab.json and merges.txt as the model saves them, and merges as strings in a tokenizer.json."""
    folder = work / "two-files"
    folder.mkdir()
    tokenizer.model.save(str(folder))
    plain = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = tokenizer.decoder
    plain.add_special_tokens(["<|endoftext|>"])
    for name in (folder, folder / "vocab.json", folder / "merges.txt"):
        wrong = common.differences(args.probe, name, plain, texts)
        assert not wrong, f"{name}: {wrong[0]!r}"[:2000]
    content = json.loads(tokenizer.to_str())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    content["pre_tokenizer"]["add_prefix_space"] = True
    (work / "strings.json").write_text(json.dumps(content))
    wrong = common.differences(args.probe, work / "strings.json", Tokenizer.from_file(str(work / "strings.json")), texts)
    assert not wrong, f"merges as strings: {wrong[0]!r}"[:2000]


def check_training(args, work, size):
    texts = common.ordinary_text(size)
    rng = random.Random(5)
    texts += list(common.hostile_texts(rng, 2000 if args.slow else 600)) + ["aaaa aaaaa aaaaaaa abababab aabaab\n" * 40]
    files = []
    for i, text in enumerate(texts):
        files.append(work / "texts" / f"{i}.txt")
        files[-1].parent.mkdir(exist_ok=True)
        files[-1].write_bytes(text.encode())
    # One text a line, as JSON: strings with line ends and NULs stay one text.
    lines = work / "texts.jsonl"
    lines.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    for pattern, vocab_size, least in (("gpt2", 3000, 2), ("llama3", 12000 if args.slow else 3000, 0), ("qwen2", 2000, 5)):
        output = work / f"trained-{pattern}"
        command = [args.tools, "tokenizer", "train", "--type", "bpe", "--input", lines, "--vocab-size", vocab_size, "--min-frequency", least,
                   "--pattern", pattern, "--output", output]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        theirs = Tokenizer(models.BPE())
        kind = common.train(pattern, ["x"], 257)
        theirs.pre_tokenizer = kind.pre_tokenizer
        if pattern == "qwen2":
            theirs.normalizer = kind.normalizer
        theirs.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=vocab_size, min_frequency=least, show_progress=False, special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        expected = json.loads(theirs.to_str())["model"]
        made = json.loads((output / "tokenizer.json").read_text())["model"]
        first = next((i for i, (a, b) in enumerate(zip(made["merges"], expected["merges"])) if a != b), None)
        assert first is None, f"{pattern}: merge {first} is {made['merges'][first]}, not {expected['merges'][first]}"
        assert len(made["merges"]) == len(expected["merges"]), (len(made["merges"]), len(expected["merges"]))
        assert made["vocab"] == expected["vocab"]
        read = Tokenizer.from_file(str(output / "tokenizer.json"))
        wrong = common.differences(args.probe, output, read, texts[-500:])
        assert not wrong, f"{pattern}: {wrong[0]!r}"[:2000]
        print(f"{pattern}: {len(made['merges'])} merges equal")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--slow", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        check_encoding(args, work, 10 << 20 if args.slow else 1 << 18, 40_000 if args.slow else 1000)
        check_training(args, work, 4 << 20 if args.slow else 1 << 16)
    print("ok")


if __name__ == "__main__":
    main()
