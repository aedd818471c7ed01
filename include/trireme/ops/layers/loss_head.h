#pragma once
// Last linear layer and cross-entropy, in chunks of tokens, so that the logits of all tokens are never in memory at
// once.

#include "trireme/nn/weight.h"
#include "trireme/ops/trained_rows.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// Label smoothing (Szegedy et al. 2016): a target's distribution is 1 - share at the target plus share spread evenly
/// over the first `vocabulary` ids. The rows of the weight beyond them are padding: part of the softmax, never a
/// target.
struct LabelSmoothing {
  double share = 0;
  int64_t vocabulary = 0;
};

/// sum over t of token_weight[t] * (logsumexp(l_t) - l_t[target_t]), l_t = weight hidden_t + bias, softmax in fp32
/// (fp64 for fp64 input). Result: scalar, fp32 (fp64). hidden [T, D], weight [V, D] and bias [V] (undefined: none) of
/// one dtype; targets int64 [T], inside the vocabulary; token_weight fp32 [T], 0: the token is not counted. Shapes that
/// do not fit are an internal error.
///
/// If gradients are wanted, the forward pass computes them chunk by chunk and keeps d_hidden [T, D] and, if the weight
/// is trained, d_weight (summed in fp32), both for the loss divided by the largest token weight. With fp16 the token
/// weights are applied where they do not underflow: d_logits are computed without them, d_hidden is multiplied by them
/// together with the gradient of the loss (the loss scale), and for d_weight they multiply the hidden states.
///
/// On the CPU tokens of weight 0 are skipped; on a GPU that would require a synchronisation. Our kernel
/// overwrites each chunk's logits by their gradient: the memory used beyond the results is a chunk's logits
/// (loss_head_kernel_chunk()). There a chunk's weight gradient is added to d_weight inside its product, and softmax
/// reads logits in the dtype of the products.
///
/// `rows` of a frozen weight, which has their values already: their gradient goes to them. Without bias.
///
/// With `smoothing` the loss of a token is (1 - share) times that above plus share * mean_v(logsumexp(l_t) - l_t[v])
/// over the smoothed ids: transformers' LabelSmoother. share / vocabulary is a part of each logit's gradient in the
/// dtype of the products; fp16 rounds it to a multiple of 6e-8.
///
/// `sink`: takes the gradient of a weight that does not require grad; null: none. `most_logits`: as for
/// loss_head_kernel_chunk().
at::Tensor loss_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const at::Tensor& token_weight, const at::Tensor& bias = {}, const TrainedRows& rows = {},
                     const LabelSmoothing& smoothing = {}, GradientSink* sink = nullptr, int64_t most_logits = 0);

/// log p of each token's target, l_t[target_t] - logsumexp(l_t): [T] in fp32 (fp64), 0 where `counted` [T] (fp32, 0 or
/// 1) is 0. Memory, dtypes and the other arguments as for loss_head(), but gradients are those of each token by itself,
/// whose factors backward knows. With a frozen weight forward keeps the d_hidden of every token, and backward
/// multiplies its rows: as many FLOPs as loss_head(). With a trained weight (or `rows`) forward keeps the hidden
/// states, and backward computes the logits again: 2 V D FLOPs more for each token.
at::Tensor token_log_probs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                           const at::Tensor& counted, const at::Tensor& bias = {}, const TrainedRows& rows = {},
                           GradientSink* sink = nullptr, int64_t most_logits = 0);

/// The same loss without gradients, and the number of counted tokens whose target has the largest logit (fp64 scalars).
struct HeadScore {
  at::Tensor loss, hits;
};
HeadScore score_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const at::Tensor& token_weight, const at::Tensor& bias);

/// Tokens per chunk of the composition: about 64 MiB of fp32 logits on a CPU, 512 MiB on a GPU.
int64_t loss_head_chunk(int64_t vocab_size, bool on_gpu);
/// Bytes of the logits of a chunk of our kernel, at most, with the gradient of the whole weight: a 64th of the device's
/// memory (0: unknown), from 256 to 1,280 MiB.
int64_t loss_head_logits(int64_t device_memory);
/// Tokens per chunk of our kernel: 256 MiB of logits, at least 256 tokens. With the gradient of the whole weight 8,192
/// tokens, of up to `most_logits` bytes (0: loss_head_logits(0)): every chunk's product reads and writes the gradient
/// in fp32, which with 768 tokens adds two thirds to its time on an H200.
int64_t loss_head_kernel_chunk(int64_t vocab_size, int64_t element_size, bool weight_gradient, int64_t most_logits = 0);

}  // namespace trireme
