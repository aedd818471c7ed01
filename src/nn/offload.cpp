#include "trireme/nn/offload.h"

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/nn/host_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace trireme {

namespace {

constexpr int64_t kAlignment = 512;

int64_t bytes_of(const at::Tensor& x) { return x.numel() * static_cast<int64_t>(x.element_size()); }

/// Calls f(device bytes, host bytes) for the parts of `value` that lie in one chunk each; its host memory starts at
/// byte `begin` of all chunks.
template <class F>
void for_parts(const at::Tensor& value, int64_t begin, const std::vector<at::Tensor>& chunks, const F& f) {
  const at::Tensor bytes = value.view(-1).view(at::kByte);
  const int64_t chunk_bytes = chunks[0].numel();
  for (int64_t done = 0; done < bytes.numel();) {
    const int64_t chunk = (begin + done) / chunk_bytes, first = (begin + done) % chunk_bytes;
    const int64_t count = std::min(bytes.numel() - done, chunk_bytes - first);
    f(bytes.narrow(0, done, count), chunks[static_cast<size_t>(chunk)].narrow(0, first, count));
    done += count;
  }
}

}  // namespace

class OffloadStore::Saved {
 public:
  explicit Saved(OffloadStore& owner) : store(owner) {}
  ~Saved() { store.forget(*this); }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

  struct Value {
    at::Tensor tensor;  // undefined while it is on the host only
    bool travels = false;
    int64_t begin = 0;  // in the host memory
    std::vector<int64_t> shape{};
    at::TensorOptions options{};
  };
  enum class Place { kDevice, kHost };  // where the values are, or are going

  OffloadStore& store;
  std::vector<Value> values{};
  Place place = Place::kDevice;
  int64_t end = 0;                     // of its host memory, and of all that was saved before
  std::optional<c10::Event> copied{};  // after the last copy
};

OffloadStore::OffloadStore(const Options& options) : options_(options) {
  if (options_.device.is_cuda())
    stream_ = c10::impl::VirtualGuardImpl(options_.device.type()).getStreamFromGlobalPool(options_.device);
}

void OffloadStore::grow(int64_t bytes) {
  const auto options = at::TensorOptions(at::kByte).pinned_memory(options_.device.is_cuda());
  while (host_bytes() < bytes) chunks_.push_back(at::empty({options_.chunk_bytes}, options));
}

void OffloadStore::reserve(int64_t bytes) {
  if (!copies()) return;
  try {
    grow(bytes);
  } catch (const std::exception& error) {
    throw_no_pinned_memory(host_bytes(), bytes, "activations wait for backward", error.what(),
                           "start fewer ranks on it, or set parallel.offload: none");
  }
}

template <class F>
std::optional<c10::Event> OffloadStore::behind_computation(const F& f) const {
  if (!stream_) {
    f();
    return std::nullopt;
  }
  c10::Event queued(options_.device.type()), done(options_.device.type());
  queued.record(c10::impl::VirtualGuardImpl(options_.device.type()).getStream(options_.device));
  queued.block(*stream_);
  const c10::StreamGuard guard(*stream_);
  f();
  done.record(*stream_);
  return done;
}

void OffloadStore::computation_awaits(const std::optional<c10::Event>& event) const {
  if (event) event->block(c10::impl::VirtualGuardImpl(options_.device.type()).getStream(options_.device));
}

std::shared_ptr<OffloadStore::Saved> OffloadStore::save(int64_t block, std::vector<at::Tensor> values) {
  at::NoGradGuard no_grad;
  TRIREME_CHECK(takes(block), "block ", block, " is offloaded, the store takes ", options_.blocks);
  auto saved = std::make_shared<Saved>(*this);
  int64_t end = saved_.empty() ? 0 : saved_.back()->end;
  const bool stays = !copies() || block + 1 == options_.blocks;
  for (at::Tensor& value : values) {
    Saved::Value& entry = saved->values.emplace_back();
    entry.tensor = value.defined() ? value.detach() : value;
    value = at::Tensor();
    if (stays || !entry.tensor.defined() || entry.tensor.device() != options_.device ||
        bytes_of(entry.tensor) < options_.least_bytes)
      continue;
    entry.tensor = entry.tensor.contiguous();
    entry.travels = true;
    entry.begin = end;
    entry.shape = entry.tensor.sizes().vec();
    entry.options = entry.tensor.options();
    end += round_up(bytes_of(entry.tensor), kAlignment);
  }
  saved->end = end;
  if (leaving_ != nullptr) release(*leaving_);
  saved_.push_back(saved.get());
  if (stays) return saved;
  grow(end);
  swap_place(*saved);
  leaving_ = saved.get();
  return saved;
}

/// Memory that the allocator gives to the computation's stream may still be read by what was queued there, so the
/// copies run behind that.
void OffloadStore::swap_place(Saved& saved) {
  const bool to_host = saved.place == Saved::Place::kDevice;
  saved.place = to_host ? Saved::Place::kHost : Saved::Place::kDevice;
  for (Saved::Value& value : saved.values)
    if (value.travels && !to_host) value.tensor = at::empty(value.shape, value.options);
  saved.copied = behind_computation([&] {
    for (const Saved::Value& value : saved.values)
      if (value.travels)
        for_parts(value.tensor, value.begin, chunks_, [&](const at::Tensor& device, const at::Tensor& host) {
          to_host ? host.copy_(device, /*non_blocking=*/true) : device.copy_(host, /*non_blocking=*/true);
        });
  });
}

void OffloadStore::release(Saved& saved) {
  computation_awaits(saved.copied);
  for (Saved::Value& value : saved.values)
    if (value.travels) value.tensor = at::Tensor();
  leaving_ = nullptr;
}

std::vector<at::Tensor> OffloadStore::fetch(Saved& saved) {
  at::NoGradGuard no_grad;
  const auto found = std::find(saved_.begin(), saved_.end(), &saved);
  TRIREME_CHECK(found != saved_.end(), "offloaded values are fetched a second time");
  if (leaving_ != nullptr) release(*leaving_);
  if (saved.place == Saved::Place::kHost) swap_place(saved);
  if (found != saved_.begin()) {
    Saved& before = **std::prev(found);
    if (before.place == Saved::Place::kHost) swap_place(before);
  }
  computation_awaits(saved.copied);
  std::vector<at::Tensor> values;
  for (Saved::Value& value : saved.values) values.push_back(std::move(value.tensor));
  saved_.erase(found);
  return values;
}

void OffloadStore::forget(Saved& saved) {
  const auto found = std::find(saved_.begin(), saved_.end(), &saved);
  if (found == saved_.end()) return;
  try {
    computation_awaits(saved.copied);  // before the allocator reuses the memory of running copies
  } catch (const std::exception&) {
    // The device has failed, and this destructor runs because of it.
  }
  if (leaving_ == &saved) leaving_ = nullptr;
  saved_.erase(found);
}

}  // namespace trireme
