#include "data/megatron/megatron_dataset.h"

#include "data/megatron/megatron_part.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

namespace trireme {

namespace {

/// A row of the S + 1 tokens that Megatron reads for it.
Sample sample_of(const std::vector<int64_t>& tokens, const MegatronOptions& options) {
  const auto length = static_cast<int64_t>(tokens.size()) - 1;
  Sample sample = one_sequence({tokens.begin(), tokens.end() - 1});
  sample.labels.assign(tokens.begin() + 1, tokens.end());
  if (!options.reset_position_ids && !options.reset_attention_mask && !options.eod_mask_loss) return sample;
  std::vector<int64_t> starts = {0};  // of what lies between two ends of documents
  for (int64_t t = 0; t < length; ++t) {
    if (sample.input_ids[static_cast<size_t>(t)] != *options.eod) continue;
    if (options.eod_mask_loss) sample.loss_mask[static_cast<size_t>(t)] = 0;
    if (t + 1 < length) starts.push_back(t + 1);
  }
  if (options.reset_position_ids != options.reset_attention_mask) {
    sample.positions.resize(static_cast<size_t>(length));
    for (int64_t t = 0, next = 0, start = 0; t < length; ++t) {
      if (options.reset_position_ids && next < static_cast<int64_t>(starts.size()) &&
          starts[static_cast<size_t>(next)] == t) {
        start = t;
        ++next;
      }
      sample.positions[static_cast<size_t>(t)] = t - start;
    }
  }
  if (options.reset_attention_mask) sample.sequence_starts = std::move(starts);
  return sample;
}

class Blend final : public MegatronDataset {
 public:
  Blend(const MegatronInput& input, Split split, int64_t samples, const MegatronOptions& options) : options_(options) {
    const size_t count = input.paths.size();
    std::vector<int64_t> part_samples = {samples};
    // One path with a weight is a blend of one: its maps are those of more samples. Core takes the weight of one path
    // for nothing where train, valid and test have files of their own.
    if (count > 1 ||
        (!input.weights.empty() && samples > 0 && (options.rules == IndexRules::kNemo || options.splits.has_value()))) {
      weights_ = blend_weights(input.weights, options.rules);
      part_samples = blend_part_samples(weights_, samples, options.rules);
      size_ = blend_size(weights_, samples, options.rules);
      order_ = std::make_unique<BlendOrder>(weights_);
    }
    std::set<std::filesystem::path> caches;
    for (size_t i = 0; i < count; ++i) {
      const MegatronPart& part =
          *parts_.emplace_back(std::make_unique<MegatronPart>(input.paths[i], split, part_samples[i], options));
      if (!caches.insert(part.cache_name()).second)
        throw ConfigError(
            fmt::format("{}: another entry of the blend has the same last part, so that both would have the "
                        "same index maps in data.index_cache: rename one, or leave data.index_cache out",
                        part.file().prefix().string()));
      ends_.push_back(documents() + part.documents());
      rows_per_epoch_ += part.rows_per_epoch();
    }
    if (!order_) size_ = parts_[0]->rows();
    if (order_) check_blend(samples);
  }

  int64_t size() const override { return size_; }
  int64_t rows_per_epoch() const override { return rows_per_epoch_; }
  int64_t documents() const override { return ends_.empty() ? 0 : ends_.back(); }

  Sample read(int64_t index) const override {
    TRIREME_CHECK(index >= 0 && index < size_, "row ", index, " of ", size_);
    if (!order_) return sample_of(parts_[0]->read(index), options_);
    BlendOrder::Place place;
    {
      const std::lock_guard lock(mutex_);
      place = order_->at(index);
    }
    return sample_of(parts_[static_cast<size_t>(place.part)]->read(place.sample), options_);
  }

  std::string order() const override {
    std::vector<std::string> texts;
    for (const auto& part : parts_)
      texts.push_back((order_ ? part->file().prefix().filename().string() + ": " : "") + part->order());
    return join(texts, "; ");
  }

  void fill_cache() const override {
    const double begin = steady_seconds();
    int64_t built = 0, rows = 0;
    for (const auto& part : parts_) {
      if (!part->fill_cache()) continue;
      ++built;
      rows += part->rows();
    }
    if (built > 0)
      log_info(fmt::format("index maps of {} rows built in {}, in {}", format_count(rows),
                           format_duration(steady_seconds() - begin), parts_[0]->cache_name().parent_path().string()));
  }

  void check_document(int64_t index) const override {
    const auto part = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const int64_t before = part == 0 ? 0 : ends_[part - 1];
    parts_[part]->check_document(parts_[part]->first() + index - before);
  }

  std::string description() const override {
    std::vector<std::string> texts;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const MegatronPart& part = *parts_[i];
      texts.push_back(fmt::format("{} (Megatron {}, {} documents, {} rows{})", part.file().prefix().filename().string(),
                                  megatron_type_name(part.file().type()), format_count(part.documents()),
                                  format_count(part.rows_per_epoch()),
                                  weights_.size() < 2 ? "" : fmt::format(", {:.4g} %", 100 * weights_[i])));
    }
    return fmt::format("{}; index maps of {} rows{}", join(texts, ", "), format_count(size_),
                       parts_.size() > 1 ? "" : ", " + counted(parts_[0]->epochs(), "epoch"));
  }

 private:
  /// The blend may take more of a part than its share and the margin; Megatron fails when it comes there.
  void check_blend(int64_t samples) const {
    // Of p samples a part of weight w gives less than p w + 1: only the part furthest behind gives one.
    bool enough = true;
    for (size_t i = 0; i < parts_.size(); ++i)
      enough &= static_cast<double>(parts_[i]->rows()) >= static_cast<double>(samples) * weights_[i] + 1;
    if (enough) return;
    const auto counts = order_->counts(samples);
    for (size_t i = 0; i < parts_.size(); ++i)
      if (counts[i] > parts_[i]->rows())
        throw DataError(
            fmt::format("{}: the blend takes {} rows of the {} that its share was built for: change "
                        "train.max_steps or its weight a little",
                        parts_[i]->file().prefix().string(), counts[i], parts_[i]->rows()));
  }

  const MegatronOptions options_;
  std::vector<double> weights_;
  std::vector<std::unique_ptr<MegatronPart>> parts_;
  std::vector<int64_t> ends_;  // documents through part i
  int64_t size_ = 0, rows_per_epoch_ = 0;
  std::unique_ptr<BlendOrder> order_;
  mutable std::mutex mutex_;  // of order_
};

}  // namespace

std::shared_ptr<const MegatronDataset> open_megatron_dataset(const MegatronInput& input, Split split, int64_t samples,
                                                             const MegatronOptions& options) {
  TRIREME_CHECK(!input.paths.empty() &&
                    (input.weights.size() == input.paths.size() || (input.paths.size() == 1 && input.weights.empty())),
                input.paths.size(), " paths, ", input.weights.size(), " weights");
  TRIREME_CHECK(options.eod || !(options.reset_position_ids || options.reset_attention_mask || options.eod_mask_loss),
                "rows are divided at ends of documents, whose id is not given");
  return std::make_shared<Blend>(input, split, samples, options);
}

}  // namespace trireme
