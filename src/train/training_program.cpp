#include "trireme/train/training_program.h"

#include "mlperf.h"
#include "models/bert/bert.h"
#include "task.h"
#include "trireme/base/error.h"
#include "trireme/plan/precision.h"

#include <algorithm>

namespace trireme {

namespace {

/// Of NeMo's configurations conf/training/gpt3.
Config gpt_defaults() {
  Config config;
  config.optimizer.betas = {0.9, 0.95};
  config.optimizer.weight_decay = 0.1;
  config.optimizer.grad_clip = 1.0;
  config.train.loss = TrainSection::Loss::kTokenMean;
  return config;
}

}  // namespace

const std::vector<TrainingProgram>& training_programs() {
  static const std::vector<TrainingProgram> programs = {
      {.keys = {.name = "train_llama",
                .features = FeatureSet(Feature::kAdapters, Feature::kVocabularySize, Feature::kRecomputeMlp,
                                       Feature::kMlperfSkip, Feature::kFp8Training, Feature::kContext,
                                       Feature::kDocumentStreams, Feature::kMlperfLog, Feature::kMegatronData,
                                       Feature::kPairs, Feature::kFp8Attention)},
       .trains = "Llama-family models: LoRA adapters, or all parameters",
       .presets = "models/decoder/presets",
       .make_task = make_causal_lm_task,
       .mlperf_events = make_llama_events},
      {.keys = {.name = "train_bert",
                .features = FeatureSet(Feature::kPackedRows, Feature::kRankMeans, Feature::kAccuracy,
                                       Feature::kFp8Training, Feature::kMlperfLog),
                .vocab_multiple = kDefaultVocabMultiple},
       .trains = "BERT on packed rows: masked words and next sentence",
       .presets = "models/bert/presets",
       .make_task = make_masked_lm_task,
       .mlperf_events = make_bert_events},
      {.keys = {.name = "train_gpt",
                .features = FeatureSet(Feature::kVocabularySize, Feature::kRecomputeMlp, Feature::kFp8Training,
                                       Feature::kContext, Feature::kDocumentStreams, Feature::kMegatronData,
                                       Feature::kPairs, Feature::kFp8Attention),
                .vocab_multiple = 128,  // NeMo's make_vocab_size_divisible_by
                .defaults = gpt_defaults()},
       .trains = "GPT-3 family models, all parameters",
       .presets = "models/decoder/presets",
       .make_task = make_causal_lm_task,
       .mlperf_events = make_llama_events},
  };
  return programs;
}

const TrainingProgram& training_program(std::string_view name) {
  const auto& programs = training_programs();
  const auto found = std::find_if(programs.begin(), programs.end(),
                                  [&](const TrainingProgram& program) { return program.keys.name == name; });
  TRIREME_CHECK(found != programs.end(), "no program ", name);
  return *found;
}

std::unique_ptr<PlannedModel> model_to_plan(const Config& config, const TrainingProgram& program) {
  const at::ScalarType dtype = compute_dtype(config, /*use_gpu=*/true);
  return program.make_task(config, {RankGrid(), at::kCPU, dtype, /*plan_only=*/true}, program.keys);
}

}  // namespace trireme
