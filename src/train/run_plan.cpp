#include "run_plan.h"

#include "memory_snapshot.h"
#include "training_state.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/hash.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/comm/collective_check.h"
#include "trireme/config/keys.h"
#include "trireme/plan/hints.h"
#include "trireme/plan/rates.h"
#include "trireme/plan/search.h"
#include "trireme/watchdog/progress.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <new>
#include <set>
#include <string_view>
#include <vector>

namespace trireme {

namespace {

/// Every key but those whose paths may differ from host to host.
std::string common_configuration(const Config& config) {
  std::string text;
  for (const auto& [key, value] : flatten_config(config))
    if (!key_traits(key).path) text += key + "=" + value + "\n";
  return hex64(xxh3_64(text.data(), text.size()));
}

/// The environment variables that decide which collectives a rank issues.
std::string common_environment() {
  std::string text;
  for (const char* name : {"TRIREME_PEER_MEMORY", "TRIREME_PRODUCTS"})
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, environment(name));
  return text;
}

/// The parts of a plan that all ranks must share, as text, and a hash of all its numbers.
std::string plan_summary(const TrainingPlan& plan) {
  std::string all =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", policy_name(plan.policy), plan.shard_size,
                  plan.rows_per_pass, plan.weights, plan.masters, plan.moments, plan.gradients, plan.gather_slots,
                  plan.activations, plan.working, plan.overhead, plan.gathered_per_pass, plan.device_memory);
  all += fmt::format(" {} {} {} {} {} {} {}", plan.tile_tokens, plan.offloaded, plan.host, plan.context_size,
                     plan.host_units, plan.host_state, plan.transposed);
  for (const bool resident : plan.resident) all += resident ? " r" : " s";
  for (const Recompute what : plan.recompute) all += fmt::format(" {}", static_cast<int>(what));
  return fmt::format(
      "shard size {}, policy {}, {} rows in each pass, {} units resident, {} of {} blocks recomputed, {} offloaded, {} "
      "(plan {})",
      plan.shard_size, policy_name(plan.policy), plan.rows_per_pass,
      std::count(plan.resident.begin(), plan.resident.end(), true),
      std::count_if(plan.recompute.begin(), plan.recompute.end(),
                    [](Recompute what) { return what != Recompute::kNone; }),
      plan.recompute.size(), plan.offloaded, format_bytes(plan.total()), hex64(xxh3_64(all.data(), all.size())));
}

/// "ranks 1, 3 and 4 on node7", at most five of them.
std::string ranks_and_hosts(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::set<std::string> names;
  std::vector<std::string> shown;
  for (const int rank : ranks) {
    names.insert(hosts[static_cast<size_t>(rank)]);
    if (shown.size() < 5) shown.push_back(std::to_string(rank));
  }
  if (shown.size() < ranks.size()) shown.push_back(fmt::format("… ({} in all)", ranks.size()));
  std::vector<std::string> some(names.begin(),
                                std::next(names.begin(), std::min<long>(5, static_cast<long>(names.size()))));
  return fmt::format("rank{} {} on {}{}", ranks.size() == 1 ? "" : "s", join(shown, ", "), join(some, ", "),
                     names.size() > some.size() ? ", …" : "");
}

/// CollectiveError when the ranks have not all the same text: what they `differ` in, the texts where `shown`, `remedy`.
void require_equal(const std::vector<std::string>& texts, const std::vector<std::string>& hosts, const char* differ,
                   const std::string& remedy, bool shown = true) {
  std::vector<int> others;
  for (size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0]) others.push_back(static_cast<int>(rank));
  if (others.empty()) return;
  const std::string both = fmt::format(": {}, and {}", texts[static_cast<size_t>(others[0])], texts[0]);
  throw CollectiveError(ExitCode::kConfig, fmt::format("{} and {} {}{}: {}", ranks_and_hosts(others, hosts),
                                                       ranks_and_hosts({0}, hosts), differ, shown ? both : "", remedy));
}

/// A list of "hash path", joined by NUL; the last one is empty.
std::vector<Fingerprint> parse_files(const std::string& list) {
  std::vector<Fingerprint> files;
  for (const std::string& file : split(list, '\0')) {
    const size_t end = std::min(file.find(' '), file.size());
    files.push_back({file.substr(std::min(end + 1, file.size())), file.substr(0, end)});
  }
  return files;
}

