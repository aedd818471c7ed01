#!/bin/sh
# shards.sh N PROGRAM: a GoogleTest program whose tests mostly wait, in N processes at once, each with a part of its tests.
n=$1 processes=
shift
for i in $(seq 0 $((n - 1))); do
  GTEST_TOTAL_SHARDS=$n GTEST_SHARD_INDEX=$i "$@" &
  processes="$processes $!"
done
for process in $processes; do wait "$process" || code=$?; done
exit "${code:-0}"
