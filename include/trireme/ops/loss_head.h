#pragma once
// Last linear layer and cross-entropy, in chunks of tokens: the logits are never all in memory.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// sum over t of token_weight[t] * (logsumexp(l_t) - l_t[target_t]), l_t = weight hidden_t, softmax
/// in fp32 (fp64 for fp64 input).
/// hidden [T, D], weight [V, D] of one dtype; targets int64 [T]; token_weight fp32 [T], 0 = not
/// counted (target then arbitrary but inside the vocabulary). Result: scalar, fp32 (fp64).
/// When gradients are wanted they are formed in the forward pass, chunk by chunk: kept are d_hidden
/// [T, D] and, if the weight is trained, d_weight (accumulated in fp32), both of the loss divided by the
/// largest token weight. In fp16 a token's weight is applied where it cannot underflow: d_logits of any
/// counted token have its size before the weight, rows of d_hidden get theirs with the loss's own
/// gradient (the loss scale), those of the hidden states in front of the product that gives d_weight.
/// On the CPU tokens of weight 0 are left out; on a GPU that would cost a synchronisation.
/// On sm_90 a kernel turns each chunk's logits into their gradient in place: 256 MiB of logits is
/// all the memory used beyond the results, a chunk's weight gradient is added to d_weight by its
/// product, and softmax reads logits in the dtype of the products.
/// `bias` [V] is added to the logits when it is defined.
at::Tensor loss_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const at::Tensor& token_weight, const at::Tensor& bias = {});

/// The same loss without gradients, and how many counted tokens the largest logit finds (fp64 scalars).
struct HeadScore {
  at::Tensor loss, hits;
};
HeadScore score_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const at::Tensor& token_weight, const at::Tensor& bias);

/// Tokens per chunk of the composition: about 64 MiB of fp32 logits on a CPU, 512 MiB on a GPU.
int64_t loss_head_chunk(int64_t vocab_size, bool on_gpu);

}  // namespace trireme
