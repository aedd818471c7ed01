# Common settings of all MLPerf Llama 2 70B LoRA configurations; config_*.sh source this file first and override. Closed
# division: the rules fix rank, alpha, dropout, clip, weight decay and sequence length, which are in the YAML file; the
# others may be tuned here.
# shellcheck shell=bash

# The training configuration; the variables below override it with --set (run_and_time.sh).
export TRIREME_CONFIG=${TRIREME_CONFIG:-mlperf_llama2_70b_lora.yaml}
export LR=4.0e-4
export MAX_STEPS=1024
export MICRO_BATCH_SIZE=1
export VAL_CHECK_INTERVAL=384 # samples between evaluations
export LINEAR_PRECISION=compute  # compute | fp8
export SHARD_SIZE=auto
export RECOMPUTE=auto
# Further configuration keys, e.g. EXTRA_SET="parallel.recompute=none logging.every_steps=10".
export EXTRA_SET=${EXTRA_SET:-}

# Names in the MLPerf log.
export MLPERF_SUBMISSION_ORG=${MLPERF_SUBMISSION_ORG:-Trireme}
export MLPERF_SUBMISSION_BENCHMARK=llama2_70b_lora
export MLPERF_SUBMISSION_DIVISION=${MLPERF_SUBMISSION_DIVISION:-closed}
export MLPERF_SUBMISSION_STATUS=onprem

# NVLink multicast stays off by design.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
