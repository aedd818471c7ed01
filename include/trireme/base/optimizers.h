#pragma once
// The list of optimizers. optim/optimizer.h has their traits.

/// X(Name, word) stands for OptimizerSection::Name::kName, for `word` in optimizer.name and for word_optimizer() in
/// src/optim/word.cpp.
#define TRIREME_OPTIMIZERS(X) \
  X(Adamw, adamw)             \
  X(Lamb, lamb)               \
  X(Muon, muon)
