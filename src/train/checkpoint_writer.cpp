#include "checkpoint_writer.h"

#include "training_state.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/log.h"
#include "trireme/base/rounding.h"
#include "trireme/base/time.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/scalar_type.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <optional>

namespace trireme {

std::vector<PieceSource> pieces_to_save(const std::vector<StateTensor>& state, int rank) {
  constexpr int64_t kGrain = UnitLayout::kAlignment;
  std::vector<PieceSource> pieces;
  for (const auto& [kind, shard, tensor] : state) {
    if (shard == nullptr) {
      TRIREME_CHECK(tensor.numel() == 1, stored_kind(kind), " has ", tensor.numel(), " elements, a scalar has one");
      if (rank == 0) pieces.push_back({{stored_kind(kind), "", to_file_dtype(tensor.scalar_type()), 0, 1, 0}, tensor});
      continue;
    }
    TRIREME_CHECK(tensor.numel() == shard->master.numel(), stored_kind(kind), " of ", shard->name, " has ",
                  tensor.numel(), " elements, the shard has ", shard->master.numel());
    const int64_t length = std::clamp<int64_t>(shard->unit_numel - shard->begin, 0, tensor.numel());
    const int64_t grains = ceil_div(length, kGrain);
    const int64_t from = grains * shard->copy / shard->copies * kGrain;
    const int64_t to = std::min(length, grains * (shard->copy + 1) / shard->copies * kGrain);
    if (from < to)
      pieces.push_back(
          {{stored_kind(kind), shard->name, to_file_dtype(tensor.scalar_type()), shard->begin + from, to - from, 0},
           tensor.narrow(0, from, to - from)});
  }
  return pieces;
}

CheckpointWriter::~CheckpointWriter() {
  if (preparing_.joinable()) preparing_.join();
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::allocate_copy(size_t i, const at::Tensor& source) {
  if (host_[i].defined() && host_[i].numel() == source.numel() && host_[i].scalar_type() == source.scalar_type())
    return;
  const auto options = source.options().device(at::kCPU);
  if (!source.is_cpu() && pinned_) {
    try {
      host_[i] = at::empty({source.numel()}, options.pinned_memory(true));
      return;
    } catch (const c10::Error& error) {
      pinned_ = false;
      log_warn(fmt::format(
          "no pinned host memory for the copies of saves ({}): pageable memory is used, and steps wait longer for them",
          error.what_without_backtrace()));
    }
  }
  host_[i] = at::empty({source.numel()}, options);
}

void CheckpointWriter::prepare(const std::vector<PieceSource>& pieces) {
  TRIREME_CHECK(finished_ && host_.empty() && !preparing_.joinable(),
                "the memory of snapshots is allocated once, before the first");
  if (in_place_ || pieces.empty() || pieces[0].tensor.is_cpu()) return;
  host_.resize(pieces.size());
  preparing_ = std::thread([this, pieces] {
    try {
      const c10::DeviceGuard guard(pieces[0].tensor.device());
      for (size_t i = 0; i < pieces.size(); ++i) allocate_copy(i, pieces[i].tensor);
    } catch (const std::exception&) {
      // snapshot() allocates what is missing, or that save fails.
    }
  });
}

void CheckpointWriter::snapshot(const std::vector<PieceSource>& pieces) {
  TRIREME_CHECK(finished_ && !thread_.joinable(), "a snapshot while the last one is being written");
  if (preparing_.joinable()) preparing_.join();
  at::NoGradGuard no_grad;
  pieces_.clear();
  host_.resize(pieces.size());
  copied_.reset();
  device_ = c10::kCPU;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const at::Tensor& source = pieces[i].tensor;
    pieces_.push_back(pieces[i].piece);
    if (!source.is_cpu()) device_ = source.device();
    if (in_place_ && !pieces_.back().unit.empty()) {
      host_[i] = source.view({-1});
      continue;
    }
    allocate_copy(i, source);
    host_[i].copy_(source.reshape({-1}), /*non_blocking=*/true);
  }
  if (!device_.is_cpu()) {
    copied_ = std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    copied_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
}

void CheckpointWriter::start(const std::filesystem::path& path, int rank, int64_t step) {
  finished_ = false;
  error_.clear();
  file_ = {};
  thread_ = std::thread([this, path, rank, step] {
    try {
      if (copied_) {
        // A new thread's device is GPU 0: waiting there for an event of another GPU would make a CUDA context of some
        // 500 MiB on it.
        const c10::DeviceGuard guard(device_);
        copied_->synchronize();
        copied_at_ = steady_seconds();
      }
      fault_point("save:write", rank, step);
      const double begin = steady_seconds();
      if (!pieces_.empty()) write(path);
      write_seconds_ = steady_seconds() - begin;
      fault_point("save:written", rank, step);
    } catch (const std::exception& error) {
      error_ = error.what();
    }
    finished_ = true;
    finished_.notify_all();
  });
}

void CheckpointWriter::write(const std::filesystem::path& path) {
  std::vector<std::pair<std::string, TensorInfo>> declared;
  for (const CheckpointPiece& piece : pieces_)
    declared.emplace_back(piece.tensor_name(), TensorInfo{piece.dtype, {piece.count}});
  SafetensorsWriter writer(path, declared);
  // The copies of what is still on the device pass the computation of the next step.
  std::optional<c10::StreamGuard> copying;
  if (in_place_ && !device_.is_cpu())
    copying.emplace(c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_));
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const at::Tensor values = host_[i].cpu();
    pieces_[i].xxh3 = xxh3_64(values.const_data_ptr(), values.nbytes());
    writer.append(values.const_data_ptr(), values.nbytes());
  }
  writer.commit();
  const MappedFile whole(path, ExitCode::kCannotWrite);
  uint64_t header = 0;
  if (whole.bytes().size() >= sizeof header) std::memcpy(&header, whole.bytes().data(), sizeof header);
  if (whole.bytes().size() < sizeof header + header)
    throw WriteError(
        fmt::format("{} reads back with {} bytes: the storage loses data", path.string(), whole.bytes().size()));
  file_ = {path.filename().string(), whole.bytes().size(), xxh3_64(whole.bytes().data(), sizeof header + header),
           std::nullopt, pieces_};
}

CheckpointFile CheckpointWriter::take(std::string& error) {
  TRIREME_CHECK(finished_, "the save is still being written");
  if (thread_.joinable()) thread_.join();
  error = error_;
  return file_;
}

// --- descriptions between ranks ------------------------------------------------------------------

std::string file_to_text(const CheckpointFile& file, double seconds) {
  nlohmann::json pieces = nlohmann::json::array();
  for (const CheckpointPiece& p : file.pieces)
    pieces.push_back({p.kind, p.unit, static_cast<int>(p.dtype), p.begin, p.count, p.xxh3});
  return nlohmann::json({file.name, file.bytes, file.header_xxh3, pieces, seconds}).dump();
}

CheckpointFile file_from_text(const std::string& text, double& seconds) {
  const auto value = nlohmann::json::parse(text);
  CheckpointFile file{value[0], value[1], value[2], std::nullopt, {}};
  for (const auto& p : value[3])
    file.pieces.push_back({p[0], p[1], static_cast<DType>(p[2].get<int>()), p[3], p[4], p[5]});
  seconds = value[4];
  return file;
}

}  // namespace trireme
