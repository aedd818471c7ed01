#include "trireme/plan/calibrate.h"

#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/device.h"
#include "trireme/ops/dispatch.h"
#include "trireme/ops/matmul/measure.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace trireme {

namespace {

using Call = std::function<void()>;

// The block that the products are of: Llama2-7B's, on two rows of 4,096 tokens.
constexpr int64_t kTokens = 8192, kRow = 4096, kHidden = 4096, kMlp = 11008, kHeads = 32, kHeadDim = 128;
struct Layer {
  const char* name;
  int64_t in, out;
};
constexpr Layer kLayers[] = {{"qkv", kHidden, 3 * kHidden},
                             {"attention output", kHidden, kHidden},
                             {"gate and up", kHidden, 2 * kMlp},
                             {"down", kMlp, kHidden}};

/// One product and its operations.
struct Product {
  const char* layer;
  Call call;
  double flops;
};

/// Forward, dgrad and wgrad of the layers, in bf16 or FP8. Values are drawn from a normal distribution: zeros take less
/// power, and clocks would stay higher than in a run.
std::vector<Product> products(at::Device device, bool fp8) {
  const auto random = [&](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}, at::TensorOptions().dtype(at::kBFloat16).device(device));
  };
  std::vector<Product> all;
  for (const Layer& layer : kLayers) {
    const double flops = 2.0 * static_cast<double>(kTokens) * static_cast<double>(layer.in * layer.out);
    // a b^T of each of the three: x W^T; dy W; dy^T x.
    const int64_t shapes[][3] = {
        {kTokens, layer.in, layer.out}, {kTokens, layer.out, layer.in}, {layer.out, kTokens, layer.in}};
    for (int which = 0; which < 3; ++which) {
      const auto& [m, k, n] = shapes[which];
      if (fp8) {
        all.push_back({layer.name, fp8_product_of(random(m, k), random(n, k)), flops});
        continue;
      }
      // The layouts of a run: W and x lie as they are, so that dgrad and wgrad read them transposed.
      const at::Tensor a = which == 2 ? random(k, m).t() : random(m, k);
      const at::Tensor b = which == 0 ? random(n, k).t() : random(k, n);
      all.push_back({layer.name, plain_product_of(a, b), flops});
    }
  }
  return all;
}

class Stopwatch {
 public:
  Stopwatch(Communicator& comm, at::Device device, double seconds)
      : comm_(comm), seconds_(seconds), probe_(at::zeros({1}, at::TensorOptions().device(device))) {}

  /// Seconds of one call when calls follow each other without a gap: the median of three spans, of the slowest rank.
  /// Collective: every rank makes the same number of calls.
  double time(const Call& call) {
    for (int i = 0; i < 2; ++i) call();
    const double once = std::max(span(call, 3), 1e-7);
    const int64_t calls = std::clamp<int64_t>(std::llround(seconds_ / 3 / once), 1, 1'000'000);
    (void)span(call, 3 * calls);  // clocks and temperature settle
    std::vector<double> spans;
    for (int i = 0; i < 3; ++i) spans.push_back(span(call, calls));
    std::sort(spans.begin(), spans.end());
    return spans[1];
  }

 private:
  double span(const Call& call, int64_t calls) {
    wait();
    comm_.barrier();
    const double begin = steady_seconds();
    for (int64_t i = 0; i < calls; ++i) call();
    wait();
    const double mine = (steady_seconds() - begin) / static_cast<double>(calls);
    return comm_.all_reduce_host({mine}, ReduceOp::kMax).at(0);
  }
  /// Reads a value that the queued work precedes.
  void wait() { (void)probe_.add_(1).item(); }

  Communicator& comm_;
  double seconds_;
  at::Tensor probe_;
};

class Calibrator {
 public:
  Calibrator(World& world, double seconds)
      : world_(world),
        comm_(world.communicator()),
        device_(world.device()),
        watch_(comm_, device_, seconds),
        brief_(comm_, device_, seconds / 4) {}

