// A program that replaces the trainer in the Slurm tests: joins the world, sums over the ranks, prints rank and host,
// and ends as requested.
//
//   rank_probe [--config FILE] [--set name=value]… with the names
//     exit_rank, exit_code,
//     how = return | abort | kill | stop   how that rank ends; the others wait for it in a collective
//     wait_for_term = seconds              every rank waits for SIGTERM and ends with 75
//     gpu = 1                              ranks with a GPU each
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/communicator.h"
#include "trireme/watchdog/watchdog.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>

namespace {

volatile sig_atomic_t g_terminated = 0;

std::map<std::string, std::string> parse(int argc, char** argv) {
  std::map<std::string, std::string> settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    const size_t equals = value.find('=');
    if (option == "--config")
      settings["config"] = value;
    else if (option == "--set" && equals != std::string::npos)
      settings[value.substr(0, equals)] = value.substr(equals + 1);
    else
      throw trireme::ConfigError("unknown option " + option);
  }
  return settings;
}

int wait_for_term(trireme::World& world, int seconds) {
  for (int i = 0; i < seconds * 20 && g_terminated == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double signalled = world.communicator().all_reduce_host({g_terminated != 0 ? 1.0 : 0.0})[0];
  if (world.communicator().rank() == 0) fmt::print("{} ranks got SIGTERM\n", signalled);
  world.leave();
  return signalled == world.communicator().size() ? 75 : 70;
}

int probe(int argc, char** argv) {
  const auto settings = parse(argc, argv);
  const auto number = [&](const char* name, int otherwise) {
    return settings.contains(name) ? std::stoi(settings.at(name)) : otherwise;
  };
  const trireme::Launch launch = trireme::detect_launch();
  trireme::set_log_rank(launch.rank, launch.world_size);
  const auto world = trireme::World::join(launch, number("gpu", 0) != 0, &trireme::rank_watchdog());
  trireme::Communicator& comm = world->communicator();
  at::Tensor sum = at::full({5}, comm.rank() + 1.0, at::TensorOptions(world->device()));
  comm.all_reduce(sum)->wait();
  fmt::print("rank {} of {} on {}: {}, local rank {} of {}, sum {}, config {}\n", comm.rank(), comm.size(),
             world->hosts()[comm.rank()], launch.description(), world->launch().local_rank,
             world->launch().local_world_size, sum[4].item<double>(),
             settings.contains("config") ? settings.at("config") : "-");
  if (comm.rank() == 0) fmt::print("{}\n", trireme::describe_topology(world->topology()));
  std::fflush(stdout);
  comm.barrier();
  if (const int seconds = number("wait_for_term", 0); seconds > 0) return wait_for_term(*world, seconds);
  if (const int rank = number("exit_rank", -1); rank >= 0) {
    if (comm.rank() != rank) {
      comm.all_reduce(sum)->wait();
      return sum[0].item<double>() > 0 ? 0 : 1;  // not reached
    }
    const int code = number("exit_code", 1);
    const std::string how = settings.contains("how") ? settings.at("how") : "return";
    if (how == "kill") raise(SIGKILL);
    if (how == "stop") raise(SIGSTOP);
    if (how == "abort") world->abort("the probe was told to fail", code);
    std::_Exit(code);
  }
  world->leave();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  struct sigaction action{};
  action.sa_handler = [](int) { g_terminated = 1; };
  sigaction(SIGTERM, &action, nullptr);
  return trireme::run_main("rank_probe", [&] { return probe(argc, argv); });
}
