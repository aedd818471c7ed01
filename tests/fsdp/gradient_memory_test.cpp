// The number of whole gradients in memory at the same time during backward, counted in the allocator. The plan counts
// two that are being reduced and one that is being filled.
#include "mpi_test_main.h"
#include "trireme/fsdp/sharded_units.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

namespace trireme {
namespace {

constexpr int64_t kWidth = 96;
constexpr int kUnits = 24;

/// LibTorch's CPU allocator, which counts the live blocks of exactly `size` bytes.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(size_t size) : before_(c10::GetCPUAllocator()), size_(size) {
    instance_ = this;
    c10::SetCPUAllocator(this, /*priority=*/200);
  }
  ~CountingAllocator() override {
    c10::SetCPUAllocator(before_, /*priority=*/200);
    instance_ = nullptr;
  }
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr block = before_->allocate(bytes);
    if (bytes != size_) return block;
    const std::lock_guard lock(mutex_);
    auto* context = new Context{std::move(block)};
    blocks_.insert(context);
    peak_ = std::max(peak_, blocks_.size());
    return {context->block.get(), context, &release, at::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t count) const override { before_->copy_data(to, from, count); }
  int64_t alive() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(blocks_.size());
  }
  /// The largest number of live blocks since the last call.
  int64_t take_peak() {
    const std::lock_guard lock(mutex_);
    const auto peak = static_cast<int64_t>(peak_);
    peak_ = blocks_.size();
    return peak;
  }

 private:
  struct Context {
    c10::DataPtr block;
  };
  static void release(void* pointer) {
    auto* context = static_cast<Context*>(pointer);
    if (instance_ != nullptr) {
      const std::lock_guard lock(instance_->mutex_);
      instance_->blocks_.erase(context);
    }
    delete context;
  }
  static inline CountingAllocator* instance_ = nullptr;
  c10::Allocator* before_;
  size_t size_, peak_ = 0;
  std::mutex mutex_;
  std::set<Context*> blocks_;
};

std::vector<UnitSpec> make_units() {
  std::vector<UnitSpec> units;
  for (int i = 0; i < kUnits; ++i) {
    UnitSpec unit;
    unit.name = "block." + std::to_string(i);
    unit.trained = true;
    // Two parameters, so that a unit's whole gradient differs in size from each leaf's gradient.
    unit.parameters.push_back(
        {"weight", {kWidth, kWidth}, {{unit.name + ".weight", kWidth}}, Init::kNormal, 0.1, true});
    unit.parameters.push_back({"bias", {kWidth}, {{unit.name + ".bias", kWidth}}, Init::kZeros, 0, false});
    units.push_back(unit);
  }
  return units;
}

at::Tensor loss_of(ShardedUnits& units) {
  at::Tensor x = at::ones({2, kWidth});
  for (int i = 0; i < kUnits; ++i) {
    x = enter_unit(x, units, i);
    x = at::linear(x, units.parameters(i)[0], units.parameters(i)[1]).tanh();
    x = leave_unit(x, units, i);
  }
  return x.square().mean();
}

struct Policy {
  int shard_size;
  ShardPolicy policy;
};
class GradientMemory : public testing::TestWithParam<Policy> {};

/// With shard size 2 on four ranks, gradients are reduced over the shard group and then over the replicas.
TEST_P(GradientMemory, BoundedByTheReductionsUnderWay) {
  const auto [shard_size, policy] = GetParam();
  Communicator& comm = test_world().communicator();
  if (comm.size() % shard_size != 0 || shard_size < 2) return;
  ShardedUnits units(make_units(), comm, test_grid(shard_size), at::kCPU, {.policy = policy});
  units.initialise(3, false);
  const int64_t numel = make_layout(make_units()[0], shard_size).numel;
  CountingAllocator allocator(static_cast<size_t>(numel) * sizeof(float));
  const bool each = policy >= ShardPolicy::kGradients;
  for (int step = 0; step < 3; ++step) {
    const int64_t before = allocator.alive();
    // The last step has three micro-batches, whose gradients add up in shards or whole.
    const int micro_batches = step == 2 ? 3 : 1;
    for (int m = 0; m < micro_batches; ++m) {
      units.begin_micro_batch(m + 1 == micro_batches);
      at::Tensor loss = loss_of(units);
      (void)allocator.take_peak();
      loss.backward();
      const int64_t peak = allocator.take_peak() - before;
      EXPECT_GE(peak, 1) << "the allocator counted no whole gradient";
      EXPECT_LE(peak, micro_batches == 1 || each ? 3 : kUnits)
          << "whole gradients of " << kUnits << " units, step " << step << ", micro-batch " << m;
    }
    units.finish_backward();
    EXPECT_EQ(allocator.alive(), before);
    for (TrainedShard& trained : units.trained()) EXPECT_EQ(trained.gradient.numel(), numel / shard_size);
    units.weights_changed();
    units.clear_gradients();
  }
}

INSTANTIATE_TEST_SUITE_P(ShardSizes, GradientMemory,
                         testing::Values(Policy{2, ShardPolicy::kFull}, Policy{4, ShardPolicy::kFull},
                                         Policy{4, ShardPolicy::kGradients}, Policy{2, ShardPolicy::kGradients},
                                         Policy{4, ShardPolicy::kOptimizer}));

}  // namespace
}  // namespace trireme
