// The group of one rank behaves like the others: results, checked sizes, in-place slices.
#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

std::unique_ptr<World> alone() { return World::join(Launch{}, /*use_gpu=*/false, nullptr); }

TEST(SelfCommunicator, CollectivesCopyOrKeep) {
  const auto world = alone();
  Communicator& comm = world->communicator();
  EXPECT_STREQ(comm.backend(), "self");
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
  const at::Tensor values = at::arange(7, at::kBFloat16);
  at::Tensor out = at::zeros({7}, at::kBFloat16);
  comm.all_gather(out, values)->wait();
  EXPECT_TRUE(out.equal(values));
  out.zero_();
  comm.reduce_scatter(out, values)->wait();
  EXPECT_TRUE(out.equal(values));
  out.zero_();
  comm.all_to_all(out, values)->wait();
  EXPECT_TRUE(out.equal(values));
  comm.all_reduce(out)->wait();
  comm.broadcast(out, 0)->wait();
  comm.barrier();
  EXPECT_TRUE(out.equal(values));
  comm.all_gather(out, out)->wait();
  EXPECT_TRUE(out.equal(values));
  world->leave();
}

TEST(SelfCommunicator, RecordsNoGradient) {
  const auto world = alone();
  const at::Tensor values = at::ones({3}).requires_grad_();
  at::Tensor out = at::zeros({3});
  world->communicator().all_gather(out, values)->wait();
  EXPECT_FALSE(out.requires_grad());
}

TEST(SelfCommunicator, RefusesWrongSizesAndRoots) {
  const auto world = alone();
  Communicator& comm = world->communicator();
  EXPECT_THROW(comm.all_gather(at::zeros({2}), at::zeros({3})), InternalError);
  EXPECT_THROW(comm.reduce_scatter(at::zeros({3}), at::zeros({2})), InternalError);
  EXPECT_THROW(comm.all_to_all(at::zeros({3}), at::zeros({2})), InternalError);
  EXPECT_THROW(comm.broadcast(at::zeros({2}), 1), InternalError);
}

TEST(SelfCommunicator, HostValuesAndSplit) {
  const auto world = alone();
  Communicator& comm = world->communicator();
  EXPECT_EQ(comm.all_reduce_host({2.5, -1.0}), (std::vector<double>{2.5, -1.0}));
  EXPECT_EQ(comm.all_gather_host("x"), std::vector<std::string>{"x"});
  const auto part = comm.split(5);
  EXPECT_EQ(part->size(), 1);
  EXPECT_EQ(world->hosts().size(), 1u);
  EXPECT_TRUE(world->device().is_cpu());
}

}  // namespace
}  // namespace trireme
