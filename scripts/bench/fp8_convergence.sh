#!/usr/bin/env bash
# Whether frozen weights in FP8 cost anything in the end: LoRA on real text until the loss no longer falls, twice, from the model and the
# data that scripts/quickstart.sh leaves behind. Prints both evaluation losses and their relative difference.
#
#   scripts/bench/fp8_convergence.sh [STEPS] [--set key=value …]
#
# BIN names the folder of the binaries (default build/release/bin), QUICKSTART the quick start's folder (default runs/quickstart).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
steps=${1:-300}
shift $(( $# < 1 ? $# : 1 ))
bin=${BIN:-build/release/bin} site=${QUICKSTART:-runs/quickstart}
python=${TRIREME_PYTHON:-$(if [ -x .venv/bin/python ]; then echo .venv/bin/python; else command -v python3; fi)}
if [ ! -d "$site/pretrain/model" ]; then
  echo "$site/pretrain/model is missing: scripts/quickstart.sh makes it" >&2
  exit 2
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/fp8_convergence.XXXXXX")
trap 'rm -rf "$work"' EXIT
for frozen in bf16 fp8; do
  echo "== frozen weights in $frozen"
  # On a CPU the compute dtype is fp32 and `bf16` means "as computed with".
  "$bin/train_llama" --config "$site/lora.yaml" --set "output.dir=$work/$frozen" --set "precision.frozen=$frozen" \
    --set "train.max_steps=$steps" --set "eval.every_samples=$(( 16 * steps / 10 ))" "$@" | grep -E "^eval"
done
"$python" - "$work" <<'PY'
import json, sys
last = {}
for frozen in ("bf16", "fp8"):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{frozen}/metrics.jsonl")]
    last[frozen] = [line["loss"] for line in lines if line["event"] == "eval"][-1]
difference = last["fp8"] / last["bf16"] - 1
print(f"evaluation loss {last['bf16']:.5f} (as computed with), {last['fp8']:.5f} (FP8): {difference:+.3%}")
sys.exit(abs(difference) > 0.005)
PY