/// What the files `a` of rank `other` first differ in from those of rank `zero`. Their folders may have other names.
std::string different_files(const std::vector<Fingerprint>& a, const std::vector<Fingerprint>& b,
                            const std::string& other, const std::string& zero) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b, {}, &Fingerprint::hash, &Fingerprint::hash);
  const auto name = [](const Fingerprint& file) { return std::filesystem::path(file.path).filename(); };
  const bool more = std::ranges::count(a, name(*in_a), name) > std::ranges::count(b, name(*in_a), name);
  const bool less = std::ranges::count(a, name(*in_b), name) < std::ranges::count(b, name(*in_b), name);
  if (more && less && a.size() == b.size()) return fmt::format("{} and {}", in_a->path, in_b->path);
  if (more) return fmt::format("{} has {}, which {} lacks", other, in_a->path, zero);
  if (less) return fmt::format("{} lacks {}, which {} has", other, in_b->path, zero);
  return in_b->path.empty() ? in_a->path : in_b->path;
}

/// CollectiveError when the ranks do not read the same files.
void require_equal_files(World& world, const Config& config, const TrainingTask& task, bool from_start) {
  Communicator& comm = world.communicator();
  if (comm.size() == 1) return;
  const ProgressSection section("files", kStorageAllowance);
  std::vector<Fingerprint> files;
  collective_check(comm, [&] { files = files_of_all_ranks(config, task.files(), from_start); });
  std::string hashes, list;
  for (const Fingerprint& file : files) {
    hashes += file.hash + ' ';
    list += file.hash + ' ' + file.path + '\0';
  }
  const auto all = comm.all_gather_host(hex64(xxh3_64(hashes.data(), hashes.size())));
  const auto other =
      static_cast<int>(std::ranges::find_if(all, [&](auto& its) { return its != all[0]; }) - all.begin());
  if (other == comm.size()) return;
  const auto lists = comm.all_gather_host(comm.rank() == 0 || comm.rank() == other ? list : "");
  require_equal(all, world.hosts(), "read files of different contents",
                different_files(parse_files(lists[static_cast<size_t>(other)]), parse_files(lists[0]),
                                ranks_and_hosts({other}, world.hosts()), ranks_and_hosts({0}, world.hosts())) +
                    "; copies on several hosts must be equal: copy one to all hosts",
                /*shown=*/false);
}

bool ran_out(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr)
    return true;
  const std::string_view text = error.what();
  for (const char* words : {"not enough memory", "can't allocate memory", "out of memory"})
    if (text.find(words) != std::string_view::npos) return true;
  return false;
}

/// The state of the machine's memory for this process, as text.
std::string free_memory(at::Device device) {
  if (device.is_cuda()) {
    const std::string snapshot = out_of_memory_snapshot().string();
    return fmt::format(
        "the allocator's peak was {}{}", format_bytes(peak_reserved_memory(device)),
        snapshot.empty() ? "" : fmt::format(", and its snapshot is {} (pytorch.org/memory_viz)", snapshot));
  }
  const int64_t free = static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::string text = fmt::format("{} were resident at most, the machine has {} free", format_bytes(peak_memory(device)),
                                 format_bytes(free));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text +=
        fmt::format(", and the process is limited to {} of address space (ulimit -v)", format_bytes(limit.rlim_cur));
  return text;
}

}  // namespace

int run_context_size(const Config& config, const TrainingProgram& program, World& world, at::ScalarType compute_dtype) {
  Communicator& comm = world.communicator();
  if (comm.size() == 1 || config.parallel.context_size == 1 || !program.keys.features.has(Feature::kContext)) return 1;
  DeviceInfo device = describe_device(world.device(), compute_dtype, world.launch().local_world_size);
  if (const auto bytes = fault_value("device-memory", comm.rank())) device.total_memory = static_cast<int64_t>(*bytes);
  const int64_t host = pinnable_memory(host_memory().available, world.launch().local_world_size);
  const std::vector<double> most =
      comm.all_reduce_host({-static_cast<double>(device.total_memory), -static_cast<double>(host)}, ReduceOp::kMax);
  int size = 1;
  collective_check(comm, [&] {
    const auto model =
        program.make_task(config, {RankGrid(), world.device(), compute_dtype, /*plan_only=*/true}, program.keys);
    size = choose_context_size({config, *model, comm.size(), world.device().is_cuda(), static_cast<int64_t>(-most[0]),
                                static_cast<int64_t>(-most[1]), world.topology().largest_group(),
                                run_rates(config, device.name), 0, planned_kernel_class(world.device())});
  });
  // Ranks with other files would choose otherwise, and are found with the plan.
  return static_cast<int>(comm.all_reduce_host({static_cast<double>(size)}, ReduceOp::kMax)[0]);
}

