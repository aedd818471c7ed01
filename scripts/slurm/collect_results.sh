#!/usr/bin/env bash
# MLPerf: makes a submission's result_0.txt, result_1.txt, … of the logs that run.sub leaves.
#
#   scripts/slurm/collect_results.sh LOGDIR FOLDER [DATESTAMP]
#
# Takes LOGDIR/DATESTAMP_1.log, _2.log, … (without DATESTAMP: of all jobs, in the order of their names and numbers) that have a run_stop. Exit codes: 2 wrong
# arguments, 3 logs that do not belong together, 73 FOLDER holds results already.
set -euo pipefail

fail() {
  local code=$1
  shift
  echo "collect_results.sh: $*" >&2
  exit "$code"
}
[[ $# == 2 || $# == 3 ]] || fail 2 "usage: collect_results.sh LOGDIR FOLDER [DATESTAMP]"
logs=$1 folder=$2 stamp=${3:-}
runs=10 # of a submission, for llama2_70b_lora, llama31_8b and bert
[[ -d $logs ]] || fail 2 "$logs is no directory"
if compgen -G "$folder/result_*.txt" >/dev/null; then fail 73 "$folder holds result_*.txt already: choose another folder or remove them"; fi

# The value of a key in a log: what stands between "value": and the next comma.
value_of() {
  sed -n "s/^.*:::MLLOG .*\"key\": \"$2\", \"value\": \\([^,]*\\),.*$/\\1/p" "$1" | head -n 1
}

files=()
while IFS= read -r file; do
  if grep -q '"key": "run_stop"' "$file"; then
    files+=("$file")
  else
    echo "collect_results.sh: $file has no run_stop: not taken" >&2
  fi
done < <(find "$logs" -maxdepth 1 -type f -name "${stamp:-*}_[0-9]*.log" | sort -V)
((${#files[@]} > 0)) || fail 3 "$logs has no ${stamp:-*}_N.log with a run_stop"

declare -A seeds
for key in submission_benchmark submission_platform; do
  first=$(value_of "${files[0]}" "$key")
  for file in "${files[@]}"; do
    value=$(value_of "$file" "$key")
    [[ -n $value ]] || fail 3 "$file has no $key"
    [[ $value == "$first" ]] || fail 3 "$file has $key $value, ${files[0]} has $first"
  done
done
for file in "${files[@]}"; do
  seed=$(value_of "$file" seed)
  [[ -n $seed ]] || fail 3 "$file has no seed"
  [[ -z ${seeds[$seed]:-} ]] || fail 3 "$file and ${seeds[$seed]} have the same seed $seed"
  seeds[$seed]=$file
done

mkdir -p "$folder"
for i in "${!files[@]}"; do
  cp "${files[i]}" "$folder/result_$i.txt.tmp"
  mv "$folder/result_$i.txt.tmp" "$folder/result_$i.txt"
done
echo "$folder: ${#files[@]} results of $(value_of "${files[0]}" submission_benchmark) on $(value_of "${files[0]}" submission_platform)"
if ((${#files[@]} < runs)); then echo "a submission has $runs: $((runs - ${#files[@]})) more"; fi
if ((${#files[@]} > runs)); then echo "a submission has $runs: name the job, as the third argument"; fi
