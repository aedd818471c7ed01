#pragma once
// What the tasks of all model families share: who this rank is, reading a step ahead, loading weights, dtypes of files.

#include "trireme/base/dtype.h"
#include "trireme/base/error.h"
#include "trireme/formats/weight_source.h"
#include "trireme/fsdp/sharded_units.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <vector>

namespace trireme {

struct RankInfo {
  int rank = 0, world_size = 1;
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
};

/// What a Hopper GPU sustains in products (FLOP/s) and receives from its neighbours (bytes/s): the plan weighs
/// recomputation against gathers with them, so only their ratio matters.
constexpr double kBf16Rate = 650e12, kFp8Rate = 1250e12, kGatherRate = 300e9;

/// A step's data, read in the background. One step is under way at a time; its reading is waited for before another
/// starts or this ends.
template <class T>
class ReadAhead {
 public:
  ~ReadAhead() {
    if (next_.valid()) next_.wait();
  }
  void start(int64_t step, const std::function<T(int64_t)>& read) {
    if (step_ == step && next_.valid()) return;
    if (next_.valid()) next_.wait();
    step_ = step;
    next_ = std::async(std::launch::async, read, step);
  }
  T take() { return next_.get(); }

 private:
  std::future<T> next_;
  int64_t step_ = -1;
};

/// For data.valid of which no row has a target: its evaluation would be 0 / 0. `mask`: what says that a token is one.
DataError without_targets(const std::vector<std::string>& valid, const char* mask);
/// How many rows go through the model at a time. Background readers are given the number, not this.
class RowsPerPass {
 public:
  void set(int rows) {
    TRIREME_CHECK(rows >= 1 && rows_ == 0, rows, " rows a pass, where ", rows_, " are set");
    rows_ = rows;
  }
  int64_t get() const {
    TRIREME_CHECK(rows_ > 0, "a batch is asked for before the plan's rows per pass are known");
    return rows_;
  }

 private:
  int64_t rows_ = 0;
};

/// The type in a file of tensors computed with in `dtype` (fp32, fp16, bf16), and config.json's word for it.
DType file_dtype(at::ScalarType dtype);
std::string config_dtype(at::ScalarType dtype);

/// Reads this rank's bytes of all units from `source`, telling how far it is every tenth when it takes long.
void load_units(ShardedUnits& units, const WeightSource& source, const std::string& path, int world_size);

}  // namespace trireme
