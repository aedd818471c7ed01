#pragma once
// The low-rank products of LoRA adapters (Hu et al. 2021) with their input x, including the dropout of x: a masked copy
// of x is never stored.
//
//   x [tokens, columns] T;  adapter i: A_i [rank, columns] T, D_i the dropout of
//   include/trireme/ops/dropout.h under its own key, t_i = x A_i^T with dropout and its gradient d_i [tokens, rank] T
//
//   lora_down            t_i  = D_i(x) A_i^T
//   lora_down_dw         dA_i = d_i^T D_i(x)
//   lora_down_dx         dx  += sum over i of D_i(d_i A_i), or dx = the sum
//   lora_down_gradients  lora_down_dw and lora_down_dx
//
// `scale` multiplies the fp32 sums, so the dropout adds no rounding of its own. D_i(d_i A_i) stays fp32 and is rounded
// once, with the sum. All adapters share one read of x (dx: one read and one write); each adapter adds the cost of its
// mask: hashing 2^26 elements three times takes longer than reading them. The kernels for dA process the last tokens
// first, because these are still in L2 if x was just written. Tensor-core products with fp32 sums in one fixed
// order, no workspace: deterministic. No allocation, no synchronisation.
//
// T is bf16 or fp16; columns a multiple of 64; tokens, those of a sample and first_token multiples of 32; a sample has
// at most 2^33 elements of x (masks use 32-bit word indices); rank 16 (up to three adapters), 32 or 64 (one adapter); p
// at most 1/2; pointers 16-byte aligned. lora_fits() checks this; other arguments return cudaErrorInvalidValue.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace trireme::kernels {

constexpr int kMaxLoraAdapters = 3;

struct LoraProducts {
  int count = 0;                         // adapters
  int rank = 0;                          // of each
  const void* a[kMaxLoraAdapters] = {};  // lora_down, lora_down_dx: [rank, columns]
  void* t[kMaxLoraAdapters] = {};        // lora_down: written, [tokens, rank]
  const void* d[kMaxLoraAdapters] = {};  // lora_down_dw, lora_down_dx: [tokens, rank]
  void* da[kMaxLoraAdapters] = {};       // lora_down_dw: written, [rank, columns]
  const void* x = nullptr;               // lora_down, lora_down_dw: [tokens, columns]
  void* dx = nullptr;                    // lora_down_dx: written, [tokens, columns]; read first if `adds` is set
  bool adds = true;                      // lora_down_dx: adds to dx; otherwise dx is overwritten
  int64_t tokens = 0, columns = 0;
  // With s = first_token + t, token t is position s % sample_tokens of sample sample_ids[s / sample_tokens] (device
  // memory).
  const int64_t* sample_ids = nullptr;
  int64_t sample_tokens = 1, first_token = 0;
  uint32_t t0[kMaxLoraAdapters] = {}, t1[kMaxLoraAdapters] = {};  // keys of the adapters' masks
  uint32_t threshold = 0;                                         // of 65536
  float scale = 1.0f;                                             // of kept values
  Element element = Element::kBF16;
};

bool lora_fits(const LoraProducts& arguments);

cudaError_t lora_down(const LoraProducts& arguments, cudaStream_t stream);
cudaError_t lora_down_dw(const LoraProducts& arguments, cudaStream_t stream);
cudaError_t lora_down_dx(const LoraProducts& arguments, cudaStream_t stream);
/// lora_down_dw and lora_down_dx; for a single adapter of rank 16 in one pass that draws every mask once.
cudaError_t lora_down_gradients(const LoraProducts& arguments, cudaStream_t stream);

/// The second low-rank product of a LoRA adapter, and its gradients. B [columns, rank], t and d [tokens, rank]: T; y
/// and dy [tokens, columns]: T, with rows `stride` elements apart (they may be a slice of a packed projection):
///
///   lora_up             y += scale * t B^T, or y = scale * t B^T
///   lora_up_gradients   d = scale * dy B,  dB = scale * dy^T t
///
/// y is read and written once, dy read once. Tensor-core products with fp32 sums in one fixed order, each result
/// rounded once: deterministic. No allocation, no synchronisation. T is bf16 or fp16; rank 16, 32 or 64; tokens a
/// multiple of 16, columns of 32, stride of 8; pointers 16-byte aligned. lora_up_fits() checks this; other arguments
/// return cudaErrorInvalidValue.
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
