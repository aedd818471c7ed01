// cuDNN's RMS norm and layer norm on the shapes of ours, timed in the same process. Part of kernel_bench_torch if
// cuDNN's headers are found.

#include "kernels/bench/bench.h"
#include "kernels/bench/cudnn_backend_api.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::kernels {

namespace {

using cudnn::Descriptor;
using cudnn::library;
using Clock = std::chrono::steady_clock;

constexpr int kSets = 3;
/// cuDNN compiles a plan in seconds. Only the heuristic's first kPlans plans are compiled, on all cores, and none is
/// started after the time limit.
constexpr int kPlans = 2;
constexpr std::chrono::seconds kCompileTime{20};

enum Id : int64_t { kX = 1, kScale, kBias, kEpsilon, kMean, kInverse, kY, kDy, kDx, kDScale, kDBias };

using Arrays = std::vector<std::pair<int64_t, void*>>;

struct Norm {
  cudnnBackendNormMode_t mode;
  bool backward;
  int64_t rows, columns;

  bool layer() const { return mode == CUDNN_LAYER_NORM; }
  std::string name() const {
    return std::string("cuDNN ") + (layer() ? "layer_norm " : "rms_norm ") +
           (!backward ? "forward"
            : layer() ? "backward, dx + d_gamma + d_beta"
                      : "backward, dx + dw");
  }
};

/// A norm of bf16 rows whose weights and weight gradients have one type.
class Graph {
 public:
  Graph(const Norm& norm, cudnnDataType_t weights) : norm_(norm), weights_(weights) {}
  Graph(const Graph&) = delete;
  ~Graph() {
    plans_.clear(), engines_.clear(), graph_.reset();
    if (handle_ != nullptr) library().destroy(handle_);
  }

  /// Compiles the plan of this rank in the heuristic's list if there is one and it runs on this device.
  void compile(size_t rank) {
    if (rank == 0) offer();
    if (rank >= engines_.size()) return;
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, std::vector<cudnnHandle_t>{handle_});
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engines_[rank]);
    if (plan.try_finalize()) plans_.push_back(std::move(plan));
  }
  cudnnDataType_t weights() const { return weights_; }
  size_t plans() const { return plans_.size(); }
  int64_t workspace_bytes() const {
    int64_t most = 0;
    for (const Descriptor& plan : plans_)
      most = std::max(most, plan.get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64));
    return most;
  }
  cudaError_t run(size_t plan, const Arrays& arrays, void* workspace) const {
    std::vector<int64_t> ids;
    std::vector<void*> pointers;
    for (const auto& [id, pointer] : arrays) ids.push_back(id), pointers.push_back(pointer);
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, std::vector<void*>{workspace});
    pack.finalize("arguments");
    library().check(library().execute(handle_, plans_[plan].get(), pack.get()), "execute");
    return cudaGetLastError();
  }

 private:
  const Descriptor& matrix(Id id) { return keep(cudnn::tensor(id, norm_.rows, norm_.columns, CUDNN_DATA_BFLOAT16)); }
  const Descriptor& weight(Id id) { return keep(cudnn::tensor(id, 1, norm_.columns, weights_)); }
  const Descriptor& fact(Id id) { return keep(cudnn::tensor(id, norm_.rows, 1, CUDNN_DATA_FLOAT)); }
  const Descriptor& keep(Descriptor d) { return *parts_.emplace_back(std::make_unique<Descriptor>(std::move(d))); }
  Descriptor forward() {
    Descriptor d(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
    d.set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, std::vector<cudnnBackendNormMode_t>{norm_.mode});
    d.set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE,
          std::vector<cudnnBackendNormFwdPhase_t>{CUDNN_NORM_FWD_TRAINING});
    d.set(CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, matrix(kX));
    d.set(CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, weight(kScale));
    d.set(CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, keep(cudnn::tensor(kEpsilon, 1, 1, CUDNN_DATA_FLOAT, true)));
    d.set(CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, fact(kInverse));
    d.set(CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, matrix(kY));
    if (norm_.layer()) {
      d.set(CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, weight(kBias));
      d.set(CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, fact(kMean));
    }
    return d;
  }
  Descriptor backward() {
    Descriptor d(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
    d.set(CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, std::vector<cudnnBackendNormMode_t>{norm_.mode});
    d.set(CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, matrix(kX));
    d.set(CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, matrix(kDy));
    d.set(CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, weight(kScale));
    d.set(CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, fact(kInverse));
    d.set(CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, matrix(kDx));
    d.set(CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, weight(kDScale));
    if (norm_.layer()) {
      d.set(CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, fact(kMean));
      d.set(CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, weight(kDBias));
    }
    return d;
  }
  void offer() {
    library().check(library().create(&handle_), "cudnnCreate");
    const Descriptor& operation = keep(norm_.backward ? backward() : forward());
    parts_.back()->finalize("norm");
    graph_ = std::make_unique<Descriptor>(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph_->set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    graph_->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, std::vector<cudnnHandle_t>{handle_});
    graph_->finalize("operation graph");
    Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *graph_);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
                  std::vector<cudnnBackendHeurMode_t>{CUDNN_HEUR_MODE_A});
    heuristic.finalize("heuristic");
    for (int i = 0; i < kPlans; ++i) engines_.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    std::vector<cudnnBackendDescriptor_t> slots;
    for (const Descriptor& engine : engines_) slots.push_back(engine.get());
    int64_t found = 0;
    library().check(library().get(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  static_cast<int64_t>(slots.size()), &found, slots.data()),
                    "engines");
    while (static_cast<int64_t>(engines_.size()) > found) engines_.pop_back();
  }

  Norm norm_;
  cudnnDataType_t weights_;
  cudnnHandle_t handle_ = nullptr;
  std::vector<std::unique_ptr<Descriptor>> parts_;
  std::unique_ptr<Descriptor> graph_;
  std::vector<Descriptor> engines_, plans_;
};

