#pragma once
// Optimizers over local shards. All scalars that depend on the gradients stay on the device, so that a step needs no
// synchronisation with the host.

#include "trireme/base/optimizers.h"
#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/nn/trained_shard.h"
#include "trireme/nn/unit.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Updates the master weights and the compute copy of every shard once, with learning rate `lr`. `multiplier`: fp32
  /// device scalar by which gradients are multiplied (clipping, normalisation, loss scale). `skip`: fp32 device scalar;
  /// 1 leaves weights, moments and step count unchanged, 0 applies the update.
  virtual void step(double lr, const at::Tensor& multiplier, const at::Tensor& skip) = 0;
  /// The state that a checkpoint keeps in addition to the masters.
  virtual std::vector<StateTensor> state() = 0;

 protected:
  /// state() of a step count and two moments of each shard.
  static std::vector<StateTensor> moment_state(const std::vector<TrainedShard>& shards, const at::Tensor& steps,
                                               const std::vector<at::Tensor>& first,
                                               const std::vector<at::Tensor>& second);
};

/// The traits of an optimizer, for the plan, the configuration's hints and the space for checkpoints.
struct OptimizerTraits {
  int moments;                  // number of flat state tensors, each as long as the master weights
  bool bf16_moments = false;    // optimizer.moments: bf16 is possible
  bool streams = false;         // the step may see a shard part by part: its state may wait on the host
  bool whole_matrices = false;  // matrices (ParameterSpec::matrix_rows) have one moment, and are updated as wholes
  bool bf16_masters = false;    // optimizer.masters: bf16 is possible
  /// Bytes of the master weight of one element.
  static int64_t master_bytes(const OptimizerSection& options) {
    return options.masters == OptimizerSection::Masters::kBf16 ? 2 : 4;
  }
  std::unique_ptr<Optimizer> (*make)(const OptimizerSection& options, std::vector<TrainedShard>& shards,
                                     Communicator& world);

  /// Bytes of all moments of one element; `matrix`: of a matrix.
  int64_t moment_bytes(const OptimizerSection& options, bool matrix = false) const {
    return (matrix && whole_matrices ? 1 : moments) * (options.moments == OptimizerSection::Moments::kBf16 ? 2 : 4);
  }
};

/// In the optimizer's own file: adamw_optimizer(), lamb_optimizer(), …
#define TRIREME_DECLARE(Name, word) const OptimizerTraits& word##_optimizer();
TRIREME_OPTIMIZERS(TRIREME_DECLARE)
#undef TRIREME_DECLARE

const OptimizerTraits& traits_of(OptimizerSection::Name name);

/// In the state of an optimizer with whole_matrices the elements of a unit with matrices that are in none of them form
/// a vector of their own, with the gaps between parameters: its name.
std::string rest_name(const std::string& unit);

/// The work of an optimizer with whole_matrices on the matrices of trained units; zeros for other optimizers.
struct MatrixWork {
  int units = 0;         // with matrices
  int64_t elements = 0;  // of all matrices
  double flops = 0;      // of all matrices, in one step
  int64_t memory = 0;    // working memory of a rank in bytes
};
MatrixWork matrix_work(const OptimizerSection& options, const std::vector<UnitSpec>& units);

/// Five Newton-Schulz steps x = a x + (b G + c G^2) x, G = x x^T, from x = matrix / |matrix|, as torch.optim.Muon takes
/// them: bf16 [n, rows, columns], n matrices, with singular values near 1. The argument's memory is used. Of symmetric
/// products with at least `symmetric_from` rows a quarter is not computed but mirrored.
at::Tensor orthogonalised(at::Tensor matrices, int64_t symmetric_from = 2048);

/// An optimizer over `shards`, which must outlive it. adamw: Loshchilov & Hutter 2019, as torch.optim.AdamW computes
/// it. lamb: You et al. 2020 with bias correction and a trust ratio |w| / |update| per checkpoint tensor. The ratio is
/// 1 if either norm is 0 and, unless trust_ratio is all, for tensors without weight decay (as in apex' FusedLAMB and
/// the MLPerf submissions). Norms cover all ranks that share a tensor. muon: torch.optim.Muon for matrices, adamw for
/// the rest. Other options are internal errors; the configuration rejects them earlier.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSection& options, std::vector<TrainedShard>& shards,
                                          Communicator& world);

struct GradientPart {
  at::Tensor gradient;
  int copies = 1;  // ranks that have it
};
/// The squares of all elements, each divided by its copies, summed in fp64 (runs of elements in fp32): fp64 device
/// scalar. Gradients of several dtypes, or none, are an internal error.
at::Tensor sum_of_squares(const std::vector<GradientPart>& parts);
/// This rank's part of the squared L2 norm of all gradients: fp64 device scalar. The sum over the ranks is the global
/// square.
at::Tensor local_gradient_square(const std::vector<TrainedShard>& shards);

/// Learning rate of step t (from 0) of n = max_steps, with w = warmup_steps. It depends on nothing else, so a resumed
/// run has the same rates.
///
/// cosine, linear, constant: lr (t + 1) / (w + 1) in the warm-up. After it, with f = min(1, (t - w) / (n - w)):
/// constant lr; linear min_lr + (lr - min_lr) (1 - f); cosine min_lr + (lr - min_lr) (1 + cos(pi f)) / 2.
///
/// cosine with constant_steps > 0 (NeMo 1.20, core/optim/lr_scheduler.py, CosineAnnealing): lr t / w for t <= w, which
/// is 0 in step 0; with d = n - constant_steps - w, the cosine with f = (t - w) / d up to t = w + d; then min_lr. d may
/// be negative.
///
/// wsd (torchtitan 0.2, components/lr_scheduler.py; m = min_lr_factor, 0 if not given): d = n decay_ratio rounded half
/// to even, at most n - w; without decay_ratio n - w. lr (t + 1) / w in the warm-up; lr for w <= t < n + 1 - d; then,
/// with p = (t + 1 - (n + 1 - d)) / d, lr (m + (1 - m) g(p)), where g is 1 - p (linear), 1 - sqrt(p) (sqrt) or
/// (1 + cos(pi p)) / 2 (cosine). The step that would have p = 1 is the one after the last.
///
/// fms_cosine (fms-fsdp, main_training_llama.py; m = min_lr_factor, 0.1 if not given): lr min(1 - (1 - min(t, w) /
/// w)^2, m + (1 - m) (1 + cos(pi min(t, n) / n)) / 2). The cosine counts from step 0 and not from the end of the
/// warm-up, and step 0 has rate 0; without warm-up the first term is 1. fms-fsdp takes w = min(2000, n div 20).
///
/// annealing (fms-fsdp, training_stage annealing): lr (1 - t / n), 0 from step n on.
double learning_rate(const ScheduleSection& schedule, double lr, int64_t max_steps, int64_t step);

/// m of learning_rate(), with its default; nullopt: the schedule has no m.
std::optional<double> min_lr_factor(const ScheduleSection& schedule);

}  // namespace trireme
