#pragma once
// Private to models/bert: indices of the parameters of a unit.

namespace trireme::bert {

enum Embed { kWord, kPosition, kType, kEmbedGamma, kEmbedBeta };
enum Layer {
  kQkvWeight,
  kQkvBias,
  kOutWeight,
  kOutBias,
  kAttentionGamma,
  kAttentionBeta,
  kUpWeight,
  kUpBias,
  kDownWeight,
  kDownBias,
  kOutputGamma,
  kOutputBeta
};
/// Pooler and next-sentence head are last, because BertForMaskedLM has none.
enum Head {
  kTransformWeight,
  kTransformBias,
  kTransformGamma,
  kTransformBeta,
  kOutputBias,
  kPoolerWeight,
  kPoolerBias,
  kNextWeight,
  kNextBias
};

}  // namespace trireme::bert
