# Common settings of all MLPerf BERT configurations; config_*_pack.sh source this file first and override.
# DATADIR_PHASE2_PACKED and EVALDIR name folders of rows other than packed_data and eval_varlength of DATADIR.
# shellcheck shell=bash

# The training configuration; the variables below override it with --set (run_and_time_bert.sh).
export TRIREME_CONFIG=${TRIREME_CONFIG:-mlperf_bert.yaml}
export RUN_AND_TIME=run_and_time_bert.sh
export LR=0.00096
export MAX_STEPS=3680
export OPT_LAMB_BETA_1=0.60466
export OPT_LAMB_BETA_2=0.85437
export WEIGHT_DECAY_RATE=0.1
export INIT_LOSS_SCALE=1024
export EVAL_ITER_SAMPLES=150000 # sequences between evaluations
export NUM_EVAL_EXAMPLES=10000
export TARGET_MLM_ACCURACY=0.720
export PACKING_RATE=2
# Further configuration keys, e.g. EXTRA_SET="logging.every_steps=100".
export EXTRA_SET=${EXTRA_SET:-}

# Names in the MLPerf log.
export MLPERF_SUBMISSION_ORG=${MLPERF_SUBMISSION_ORG:-Trireme}
export MLPERF_SUBMISSION_BENCHMARK=bert
export MLPERF_SUBMISSION_DIVISION=${MLPERF_SUBMISSION_DIVISION:-closed}
export MLPERF_SUBMISSION_STATUS=onprem

# NVLink multicast stays off by design.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
