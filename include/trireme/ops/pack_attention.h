#pragma once
// Attention over packs: every token sees all tokens of its own sequence (no causal mask), and no other.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

/// Sequences back to back: sequence i is tokens boundaries[i] … boundaries[i + 1].
struct PackLayout {
  std::vector<int32_t> boundaries;  // 0 … T, ascending
  at::Tensor boundaries_device;     // int32, on the compute device; needed on GPUs only
  int64_t longest = 0;
  /// Names this run of tokens among all of the training run; a GPU library's dropout is seeded with it.
  uint64_t key = 0;
};
PackLayout make_pack_layout(std::vector<int32_t> boundaries, uint64_t key, at::Device device);

/// dropout(softmax(scale q k^T)) v inside each sequence. qkv [T, 3, N, H] contiguous (query, key, value heads of a
/// token); result [T, N * H]. Differentiable, one packed gradient [T, 3, N, H].
///
/// Dropout on the probabilities, one sample id per query token (ops/dropout.h: row of N * S_keys elements).
/// CPU, and fp32/fp64 anywhere: products written out, dropout exactly as specified, whatever the ranks.
/// GPU, bf16/fp16: LibTorch's variable-length flash attention. It draws from its own generator, which is seeded
/// from (seed, stream, layout.key): the same again in a resumed run of the same world size, but another mask than
/// the CPU's; its backward may add in varying order unless deterministic algorithms are asked for.
at::Tensor pack_attention(const at::Tensor& qkv_T3NH, const PackLayout& layout, double scale, const Dropout& dropout, uint64_t stream);

}  // namespace trireme
