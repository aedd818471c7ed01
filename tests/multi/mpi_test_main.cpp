#include "mpi_test_main.h"

#include "trireme/watchdog/watchdog.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace trireme {

namespace {
std::unique_ptr<World> g_world;
}

World& test_world() { return *g_world; }

}  // namespace trireme

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // TRIREME_TEST_GPU: the same tests on GPUs (run_gpu_ranks.sh).
  trireme::g_world = trireme::World::join(trireme::detect_launch(), std::getenv("TRIREME_TEST_GPU") != nullptr,
                                          &trireme::rank_watchdog());
  trireme::Communicator& comm = trireme::g_world->communicator();
  if (comm.rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const int failed = RUN_ALL_TESTS();
  const double failures = comm.all_reduce_host({static_cast<double>(failed != 0)})[0];
  if (failed != 0 && comm.rank() != 0) std::fprintf(stderr, "rank %d failed\n", comm.rank());
  trireme::g_world->leave();
  return failures > 0 ? 1 : 0;
}
