# Common settings of all MLPerf Llama 3.1 8B configurations; config_*.sh source this file first and override. Closed
# division: the rules fix the optimizer but for learning rate and warm-up, the sequence length, the evaluations and
# max_steps, which are in the YAML file. Reference convergence points: learning rate 4e-4 and 16 steps of warm-up at a
# global batch of 16; 8e-4 and 128 at 32.
# shellcheck shell=bash

# The training configuration; the variables below override it with --set (run_and_time.sh).
export TRIREME_CONFIG=${TRIREME_CONFIG:-mlperf_llama31_8b.yaml}
export TRAIN_DATA=${TRAIN_DATA:-c4-train.en_6_text_document}
export VALID_DATA=${VALID_DATA:-c4-validation-91205-samples.en_text_document}
export GLOBAL_BATCH_SIZE=16
export MICRO_BATCH_SIZE=2
export LR=4.0e-4
export MIN_LR=4.0e-5 # a tenth of LR
export WARMUP_STEPS=16
export LINEAR_PRECISION=fp8 # compute | fp8
export SHARD_SIZE=auto
export RECOMPUTE=auto
export RESULT_NAME=LLM_PRETRAINING
# Further configuration keys, e.g. EXTRA_SET="precision.fp8_recipe=tensorwise parallel.policy=optimizer".
export EXTRA_SET=${EXTRA_SET:-}

# Names in the MLPerf log.
export MLPERF_RULESET=${MLPERF_RULESET:-5.1.0}
export MLPERF_SUBMISSION_ORG=${MLPERF_SUBMISSION_ORG:-Trireme}
export MLPERF_SUBMISSION_BENCHMARK=llama31_8b
export MLPERF_SUBMISSION_DIVISION=${MLPERF_SUBMISSION_DIVISION:-closed}
export MLPERF_SUBMISSION_STATUS=onprem

# NVLink multicast stays off by design.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
