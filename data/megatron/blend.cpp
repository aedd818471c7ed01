// Splits and blends: what is asked of each file.
#include "data/megatron/index_maps.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace trireme {

namespace {

constexpr double kMargin = 0.005;  // samples of a part beyond its share
constexpr int64_t kStep = 4096;    // positions between snapshots of a blend's counts

double plain_sum(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

/// numpy.sum of contiguous doubles: pairwise, eight sums at a time up to 128 values (numpy, loops_utils.h.src).
double numpy_sum(std::span<const double> values) {
  constexpr size_t kBlock = 128;
  if (values.size() < 8) return plain_sum(values);
  if (values.size() > kBlock) {
    const size_t half = values.size() / 2 / 8 * 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double sums[8];
  std::copy_n(values.begin(), 8, sums);
  size_t i = 8;
  for (; i < values.size() / 8 * 8; i += 8)
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += values[i + lane];
  double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < values.size(); ++i) sum += values[i];
  return sum;
}

void divide(std::vector<double>& values, double by) {
  for (double& value : values) value /= by;
}

/// Python's round(): half to even.
int64_t rounded(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

int64_t ceiling(double value) { return static_cast<int64_t>(std::ceil(value)); }

}  // namespace

std::vector<double> split_shares(const std::string& splits) {
  const char separator = splits.find(',') != std::string::npos ? ',' : '/';
  std::vector<double> shares;
  for (const std::string& part : split(splits, separator)) {
    const size_t begin = std::min(part.find_first_not_of(' '), part.size());
    const size_t end = part.find_last_not_of(' ') + 1;
    double share = -1;
    const auto [stop, error] = std::from_chars(part.data() + begin, part.data() + std::max(begin, end), share);
    if (error != std::errc() || stop != part.data() + end || !(share >= 0) || !std::isfinite(share))
      throw ConfigError(fmt::format(
          "data.splits '{}': '{}' is not a number >= 0; expected the shares of train, valid and test, as '99990,8,2'",
          splits, part));
    shares.push_back(share);
  }
  if (shares.size() != 3)
    throw ConfigError(
        fmt::format("data.splits '{}' has {} shares; expected those of train, valid and test, as '99990,8,2'", splits,
                    shares.size()));
  return shares;
}

std::vector<int64_t> split_bounds(const std::string& splits, int64_t documents, IndexRules rules) {
  std::vector<double> shares = split_shares(splits);
  const double sum = rules == IndexRules::kNemo ? plain_sum(shares) : numpy_sum(shares);
  if (!(sum > 0) || !std::isfinite(sum))
    throw ConfigError(fmt::format("data.splits '{}': one of the shares must be above 0", splits));
  divide(shares, sum);
  const auto size = static_cast<double>(documents);
  std::vector<int64_t> bounds = {0};
  if (rules == IndexRules::kCore) {
    double through = 0;
    for (const double share : shares) bounds.push_back(rounded((through += share) * size));
    return bounds;
  }
  for (const double share : shares) bounds.push_back(bounds.back() + rounded(share * size));
  const int64_t excess = bounds.back() - documents;
  // The first bound stays 0; an excess larger than the first share would make the next one negative.
  for (size_t i = 1; i < bounds.size(); ++i) bounds[i] = std::max<int64_t>(bounds[i] - excess, 0);
  return bounds;
}

std::vector<double> blend_weights(const std::vector<double>& weights, IndexRules rules) {
  std::vector<double> normalised = weights;
  const double sum = rules == IndexRules::kNemo ? plain_sum(weights) : numpy_sum(weights);
  TRIREME_CHECK(sum > 0, "weights of a blend with the sum ", sum);
  divide(normalised, sum);
  return normalised;
}

std::vector<int64_t> blend_part_samples(const std::vector<double>& normalised, int64_t samples, IndexRules rules) {
  std::vector<int64_t> parts;
  for (const double weight : normalised) {
    const double share = static_cast<double>(samples) * weight;
    parts.push_back(rules == IndexRules::kNemo ? ceiling(share * 1.005) : ceiling(std::ceil(share) * (1 + kMargin)));
  }
  return parts;
}

int64_t blend_size(const std::vector<double>& normalised, int64_t samples, IndexRules rules) {
  int64_t size = 0;
  if (rules == IndexRules::kNemo) {
    for (const int64_t part : blend_part_samples(normalised, samples, rules)) size += part;
  } else {
    for (const double weight : normalised) size += ceiling(static_cast<double>(samples) * weight);
  }
  return size;
}

BlendOrder::BlendOrder(std::vector<double> weights) : weights_(std::move(weights)), taken_(weights_.size(), 0) {
  TRIREME_CHECK(!weights_.empty() && weights_.size() <= std::numeric_limits<uint16_t>::max(), weights_.size(),
                " parts of a blend");
  divide(weights_, numpy_sum(weights_));
}

void BlendOrder::extend(int64_t end) {
  for (auto position = static_cast<int64_t>(parts_.size()); position < end; ++position) {
    if (position % kStep == 0) snapshots_.insert(snapshots_.end(), taken_.begin(), taken_.end());
    const double scale = std::max(static_cast<double>(position), 1.0);
    size_t chosen = 0;
    double worst = weights_[0] * scale - static_cast<double>(taken_[0]);
    for (size_t part = 1; part < weights_.size(); ++part) {
      const double behind = weights_[part] * scale - static_cast<double>(taken_[part]);
      if (behind > worst) {
        worst = behind;
        chosen = part;
      }
    }
    parts_.push_back(static_cast<uint16_t>(chosen));
    ++taken_[chosen];
  }
}

BlendOrder::Place BlendOrder::at(int64_t position) {
  TRIREME_CHECK(position >= 0, "position ", position, " of a blend");
  extend(position + 1);
  const uint16_t part = parts_[static_cast<size_t>(position)];
  const int64_t step = position / kStep;
  const auto from = parts_.begin() + step * kStep;
  return {part, snapshots_[static_cast<size_t>(step) * weights_.size() + part] +
                    std::count(from, parts_.begin() + position, part)};
}

std::vector<int64_t> BlendOrder::counts(int64_t end) {
  extend(end);
  std::vector<int64_t> counts(weights_.size(), 0);
  for (int64_t position = 0; position < end; ++position) ++counts[parts_[static_cast<size_t>(position)]];
  return counts;
}

}  // namespace trireme
