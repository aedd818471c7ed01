#pragma once
// A block of the three fused sub-layers with all choices that a model can make, and its plain composition, which
// records autograd: the oracle of the layers' tests.

#include "gradient_check.h"
#include "trireme/ops/layers/linear_residual.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/ops/layers/norm_mlp.h"
#include "trireme/ops/matmul/fp8.h"
#include "trireme/ops/matmul/fp8_scales.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::testing {

/// x W^T + bias + the adapters' part.
inline at::Tensor linear_reference(const at::Tensor& x, const Linear& linear) {
  at::Tensor y = at::linear(x, linear.weight.matrix);
  if (linear.bias.defined()) y = y + linear.bias;
  for (const LoraAdapter& adapter : linear.lora.adapters) {
    at::Tensor input = x;
    if (linear.lora.dropout.active())
      input = x * apply_dropout(at::ones_like(x), linear.lora.dropout.at(adapter.stream));
    at::Tensor update = at::linear(at::linear(input, adapter.a), adapter.b) * adapter.scale;
    const int64_t after = linear.weight.matrix.size(0) - adapter.row_begin - adapter.b.size(0);
    if (adapter.magnitude.defined()) {
      const at::Tensor w = linear.weight.matrix.narrow(0, adapter.row_begin, adapter.b.size(0));
      const at::Tensor length = (w + adapter.scale * at::mm(adapter.b, adapter.a)).detach().norm(2, {1});
      const at::Tensor factor = adapter.magnitude / length;
      update = (factor - 1) * at::linear(input, w) + factor * update;
    }
    y = y + at::constant_pad_nd(update, {adapter.row_begin, after});
  }
  return y;
}

inline at::Tensor norm_reference(const at::Tensor& x, const Norm& norm) {
  if (norm.kind == NormKind::kNone) return x;
  if (norm.kind == NormKind::kRms) return rms_norm_reference(x, norm.weight, norm.eps);
  if (norm.kind == NormKind::kRmsPlusOne) return rms_norm_reference(x, norm.weight + 1, norm.eps);
  const at::Tensor centred = x - x.mean(-1, true);
  return centred / (centred.square().mean(-1, true) + norm.eps).sqrt() * norm.weight + norm.bias;
}

inline at::Tensor activation_reference(const at::Tensor& z, Activation activation) {
  const int64_t half = z.size(-1) / 2;
  switch (activation) {
    case Activation::kNone: return z;
    case Activation::kSwiglu: return at::silu(z.narrow(-1, 0, half)) * z.narrow(-1, half, half);
    case Activation::kGegluTanh:
      return activation_reference(z.narrow(-1, 0, half), Activation::kGeluTanh) * z.narrow(-1, half, half);
    case Activation::kGeluErf: return z * 0.5 * (1 + at::erf(z / std::sqrt(2.0)));
    case Activation::kGeluTanh: break;
  }
  return z * 0.5 * (1 + at::tanh(std::sqrt(2.0 / M_PI) * (z + 0.044715 * z.pow(3))));
}

inline at::Tensor dropout_reference(const at::Tensor& x, const Dropout& dropout) {
  return dropout.active() ? x * apply_dropout(at::ones_like(x), dropout) : x;
}

struct BlockChoices {
  std::string name;
  NormKind norm = NormKind::kRms;
  bool pre_norm = true, branch_norm = false;
  bool post_norm = false;  // the norm follows the residual, and nothing else is normed
  bool biases = false;
  Activation activation = Activation::kSwiglu;
  double dropout = 0;     // of both residual branches
  double multiplier = 1;  // the same
  int64_t rank = 0;       // rank of adapters on all four matrices; 0: none
  double lora_dropout = 0;
  bool dora = false;
  bool trained = true;  // whether weights, norms and biases are trained
  bool recompute_up = false;
  int64_t tile_tokens = 0;
};

inline void PrintTo(const BlockChoices& choices, std::ostream* out) { *out << choices.name; }

inline const BlockChoices kLlamaBlock{.name = "llama"};
inline const BlockChoices kBertBlock{.name = "bert",
                                     .norm = NormKind::kLayer,
                                     .post_norm = true,
                                     .biases = true,
                                     .activation = Activation::kGeluErf,
                                     .dropout = 0.1};
inline const BlockChoices kGptBlock{
    .name = "gpt", .norm = NormKind::kLayer, .biases = true, .activation = Activation::kGeluTanh, .dropout = 0.1};
inline const BlockChoices kGemmaBlock{
    .name = "gemma", .norm = NormKind::kRmsPlusOne, .branch_norm = true, .activation = Activation::kGegluTanh};