  Calibration run() {
    const DeviceInfo info = describe_device(device_, at::kBFloat16, world_.launch().local_world_size);
    result_.rates = machine_rates(info.name);
    result_.rates.name = info.name;
    result_.rates.capability = compute_capability(device_);
    set("memory_gib", &MachineRates::memory_gib, static_cast<double>(info.total_memory) / (1 << 30));
    result_.notes = {
        fmt::format("{} on {}, {}: rates of a run's steady state, of the slowest GPU", counted(comm_.size(), "GPU"),
                    counted(world_.topology().hosts(), "host"), gpu_library_versions()),
        "what is not here is of the built-in table: a step's overhead is fitted to runs, the start and the steps of "
        "collectives over hosts are figures of NCCL's own model"};
    measure_products(/*fp8=*/false, "bf16_flops", &MachineRates::bf16_flops);
    if (kernel_class(device_) != KernelClass::kNone && multiplies_fp8(compute_capability(device_), /*by_rows=*/true))
      measure_products(/*fp8=*/true, "fp8_flops", &MachineRates::fp8_flops);
    else
      result_.notes.emplace_back(
          "FP8 products with a scale per row need a GPU of compute capability 9.0: fp8_flops was not measured");
    measure_attention();
    measure_memory();
    measure_host();
    measure_links();
    measure_network();
    return std::move(result_);
  }

 private:
  void set(const char* name, double MachineRates::* member, double value) {
    result_.rates.*member = value;
    result_.measured.insert(name);
  }

  void measure_products(bool fp8, const char* name, double MachineRates::* member) {
    const std::vector<Product> all = products(device_, fp8);
    for (int occurrence = 0; occurrence < 4; ++occurrence)
      for (const Product& one : all) one.call();
    (void)trireme::measure_products(device_, ProductLoad::kBrief);  // as a run does
    double flops = 0;
    for (const Product& one : all) flops += one.flops;
    const double seconds = watch_.time([&] {
      for (const Product& one : all) one.call();
    });
    set(name, member, flops / seconds);
    if (!fp8) block_seconds_ = seconds;
    std::string parts;
    for (size_t i = 0; i < all.size(); i += 3) {
      const double part = brief_.time([&] {
        for (size_t j = i; j < i + 3; ++j) all[j].call();
      });
      parts += fmt::format("{}{} {:.0f}", i == 0 ? "" : ", ", all[i].layer, 3 * all[i].flops / part / 1e12);
    }
    result_.notes.push_back(fmt::format("products in {}, TFLOP/s: {:.0f} over a block's twelve; {}",
                                        fp8 ? "FP8" : "bf16", flops / seconds / 1e12, parts));
  }

  void measure_attention() {
    const auto random = [&] {
      return at::randn({kTokens, kHeads, kHeadDim}, at::TensorOptions().dtype(at::kBFloat16).device(device_))
          .requires_grad_();
    };
    const at::Tensor q = random(), k = random(), v = random(), d_out = random().detach();
    const Sequences sequences = make_sequences({0, kRow, kTokens}, {}, device_);
    const AttentionOptions options{
        .scale = 1 / std::sqrt(static_cast<double>(kHeadDim)), .causal = true, .dropout = {}};
    const double seconds = watch_.time([&] {
      attention(q, k, v, sequences, options).backward(d_out);
      for (const at::Tensor* one : {&q, &k, &v}) one->mutable_grad() = at::Tensor();
    });
    // Two products forward and five backward, half of each under the causal mask.
    const double forward = 2.0 * static_cast<double>(kTokens * kRow) * static_cast<double>(kHeads * kHeadDim);
    set("attention_flops", &MachineRates::attention_flops, 3.5 * forward / seconds);
    result_.notes.push_back(fmt::format(
        "attention, causal, 2 x 4,096 tokens, 32 heads of 128: forward and backward {:.2f} ms", seconds * 1e3));
  }

  /// The slower of the two directions, all GPUs of the host at once.
  void measure_host() {
    constexpr int64_t kBytes = int64_t{256} << 20;
    const auto bytes = at::TensorOptions(at::kByte);
    const at::Tensor host = at::empty({kBytes}, bytes.pinned_memory(true)),
                     own = at::empty({kBytes}, bytes.device(device_));
    const double out = watch_.time([&] { host.copy_(own, /*non_blocking=*/true); }),
                 in = watch_.time([&] { own.copy_(host, /*non_blocking=*/true); });
    set("host_bytes", &MachineRates::host_bytes, static_cast<double>(kBytes) / std::max(out, in));
  }

