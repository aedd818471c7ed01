#pragma once
// Private to ops/: tensors to the fused attention kernels (kernels/attention). Without CUDA, and on GPUs other than
// sm_90, serves_attention() is false.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace trireme {

/// A batch's work lists on the device, by head size and mask: made by the first layer, used by all.
struct AttentionWork {
  struct Lists {
    at::Tensor forward, backward, sequences, blocks;  // bytes
    at::Tensor counters;                              // int32 [2]: zero between launches, which share one stream
    int64_t forward_count = 0, backward_count = 0, sequence_count = 0, block_count = 0, short_blocks = 0, longest = 0;
  };
  std::map<std::pair<int64_t, bool>, std::shared_ptr<const Lists>> lists;
};

namespace bridge {

/// Dropout on the probabilities, see kernels/attention/attention_dropout.cuh; sample_ids int64, one of each sequence.
struct AttentionDrops {
  int64_t threshold = 0;  // of 128
  uint32_t t0 = 0, t1 = 0;
  at::Tensor sample_ids;
};

struct AttentionProblem {
  std::shared_ptr<const AttentionWork::Lists> lists;
  bool causal = true;
  double scale = 1;
  AttentionDrops drops;
};

#ifdef TRIREME_WITH_CUDA
/// Whether the kernels take these heads [T, N, d], [T, K, d], [T, K, d] as they lie.
bool serves_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
std::shared_ptr<const AttentionWork::Lists> attention_lists(AttentionWork& work, const std::vector<int32_t>& boundaries,
                                                            int64_t d, bool causal, at::Device device);
/// o [T, N, d] and the log-sum-exp, fp32 [N, T].
std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const AttentionProblem& problem);
/// The gradients into dq, dk, dv, shaped like q, k, v, of any strides that the kernels take.
void attention_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& o, const at::Tensor& lse, const AttentionProblem& problem, bool deterministic,
                        std::array<at::Tensor, 3> gradients);
#else
inline bool serves_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&) { return false; }
inline std::shared_ptr<const AttentionWork::Lists> attention_lists(AttentionWork&, const std::vector<int32_t>&, int64_t,
                                                                   bool, at::Device) {
  return {};
}
inline std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                           const AttentionProblem&) {
  return {};
}
inline void attention_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                               const at::Tensor&, const at::Tensor&, const AttentionProblem&, bool,
                               std::array<at::Tensor, 3>) {}
#endif

}  // namespace bridge
}  // namespace trireme
