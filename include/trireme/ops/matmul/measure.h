#pragma once
// Chooses algorithms of cuBLASLt for the matrix products of this process by running them.

#include <ATen/core/Tensor.h>

#include <functional>

namespace trireme {

/// How long candidates run. kBrief: some milliseconds, with the clock of a GPU that has power to spare. kSustained:
/// about half a second each, with the clock that the power limit leaves them.
enum class ProductLoad { kBrief, kSustained };

struct MeasuredProducts {
  int count = 0;
  double seconds = 0;
};

/// Measures the products that have occurred on `device` at least four times and were not measured so or longer before,
/// those with the most work first, at most 64 and for at most about two minutes: FP8 products, and large 16-bit
/// products (kBrief, inner dimensions above 1,024: only with tiles of 128 x 256). Each is run with random operands of
/// its own, by the first candidates of cuBLASLt that write the same bits as the library's choice; later products of
/// this form run by the fastest. One that differs from a measured product in the number of tokens only, by at most an
/// eighth, takes its algorithm where it writes the same bits as the library's, without a measurement. Memory: that of
/// the largest product's operands and result; a product for which there is none keeps its algorithm. Nothing happens on
/// CPUs. `alone`: no collectives run beside the products. Products of less than 4e11 operations, in FP8 with fast
/// accumulation and in 16 bits of inner dimensions up to 1,024, are then also run by candidates without a workspace,
/// which share out their tiles beforehand; beside a collective's blocks such a product waits for the multiprocessors
/// that they hold.
MeasuredProducts measure_products(at::Device device, ProductLoad load, bool alone = false);

/// Functions that multiply as the layers of a run do, for measurements of speed. 16 bits: a b; FP8: a b^T of the
/// matrices' codes, quantized by rows, in the matrices' dtype. On a GPU K and N of the latter are multiples of 16.
std::function<void()> plain_product_of(const at::Tensor& a_MK, const at::Tensor& b_KN);
std::function<void()> fp8_product_of(const at::Tensor& a_MK, const at::Tensor& b_NK);

}  // namespace trireme