using Graphs = std::vector<std::unique_ptr<Graph>>;

void compile(const Graphs& graphs) {
  const Clock::time_point end = Clock::now() + kCompileTime;
  for (size_t rank = 0; rank < kPlans; ++rank) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> workers;
    const size_t cores = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, graphs.size());
    for (size_t i = 0; i < cores; ++i)
      workers.emplace_back([&] {
        for (size_t at = next++; at < graphs.size() && Clock::now() < end; at = next++) try {
            graphs[at]->compile(rank);
          } catch (const std::runtime_error&) {  // no such plan: reported in its row
          }
      });
    for (std::thread& worker : workers) worker.join();
  }
}

/// Times the fastest plan of a norm.
void time(bench::Recorder& recorder, const Norm& norm, const Graph* graphs[2]) {
  const std::string label = bench::shape_text({norm.rows, norm.columns});
  bench::Memory memory;
  void *x[kSets], *y[kSets], *d[kSets];
  for (int i = 0; i < kSets; ++i)
    x[i] = memory.normal(norm.rows * norm.columns, Element::kBF16),
    y[i] = memory.normal(norm.rows * norm.columns, Element::kBF16), d[i] = memory.raw(norm.rows * norm.columns * 2);
  float epsilon = 1e-5f;
  void *const means = memory.uniform(norm.rows, -0.1f, 0.1f), *const inverses = memory.uniform(norm.rows, 0.5f, 1.5f),
              *const d_scales = memory.raw(norm.columns * 4), *const d_biases = memory.raw(norm.columns * 4);
  const bench::DeviceTimer timer;
  double least = 0;
  std::string chosen;
  std::function<cudaError_t(int)> best;
  for (int g = 0; g < 2; ++g) {
    const Graph& graph = *graphs[g];
    const Element element = graph.weights() == CUDNN_DATA_FLOAT ? Element::kF32 : Element::kBF16;
    void *const scales = memory.normal(norm.columns, element), *const biases = memory.normal(norm.columns, element),
                *const workspace = memory.raw(graph.workspace_bytes());
    for (size_t plan = 0; plan < graph.plans(); ++plan) {
      const auto run = [&, scales, biases, workspace, plan, at = &graph](int i) {
        Arrays list = {{kX, x[i]}, {kScale, scales}, {kInverse, inverses}};
        if (norm.layer()) list.push_back({kMean, means});
        if (norm.backward) {
          list.insert(list.end(), {{kDy, y[i]}, {kDx, d[i]}, {kDScale, d_scales}});
          if (norm.layer()) list.push_back({kDBias, d_biases});
        } else {
          list.insert(list.end(), {{kEpsilon, &epsilon}, {kY, d[i]}});
          if (norm.layer()) list.push_back({kBias, biases});
        }
        return at->run(plan, list, workspace);
      };
      bench::check(run(0), "cuDNN");
      const double microseconds = timer.time("cuDNN", 4, [&](int) { return run(0); });
      if (best && microseconds >= least) continue;
      least = microseconds, best = run;
      chosen = "plan " + std::to_string(plan + 1) + " of " + std::to_string(graph.plans()) +
               (element == Element::kF32 ? ", fp32" : ", bf16") + " weights";
    }
  }
  if (!best) cudnn::Library::fail("plan", "no plan was compiled in the time limit");
  std::printf("(%s)\n", chosen.c_str());
  recorder.time(norm.name(), label, Element::kBF16,
                (norm.backward ? 6.0 : 4.0) * static_cast<double>(norm.rows * norm.columns), kSets, best);
}

}  // namespace

TRIREME_BENCH(cudnn_norms) {
  std::vector<Norm> norms;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{131072, 1024}, {32768, 4096}, {32768, 5120}, {16384, 8192}, {8192, 16384}})
    for (const cudnnBackendNormMode_t mode : {CUDNN_RMS_NORM, CUDNN_LAYER_NORM})
      for (const bool backward : {false, true})
        if (const Norm norm{mode, backward, rows, columns}; recorder.wants(norm.name())) norms.push_back(norm);
  if (norms.empty()) return;
  try {
    std::printf("cuDNN %zu\n", library().version());
    Graphs graphs;
    for (const cudnnDataType_t weights : {CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT})
      for (const Norm& norm : norms) graphs.push_back(std::make_unique<Graph>(norm, weights));
    compile(graphs);
    for (size_t i = 0; i < norms.size(); ++i) try {
        const Graph* both[] = {graphs[i].get(), graphs[norms.size() + i].get()};
        time(recorder, norms[i], both);
      } catch (const std::runtime_error& error) {
        std::printf("%s of %lld x %lld is not measured: %s\n", norms[i].name().c_str(),
                    static_cast<long long>(norms[i].rows), static_cast<long long>(norms[i].columns), error.what());
      }
  } catch (const std::runtime_error& error) {
    std::printf("cuDNN's norms are not measured: %s\n", error.what());
  }
}

}  // namespace trireme::kernels
