#include "trireme/nn/offload.h"

#include "../base/base_testing.h"
#include "gradient_check.h"
#include "trireme/nn/recompute.h"

#include <c10/core/StorageImpl.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace trireme {
namespace {

using namespace testing;

OffloadStore::Options copying(int64_t blocks, int64_t chunk_bytes = 1024) {
  return {.blocks = blocks, .chunk_bytes = chunk_bytes, .least_bytes = 256, .copies_on_cpu = true};
}

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
WeakStorage weak(const at::Tensor& x) { return x.storage().getWeakStorageImpl(); }
bool alive(const WeakStorage& storage) { return !storage.expired(); }

TEST(Offload, ValuesComeBackToTheBit) {
  for (const int64_t chunk : {512, 1024, 1 << 20}) {  // values that cross chunks, and chunks that have several
    OffloadStore store(copying(5, chunk));
    std::vector<std::shared_ptr<OffloadStore::Saved>> saved;
    std::vector<std::vector<at::Tensor>> values;
    for (int64_t block = 0; block < 5; ++block) {
      const auto seed = static_cast<uint64_t>(10 * block);
      values.push_back({random({37, 11}, seed + 1), random({64, 9}, seed + 2, at::kBFloat16),
                        random({12, 40}, seed + 3, at::kFloat).t(), at::Tensor(), random({2}, seed + 4)});
      std::vector<at::Tensor> given;
      for (const at::Tensor& value : values.back()) given.push_back(value.defined() ? value.clone() : value);
      saved.push_back(store.save(block, std::move(given)));
    }
    for (int64_t block = 4; block >= 0; --block) {
      const std::vector<at::Tensor> got = store.fetch(*saved[static_cast<size_t>(block)]);
      ASSERT_EQ(got.size(), 5u);
      for (size_t i = 0; i < got.size(); ++i) {
        const at::Tensor& want = values[static_cast<size_t>(block)][i];
        ASSERT_EQ(got[i].defined(), want.defined());
        if (!want.defined()) continue;
        EXPECT_EQ(got[i].scalar_type(), want.scalar_type());
        EXPECT_EQ(max_difference(got[i], want), 0) << "block " << block << ", value " << i;
      }
      EXPECT_THROW(store.fetch(*saved[static_cast<size_t>(block)]), InternalError);
    }
  }
}

TEST(Offload, TheDeviceHasTheValuesOfTwoBlocksAtMost) {
  constexpr int64_t kBlocks = 6;
  OffloadStore store(copying(kBlocks));
  std::vector<WeakStorage> given;
  std::vector<std::shared_ptr<OffloadStore::Saved>> saved;
  const auto count = [&] { return std::count_if(given.begin(), given.end(), alive); };
  for (int64_t block = 0; block < kBlocks; ++block) {
    at::Tensor x = random({100}, static_cast<uint64_t>(block));
    given.push_back(weak(x));
    saved.push_back(store.save(block, {std::move(x)}));
    EXPECT_LE(count(), 1) << block;
  }
  EXPECT_TRUE(alive(given.back())) << "backward begins with the last block: its values stay";
  // What was never fetched is dropped, and its host memory is used again.
  const int64_t bytes = store.host_bytes();
  EXPECT_EQ(bytes, 5 * 1024);
  for (int64_t block = kBlocks - 1; block >= 3; --block)
    EXPECT_EQ(
        max_difference(store.fetch(*saved[static_cast<size_t>(block)])[0], random({100}, static_cast<uint64_t>(block))),
        0);
  saved.clear();
  for (int pass = 0; pass < 3; ++pass) {
    for (int64_t block = 0; block < kBlocks; ++block)
      saved.push_back(store.save(block, {random({100}, static_cast<uint64_t>(block))}));
    while (!saved.empty()) {
      EXPECT_EQ(max_difference(store.fetch(*saved.back())[0], random({100}, saved.size() - 1)), 0);
      saved.pop_back();
    }
  }
  EXPECT_EQ(store.host_bytes(), bytes);
}

TEST(Offload, TwoForwardPassesMayComeBeforeTheirBackwards) {
  OffloadStore store(copying(3));
  const auto value = [](int64_t pass, int64_t block) {
    return random({80}, static_cast<uint64_t>(100 * pass + block));
  };
  std::vector<std::vector<std::shared_ptr<OffloadStore::Saved>>> saved(2);
  for (int64_t pass = 0; pass < 2; ++pass)
    for (int64_t block = 0; block < 3; ++block)
      saved[static_cast<size_t>(pass)].push_back(store.save(block, {value(pass, block)}));
  for (const int64_t pass : {0, 1})  // the first pass first: not the order of a stack
    for (int64_t block = 2; block >= 0; --block)
      EXPECT_EQ(max_difference(store.fetch(*saved[static_cast<size_t>(pass)][static_cast<size_t>(block)])[0],
                               value(pass, block)),
                0);
}

TEST(Offload, OnACpuValuesStayAsTheyAre) {
  OffloadStore store({.blocks = 2});
  const at::Tensor x = random({100}, 1);
  const auto saved = store.save(0, {x});
  store.reserve(int64_t{1} << 60);
  EXPECT_EQ(store.host_bytes(), 0);
  EXPECT_EQ(store.fetch(*saved)[0].const_data_ptr(), x.const_data_ptr());
  EXPECT_FALSE(store.takes(2));
}

TEST(Offload, AHostWithoutTheMemoryIsToldBeforeTheFirstStep) {
  OffloadStore store(copying(2, int64_t{1} << 60));
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { store.reserve(int64_t{1} << 60); }), "parallel.offload: none"));
}

TEST(Offload, RecomputedBlocksGiveTheSameGradients) {
  const auto layer = [](const at::Tensor& in, const std::vector<at::Tensor>& w, BlockRun& run) {
    if (!run.again) run.kept = {at::exp(in), at::Tensor()};
    return in + at::tanh(at::mm(in * run.kept[0], w[0]));
  };
  std::vector<at::Tensor> w;
  for (uint64_t i = 0; i < 4; ++i) w.push_back(random({8, 8}, 50 + i).mul_(0.3).requires_grad_());
  std::vector<WeakStorage> inputs;
  const auto gradients = [&](OffloadStore* store, int64_t blocks) {
    const at::Tensor x0 = random({16, 8}, 1).requires_grad_();
    inputs.clear();
    at::Tensor x = x0;
    for (int64_t block = 0; block < 4; ++block) {
      inputs.push_back(weak(x));
      x = recomputed(layer, x, {w[static_cast<size_t>(block)]}, block < blocks ? store : nullptr, block);
    }
    if (store != nullptr) {
      // What left is nowhere else: the input of the first block is the leaf, the last block that leaves stays.
      for (int64_t block = 1; block + 1 < blocks; ++block)
        EXPECT_FALSE(alive(inputs[static_cast<size_t>(block)])) << block;
    }
    project(x).backward();
    std::vector<at::Tensor> result = {x0.grad()};
    for (at::Tensor& each : w) {
      result.push_back(each.grad());
      each.mutable_grad() = at::Tensor();
    }
    return result;
  };
  const auto plain = gradients(nullptr, 0);
  for (const int64_t blocks : {1, 3, 4}) {
    OffloadStore store(copying(blocks));
    for (int pass = 0; pass < 2; ++pass) {
      const auto offloaded = gradients(&store, blocks);
      for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(max_difference(plain[i], offloaded[i]), 0) << i;
    }
  }
}

}  // namespace
}  // namespace trireme