inline const BlockChoices kOlmoBlock{.name = "olmo", .pre_norm = false, .branch_norm = true};
inline const BlockChoices kGraniteBlock{.name = "granite", .dropout = 0.1, .multiplier = 0.22};

struct BlockShape {
  int64_t samples = 2, length = 5, width = 16, inner = 24, extra = 8;  // extra: columns of qkv in addition to the width
  int64_t tokens() const { return samples * length; }
};

/// One block's tensors, drawn once. Copies of them run on any device, in any dtype and with any recipe.
class TestBlock {
 public:
  TestBlock(const BlockChoices& choices, const BlockShape& shape) : c_(choices), s_(shape) {
    const int64_t d = s_.width, f = s_.inner, up = is_gated(c_.activation) ? 2 * f : f;
    const auto by = [](int64_t in) { return 1 / std::sqrt(static_cast<double>(in)); };
    x_ = add("x", {s_.tokens(), d}, 1, true);
    other_ = add("other", {s_.tokens(), d}, 1, true);
    qkv_ = add("qkv", {d + s_.extra, d}, by(d), c_.trained);
    out_ = add("out", {d, d}, by(d), c_.trained);
    up_ = add("up", {up, d}, by(d), c_.trained);
    down_ = add("down", {d, f}, by(f), c_.trained);
    for (const char* name : {"norm1", "norm2", "branch_norm1", "branch_norm2"}) {
      const bool branch = std::string_view(name).starts_with("branch");
      if (branch ? !c_.branch_norm : !c_.pre_norm && !c_.post_norm) {
        norms_.push_back(-1), norm_biases_.push_back(-1);
        continue;
      }
      norms_.push_back(add(std::string(name) + ".weight", {d}, 0.1, c_.trained, 1));
      norm_biases_.push_back(c_.norm == NormKind::kLayer ? add(std::string(name) + ".bias", {d}, 0.1, c_.trained) : -1);
    }
    for (const int64_t rows : {d + s_.extra, d, up, d})
      biases_.push_back(c_.biases ? add("bias", {rows}, 0.1, c_.trained) : -1);
    if (c_.rank == 0) return;
    // Two adapters on the fused matrix, the second of which starts inside it.
    add_adapters(0, {{0, d}, {d, s_.extra}}, d);
    add_adapters(1, {{0, d}}, d);
    add_adapters(2, {{0, up / 2}, {up / 2, up - up / 2}}, d);
    add_adapters(3, {{0, d}}, f);
  }

  const std::vector<std::string>& names() const { return names_; }

  /// The recipes of the four matrices.
  struct Recipes {
    Recipe recipe = Recipe::kCompute;
    const Fp8Scales* scales = nullptr;  // kFp8Delayed: scales of four linears
    bool keeps_transposed = false;      // kFp8Frozen: WeightState::transposed
  };

  /// y and the gradients of all leaves that require one, as fp64 on the CPU.
  std::vector<at::Tensor> run(at::Device device, at::ScalarType dtype, const Recipes& recipes) const {
    Built built = build(device, dtype, recipes);
    return outcome(forward(built), built);
  }
  std::vector<at::Tensor> run_reference() const {
    Built built = build(at::kCPU, at::kDouble, {});
    return outcome(reference(built), built);
  }

 private:
  struct Built {
    std::vector<at::Tensor> leaves;
    at::Device device;
    at::ScalarType dtype;
    Recipes recipes;
  };

  int add(const std::string& name, at::IntArrayRef shape, double scale, bool gradient, double offset = 0) {
    // Values are representable in bf16, so that every dtype computes with the same ones.
    values_.push_back(random(shape, 100 + values_.size()).mul_(scale).add_(offset).to(at::kBFloat16).to(at::kDouble));
    names_.push_back(name);
    wanted_.push_back(gradient);
    return static_cast<int>(values_.size()) - 1;
  }

  void add_adapters(int linear, const std::vector<std::pair<int64_t, int64_t>>& rows, int64_t in) {
    for (const auto& [begin, count] : rows) {
      const int a = add("A", {c_.rank, in}, 1 / std::sqrt(static_cast<double>(in)), true);
      const int b = add("B", {count, c_.rank}, 0.1, true);
      adapters_.push_back({linear, a, b, begin, c_.dora ? add("magnitude", {count}, 0.1, true, 1) : -1});
    }
  }

  Built build(at::Device device, at::ScalarType dtype, const Recipes& recipes) const {
    Built built{{}, device, dtype, recipes};
    for (size_t i = 0; i < values_.size(); ++i) {
      const bool wide = names_[i] == "magnitude" && dtype != at::kDouble;
      built.leaves.push_back(values_[i].to(device, wide ? at::kFloat : dtype).clone().requires_grad_(wanted_[i]));
    }
    return built;
  }

