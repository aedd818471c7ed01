#include "weight_reader.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/stored_nf4.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/ops/matmul/nf4.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace trireme {

namespace {

/// Bytes of one task: small enough for several tasks per thread even in a small unit, and for little pinned memory.
constexpr int64_t kTaskBytes = int64_t{16} << 20;

/// The problem of a matrix that files have in NF4; empty: nothing.
std::string nf4_problem(const StoredNf4& stored, const ParameterSpec& parameter, const std::vector<int64_t>& expected) {
  // Other versions of torch.linspace gave the maps other last bits.
  const auto differs = [](std::span<const std::byte> bytes, const at::Tensor& table) {
    return !at::allclose(at::from_blob(const_cast<std::byte*>(bytes.data()), table.sizes(), table.options()), table,
                         1e-6, 0);
  };
  if (parameter.transposed) return "is transposed, and NF4 has no blocks of its columns";
  if (stored.shape != expected)
    return fmt::format("has shape {} in NF4, the configuration asks for {}", shape_text(stored.shape),
                       shape_text(expected));
  if (differs(stored.book, nf4_book(at::kCPU))) return "has another quant_map than NF4's";
  if (differs(stored.map, nf4_map(at::kCPU))) return "has another nested_quant_map than bitsandbytes' dynamic map";
  return "";
}

/// The problem of the checkpoint tensor of a part; empty: nothing. `nf4`: its matrix may be stored in NF4.
std::string problem_of(const ParameterSpec& parameter, const ParameterPart& part, const WeightSource& source,
                       bool nf4) {
  std::vector<int64_t> expected = parameter.shape;
  expected[0] = part.rows;
  const auto info = source.find(part.name);
  if (!info) return part.name + " is missing";
  // The message begins with the directory.
  const std::string file = std::filesystem::path(source.place(part.name)).filename().string();
  const std::string named = file.empty() ? part.name : part.name + " in " + file;
  if (const auto stored = nf4 ? find_stored_nf4(source, part.name) : std::nullopt) {
    const std::string problem = nf4_problem(*stored, parameter, expected);
    return problem.empty() ? "" : named + " " + problem;
  }
  if (has_stored_nf4(source, part.name)) return named + " " + kStoredNf4;
  if (info->shape != expected)
    return fmt::format("{} has shape {}, the configuration asks for {}", named, shape_text(info->shape),
                       shape_text(expected));
  if (!weight_scalar_type(info->dtype))
    return fmt::format("{} is stored as {}, not as F32, F16, BF16 or F64", named, dtype_name(info->dtype));
  return "";
}

}  // namespace

void check_weights(const std::vector<UnitSpec>& units, const WeightSource& source, const std::string& path, bool nf4) {
  std::vector<std::string> problems;
  std::string in_nf4, in_values;  // the last matrix of each kind
  bool said = false;
  for (const UnitSpec& unit : units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (const ParameterPart& part : parameter.parts) {
        if (unit.replicated) continue;
        const bool matrix = nf4 && parameter.linear && !unit.trained;
        // Four bits are refused once: they hold for most matrices of such a model.
        if (std::string problem = problem_of(parameter, part, source, matrix);
            !problem.empty() && !(problem.ends_with(kStoredNf4) && std::exchange(said, true)))
          problems.push_back(std::move(problem));
        if (matrix) (has_stored_nf4(source, part.name) ? in_nf4 : in_values) = part.name;
      }
  if (!in_nf4.empty() && !in_values.empty())
    problems.push_back(in_nf4 + " is stored in NF4, and " + in_values +
                       " is not: a model with some matrices in four bits is not supported");
  if (problems.empty()) return;
  const size_t shown = std::min<size_t>(problems.size(), 5);
  throw ModelError(fmt::format("{} ({}) does not fit its config.json: {}{}", path, source.description(),
                               fmt::join(problems.begin(), problems.begin() + static_cast<long>(shown), "; "),
                               problems.size() > shown ? fmt::format("; and {} more", problems.size() - shown) : ""));
}

WeightReader::WeightReader(const WeightSource& source, at::Device device, int threads)
    : source_(source), device_(device) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { work(); });
}

WeightReader::~WeightReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WeightReader::keep_failure(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
}

void WeightReader::read(const ParameterPart& part, const LayoutPiece& piece, const at::Tensor& target) {
  if (failure_) return;
  keep_failure([&] {
    const at::ScalarType dtype = weight_scalar_type(source_.find(part.name)->dtype).value();
    const auto size = static_cast<int64_t>(c10::elementSize(dtype)), step = kTaskBytes / size;
    int64_t at = 0;
    for (const ElementSpan& span : source_.read(part.name, piece.tensor_begin, piece.tensor_begin + piece.count)) {
      const std::lock_guard lock(mutex_);
      for (int64_t begin = 0; begin < span.count; begin += step, ++open_)
        tasks_.push_back(
            {&part, span.data + begin * size, dtype, target.narrow(0, at + begin, std::min(step, span.count - begin))});
      at += span.count;
    }
    changed_.notify_all();
    TRIREME_CHECK(at == piece.count, "read ", at, " of ", piece.count, " elements of ", part.name);
  });
}

void WeightReader::wait() {
  keep_failure([this] {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0; });
    if (thread_failure_) std::rethrow_exception(std::exchange(thread_failure_, nullptr));
  });
}

/// Both extremes are NaN where one value is, and one pass is several times as fast as isfinite().
void WeightReader::check_finite(const Task& task) const {
  const auto [low, high] = at::aminmax(task.target);
  if (std::isfinite(low.item<double>()) && std::isfinite(high.item<double>())) return;
  throw ModelError(
      fmt::format("{} holds a NaN, an infinity or a number too large for {}: take another copy of the "
                  "model, or repair this one",
                  tensor_text(source_, task.part->name), type_name(task.target.scalar_type())));
}

void WeightReader::work() {
  const at::NoGradGuard no_grad;
  std::optional<c10::StreamGuard> guard;
  at::Tensor pinned;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      const int64_t bytes = task.target.numel() * static_cast<int64_t>(c10::elementSize(task.dtype));
      if (device_.is_cpu()) {
        // from_blob() needs a mutable pointer; the read-only mapping is not written.
        task.target.copy_(at::from_blob(const_cast<std::byte*>(task.source), {task.target.numel()},
                                        at::TensorOptions().dtype(task.dtype)));
      } else {
        if (!guard) {
          guard.emplace(c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_));
          pinned = at::empty({kTaskBytes}, at::TensorOptions(at::kByte).pinned_memory(true));
        }
        std::memcpy(pinned.mutable_data_ptr(), task.source, static_cast<size_t>(bytes));
        task.target.copy_(pinned.narrow(0, 0, bytes).view(task.dtype).to(device_, /*non_blocking=*/true));
        guard->current_stream().synchronize();
      }
      check_finite(task);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !thread_failure_) thread_failure_ = failure;
    if (--open_ == 0) changed_.notify_all();
  }
}

}  // namespace trireme
