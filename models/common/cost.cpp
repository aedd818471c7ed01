#include "models/common/cost.h"

#include <algorithm>

namespace trireme {

namespace {

/// Sum of `value` over the products of a block.
template <class Value>
double over_products(const BlockTable& block, const Value& value) {
  double sum = 0;
  for (const BlockLayer& layer : block.layers)
    if (layer.product()) sum += value(static_cast<double>(layer.in), static_cast<double>(layer.out()));
  return sum;
}

int64_t norm_columns(const BlockTable& block, LayerKind kind) {
  int64_t sum = 0;
  for (const BlockLayer& layer : block.layers) sum += layer.kind == kind ? layer.in : 0;
  return sum;
}

/// Columns of the norms whose results a product reads: all but those of each head.
int64_t normed_inputs(const BlockTable& block) {
  int64_t sum = 0;
  for (const BlockLayer& layer : block.layers) sum += !layer.product() && layer.in == layer.out() ? layer.in : 0;
  return sum;
}

bool post_normed(const BlockTable& block) { return norm_columns(block, LayerKind::kPostNorm) > 0; }

}  // namespace

double block_matrices(const BlockTable& block) {
  return over_products(block, [](double in, double out) { return in * out; });
}

BlockWork block_work(const BlockTable& block, int64_t row_length, double sequences, int64_t element_size) {
  const auto s = static_cast<double>(row_length), e = static_cast<double>(element_size), bytes = s * e;
  const auto up = static_cast<double>(block.at("up").out()), f = static_cast<double>(block.at("down").in),
             qkv = static_cast<double>(block.at("qkv").out()), q = static_cast<double>(block.at("output").in);
  const auto norms = static_cast<double>(norm_columns(block, LayerKind::kNorm)),
             post_norms = static_cast<double>(norm_columns(block, LayerKind::kPostNorm));
  const double rotated = block.rotary ? qkv : 0;
  // Forward: a norm reads and writes its rows, a post-norm reads the product and the residual and writes their sum and
  // its output; rotary positions read and write q k v, the activation reads `up` and writes f. Backward: a norm reads
  // dy, its input and, before the residual, that one's gradient, and writes dx (a post-norm one for the product, too);
  // the activation reads dy and `up` and writes d_up. GELU's output is kept where that of SwiGLU is recomputed.
  return {
      .matrices = 2 * s * block_matrices(block),
      .gate_up = 2 * s * static_cast<double>(block.at("up").in) * up,
      .attention = (block.causal ? 2 : 4) * s * (s / sequences) * q,
      .forward_bytes = bytes * (2 * norms + 4 * post_norms + 2 * rotated + up + f),
      .backward_bytes = bytes * (4 * norms + 4 * post_norms + 2 * rotated + 2 * up + f),
      .norms_bytes =
          bytes * (2 * (static_cast<double>(normed_inputs(block)) - post_norms) + (block.gated ? up + f : 0)),
      .fp8_forward_bytes = 4 * s * over_products(block, [](double in, double) { return in; }),
      .fp8_backward_bytes = 4 * s * over_products(block, [](double, double out) { return out; }),
      .fp8_weight_bytes = 4 * block_matrices(block),
      .unhidden_forward = over_products(block, [&](double in, double out) { return unhidden_bytes(s, out, in, e); }),
      .unhidden_backward = over_products(block, [&](double in, double out) { return unhidden_bytes(s, in, out, e); })};
}

ActivationBytes block_activations(const BlockTable& block, int64_t blocks, int64_t row_length,
                                  const ActivationStorage& storage, const LoraOptions* lora,
                                  const std::vector<LoraTarget>& targets) {
  const int64_t d = block.at("qkv").in, f = block.at("down").in, up = block.at("up").out();
  const int64_t q = block.at("output").in, qkv = block.at("qkv").out();
  const int64_t element = storage.element_size;
  const bool fp8 = storage.frozen_fp8, trained = lora == nullptr, reforms = !post_normed(block);
  const auto adapted = [&](const char* layer) {
    return std::any_of(targets.begin(), targets.end(),
                       [&](const LoraTarget& target) { return target.layer == block.find(layer); });
  };
  const bool down_adapter = adapted("down"), up_adapter = adapted("up");

  // Per token: the inputs of the norms, q k v, the attention's output (also the output projection's input), the
  // adapters' products; fp32: the statistics of the norms (a layer norm has a mean, too) and the log-sum-exp of each
  // head.
  int64_t norms = 0, inputs = 0, statistics = block.heads;
  for (const BlockLayer& layer : block.layers) {
    (layer.product() ? inputs : norms) += layer.in;
    if (!layer.product()) statistics += (layer.bias ? 2 : 1) * (layer.in / layer.out());
  }
  int64_t kept = (norms + qkv + q) * element + statistics * 4;
  if (lora != nullptr) kept += lora->r * static_cast<int64_t>(targets.size()) * element;
  if (storage.trained_fp8) kept += inputs;
  // The up projection; GELU keeps what the down projection's weight gradient reads, too.
  int64_t gate_up = fp8 && block.gated ? up + 8 : up * element;
  if (!block.gated && ((trained && !storage.trained_fp8) || down_adapter)) gate_up += f * element;

  // Outputs of the norms and of the activation, which weight gradients in the compute dtype read.
  const int64_t normed =
      (trained && !storage.trained_fp8) ? (normed_inputs(block) + (block.gated ? f : 0)) * element : 0;
  ActivationBytes bytes;
  bytes.block_saved = row_length * (kept + gate_up + normed);
  if (reforms) {
    bytes.block_saved_norms = normed > 0 ? row_length * (kept + gate_up) : 0;
    bytes.block_saved_mlp = row_length * kept;
  }
  bytes.block_recomputed = row_length * d * element;

  // Forward of the MLP: gate_up and the activation, in FP8 also both as bytes. Backward: the gradients of the
  // activation and of gate_up, gate_up itself where it was formed again, and for adapters the activation and its masked
  // copy; then the gradient of the normalised rows.
  const int64_t forward = (up + f) * element + (fp8 || storage.trained_fp8 ? up + f : 0) + 2 * d * element;
  const int64_t masked = lora != nullptr && lora->dropout > 0 ? 1 : 0;
  // In FP8 without an adapter the gradient of gate_up is written as bytes only.
  const int64_t plain_up = (fp8 && !up_adapter) || !reforms ? 0 : up;
  int64_t backward = (up + f + plain_up + 3 * d) * element + (fp8 ? up + d : 0);
  if (storage.trained_fp8) backward += 2 * (up + d);  // codes of both gradients, each way round
  if (down_adapter || (trained && reforms)) backward += f * (1 + masked) * element;
  if (up_adapter || trained) backward += d * (1 + masked) * element;
  // Backward of attention: gradients of its output, of q, k, v and their packed copy, fp32 sums of dq in up to two rows
  // a token, the normalised rows and their masked copy. Without a causal mask the sums of up to 512 tokens in heads of
  // 64 stay on chip, beside 8 bytes for each head and each of the 128 rows that a sequence takes at least.
  const int64_t sums = !block.causal && block.head_dim == 64 && row_length <= 512 ? 4 : 8;
  const int64_t attention = (d + q + 2 * qkv + d * (1 + masked)) * element + sums * q;
  bytes.working_peak = row_length * std::max({forward, backward, attention});
  bytes.working_fixed = fp8 ? 2 * d * f : 0;  // the transposed weight
  // Codes that forward makes are transposed there and kept for backward; the store's are transposed by backward, one
  // matrix at a time.
  if (storage.trained_fp8)
    bytes.working_fixed = storage.stored_codes ? d * up : blocks * static_cast<int64_t>(block_matrices(block));
  return bytes;
}

}  // namespace trireme
