// cuDNN's RMS and layer norm on the shapes of ours, timed in the same process: built into
// kernel_bench_torch where cuDNN's headers are found. The library is the copy that LibTorch has loaded.

#include "kernels/bench/bench.h"

#include <cudnn_backend.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace trireme::kernels {

namespace {

constexpr int kSets = 3, kPlans = 8;

/// cuDNN's entry points, looked up at run time: nothing links to it.
struct Library {
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) text = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendSetAttribute) set = nullptr;
  decltype(&cudnnBackendGetAttribute) get = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
  cudnnHandle_t handle = nullptr;

  Library() {
    void* const library = dlopen("libcudnn.so.9", RTLD_NOW);
    if (library == nullptr) fail("dlopen", dlerror());
    const auto find = [&](auto& entry, const char* name) {
      entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, name));
      if (entry == nullptr) fail("dlsym", name);
    };
    find(create, "cudnnCreate"), find(version, "cudnnGetVersion");
    find(text, "cudnnGetErrorString");
    find(create_descriptor, "cudnnBackendCreateDescriptor");
    find(destroy_descriptor, "cudnnBackendDestroyDescriptor");
    find(finalize, "cudnnBackendFinalize"), find(set, "cudnnBackendSetAttribute");
    find(get, "cudnnBackendGetAttribute"), find(execute, "cudnnBackendExecute");
    check(create(&handle), "cudnnCreate");
    std::printf("cuDNN %zu\n", version());
  }
  void check(cudnnStatus_t status, const char* what) const {
    if (status != CUDNN_STATUS_SUCCESS) fail(what, text(status));
  }
  [[noreturn]] static void fail(const char* what, const char* why) {
    std::fprintf(stderr, "kernel_bench: cuDNN, %s: %s\n", what, why);
    std::exit(70);
  }
};
const Library& library() {
  static const Library loaded;
  return loaded;
}

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    library().check(library().create_descriptor(type, &descriptor_), "descriptor");
  }
  Descriptor(Descriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (descriptor_ != nullptr) library().destroy_descriptor(descriptor_);
  }
  template <class V>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const std::vector<V>& values) {
    library().check(
        library().set(descriptor_, name, type, static_cast<int64_t>(values.size()), values.data()),
        "attribute");
    return *this;
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               std::vector<cudnnBackendDescriptor_t>{value.get()});
  }
  Descriptor& finalize(const char* what) {
    library().check(library().finalize(descriptor_), what);
    return *this;
  }
  bool try_finalize() { return library().finalize(descriptor_) == CUDNN_STATUS_SUCCESS; }
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// [rows, columns] as cuDNN's norms want it, four dimensions; `id` names it in a call.
Descriptor tensor(int64_t id, int64_t rows, int64_t columns, cudnnDataType_t type,
                  bool by_value = false) {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::vector<int64_t>{id});
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector<cudnnDataType_t>{type});
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::vector<int64_t>{rows, columns, 1, 1});
  d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64,
        std::vector<int64_t>{columns, 1, columns, columns});
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64,
        std::vector<int64_t>{by_value ? 4 : 16});
  const char value = by_value;  // cuDNN reads one byte
  library().check(
      library().set(d.get(), CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &value),
      "by value");
  d.finalize("tensor");
  return d;
}

enum Id : int64_t {
  kX = 1,
  kScale,
  kBias,
  kEpsilon,
  kMean,
  kInverse,
  kY,
  kDy,
  kDx,
  kDScale,
  kDBias
};

using Arrays = std::vector<std::pair<int64_t, void*>>;

/// The fastest of the first plans that cuDNN's heuristic offers and this machine runs: it compiles
/// them for seconds.
class Plan {
 public:
  Plan(const Descriptor& operation, const Arrays& arrays)
      : graph_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
               std::vector<cudnnHandle_t>{library().handle});
    graph_.finalize("operation graph");
    offer();
    if (plans_.empty()) Library::fail("plan", "no engine of its heuristics runs here");
    workspace_ = memory_.raw(workspace_bytes_);
    float least = 0;
    for (size_t i = 0; i < plans_.size(); ++i) {
      const float time = milliseconds(plans_[i], arrays);
      if (i == 0 || time < least) least = time, best_ = i;
    }
    std::printf("(plan %zu of %zu)\n", best_ + 1, plans_.size());
  }
  cudaError_t run(const Arrays& arrays) const { return run(plans_[best_], arrays); }

 private:
  void offer() {
    Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
                  std::vector<cudnnBackendHeurMode_t>{CUDNN_HEUR_MODE_A});
    heuristic.finalize("heuristic");
    for (int i = 0; i < kPlans; ++i) engines_.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    std::vector<cudnnBackendDescriptor_t> slots;
    for (const Descriptor& engine : engines_) slots.push_back(engine.get());
    int64_t found = 0;
    library().check(
        library().get(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      static_cast<int64_t>(slots.size()), &found, slots.data()),
        "engines");
    for (size_t i = 0; i < static_cast<size_t>(found); ++i) {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
               std::vector<cudnnHandle_t>{library().handle});
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engines_[i]);
      if (!plan.try_finalize()) continue;
      int64_t bytes = 0, count = 0;
      library().check(library().get(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                    CUDNN_TYPE_INT64, 1, &count, &bytes),
                      "workspace");
      workspace_bytes_ = std::max(workspace_bytes_, bytes);
      plans_.push_back(std::move(plan));
    }
  }
  float milliseconds(const Descriptor& plan, const Arrays& arrays) const {
    constexpr int kRuns = 4;
    cudaEvent_t begin, end;
    bench::check(cudaEventCreate(&begin), "event");
    bench::check(cudaEventCreate(&end), "event");
    bench::check(run(plan, arrays), "cuDNN");
    bench::check(cudaEventRecord(begin), "event");
    for (int i = 0; i < kRuns; ++i) bench::check(run(plan, arrays), "cuDNN");
    bench::check(cudaEventRecord(end), "event");
    bench::check(cudaEventSynchronize(end), "cuDNN");
    float time = 0;
    bench::check(cudaEventElapsedTime(&time, begin, end), "event");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return time;
  }
  cudaError_t run(const Descriptor& plan, const Arrays& arrays) const {
    std::vector<int64_t> ids;
    std::vector<void*> pointers;
    for (const auto& [id, pointer] : arrays) ids.push_back(id), pointers.push_back(pointer);
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
             std::vector<void*>{workspace_});
    pack.finalize("arguments");
    library().check(library().execute(library().handle, plan.get(), pack.get()), "execute");
    return cudaGetLastError();
  }

  bench::Memory memory_;
  void* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
  Descriptor graph_;
  std::vector<Descriptor> engines_, plans_;
  size_t best_ = 0;
};