  const at::Tensor& at_index(const Built& built, int index) const {
    static const at::Tensor none;
    return index < 0 ? none : built.leaves[static_cast<size_t>(index)];
  }

  Weight weight(const Built& built, int index, int linear) const {
    const at::Tensor& matrix = at_index(built, index);
    if (built.recipes.recipe == Recipe::kCompute) return {matrix, {}};
    if (built.recipes.recipe == Recipe::kFp8Tensorwise || built.recipes.recipe == Recipe::kFp8Rowwise)
      return {matrix, {.recipe = built.recipes.recipe}};
    if (built.recipes.recipe == Recipe::kFp8Delayed)
      return {matrix, {Recipe::kFp8Delayed, {}, built.recipes.scales->linear(linear)}};
    // All devices use one scale, that of the exact values.
    const at::Tensor inverse = fp8_inverse_scale(fp8_amax(values_[static_cast<size_t>(index)])).to(built.device);
    const at::Tensor codes = at::empty(matrix.sizes(), matrix.options().dtype(at::kFloat8_e4m3fn).requires_grad(false));
    fp8_cast_(codes, matrix.detach(), inverse);
    Weight frozen{codes, {Recipe::kFp8Frozen, inverse, {}}};
    // What is not written shows as NaN.
    if (built.recipes.keeps_transposed)
      frozen.state.transposed = std::make_shared<TransposedCodes>(TransposedCodes{
          at::full({codes.size(1), codes.size(0)}, 0x7f, codes.options().dtype(at::kByte)).view(at::kFloat8_e4m3fn)});
    return frozen;
  }

  Linear linear(const Built& built, int index, int number) const {
    Linear result{weight(built, index, number), at_index(built, biases_[static_cast<size_t>(number)]), {}};
    if (c_.rank == 0) return result;
    result.lora.dropout = {c_.lora_dropout, 11, samples(built)};
    for (size_t i = 0; i < adapters_.size(); ++i)
      if (adapters_[i].linear == number)
        result.lora.adapters.push_back({at_index(built, adapters_[i].a), at_index(built, adapters_[i].b),
                                        adapters_[i].row_begin, 40 + i, 0.5, at_index(built, adapters_[i].magnitude)});
    return result;
  }

