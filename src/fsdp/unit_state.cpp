#include "unit_state.h"

namespace trireme {

at::Tensor make_borrowed_tensor(int64_t numel, at::ScalarType dtype, at::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const size_t bytes = numel * c10::elementSize(dtype);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device), nullptr, /*resizable=*/false));
  at::Tensor tensor = at::empty({0}, options);
  tensor.set_(storage, 0, {numel}, {1});
  return tensor;
}

void lend_memory(const at::Tensor& borrowed, void* memory) {
  borrowed.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(memory, borrowed.device()));
}

void ShardedUnits::UnitState::add_small_gradients() {
  if (!small_first.sums.empty()) at::_foreach_copy_(small_first.sums, small_first.values);
  if (!small_more.sums.empty()) at::_foreach_add_(small_more.sums, small_more.values);
  small_first = small_more = {};
}

}  // namespace trireme
