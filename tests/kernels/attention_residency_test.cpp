// Attention while another kernel occupies multiprocessors: fewer blocks than the grid has are resident at a time, and
// the others start when those end.

#include "attention_problem.h"
#include "holder.h"

#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace trireme::kernels::testing::attention_residency_tests {

namespace {

class AttentionResidencyTest : public HopperKernelTest {};

/// Whether the work that `launch` puts on the default stream completes while the holder still runs.
bool ends_beside(const Holder& holder, const std::function<cudaError_t()>& launch) {
  EXPECT_TRUE(holder.holds());
  cudaEvent_t done = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(launch(), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(done, nullptr), cudaSuccess);
  bool ended = false;
  for (int i = 0; i < 2000 && !ended; ++i) {
    ended = cudaEventQuery(done) == cudaSuccess;
    (void)cudaGetLastError();  // "not ready" must not be reported to the next launcher
    if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  cudaEventDestroy(done);
  return ended;
}

TEST_F(AttentionResidencyTest, EndsWhileAnotherKernelHoldsMultiprocessors) {
  int processors = 0;
  CUDA_OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  // Many tiles beyond the first wave wait for tiles of it. If each block owned its first item, all resident blocks
  // would wait for blocks that are not resident: in key order, and for short sequences that store dQ themselves.
  struct Setting {
    AttentionCase attention;
    bool deterministic;
  };
  for (const auto& [c, deterministic] : {Setting{{{0, 2048}, 28, 28, 64, true}, true},
                                         {{{0, 2048}, 24, 24, 128, true}, true},
                                         {{{0, 1024, 2048, 3072, 4096}, 18, 18, 128, true}, false},
                                         {{{0, 1024, 2048, 3072, 4096}, 36, 18, 64, true}, false}}) {
    AttentionProblem run(c, Element::kBF16);
    // The first launch runs alone: the driver loads the kernel's code then, which may wait for other kernels.
    CUDA_OK(run.forward());
    CUDA_OK(run.backward(deterministic));
    const Values dq = run.dq(), dk = run.dk(), dv = run.dv();
    for (const int held : {8, 28, 64}) {
      if (held >= processors) continue;
      SCOPED_TRACE(name_of(c, Element::kBF16) + (deterministic ? " deterministic, " : ", ") + std::to_string(held) +
                   " of " + std::to_string(processors) + " multiprocessors held");
      run.poison();
      {
        Holder holder(held);
        EXPECT_TRUE(ends_beside(holder, [&] { return run.forward(); })) << "forward";
        EXPECT_TRUE(ends_beside(holder, [&] { return run.backward(deterministic); })) << "backward";
        holder.release();
      }
      CUDA_OK(cudaDeviceSynchronize());
      EXPECT_TRUE(run.dk() == dk);
      EXPECT_TRUE(run.dv() == dv);
      EXPECT_LT(relative_error(run.dq(), dq), deterministic ? 1e-30 : attention_bound(Element::kBF16));
      EXPECT_TRUE(run.counters_are_zero());
    }
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::attention_residency_tests
