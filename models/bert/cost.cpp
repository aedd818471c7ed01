// FLOPs and activation memory of a BERT.
#include "models/bert/bert.h"

#include <algorithm>

namespace trireme {

double bert_flops_per_row(const BertConfig& config, int64_t row_length, double sequences_per_row, double masked) {
  const auto d = static_cast<double>(config.hidden_size), f = static_cast<double>(config.intermediate_size);
  const auto layers = static_cast<double>(config.num_hidden_layers), tokens = static_cast<double>(row_length);
  const double matrices = 6 * layers * (4 * d * d + 2 * d * f) * tokens;
  const double head = 6 * (d * d + d * static_cast<double>(config.vocab_size)) * masked;
  const double next = config.next_sentence ? 6 * (d * d + 2 * d) * sequences_per_row : 0;
  const double attention_forward = layers * 4 * tokens * (tokens / sequences_per_row) * d;
  return matrices + head + next + 3.5 * attention_forward;
}

BlockWork bert_layer_work(const BertConfig& config, int64_t row_length, double sequences_per_row,
                          int64_t element_size) {
  const auto d = static_cast<double>(config.hidden_size), f = static_cast<double>(config.intermediate_size);
  const auto s = static_cast<double>(row_length), e = static_cast<double>(element_size);
  const auto unhidden = [&](double columns, double inner) { return unhidden_bytes(s, columns, inner, e); };
  // Forward: each norm reads the product and the residual and writes its sum and its output; GELU reads and writes f.
  // Backward: a norm reads dy and its input and writes the gradients of product and residual; GELU reads dy and its
  // input and writes the gradient.
  return {.matrices = 2 * s * (4 * d * d + 2 * d * f),
          .gate_up = 2 * s * d * f,
          .attention = 4 * s * (s / sequences_per_row) * d,
          .forward_bytes = s * e * (8 * d + 2 * f),
          .backward_bytes = s * e * (8 * d + 3 * f),
          .fp8_forward_bytes = 4 * s * (3 * d + f),
          .fp8_backward_bytes = 4 * s * (5 * d + f),
          .fp8_weight_bytes = 4 * (4 * d * d + 2 * d * f),
          .unhidden_forward = unhidden(3 * d, d) + unhidden(d, d) + unhidden(f, d) + unhidden(d, f),
          .unhidden_backward = unhidden(d, 3 * d) + unhidden(d, d) + unhidden(d, f) + unhidden(f, d)};
}

BertActivationBytes bert_activation_bytes(const BertConfig& config, int64_t row_length, int64_t element_size,
                                          int64_t padded_vocab, bool fp8, bool stored_codes) {
  const int64_t d = config.hidden_size, f = config.intermediate_size, e = element_size;
  BertActivationBytes bytes;
  // Saved per token: the layer's input, q k v, the attention's output, the inputs of both norms, the first norm's
  // output, the MLP before and after GELU; in fp32 the log-sum-exp of each head, and mean and reciprocal deviation of
  // both norms. With FP8 the codes of all product inputs are saved instead of the inputs, and the attention's output in
  // both forms.
  const int64_t saved = fp8 ? (6 * d + f) * e + 3 * d + f : (8 * d + 2 * f) * e;
  bytes.layer_saved = row_length * (saved + (config.num_attention_heads + 4) * 4);
  bytes.layer_recomputed = row_length * d * e;
  // Backward of the MLP: gradients of the activation, of its input, of the layer's output, of the norm's input before
  // and after dropout. Backward of attention: gradients of the output and of q, k, v, separate and packed, and fp32
  // sums of dq in up to two rows a token; up to 512 tokens in heads of 64 they stay on chip, beside 8 bytes for each
  // head and each of the 128 rows that a sequence takes at least.
  const int64_t codes = fp8 ? 2 * (d + f) : 0;  // of both gradients, row-major and transposed
  const int64_t mlp = (2 * f + 4 * d) * e + codes,
                attention = (3 * d + 6 * d) * e + (config.head_dim() == 64 && row_length <= 512 ? 4 : 8) * d;
  bytes.working_peak = row_length * std::max(mlp, attention);
  // The head: 15 % of the positions, rounded up; gradients overwrite their logits. The decoder's gradient: fp32 sum and
  // a copy in the compute dtype.
  const int64_t masked = (row_length * 3 + 19) / 20;
  bytes.head = masked * (padded_vocab * e + 6 * d * e) + 2 * row_length * d * e;
  bytes.working_fixed = padded_vocab * d * (4 + 2 * e);
  // Transposed codes: of all weights, where forward makes them, or of the matrix that dgrad reads.
  if (fp8) bytes.working_fixed += stored_codes ? d * f : config.num_hidden_layers * (4 * d * d + 2 * d * f);
  return bytes;
}

}  // namespace trireme
