#!/usr/bin/env bash
# AdamW against Muon: GPT-3 126M without dropout on real text, three learning rates each, 288 steps of 32 rows of 1,024 tokens, once over the text.
#
#   scripts/bench/muon.sh prepare FOLDER [TEXT.jsonl]    FOLDER/train.npy (19 MB) and valid.npy; on a CPU
#   scripts/bench/muon.sh run FOLDER [--set key=value …] trains and prints the tokens that each run needs to the best validation loss of AdamW
#
# Without TEXT.jsonl the text is that of Python files, of the standard library and of the packages of TRIREME_PYTHON. RATES ("6e-4 1.2e-3 2.4e-3") and
# STEPS (288) change the runs. BIN names the folder of the binaries (default build/release/bin).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
if [ $# -lt 2 ] || { [ "$1" != prepare ] && [ "$1" != run ]; }; then sed -n '4,5p' "${BASH_SOURCE[0]}" >&2; exit 2; fi
action=$1 folder=$2
shift 2
steps=${STEPS:-288}
work=$(mktemp -d "${TMPDIR:-/tmp}/muon.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ "$action" = prepare ]; then
  mkdir -p "$folder"
  text=${1:-$work/text.jsonl}
  if [ $# -eq 0 ]; then
    "$python" - "$text" <<'PY'
import hashlib, json, pathlib, sys, sysconfig
files = [file for key in ("stdlib", "purelib") for file in pathlib.Path(sysconfig.get_paths()[key]).rglob("*.py")]
files.sort(key=lambda file: hashlib.sha256(file.name.encode() + str(file.stat().st_size).encode()).digest())
size, seen = 0, set()
with open(sys.argv[1], "w") as out:
    for file in files:
        text = file.read_text(errors="ignore")
        if len(text) < 500 or len(text) > 200_000 or hash(text) in seen:
            continue
        seen.add(hash(text))
        out.write(json.dumps({"text": text}) + "\n")
        size += len(text)
        if size > 45_000_000:
            break
PY
  fi
  "$bin/trireme" tokenizer train --type bpe --format byte-level --input "$text" --vocab-size 16384 --output "$work/tokenizer"
  "$bin/trireme" data pack --tokenizer "$work/tokenizer" --input "$text" --eos --seq-length 1024 --shuffle-seed 1 --valid-fraction 0.03 \
    --output "$work/train.npy" --valid-output "$work/valid.npy"
  "$python" - "$work" "$folder" <<'PY'
import numpy, sys
for name, rows in (("train", 9216), ("valid", 256)):
    tokens = numpy.load(f"{sys.argv[1]}/{name}.npy")
    assert tokens.max() < 65536 and len(tokens) >= rows, f"{name}: {tokens.shape} rows of {rows}"
    numpy.save(f"{sys.argv[2]}/{name}.npy", tokens[:rows].astype(numpy.uint16))
    print(f"{sys.argv[2]}/{name}.npy: {rows} rows of {tokens.shape[1]} tokens")
PY
  exit
fi

folder=$(realpath "$folder")
mkdir "$work/model"
"$bin/trireme" init-model --preset gpt3-126m --max-positions 1024 --config-only --output "$work/shape" > /dev/null
sed 's/\("[a-z]*_pdrop": \)0\.1/\10.0/' "$work/shape/config.json" > "$work/model/config.json"
for optimizer in adamw muon; do
  for rate in ${RATES:-6.0e-4 1.2e-3 2.4e-3}; do
    cat > "$work/run.yaml" <<YAML
model: {path: model, init: random}
data: {train: $folder/train.npy, valid: $folder/valid.npy, seq_length: 1024}
batch: {global_batch_size: 32, micro_batch_size: 32}
optimizer: {name: $optimizer, lr: $rate}
schedule: {warmup_steps: 20, min_lr: 6.0e-5}
train: {max_steps: $steps}
eval: {every_samples: 640}
logging: {every_steps: 50}
output: {dir: $optimizer-$rate}
YAML
    "$bin/train_gpt" --config "$work/run.yaml" "$@" > "$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
    echo "$optimizer, rate $rate: $(tail -n 1 "$work/log")"
  done
done
"$python" - "$work" <<'PY'
import json, pathlib, statistics, sys
runs = {}
for file in sorted(pathlib.Path(sys.argv[1]).glob("*-*/metrics.jsonl")):
    lines = [json.loads(line) for line in open(file)]
    train = [line for line in lines if line["event"] == "train"]
    runs[file.parent.name] = ([(line["samples"] * 1024, line["loss"]) for line in lines if line["event"] == "eval"],
                              statistics.median(line["step_time_s"] for line in train[len(train) // 2:]))
goal = min(evals[-1][1] for name, (evals, _) in runs.items() if name.startswith("adamw"))
print(f"goal: validation loss {goal:.4f}, the best of AdamW at the end")
for name, (evals, step) in runs.items():
    reached = "not reached"
    for (before, high), (tokens, low) in zip([evals[0]] + evals, evals):
        if low <= goal:  # between two evaluations on the line through them
            reached = f"{(tokens if high == low else before + (tokens - before) * (high - goal) / (high - low)) / 1e6:.2f} M tokens"
            break
    print(f"{name:16s} {reached:>16s}, at the end {evals[-1][1]:.4f}, median step {step * 1e3:.1f} ms; evaluations "
          + " ".join(f"{loss:.3f}" for _, loss in evals))
PY
