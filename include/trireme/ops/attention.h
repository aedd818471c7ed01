#pragma once
// Causal attention inside each sequence of packed rows, grouped queries.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

struct AttentionWork;

/// Boundaries of the sequences in the flattened rows; the device copy is made once per batch and
/// only when a row holds several.
struct SequenceLayout {
  std::vector<int32_t> boundaries;  // 0 … B*S, ascending
  int64_t rows = 0, row_length = 0;
  int64_t longest = 0;
  bool one_per_row = false;
  at::Tensor boundaries_device;         // int32
  std::shared_ptr<AttentionWork> work;  // what our kernels make of the boundaries, once a batch
};
SequenceLayout make_sequence_layout(const std::vector<int32_t>& cu_seqlens, int64_t rows, int64_t row_length,
                                    at::Device device);

/// softmax(scale q k^T + causal mask) v inside each sequence. q [B,S,N,H], k and v [B,S,K,H] (views
/// with strides are fine), N a multiple of K; query head n reads key head n / (N/K). Result
/// [B,S,N,H]. Differentiable.
/// GPU, bf16/fp16, head size 64 or 128, on Hopper: our kernels or the library's, whichever was measured faster
/// (kMeasured of the source file). Elsewhere whole rows through cuDNN (else flash), packed rows through variable-length
/// flash attention. dq may be added in varying order unless at::globalContext().deterministicAlgorithms() is set. CPU,
/// and fp32/fp64 anywhere: LibTorch's scaled-dot-product attention one sequence at a time.
at::Tensor attention(const at::Tensor& q_BSNH, const at::Tensor& k_BSKH, const at::Tensor& v_BSKH,
                     const SequenceLayout& sequences, double scale);

/// Scores, mask and softmax written out, for each sequence; records autograd. Oracle of the tests.
at::Tensor attention_reference(const at::Tensor& q_BSNH, const at::Tensor& k_BSKH, const at::Tensor& v_BSKH,
                               const SequenceLayout& sequences, double scale);

}  // namespace trireme
