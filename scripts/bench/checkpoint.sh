#!/usr/bin/env bash
# Measures the cost of asynchronous checkpoints per step, and their write and read speed compared with dd on the same
# disk.
#
#   scripts/bench/checkpoint.sh [RANKS [HIDDEN [LAYERS [STEPS [--set key=value …]]]]]
#
# Full-parameter training on random weights and tokens, fp32, sharded over all ranks. The same run without saves and with one save every
# tenth step, twice in alternation; then the newest checkpoint is loaded with cold and with warm page cache. BIN names the folder of the
# binaries (default build/release/bin), TMPDIR the disk.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
ranks=${1:-4} hidden=${2:-512} layers=${3:-8} steps=${4:-60}
shift $(( $# < 4 ? $# : 4 ))
work=$(mktemp -d "${TMPDIR:-/tmp}/checkpoint.XXXXXX")
trap 'rm -rf "$work"' EXIT

"$python" - "$hidden" "$layers" "$steps" "$ranks" "$work" <<'PY'
import json, sys
import numpy as np
hidden, layers, steps, ranks = map(int, sys.argv[1:5])
work = sys.argv[5]
json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, intermediate_size=hidden * 3, num_hidden_layers=layers,
               num_attention_heads=8, num_key_value_heads=8, vocab_size=32000, max_position_embeddings=2048, rms_norm_eps=1e-5,
               hidden_act="silu", tie_word_embeddings=False, initializer_range=0.02), open(f"{work}/config.json", "w"))
np.save(f"{work}/train.npy", np.random.default_rng(0).integers(3, 32000, size=(64, 64)).astype(np.int32))
PY
cat > "$work/run.yaml" <<YAML
model: {path: ., init: random}
data: {train: train.npy, seq_length: 64}
batch: {global_batch_size: $ranks, micro_batch_size: 1}
optimizer: {lr: 1.0e-4}
parallel: {shard_size: world}
train: {max_steps: $steps}
output: {dir: run}
YAML
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
train() { run_ranks "$ranks" "$bin/train_llama" --config "$work/run.yaml" "$@" >> "$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }; }
cold() { find "$1" -type f -exec dd if={} iflag=nocache count=0 status=none \; ; }

for round in 1 2; do
  train --set output.dir="calm$round" "$@"
  train --set output.dir="saving$round" --set output.save_every_samples=$(( 10 * ranks )) "$@"
done
newest=$(find "$work/saving2/checkpoints" -maxdepth 1 -name 'step-????????' | sort | tail -n 1)
bytes=$(du -sb "$newest" | cut -f1)
rm -rf "$work/saving2/model"
: > "$work/log"
cold "$newest"
# The last saved step is ten before the end: resuming from it trains ten more.
train --set output.dir=saving2 --set output.save_every_samples=$(( 10 * ranks )) "$@"
loaded_cold=$(grep -o 'checked and loaded in .*' "$work/log" | head -n 1)
rm -rf "$work/saving2/model"; : > "$work/log"
train --set output.dir=saving2 --set output.save_every_samples=$(( 10 * ranks )) "$@"
loaded_warm=$(grep -o 'checked and loaded in .*' "$work/log" | head -n 1)

# The disk's own speed: as many writers as ranks, the same number of bytes in total, with fsync; then a cold read.
plain=$("$python" - "$work" "$ranks" "$bytes" <<'PY'
import subprocess, sys, time
work, ranks, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
blocks = max(1, size // ranks // (1 << 20))
def at_once(commands):
    begin = time.time()
    for process in [subprocess.Popen(c, stderr=subprocess.DEVNULL) for c in commands]:
        process.wait()
    return ranks * blocks * (1 << 20) / (time.time() - begin) / (1 << 20)
write = at_once([["dd", "if=/dev/zero", f"of={work}/plain{r}", "bs=1M", f"count={blocks}", "conv=fsync"] for r in range(ranks)])
for r in range(ranks):
    subprocess.run(["dd", f"if={work}/plain{r}", "iflag=nocache", "count=0"], stderr=subprocess.DEVNULL)
read = at_once([["dd", f"if={work}/plain{r}", "of=/dev/null", "bs=1M"] for r in range(ranks)])
print(f"dd, {ranks} at once: write with fsync {write:.0f} MiB/s, cold read {read:.0f} MiB/s")
PY
)

"$python" - "$work" <<'PY'
import json, statistics, sys
work = sys.argv[1]
def events(run, kind):
    return [m for m in map(json.loads, open(f"{work}/{run}/metrics.jsonl")) if m["event"] == kind]
def times(run, skip=3):
    return [m["step_time_s"] for m in events(run, "train")][skip:]
calm = times("calm1") + times("calm2")
saving = times("saving1") + times("saving2")
saves, during = [], []
for run in ("saving1", "saving2"):
    steps = {m["step"]: m["step_time_s"] for m in events(run, "train")}
    for save in events(run, "save"):
        saves.append(save)
        elapsed, step = 0.0, save["step"] + 1
        while step in steps and elapsed < save["seconds"]:
            during.append(steps[step])
            elapsed += steps[step]
            step += 1
ms = lambda values: f"{statistics.median(values) * 1e3:.0f} ms ({min(values) * 1e3:.0f}-{max(values) * 1e3:.0f}, {len(values)} steps)"
print(f"steps: median of runs without saves {ms(calm)}; while a save is under way {ms(during)}; mean of whole runs without "
      f"{statistics.mean(calm) * 1e3:.0f} ms, with a save every 10th step {statistics.mean(saving) * 1e3:.0f} ms")
pause = statistics.median(s["pause_s"] for s in saves)
seconds = statistics.median(s["seconds"] for s in saves)
write = statistics.median(s["write_s"] for s in saves)
size = saves[0]["bytes"]
print(f"saves of {size / 2**20:.0f} MiB: the step waits {pause * 1e3:.1f} ms for the copy ({size / pause / 2**30:.1f} GiB/s over all ranks), "
      f"written with fsync in {write:.2f} s ({size / write / 2**20:.0f} MiB/s, during the steps), committed after {seconds:.2f} s")
PY
echo "load, cold page cache: $loaded_cold"
echo "load, warm page cache: $loaded_warm"
echo "$plain"
