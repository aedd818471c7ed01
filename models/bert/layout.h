#pragma once
// Private to models/bert: which parameter of a unit is which.

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
/// The pooler's and the next-sentence head's come last: BertForMaskedLM has none.
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
