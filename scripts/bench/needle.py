#!/usr/bin/env python3
"""Needle test of longer rows: a small model learns in SHORT tokens to tell facts that stand somewhere in the row, and is
then trained at FACTOR x SHORT tokens with YaRN.

  scripts/bench/needle.py [--short 8192] [--factor 4] [--work DIR] …

A row is random filler with NEEDLES facts at random places (a fact is one token: which of CHOICES values a name has), and at
its end the names in another order, each followed by its value, on which alone the loss is taken. Shorter rows come
first, because facts are learnt there in few tokens. Prints, for rows of both lengths, the loss of a value and the share of
values that transformers finds by its largest logit: of the short model, of the same with YaRN, and after training.
Chance is 1/CHOICES. Needs numpy, h5py, torch and transformers. BIN names the folder of the binaries.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

NEEDLES, CHOICES = 16, 32
QUERY, FILLER, VALUE, FACT = 16, (64, 1024), 1024, 1088
VOCAB = FACT + NEEDLES * CHOICES


def rows(count, length, seed):
    rng = np.random.default_rng(seed)
    body = length - 2 * NEEDLES
    ids = rng.integers(*FILLER, size=(count, length), dtype=np.int32)
    values = rng.integers(CHOICES, size=(count, NEEDLES), dtype=np.int32)
    order = rng.permuted(np.tile(np.arange(NEEDLES, dtype=np.int32), (count, 1)), axis=1)
    # Each fact has a place of its own part of the row; which fact stands in which part is random.
    parts = body // NEEDLES
    places = np.arange(NEEDLES) * parts + rng.integers(parts, size=(count, NEEDLES))
    facts = rng.permuted(np.tile(np.arange(NEEDLES, dtype=np.int32), (count, 1)), axis=1)
    row = np.arange(count)[:, None]
    ids[row, places] = FACT + facts * CHOICES + np.take_along_axis(values, facts, 1)
    ids[:, body::2] = QUERY + order
    ids[:, body + 1 :: 2] = VALUE + np.take_along_axis(values, order, 1)
    return ids


def write(path, count, length, seed):
    mask = np.zeros(length, np.uint8)
    mask[length - 2 * NEEDLES + 1 :: 2] = 1
    chunk = (max(1, min(count, 65536 // length)), length)
    with h5py.File(path, "w") as file:
        file.create_dataset("input_ids", data=rows(count, length, seed), fletcher32=True, chunks=chunk)
        file.create_dataset("loss_mask", data=np.tile(mask, (count, 1)), fletcher32=True, chunks=chunk)


def train(binary, work, name, model, init, length, steps, lr, batch):
    kind = {ARGS.short: "short", ARGS.short * ARGS.factor: "long"}.get(length, length)
    (work / f"{name}.yaml").write_text(
        f"""model: {{path: {model}, init: {init}}}
data: {{train: train_{kind}.h5, valid: valid_{kind}.h5, seq_length: {length}}}
batch: {{global_batch_size: {batch}, micro_batch_size: {batch}}}
optimizer: {{lr: {lr}, betas: [0.9, 0.98], weight_decay: 0.0, grad_clip: 1.0}}
schedule: {{name: cosine, warmup_ratio: 0.1}}
train: {{max_steps: {steps}}}
output: {{dir: {name}}}
"""
    )
    with open(work / f"{name}.log", "w") as log:
        subprocess.run([binary, "--config", work / f"{name}.yaml"], stdout=log, stderr=subprocess.STDOUT, check=True)
    events = [json.loads(line) for line in open(work / name / "metrics.jsonl")]
    return [event["loss"] for event in events if event["event"] == "eval"][-1]


def found(model, path, count):
    """Share of the values that have the largest logit."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).eval()
    with h5py.File(path) as file:
        ids, mask = file["input_ids"][:count], file["loss_mask"][:count]
    right = 0
    for row, loss in zip(ids, mask):
        tokens = torch.tensor(row, dtype=torch.long, device=device)[None]
        with torch.no_grad():
            logits = network(tokens, logits_to_keep=2 * NEEDLES).logits[0].cpu().numpy()
        at = np.nonzero(loss)[0]
        right += int((logits[at - 1 - (len(row) - 2 * NEEDLES)].argmax(-1) == row[at]).sum())
    return right / (count * NEEDLES)