void norm(bench::Recorder& recorder, cudnnBackendNormMode_t mode, int64_t rows, int64_t columns) {
  const bool layer = mode == CUDNN_LAYER_NORM;
  const std::string name = layer ? "cuDNN layer_norm " : "cuDNN rms_norm ",
                    sums = layer ? "backward, dx + d_gamma + d_beta" : "backward, dx + dw",
                    label = bench::shape_text({rows, columns});
  const double matrix = static_cast<double>(rows * columns * 2);
  const Descriptor x = tensor(kX, rows, columns, CUDNN_DATA_BFLOAT16),
                   y = tensor(kY, rows, columns, CUDNN_DATA_BFLOAT16),
                   dy = tensor(kDy, rows, columns, CUDNN_DATA_BFLOAT16),
                   dx = tensor(kDx, rows, columns, CUDNN_DATA_BFLOAT16),
                   scale = tensor(kScale, 1, columns, CUDNN_DATA_FLOAT),
                   bias = tensor(kBias, 1, columns, CUDNN_DATA_FLOAT),
                   d_scale = tensor(kDScale, 1, columns, CUDNN_DATA_FLOAT),
                   d_bias = tensor(kDBias, 1, columns, CUDNN_DATA_FLOAT),
                   mean = tensor(kMean, rows, 1, CUDNN_DATA_FLOAT),
                   inverse = tensor(kInverse, rows, 1, CUDNN_DATA_FLOAT),
                   epsilon = tensor(kEpsilon, 1, 1, CUDNN_DATA_FLOAT, true);
  bench::Memory memory;
  void *xs[kSets], *ys[kSets], *ds[kSets];
  for (int i = 0; i < kSets; ++i)
    xs[i] = memory.normal(rows * columns, Element::kBF16),
    ys[i] = memory.normal(rows * columns, Element::kBF16), ds[i] = memory.raw(rows * columns * 2);
  void *const scales = memory.normal(columns, Element::kF32),
              *const biases = memory.normal(columns, Element::kF32),
              *const means = memory.uniform(rows, -0.1f, 0.1f),
              *const inverses = memory.uniform(rows, 0.5f, 1.5f),
              *const d_scales = memory.raw(columns * 4), *const d_biases = memory.raw(columns * 4);
  float eps = 1e-5f;

  if (recorder.wants(name + "forward")) {
    Descriptor forward(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
    forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE,
                std::vector<cudnnBackendNormMode_t>{mode});
    forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE,
                std::vector<cudnnBackendNormFwdPhase_t>{CUDNN_NORM_FWD_TRAINING});
    forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x);
    forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, scale);
    forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, epsilon);
    forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, inverse);
    forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y);
    if (layer) {
      forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, bias);
      forward.set(CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, mean);
    }
    const auto arrays = [&](int i) {
      Arrays list = {
          {kX, xs[i]}, {kScale, scales}, {kEpsilon, &eps}, {kInverse, inverses}, {kY, ds[i]}};
      if (layer) list.push_back({kBias, biases}), list.push_back({kMean, means});
      return list;
    };
    const Plan plan(forward.finalize("norm forward"), arrays(0));
    recorder.time(name + "forward", label, Element::kBF16, 2 * matrix, kSets,
                  [&](int i) { return plan.run(arrays(i)); });
  }
  if (recorder.wants(name + sums)) {
    Descriptor backward(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
    backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE,
                 std::vector<cudnnBackendNormMode_t>{mode});
    backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, x);
    backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, dy);
    backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, scale);
    backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, inverse);
    backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, dx);
    backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, d_scale);
    if (layer) {
      backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, mean);
      backward.set(CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, d_bias);
    }
    const auto arrays = [&](int i) {
      Arrays list = {{kX, xs[i]},          {kDy, ys[i]}, {kScale, scales},
                     {kInverse, inverses}, {kDx, ds[i]}, {kDScale, d_scales}};
      if (layer) list.push_back({kMean, means}), list.push_back({kDBias, d_biases});
      return list;
    };
    const Plan plan(backward.finalize("norm backward"), arrays(0));
    recorder.time(name + sums, label, Element::kBF16, 3 * matrix, kSets,
                  [&](int i) { return plan.run(arrays(i)); });
  }
}

}  // namespace

TRIREME_BENCH(cudnn_norms) {
  if (!recorder.wants("cuDNN rms_norm forward") && !recorder.wants("cuDNN layer_norm forward"))
    return;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{131072, 1024},
                                      {32768, 4096},
                                      {32768, 5120},
                                      {16384, 8192},
                                      {8192, 16384}})
    for (const cudnnBackendNormMode_t mode : {CUDNN_RMS_NORM, CUDNN_LAYER_NORM})
      norm(recorder, mode, rows, columns);
}

}  // namespace trireme::kernels
