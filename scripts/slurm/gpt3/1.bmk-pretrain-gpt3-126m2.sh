#!/usr/bin/env bash
# GPT-3 126M: 40 steps on two nodes, mock data. Variables and arguments: common.sh.
: "${MAX_STEPS:=40}"
export MAX_STEPS
exec bash "$(dirname "${BASH_SOURCE[0]}")/1.bmk-pretrain-gpt3-126m.sh" "$@"