def main():
    begin = time.time()
    binary = pathlib.Path(os.environ.get("BIN", "build/release/bin")).resolve() / "train_llama"
    work = pathlib.Path(ARGS.work or tempfile.mkdtemp(prefix="needle-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()):
        sys.exit(f"needle.py: --work {work} is not empty")
    print(f"files: {work}", file=sys.stderr)
    long = ARGS.short * ARGS.factor
    for length, batch, steps in ARGS.stages:
        write(work / f"train_{length}.h5", batch * min(steps, 400), length, 5 + length)
        write(work / f"valid_{length}.h5", 64, length, 6 + length)
    write(work / "train_short.h5", ARGS.batch * min(ARGS.steps, 400), ARGS.short, 1)
    write(work / "valid_short.h5", ARGS.rows, ARGS.short, 2)
    write(work / "train_long.h5", ARGS.batch * min(ARGS.long_steps, 100) // ARGS.factor or 1, long, 3)
    write(work / "valid_long.h5", ARGS.rows, long, 4)
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=ARGS.hidden, intermediate_size=11 * ARGS.hidden // 4,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=ARGS.short, rms_norm_eps=1e-5,
        rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False, initializer_range=0.02, torch_dtype="bfloat16")
    (work / "new").mkdir()
    (work / "new/config.json").write_text(json.dumps(config))

    def row(name, losses, model):
        shares = [found(model, work / f"valid_{kind}.h5", min(ARGS.rows, 16)) for kind in ("short", "long")]
        print(f"| {name} | {losses[0]:.3f} | {shares[0]:.1%} | {losses[1]:.3f} | {shares[1]:.1%} |", flush=True)

    print(f"| model | loss at {ARGS.short} | found | loss at {long} | found |\n|---|---|---|---|---|", flush=True)
    few = max(1, ARGS.batch // ARGS.factor)
    model, init = "new", "random"
    for length, batch, steps in ARGS.stages:
        loss = train(binary, work, f"at_{length}", model, init, length, steps, ARGS.lr, batch)
        print(f"after {steps} steps of {batch} x {length} tokens: loss {loss:.3f}", flush=True)
        model, init = f"at_{length}/model", "checkpoint"
    print(f"{time.time() - begin:.0f} s", flush=True)
    at_short = train(binary, work, "short", model, init, ARGS.short, ARGS.steps, ARGS.lr / 2, ARGS.batch)
    at_long = train(binary, work, "short_at_long", "short/model", "checkpoint", long, 1, 0.0, few)
    row("trained on short rows", (at_short, at_long), work / "short/model")
    shutil.copytree(work / "short/model", work / "yarn")
    scaled = json.loads((work / "yarn/config.json").read_text())
    scaled.pop("rope_parameters", None)
    scaled.update(rope_theta=10000.0, max_position_embeddings=long, rope_scaling=dict(
        rope_type="yarn", factor=float(ARGS.factor), original_max_position_embeddings=ARGS.short))
    (work / "yarn/config.json").write_text(json.dumps(scaled))
    losses = [train(binary, work, f"yarn_{length}", "yarn", "checkpoint", length, 1, 0.0, few)
              for length in (ARGS.short, long)]
    row("with YaRN", losses, work / "yarn")
    at_long = train(binary, work, "long", "yarn", "checkpoint", long, ARGS.long_steps, ARGS.lr / 3, few)
    at_short = train(binary, work, "long_at_short", "long/model", "checkpoint", ARGS.short, 1, 0.0, few)
    row("trained on long rows", (at_short, at_long), work / "long/model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=8192)
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--stages", type=lambda text: [tuple(map(int, one.split("x"))) for one in text.split(",")],
                        default="64x128x800,256x64x400,1024x32x300,4096x16x300",
                        help="LENGTHxROWSxSTEPS before the rows of --short")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--long-steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="rows of a step at the short length")
    parser.add_argument("--rows", type=int, default=32, help="rows of validation")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--work", help="a new or empty folder; default: a new one for temporary files, which stays")
    ARGS = parser.parse_args()
    sys.exit(main())
