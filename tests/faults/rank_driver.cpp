// A rank of a job that joins the world, runs all-reduces and leaves: for faults of the start (key store on CPUs) and of
// NCCL groups (GPUs).
//
//   rank_driver [STEPS]     GPUs where they are visible and TRIREME_DEVICE is not cpu; fault points "step", "reduce"
//   and "part"
#include "collectives.h"
#include "progress_ring.h"
#include "rank_watch.h"
#include "store_world.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/stack.h"
#include "trireme/comm/communicator.h"
#include "trireme/watchdog/progress.h"
#include "trireme/watchdog/watchdog.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

int on_gpus(const trireme::Launch& launch, int steps) {
  const auto world = trireme::World::join(launch, /*use_gpu=*/true, &trireme::rank_watchdog());
  trireme::Communicator& comm = world->communicator();
  at::Tensor values = at::ones({1 << 20}, at::TensorOptions(world->device()));
  for (int step = 1; step <= steps; ++step) {
    trireme::begin_progress_step(step);
    const trireme::ProgressSection section("step");
    trireme::fault_point("step", comm.rank(), step);
    comm.all_reduce(values)->wait();
    values.div_(comm.size());
    trireme::fault_point("reduce", comm.rank(), step);
    comm.all_reduce(values)->wait();
    values.div_(comm.size());
    const double first = values[0].item<double>();
    if (comm.rank() == 0) fmt::print("step {}: {}\n", step, first);
    std::fflush(stdout);
  }
  world->leave();
  return 0;
}

int on_cpus(const trireme::Launch& told, int steps) {
  trireme::set_collective_observer(trireme::rank_watchdog().observer());
  const auto store = trireme::join_store(told);
  const auto exchange = store->exchange();
  trireme::fault_point("bootstrap", told.rank, 1);
  trireme::Launch launch = told;
  trireme::complete_launch(launch, exchange->all_gather(trireme::host_identity()));
  fmt::print("rank {} of {}, local rank {} of {}\n", launch.rank, launch.world_size, launch.local_rank,
             launch.local_world_size);
  std::fflush(stdout);
  trireme::RankWatch watch(launch.rank, launch.world_size,
                           [&](const std::string& text) { return exchange->all_gather(text); },
                           {.device_wait = {}, .device_error = {}, .address = store->address()});
  store->watched();
  trireme::ProgressRing& ring = trireme::ProgressRing::instance();
  try {
    for (int step = 1; step <= steps; ++step) {
      trireme::begin_progress_step(step);
      trireme::fault_point("step", launch.rank, step);
      const uint64_t sequence = ring.begin("all_gather", 8, "world");
      ring.wait(sequence);
      (void)exchange->all_gather("x");
      ring.end(sequence);
      if (launch.rank == 0) fmt::print("step {}\n", step);
      std::fflush(stdout);
      usleep(50'000);
    }
  } catch (const std::exception& error) {
    watch.fail(error.what(), 70);
  }
  trireme::block_in_collective("barrier", 0, "world", [&] { (void)exchange->all_gather("barrier"); });
  trireme::fault_point("part", launch.rank, steps);
  store->part();
  watch.leave();
  store->leave();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main("rank_driver", [&] {
    trireme::install_stack_handlers();
    const trireme::Launch launch = trireme::detect_launch();
    trireme::set_log_rank(launch.rank, launch.world_size);
    const char* device = std::getenv("TRIREME_DEVICE");
    const int steps = argc > 1 ? std::stoi(argv[1]) : 10;
    return device != nullptr && std::string(device) == "cpu" ? on_cpus(launch, steps) : on_gpus(launch, steps);
  });
}
