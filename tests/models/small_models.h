#pragma once
// Small random decoders and batches for the tests of this folder.

#include "models/decoder/decoder.h"
#include "models/decoder/family.h"
#include "models/decoder/weights.h"

#include "../ops/gradient_check.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme::testing {

inline DecoderConfig small_config(bool tie = false) {
  DecoderConfig config = decoder_preset("llama-tiny");
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 61;
  config.initializer_range = 0.2;
  config.tie_word_embeddings = tie;
  return config;
}

inline LoraOptions seven(double dropout = 0) {
  return {4, 8, dropout, {{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}}};
}

inline TokenBatch batch_of(int64_t rows, int64_t length, uint64_t seed) {
  TokenBatch batch;
  batch.tokens_BS = random({rows, length}, seed).mul_(1000).abs_().to(at::kLong).remainder_(61);
  batch.loss_weight_BS = at::ones({rows, length}, at::kFloat);
  batch.loss_weight_BS.select(1, length - 1).zero_();
  batch.positions_BS = at::arange(length, at::TensorOptions(at::kLong)).expand({rows, length}).contiguous();
  for (int64_t row = 0; row <= rows; ++row) batch.cu_seqlens.push_back(static_cast<int32_t>(row * length));
  batch.sample_ids_B = at::arange(rows, at::TensorOptions(at::kLong)) * 13 + 5;
  for (int64_t row = 0; row < rows; ++row) batch.sequence_keys.push_back((row * 13 + 5) * length);
  return batch;
}

inline TokenBatch rows_of(const TokenBatch& batch, int64_t first, int64_t count) {
  TokenBatch part;
  const int64_t length = batch.tokens_BS.size(1);
  part.tokens_BS = batch.tokens_BS.narrow(0, first, count);
  part.loss_weight_BS = batch.loss_weight_BS.narrow(0, first, count);
  part.positions_BS = batch.positions_BS.narrow(0, first, count);
  for (int64_t row = 0; row <= count; ++row) part.cu_seqlens.push_back(static_cast<int32_t>(row * length));
  part.sample_ids_B = batch.sample_ids_B.narrow(0, first, count);
  part.sequence_keys.assign(batch.sequence_keys.begin() + first, batch.sequence_keys.begin() + first + count);
  return part;
}

/// Units with adapters whose B is not zero, so that every gradient of A is alive.
inline std::vector<std::vector<at::Tensor>> units_of(const DecoderModel& model, at::ScalarType dtype) {
  auto units = random_whole(model, dtype, 3);
  if (model.lora()) {
    at::NoGradGuard no_grad;
    uint64_t seed = 100;
    for (const at::Tensor& tensor : units.back()) tensor.copy_(random(tensor.sizes(), ++seed) * 0.1);
  }
  return units;
}

struct Result {
  double loss;
  std::vector<at::Tensor> gradients;
};

inline Result run(const DecoderModel& model, const TokenBatch& batch, const ForwardOptions& options,
                  at::ScalarType dtype = at::kDouble) {
  const auto units = units_of(model, dtype);
  WholeUnitStore store(units);
  const at::Tensor loss = model.loss(store, batch, options);
  loss.backward();
  Result result{loss.item<double>(), {}};
  for (const auto& unit : units)
    for (const at::Tensor& tensor : unit)
      if (tensor.requires_grad()) result.gradients.push_back(tensor.grad());
  return result;
}

inline void add_gradient(std::vector<at::Tensor>& sum, size_t i, const at::Tensor& gradient) {
  if (sum.size() <= i)
    sum.push_back(gradient);
  else
    sum[i] = sum[i] + gradient;
}

/// Loss and gradients of the batch's four rows with dropout are the sums over rows 0, 1 to 2 and 3.
inline void expect_the_same_of_parts(const DecoderModel& model, const TokenBatch& batch) {
  const ForwardOptions options{true, 99, {}};
  const Result whole = run(model, batch, options);
  double loss = 0;
  std::vector<at::Tensor> sum;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 2}, {3, 1}}) {
    const Result part = run(model, rows_of(batch, first, count), options);
    loss += part.loss;
    for (size_t i = 0; i < part.gradients.size(); ++i) add_gradient(sum, i, part.gradients[i]);
  }
  EXPECT_NEAR(loss, whole.loss, 1e-10);
  ASSERT_EQ(sum.size(), whole.gradients.size());
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_LT(relative_difference(sum[i], whole.gradients[i]), 1e-11);
}

/// Weights exist only between the hooks; anything read or kept outside is NaN.
class StrictStore : public UnitStore {
 public:
  StrictStore(const DecoderModel& model, std::vector<std::vector<at::Tensor>> values)
      : model_(model), values_(std::move(values)) {
    at::NoGradGuard no_grad;
    for (const auto& unit : values_) {
      std::vector<at::Tensor>& shown = shown_.emplace_back();
      for (const at::Tensor& tensor : unit)
        shown.push_back(tensor.detach().clone().requires_grad_(tensor.requires_grad()));
    }
    for (size_t u = 0; u < shown_.size(); ++u) {
      states_.emplace_back(shown_[u].size());
      drop(static_cast<int>(u));
    }
  }
  const std::vector<at::Tensor>& parameters(int unit) override { return shown_.at(unit); }
  const std::vector<WeightState>& weight_states(int unit) override { return states_.at(unit); }
  void pre_forward(int unit) override { fill(unit); }
  void post_forward(int unit) override {
    if (!model_.units()[unit].keep) drop(unit);
  }
  void pre_backward(int unit) override {
    if (model_.units()[unit].backward_reads_weights) fill(unit);
  }
  void post_backward(int unit) override { drop(unit); }

 private:
  void fill(int unit) {
    for (size_t p = 0; p < shown_[unit].size(); ++p) shown_[unit][p].data().copy_(values_[unit][p].detach());
  }
  void drop(int unit) {
    if (model_.units()[unit].replicated) return fill(unit);
    for (const at::Tensor& tensor : shown_[unit]) tensor.data().fill_(std::numeric_limits<double>::quiet_NaN());
  }
  const DecoderModel& model_;
  std::vector<std::vector<at::Tensor>> values_, shown_;
  std::vector<std::vector<WeightState>> states_;
};

inline void expect_reads_between_the_hooks(const DecoderModel& model, const TokenBatch& batch,
                                           const ForwardOptions& options) {
  const Result want = run(model, batch, options);
  StrictStore store(model, units_of(model, at::kDouble));
  const at::Tensor loss = model.loss(store, batch, options);
  loss.backward();
  EXPECT_EQ(loss.item<double>(), want.loss);
  size_t i = 0;
  for (size_t u = 0; u < model.units().size(); ++u)
    for (const at::Tensor& tensor : store.parameters(static_cast<int>(u))) {
      if (!tensor.requires_grad()) continue;
      EXPECT_EQ(max_difference(tensor.grad(), want.gradients[i++]), 0) << u;
    }
  EXPECT_EQ(i, want.gradients.size());
}

}  // namespace trireme::testing
