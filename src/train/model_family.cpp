#include "trireme/train/model_family.h"

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

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> families = {
      {.config = {.program = "train_llama",
                  .features = FeatureSet(Feature::kAdapters, Feature::kVocabularySize, Feature::kRecomputeMlp,
                                         Feature::kMlperfSkip, Feature::kFp8Training, Feature::kContext,
                                         Feature::kDocumentStreams, Feature::kMlperfLog, Feature::kMegatronData)},
       .trains = "Llama-family models: LoRA adapters, or all parameters",
       .presets = "models/decoder/presets",
       .make_task = make_causal_lm_task,
       .mlperf_events = make_llama_events},
      {.config = {.program = "train_bert",
                  .features = FeatureSet(Feature::kPackedRows, Feature::kRankMeans, Feature::kAccuracy,
                                         Feature::kFp8Training, Feature::kMlperfLog),
                  .vocab_multiple = kDefaultVocabMultiple},
       .trains = "BERT on packed rows: masked words and next sentence",
       .presets = "models/bert/presets",
       .make_task = make_masked_lm_task,
       .mlperf_events = make_bert_events},
      {.config = {.program = "train_gpt",
                  .features = FeatureSet(Feature::kVocabularySize, Feature::kRecomputeMlp, Feature::kFp8Training,
                                         Feature::kContext, Feature::kDocumentStreams, Feature::kMegatronData),
                  .vocab_multiple = 128,  // NeMo's make_vocab_size_divisible_by
                  .defaults = gpt_defaults()},
       .trains = "GPT-3 family models, all parameters",
       .presets = "models/decoder/presets",
       .make_task = make_causal_lm_task,
       .mlperf_events = make_llama_events},
  };
  return families;
}

const ModelFamily& model_family(std::string_view program) {
  const auto& families = model_families();
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const ModelFamily& family) { return family.config.program == program; });
  TRIREME_CHECK(found != families.end(), "no program ", program);
  return *found;
}

std::unique_ptr<PlannedModel> model_to_plan(const Config& config, const ModelFamily& family) {
  const at::ScalarType dtype = compute_dtype(config, /*use_gpu=*/true);
  return family.make_task(config, {RankGrid(), at::kCPU, dtype, /*plan_only=*/true}, family.config);
}

}  // namespace trireme
