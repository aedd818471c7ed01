#pragma once
// The second low-rank product of a LoRA adapter, and its gradients. B [columns, rank], t and d [tokens, rank]: T; y and
// dy [tokens, columns]: T, with rows `stride` elements apart (they may be a slice of a packed projection):
//
//   lora_up             y += scale * t B^T, or y = scale * t B^T
//   lora_up_gradients   d = scale * dy B,  dB = scale * dy^T t
//
// y is read and written once, dy read once. Tensor-core products with fp32 sums in one fixed order, each result rounded
// once: deterministic. No allocation, no synchronisation. T is bf16 or fp16; rank 16, 32 or 64; tokens a multiple of
// 16, columns of 32, stride of 8; pointers 16-byte aligned. lora_up_fits() checks this; other arguments return
// cudaErrorInvalidValue.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace trireme::kernels {

struct LoraUpProducts {
  int rank = 0;
  const void* b = nullptr;
  const void* t = nullptr;
  void* y = nullptr;          // lora_up: written; read first if `adds` is set
  bool adds = true;           // lora_up: adds to y; otherwise y is overwritten
  const void* dy = nullptr;   // lora_up_gradients
  void* d = nullptr;          // lora_up_gradients: written
  void* db = nullptr;         // lora_up_gradients: written
  void* workspace = nullptr;  // lora_up_gradients: lora_up_gradients_workspace() bytes
  int64_t tokens = 0, columns = 0, stride = 0;
  float scale = 1.0f;
  Element element = Element::kBF16;
};

bool lora_up_fits(const LoraUpProducts& arguments);

cudaError_t lora_up(const LoraUpProducts& arguments, cudaStream_t stream);
cudaError_t lora_up_gradients(const LoraUpProducts& arguments, cudaStream_t stream);
/// Bytes of workspace for these sizes, 256-byte aligned.
size_t lora_up_gradients_workspace(const LoraUpProducts& arguments);

}  // namespace trireme::kernels
