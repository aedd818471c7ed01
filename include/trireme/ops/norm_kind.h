#pragma once
// Names of the norms, for readers of configurations that do without LibTorch.

namespace trireme {

/// norm.h has the formulas.
enum class NormKind { kNone, kRms, kRmsPlusOne, kLayer };

}  // namespace trireme
