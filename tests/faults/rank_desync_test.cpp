// One rank of an MPI group issues another collective (fault F5): the comparison before each collective reports both on
// every rank.
#include "../base/base_testing.h"
#include "mpi_test_main.h"
#include "trireme/comm/communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace trireme {
namespace {

// Set before main() joins the world.
const int g_checking = setenv("TRIREME_CHECK_COLLECTIVES", "1", 1);

TEST(Desync, EqualCollectivesPass) {
  ASSERT_EQ(g_checking, 0);
  Communicator& comm = test_world().communicator();
  at::Tensor values = at::ones({1024});
  for (int i = 0; i < 3; ++i) comm.all_reduce(values)->wait();
  EXPECT_EQ(comm.all_gather_host(std::string(static_cast<size_t>(comm.rank()) + 1, 'x')).size(),
            static_cast<size_t>(comm.size()));
  comm.barrier();
}

TEST(Desync, AnotherSizeIsToldOnEveryRank) {
  Communicator& comm = test_world().communicator();
  at::Tensor values = at::ones({comm.rank() == 1 ? 77 : 1024});
  const std::string message = message_of<Error>([&] { comm.all_reduce(values)->wait(); });
  EXPECT_TRUE(contains(message, "rank 1 at all_reduce[77] on world"));
  EXPECT_TRUE(contains(message, "at all_reduce[1024] on world"));
  EXPECT_TRUE(contains(message, "different collectives at #"));
}

TEST(Desync, ASkippedCollectiveIsToldOnEveryRank) {
  Communicator& comm = test_world().communicator();
  at::Tensor values = at::ones({1024}), all = at::empty({1024 * comm.size()});
  const std::string message = message_of<Error>([&] {
    if (comm.rank() != 1) comm.all_gather(all, values)->wait();
    comm.all_reduce(values)->wait();
  });
  EXPECT_TRUE(contains(message, "rank 1 at all_reduce[1024] on world"));
  EXPECT_TRUE(contains(message, "at all_gather[1024] on world"));
}

}  // namespace
}  // namespace trireme