  Norm norm(const Built& built, size_t number) const {
    if (norms_[number] < 0) return {};
    return {c_.norm, at_index(built, norms_[number]), at_index(built, norm_biases_[number]), 1e-5};
  }
  at::Tensor samples(const Built& built) const {
    return (at::arange(s_.samples, at::TensorOptions(at::kLong)) * int64_t{5'000'000'000} + 7).to(built.device);
  }
  Dropout dropout(const Built& built, uint64_t stream) const {
    return c_.dropout > 0 ? Dropout{c_.dropout, 21, samples(built), stream} : Dropout{};
  }
  /// Stands for attention: every column of qkv reaches a column of its own or shares it with few others, so that no
  /// gradient is a sum that nearly cancels.
  at::Tensor mix(const Built& built, const at::Tensor& qkv) const {
    at::Tensor mixed = at_index(built, other_) * qkv.narrow(-1, 0, s_.width);
    for (int64_t begin = 0; begin < s_.extra; begin += s_.width) {
      const int64_t columns = std::min(s_.width, s_.extra - begin);
      mixed = mixed + at::constant_pad_nd(qkv.narrow(-1, s_.width + begin, columns), {0, s_.width - columns});
    }
    return mixed;
  }

  at::Tensor forward(const Built& b) const {
    const Norm none;
    const auto of_h = c_.tile_tokens == 0 ? std::make_shared<BranchGradient>() : nullptr;
    const auto join = [&](size_t i) -> ResidualJoin {
      return {dropout(b, i + 1), norm(b, i + 2), c_.multiplier, c_.post_norm ? norm(b, i) : none,
              i == 0 ? of_h : nullptr};
    };
    Norm norm_of_h = c_.post_norm ? none : norm(b, 1);
    norm_of_h.branch = of_h;
    const auto [qkv, residual] = norm_linear(at_index(b, x_), c_.post_norm ? none : norm(b, 0), linear(b, qkv_, 0),
                                             Activation::kNone, false, c_.tile_tokens);
    const at::Tensor h = linear_residual(mix(b, qkv), residual, linear(b, out_, 1), join(0), c_.tile_tokens);
    return norm_mlp(h, {.norm = norm_of_h,
                        .up = linear(b, up_, 2),
                        .activation = c_.activation,
                        .down = linear(b, down_, 3),
                        .join = join(1),
                        .recompute_up = c_.recompute_up,
                        .tile_tokens = c_.tile_tokens});
  }

  at::Tensor reference(const Built& b) const {
    const auto before = [&](const at::Tensor& x, size_t i) { return c_.post_norm ? x : norm_reference(x, norm(b, i)); };
    const auto after = [&](const at::Tensor& x, size_t i) { return c_.post_norm ? norm_reference(x, norm(b, i)) : x; };
    const auto join = [&](const at::Tensor& to, const at::Tensor& y, size_t i) {
      return after(to + c_.multiplier * dropout_reference(norm_reference(y, norm(b, i + 2)), dropout(b, i + 1)), i);
    };
    const at::Tensor& x = at_index(b, x_);
    const at::Tensor qkv = linear_reference(before(x, 0), linear(b, qkv_, 0));
    const at::Tensor h = join(x, linear_reference(mix(b, qkv), linear(b, out_, 1)), 0);
    const at::Tensor active = activation_reference(linear_reference(before(h, 1), linear(b, up_, 2)), c_.activation);
    return join(h, linear_reference(active, linear(b, down_, 3)), 1);
  }

  std::vector<at::Tensor> outcome(const at::Tensor& y, const Built& built) const {
    const at::Tensor dy = random(y.sizes(), 99).to(built.device);
    (y.to(at::kDouble) * dy).sum().backward();
    std::vector<at::Tensor> result = {y.detach().to(at::kCPU, at::kDouble)};
    for (size_t i = 0; i < built.leaves.size(); ++i) {
      // Frozen FP8 codes have no gradient.
      const bool frozen =
          built.recipes.recipe == Recipe::kFp8Frozen && values_[i].dim() == 2 && is_matrix(static_cast<int>(i));
      if (wanted_[i] && !frozen)
        result.push_back(built.leaves[i].grad().defined() ? built.leaves[i].grad().to(at::kCPU, at::kDouble)
                                                          : at::full({}, std::nan("")));
    }
    return result;
  }
  bool is_matrix(int index) const { return index == qkv_ || index == out_ || index == up_ || index == down_; }

  struct Adapter {
    int linear, a, b;
    int64_t row_begin;
    int magnitude;
  };
  BlockChoices c_;
  BlockShape s_;
  std::vector<at::Tensor> values_;
  std::vector<std::string> names_;
  std::vector<bool> wanted_;
  int x_, other_, qkv_, out_, up_, down_;
  std::vector<int> norms_, norm_biases_, biases_;
  std::vector<Adapter> adapters_;
};

/// || a - b || / || b ||; infinite if a is not finite or has a different shape.
inline double relative_distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  const double distance = ((a - b).norm() / b.norm().clamp_min(1e-12)).item<double>();
  return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}
inline double cosine(const at::Tensor& a, const at::Tensor& b) {
  return (a.flatten().dot(b.flatten()) / (a.norm() * b.norm()).clamp_min(1e-300)).item<double>();
}

/// The combinations that models use, and some that no model uses yet.
inline std::vector<BlockChoices> all_blocks() {
  std::vector<BlockChoices> all;
  for (const BlockChoices& base : {kLlamaBlock, kBertBlock, kGptBlock, kGemmaBlock, kOlmoBlock, kGraniteBlock}) {
    for (const bool recompute : {false, true}) {
      BlockChoices c = base;
      c.recompute_up = recompute;
      if (recompute) c.name += "_recompute";
      all.push_back(c);
    }
    BlockChoices still = base;
    still.dropout = 0;
    still.name += "_still";
    all.push_back(still);
    for (const double p : {0.0, 0.25}) {
      BlockChoices lora = base;
      lora.rank = 3;
      lora.lora_dropout = p;
      lora.name += p > 0 ? "_lora_dropout" : "_lora";
      all.push_back(lora);
      lora.trained = false;
      lora.recompute_up = true;
      lora.name += "_frozen_recompute";
      all.push_back(lora);
      lora.dora = true;
      lora.name = base.name + (p > 0 ? "_dora_dropout_recompute" : "_dora_recompute");
      all.push_back(lora);
      lora.recompute_up = false;
      lora.name = base.name + (p > 0 ? "_dora_dropout" : "_dora");
      all.push_back(lora);
    }
  }
  BlockChoices qwen = kLlamaBlock;
  qwen.name = "llama_biases";
  qwen.biases = true;
  all.push_back(qwen);
  return all;
}

}  // namespace trireme::testing