  void measure_memory() {
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device_);
    const at::Tensor a = at::randn({kTokens, 2 * kMlp}, options), b = at::randn({kTokens, 2 * kMlp}, options);
    at::Tensor sum = at::empty_like(a);
    const double seconds = watch_.time([&] { at::add_out(sum, a, b); });
    set("memory_bytes", &MachineRates::memory_bytes, 3.0 * static_cast<double>(a.nbytes()) / seconds);
  }

  /// Bytes that a rank of `group` receives per second in all-gathers and reduce-scatters of a unit's size.
  double collective_rate(Communicator& group, at::Tensor& whole, at::Tensor& part) {
    const double seconds = watch_.time([&] { exchange(group, whole, part); });
    const double others = 1 - 1.0 / group.size();
    return 2 * others * static_cast<double>(whole.nbytes()) / seconds;
  }
  static void exchange(Communicator& group, at::Tensor& whole, at::Tensor& part) {
    group.all_gather(whole, part)->wait();
    group.reduce_scatter(part, whole)->wait();
  }
  /// A unit's weights, and a rank's part of them.
  std::pair<at::Tensor, at::Tensor> unit(const Communicator& group) const {
    const int64_t elements = int64_t{200} * (1 << 20) / group.size() * group.size();
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device_);
    return {at::zeros({elements}, options), at::zeros({elements / group.size()}, options)};
  }

  void measure_links() {
    const Topology& topology = world_.topology();
    const int most = *std::max_element(topology.ranks_per_host.begin(), topology.ranks_per_host.end());
    if (most != topology.largest_group() || most == 1) {
      result_.notes.push_back(
          most == 1 ? "link_bytes and interference need several GPUs of a host: mpirun -n 2 trireme calibrate"
                    : "link_bytes and interference were not measured: hosts have different numbers of ranks");
      return;
    }
    const auto host = comm_.split(RankGrid(comm_.rank(), {.world = comm_.size(), .shard = most}).shard.group);
    auto [whole, part] = unit(*host);
    set("link_bytes", &MachineRates::link_bytes, collective_rate(*host, whole, part));
    at::Tensor small = at::zeros({1024}, whole.options());
    const double latency = brief_.time([&] { host->all_reduce(small)->wait(); });
    result_.notes.push_back(
        fmt::format("collectives of {} in a host: all-gather and reduce-scatter of 400 MiB {:.0f} GB/s, all-reduce "
                    "of 2 KiB {:.0f} us",
                    counted(most, "GPU"), result_.rates.link_bytes / 1e9, latency * 1e6));
    measure_interference(*host, whole, part);
  }

  /// Products with collectives beside them for about half of their time, as in a step.
  void measure_interference(Communicator& group, at::Tensor& whole, at::Tensor& part) {
    const std::vector<Product> all = products(device_, /*fp8=*/false);
    const double gather = brief_.time([&] { group.all_gather(whole, part)->wait(); });
    const int64_t gathers = std::max<int64_t>(1, std::llround(block_seconds_ * 4 / 2 / gather));
    const auto compute = [&] {
      for (int block = 0; block < 4; ++block)
        for (const Product& one : all) one.call();
    };
    const double alone = watch_.time(compute);
    const double beside = watch_.time([&] {
      std::vector<WorkPtr> pending;
      for (int64_t i = 0; i < gathers; ++i) pending.push_back(group.all_gather(whole, part));
      compute();
      for (const WorkPtr& one : pending) one->wait();
    });
    const double communication = static_cast<double>(gathers) * gather;
    set("interference", &MachineRates::interference, std::max(0.0, (beside - alone) / communication));
    result_.notes.push_back(
        fmt::format("four blocks' products: {:.1f} ms alone, {:.1f} ms with {:.1f} ms of all-gathers beside them",
                    alone * 1e3, beside * 1e3, communication * 1e3));
  }

  void measure_network() {
    const Topology& topology = world_.topology();
    const int per_host = topology.largest_group();
    if (topology.hosts() == 1 || comm_.size() != per_host * topology.hosts()) return;
    // A rank of each host, all groups at once: each through its own adapter.
    const auto across = comm_.split(RankGrid(comm_.rank(), {.world = comm_.size(), .shard = per_host}).replica.group);
    auto [whole, part] = unit(*across);
    set("network_bytes", &MachineRates::network_bytes, collective_rate(*across, whole, part));
  }

  World& world_;
  Communicator& comm_;
  at::Device device_;
  Stopwatch watch_, brief_;
  Calibration result_;
  double block_seconds_ = 0;
};

}  // namespace

Calibration calibrate(World& world, double seconds) { return Calibrator(world, seconds).run(); }

}  // namespace trireme