RunPlan::RunPlan(const Config& config, const TrainingTask& task, World& world, const RankGrid& grid,
                 at::ScalarType compute_dtype, bool from_start)
    : world_(world),
      device_info_(describe_device(world.device(), compute_dtype, world.launch().local_world_size)),
      question_{config,
                task,
                world.communicator().size(),
                world.device().is_cuda(),
                device_info_.total_memory,
                0,
                world.topology().largest_group(),
                run_rates(config, device_info_.name),
                grid.context.size,
                planned_kernel_class(world.device())} {
  Communicator& comm = world.communicator();
  if (const auto bytes = fault_value("device-memory", comm.rank()))
    question_.device_memory = device_info_.total_memory = static_cast<int64_t>(*bytes);
  require_equal(comm.all_gather_host(common_configuration(config)), world.hosts(), "run different configurations",
                "give every rank the same file and the same --set", /*shown=*/false);
  require_equal(comm.all_gather_host(common_environment()), world.hosts(), "have different environments",
                "give every rank the same (mpirun passes a variable to other hosts with -x)");

  const auto hosts =
      comm.all_gather_host(std::to_string(pinnable_memory(host_memory().available, world.launch().local_world_size)));
  question_.host_memory = std::numeric_limits<int64_t>::max();
  for (const std::string& memory : hosts)
    question_.host_memory = std::min<int64_t>(question_.host_memory, std::stoll(memory));
  const auto memories = comm.all_gather_host(std::to_string(question_.device_memory));
  std::vector<int64_t> bytes;
  for (const std::string& memory : memories) bytes.push_back(std::stoll(memory));
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  if (*least < *most)
    log_info(fmt::format(
        "device memory differs between ranks: the plan is made for the smallest, {} of {} (the largest is {})",
        format_bytes(*least), ranks_and_hosts({static_cast<int>(least - bytes.begin())}, world.hosts()),
        format_bytes(*most)));
  question_.device_memory = *least;

  collective_check(comm, [&] { plan_ = plan_run(question_); });
  require_equal(comm.all_gather_host(plan_summary(plan_)), world.hosts(), "come to different memory plans",
                "the files of model or data differ between the hosts");
  require_equal_files(world, config, task, from_start);
}

std::optional<std::string> RunPlan::out_of_memory_message(const std::exception& error) const {
  if (!ran_out(error)) return std::nullopt;
  // The plan predicted too little: settings that need less memory, the largest saving first.
  std::vector<std::string> advice;
  PlanInput input = plan_input(question_);
  if (plan_.host_units == 0) input.state = PlanInput::Offload::kNone;
  if (plan_.transposed > 0) advice.emplace_back("precision.fp8_transpose_cache: false");
  if (question_.config.parallel.recompute.word != ParallelSection::Recompute::kFull &&
      plan_.total() - plan_.transposed > least_plan(input).total())
    advice.emplace_back("parallel.recompute: full");
  std::vector<PlanHint> hints = plan_hints(question_);
  std::stable_sort(hints.begin(), hints.end(), [](const PlanHint& a, const PlanHint& b) { return a.saved > b.saved; });
  for (const PlanHint& hint : hints)
    if (std::find(advice.begin(), advice.end(), join(hint.settings, " with ")) == advice.end())
      advice.push_back(join(hint.settings, " with "));
  if (advice.size() > 2) advice.resize(2);
  // The plan would take as many rows at a time again.
  if (const int half = plan_.rows_per_pass / 2; plan_.rows_per_pass % 2 == 0 && half % input.rows_multiple == 0)
    advice.push_back(fmt::format("batch.micro_batch_size: {}", half));
  return fmt::format("rank {} is out of memory: the plan counts {}; {}; try {}", world_.communicator().rank(),
                     describe_parts(plan_), free_memory(world_.device()),
                     advice.empty() ? "a device with more memory" : join(advice, ", or "));
}

}  // namespace trireme
