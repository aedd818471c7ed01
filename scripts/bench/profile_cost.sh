#!/usr/bin/env bash
# What a profile costs: alternating runs without one and with one on all ranks, in which the middle steps are recorded.
#
#   scripts/bench/profile_cost.sh [SHAPE] [SEQ] [STEPS] [RANKS] [ROUNDS]      (7b 4096 24 1 2; tiny runs on a CPU)
#
# Prints the median step without a profile, before and after the active steps, and in them. Ends with 1 where the steps outside the active ones are
# slower than those without a profile by more than MOST percent (3). Options of the runs: SETTINGS="lora=null …".
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
shape=${1:-7b} seq=${2:-4096} steps=${3:-24} ranks=${4:-1} rounds=${5:-2}
work=$(mktemp -d "${TMPDIR:-/tmp}/profile_cost.XXXXXX")
trap 'rm -rf "$work"' EXIT
settings=()
for one in ${SETTINGS:-}; do settings+=(--set "$one"); done
wait=$((steps / 2 - 2))
for round in $(seq "$rounds"); do
  for kind in off on; do
    profile=()
    if [ "$kind" = on ]; then
      profile=(--set "profile.wait=$wait" --set profile.warmup=1 --set profile.active=2 --set profile.ranks=all)
    fi
    METRICS=$work/$kind.$round.jsonl "$root/scripts/bench/llama_lora.sh" "$shape" "$seq" 1 "$ranks" "$steps" "$ranks" \
      ${settings[@]+"${settings[@]}"} ${profile[@]+"${profile[@]}"} > "$work/$kind.$round.log" 2>&1 || { tail -20 "$work/$kind.$round.log"; exit 1; }
  done
done
"$python" - "$work" "$rounds" "$wait" "${MOST:-3}" <<'PY'
import json, statistics, sys
work, rounds, wait, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
first, warmup, active = 4, wait + 1, (wait + 2, wait + 3)  # steps before `first` load kernels
times = {"without a profile": [], "outside the active steps": [], "prepared (warm-up)": [], "active": []}
for number in range(1, rounds + 1):
    for kind in ("off", "on"):
        for line in map(json.loads, open(f"{work}/{kind}.{number}.jsonl")):
            if line["event"] != "train" or line["step"] < first:
                continue
            step = line["step"]
            where = "without a profile" if kind == "off" else "active" if step in active else "prepared (warm-up)" if step == warmup else "outside the active steps"
            times[where].append(line["step_time_s"])
base = statistics.median(times["without a profile"])
for where, values in times.items():
    print(f"{where:<26} {len(values):>4} steps, median {statistics.median(values) * 1e3:10.3f} ms, {100 * (statistics.median(values) / base - 1):+6.2f} %")
cost = 100 * (statistics.median(times["outside the active steps"]) / base - 1)
print(f"profile cost outside active steps: {cost:+.2f} % (at most {most:g})")
sys.exit(cost > most)
PY
