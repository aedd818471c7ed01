#include "run_rows.h"

#include "data/rows.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/comm/collective_check.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

namespace trireme {

namespace {

/// Seconds: a dry run looks at rows for at most the longest; a run for as long as its weights load, within these.
constexpr double kShortestScan = 1, kLongestScan = 10;

/// Threads that look at rows on one rank.
int scan_threads(int local_world_size) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / std::max(1, local_world_size), 1, 8);
}

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

[[noreturn]] void refuse_epochs(const std::string& what) {
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

Config resolve_epochs(const Config& config, const TrainingProgram& program, int ranks) {
  if (!config.train.epochs) return config;
  if (program.keys.features.has(Feature::kDocumentStreams))  // else the rows are BERT's
    if (const std::string uncounted = row_format("data.train", config.data.train).uncounted; !uncounted.empty())
      refuse_epochs(uncounted);
  Config one_step = config;
  one_step.train.max_steps = 1;
  const auto task = program.make_task(one_step, {RankGrid(0, {.world = ranks}), at::kCPU, at::kFloat}, program.keys);
  const int64_t train_rows = task->facts().train_rows;
  const double rows = rows_of_epochs(*config.train.epochs, train_rows);
  if (!(rows < 0x1p62)) refuse_epochs(fmt::format("has {} rows, too many to count", train_rows));
  const int64_t steps = steps_for(BatchSizes(config.batch), static_cast<int64_t>(rows));
  log_info(fmt::format("train.epochs {} of {}: train.max_steps {}", format_exact(*config.train.epochs),
                       counted(train_rows, "row"), steps));
  return with_steps(config, steps, program.keys, ranks);
}

RowScanReport scan_rows(const TrainingTask& task) {
  RowScanReport report =
      RowScan(task.row_sets(), {.threads = scan_threads(1), .seconds = kLongestScan}).finish(kLongestScan);
  if (report.bad_rows > 0) throw DataError(report.first_bad.front().what);
  return report;
}

namespace {

class ContextExchange final : public SequenceExchange {
 public:
  explicit ContextExchange(std::unique_ptr<Communicator> ranks)
      : SequenceExchange(ranks->rank(), ranks->size()), ranks_(std::move(ranks)) {}
  at::Tensor exchange(const at::Tensor& parts) override {
    const at::Tensor received = at::empty(parts.sizes(), parts.options());
    ranks_->all_to_all(received, parts)->wait();
    return received;
  }

 private:
  std::unique_ptr<Communicator> ranks_;
};

}  // namespace

RunRows::RunRows(const Config& config, World& world, const TrainingProgram& program, int context_size,
                 at::ScalarType compute_dtype)
    : config_(config), world_(world) {
  Communicator& comm = world.communicator();
  grid_ = RankGrid(comm.rank(),
                   {.world = comm.size(), .context = context_size, .ranks_per_host = world.topology().ranks_per_host});
  if (context_size > 1) exchange_ = std::make_unique<ContextExchange>(comm.split(grid_.context.group));
  {
    // One rank writes the index maps that all of them read.
    const ProgressSection section("index-maps", kStorageAllowance);
    collective_check(comm, [&] {
      if (comm.rank() == 0) fill_row_caches(config);
    });
  }
  collective_check(comm, [&] {
    RankInfo rank{grid_, world.device(), compute_dtype};
    rank.exchange = exchange_.get();
    task_ = program.make_task(config, rank, program.keys);
  });
}

void RunRows::start_reading(int rows_per_pass) {
  task_->set_rows_per_pass(rows_per_pass);
  if (config_.logging.mlperf) return;
  task_->prefetch(0);
  scan_ = std::make_unique<RowScan>(task_->row_sets(),
                                    RowScanOptions{.threads = scan_threads(world_.launch().local_world_size),
                                                   .part = grid_.world.rank,
                                                   .parts = grid_.world.size,
                                                   .seconds = kLongestScan});
}

void RunRows::finish_scan() {
  const auto scan = std::exchange(scan_, nullptr);
  if (!scan) return;
  RowScanReport report;
  collective_check(world_.communicator(), [&] {
    report = scan->finish(kShortestScan);
    if (report.bad_rows > 0) throw DataError(report.first_bad.front().what);
  });
  const auto sums =
      world_.communicator().all_reduce_host({static_cast<double>(report.rows), static_cast<double>(report.checked)});
  report.rows = static_cast<int64_t>(sums[0]);
  report.checked = static_cast<int64_t>(sums[1]);
  log_info("data: " + report.summary());
}

}  // namespace trireme
