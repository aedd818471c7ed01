#include "run_length.h"

#include "data/stream/open_stream.h"
#include "megatron_rows.h"
#include "task.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/plural.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

namespace trireme {

namespace {

/// The least number of steps with at least `rows` rows.
int64_t steps_for(const BatchSizes& batches, int64_t rows) {
  int64_t most = 1;
  while (batches.before(most) < rows) most *= 2;
  int64_t below = most / 2;
  while (most - below > 1) {
    const int64_t middle = below + (most - below) / 2;
    (batches.before(middle) < rows ? below : most) = middle;
  }
  return most;
}

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError(fmt::format(
      "train.epochs is for files of rows, whose number is known: data.train {}. Give train.max_steps", what));
}

}  // namespace

double rows_of_epochs(double epochs, int64_t rows) {
  const double product = epochs * static_cast<double>(rows), nearest = std::nearbyint(product);
  const bool whole =
      nearest >= 1 && std::abs(product - nearest) <= 4 * std::numeric_limits<double>::epsilon() * product;
  return whole ? nearest : std::ceil(product);
}

Config resolve_epochs(const Config& config, const ModelFamily& family, int ranks) {
  if (!config.train.epochs) return config;
  if (are_megatron_rows(config.data.train)) refuse("is Megatron's, which a run samples as often as it needs");
  const std::vector<std::filesystem::path> files(config.data.train.begin(), config.data.train.end());
  if (family.config.features.has(Feature::kDocumentStreams) && are_documents("data.train", files))
    refuse("is a stream of documents");
  Config one_step = config;
  one_step.train.max_steps = 1;
  const auto task = family.make_task(one_step, {RankGrid(0, {.world = ranks}), at::kCPU, at::kFloat}, family.config);
  const int64_t train_rows = task->facts().train_rows;
  const double rows = rows_of_epochs(*config.train.epochs, train_rows);
  if (!(rows < 0x1p62)) refuse(fmt::format("has {} rows, too many to count", train_rows));
  const int64_t steps = steps_for(BatchSizes(config.batch), static_cast<int64_t>(rows));
  log_info(fmt::format("train.epochs {} of {}: train.max_steps {}", format_exact(*config.train.epochs),
                       counted(train_rows, "row"), steps));
  return with_steps(config, steps, family.config, ranks);
}

}  // namespace trireme
