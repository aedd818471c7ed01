#include "models/decoder/generation.h"

#include "trireme/base/error.h"
#include "trireme/base/rng.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

int64_t choose(const at::Tensor& logits_V, double temperature, uint64_t seed, int64_t position) {
  const at::Tensor values = logits_V.to(at::kDouble), below_largest = values - values.max();
  if (!at::isfinite(below_largest).all().item<bool>())
    throw ModelError(fmt::format(
        "the model's logits at position {} are not finite: one of its weights is NaN or Inf, or too large", position));
  if (temperature == 0) return values.argmax().item<int64_t>();
  const at::Tensor cumulative = at::softmax(below_largest / temperature, -1).cumsum(0);
  const double u = uniform_draw(seed, "generate", static_cast<uint64_t>(position));
  const int64_t id = cumulative.le(u * cumulative[-1].item<double>()).sum().item<int64_t>();
  return std::min(id, logits_V.size(0) - 1);
}

at::Tensor penalise(const at::Tensor& logits_V, const std::vector<int32_t>& ids, double penalty) {
  if (penalty == 1) return logits_V;
  const at::Tensor seen = at::tensor(ids, at::kInt).to(at::kLong).to(logits_V.device());
  const at::Tensor logits = logits_V.to(at::kFloat), old = logits.index_select(0, seen);
  return logits.index_copy(0, seen, at::where(old.lt(0), old * penalty, old / penalty));
}

/// Texts as documents of one row, and the place of each one's last token.
struct PackedTexts {
  std::vector<int64_t> tokens, positions, last;
  std::vector<int32_t> boundaries = {0};

  void add(const std::vector<int32_t>& ids) {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    for (size_t i = 0; i < ids.size(); ++i) positions.push_back(static_cast<int64_t>(i));
    boundaries.push_back(static_cast<int32_t>(tokens.size()));
    last.push_back(static_cast<int64_t>(tokens.size()) - 1);
  }

  TokenBatch on(at::Device device) {
    // Kernels and FP8 products of a GPU take tokens by multiples.
    constexpr size_t kMultiple = 128;
    if (const size_t over = tokens.size() % kMultiple; !device.is_cpu() && over != 0) {
      add(std::vector<int32_t>(kMultiple - over, 0));
      last.pop_back();
    }
    const auto length = static_cast<int64_t>(tokens.size());
    TokenBatch batch;
    batch.tokens_BS = at::tensor(tokens, at::kLong).view({1, length}).to(device);
    batch.positions_BS = at::tensor(positions, at::kLong).view({1, length}).to(device);
    batch.loss_weight_BS = at::zeros({1, length}, at::TensorOptions(device).dtype(at::kFloat));
    batch.cu_seqlens = boundaries;
    return batch;
  }
};

}  // namespace

std::vector<Continuation> generate(const DecoderModel& model, UnitStore& store, at::Device device,
                                   const std::vector<std::vector<int32_t>>& texts, const GenerationOptions& options,
                                   const GenerationSteps& steps) {
  const int64_t vocabulary = std::min(options.vocabulary, model.config().vocab_size);
  std::vector<std::vector<int32_t>> all = texts;
  std::vector<Continuation> results(texts.size());
  ForwardOptions forward;
  forward.train = false;
  int64_t passes = 0;
  for (size_t begin = 0, end = 0; begin < texts.size(); begin = end) {
    std::vector<size_t> active;
    for (int64_t room = options.pass_tokens; end < texts.size(); ++end) {
      room -= static_cast<int64_t>(texts[end].size()) + options.max_new_tokens;
      if (room < 0) break;
      active.push_back(end);
    }
    TRIREME_CHECK(!active.empty(), "a text of ", texts[end].size(), " tokens and ", options.max_new_tokens,
                  " new ones in passes of ", options.pass_tokens);
    for (int64_t step = 0; step < options.max_new_tokens && !active.empty(); ++step) {
      PackedTexts packed;
      for (const size_t text : active) packed.add(all[text]);
      const TokenBatch batch = packed.on(device);
      const at::Tensor last = at::tensor(packed.last, at::kLong).to(device);
      const at::Tensor logits = model.logits(store, batch, forward, last).narrow(1, 0, vocabulary);
      std::vector<int64_t> ids;
      for (size_t i = 0; i < active.size(); ++i)
        ids.push_back(choose(penalise(logits[static_cast<int64_t>(i)], all[active[i]], options.repetition_penalty),
                             options.temperature, options.seed + active[i],
                             static_cast<int64_t>(all[active[i]].size())));
      if (steps.agree) steps.agree(ids);
      std::vector<size_t> going;
      for (size_t i = 0; i < active.size(); ++i) {
        const size_t text = active[i];
        results[text].ended = std::find(options.ends.begin(), options.ends.end(), ids[i]) != options.ends.end();
        if (results[text].ended) continue;
        going.push_back(text);
        const auto id = static_cast<int32_t>(ids[i]);
        all[text].push_back(id);
        results[text].ids.push_back(id);
        if (steps.token) steps.token(text, id);
      }
      active = std::move(going);
      if (steps.pass) steps.pass(++passes, static_cast<int64_t>(texts.size()) * options.max_new_tokens);
    }
  }
  return results;
}

}  // namespace trireme
