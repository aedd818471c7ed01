#pragma once
// The numbers of a step on their way from the device to the host, by position.

namespace trireme {

/// Statistics of a step that are summed over ranks in one all-reduce, and what follows from them (kStop … as kSignal
/// …).
enum StepStat { kSquare, kLossSum, kDenominator, kSignal, kSaveReady, kSaveClock, kSamples, kNumReduced };
enum StepResult { kLoss, kGradNorm, kSkipped, kSpiked, kStop, kReady, kClock, kSampleCount, kSaturated, kNumResults };

}  // namespace trireme
