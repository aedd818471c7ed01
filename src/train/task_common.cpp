#include "task_common.h"

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace trireme {

namespace {

/// Copies of one rank under way at a time: as many as keep the bus busy, not more than the machine's cores give each
/// rank.
int reader_threads(int world_size) {
  constexpr int kMostRanksPerHost = 8;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / std::min(world_size, kMostRanksPerHost), 2,
                    12);
}

}  // namespace

DataError without_targets(const std::vector<std::string>& valid, const char* mask) {
  return DataError(fmt::format(
      "{}: no row has a target ({}), so there is nothing to evaluate: prepare data.valid again, or leave it out",
      join(valid, ", "), mask));
}

DType file_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return DType::kF32;
    case at::kBFloat16: return DType::kBF16;
    case at::kHalf: return DType::kF16;
    default: TRIREME_CHECK(false, "no file type for ", c10::toString(dtype)); return DType::kF32;
  }
}

std::string config_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat ? "float32" : dtype == at::kHalf ? "float16" : "bfloat16";
}

void load_units(ShardedUnits& units, const WeightSource& source, const std::string& path, int world_size) {
  log_info("loading " + path + " (" + source.description() + ")");
  const double begin = steady_seconds();
  int tenths = 0;
  units.load(source, reader_threads(world_size), [&](double fraction) {
    if (steady_seconds() - begin < 10 || fraction * 10 < tenths + 1) return;
    tenths = static_cast<int>(fraction * 10);
    log_info(fmt::format("loaded {} %", tenths * 10));
  });
  log_info(fmt::format("weights loaded in {}", format_duration(steady_seconds() - begin)));
}

}  // namespace trireme
