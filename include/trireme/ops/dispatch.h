#pragma once
// Who runs an operation: our kernel, the library's, or a composition of LibTorch operations. Every operation asks here,
// so that there is one rule and one place that can explain it.
//
// TRIREME_LOG=dispatch writes a line for each operation and reason when it first occurs:
//   dispatch: rms_norm of BFloat16 [8192, 20480] on cuda:0: composition, because rows are wider than 16,384

#include <ATen/core/Tensor.h>

#include <string_view>

namespace trireme {

#ifdef TRIREME_WITH_CUDA
inline constexpr bool kCudaBuild = true;
#else
inline constexpr bool kCudaBuild = false;
#endif

enum class Runs { kKernel, kLibrary, kComposition };

struct Choice {
  Runs who;
  std::string_view reason;  // empty for a kernel; else the first condition that was not met
  bool kernel() const { return who == Runs::kKernel; }
};

/// Whether our kernels run on the device: a GPU of compute capability 9.0 and a build with CUDA.
bool has_kernels(at::Device device);

/// Collects the conditions of an operation's kernel on its main tensor:
///   const Choice choice = Dispatch("rms_norm", x).needs(x.size(-1) <= kWidest, "rows are wider than 16,384").choice();
class Dispatch {
 public:
  /// Always needed: a device with our kernels, and one of fp32, fp16, bf16, E4M3, E5M2.
  Dispatch(std::string_view operation, const at::Tensor& x);
  Dispatch& needs(bool condition, std::string_view otherwise_because);
  /// kKernel where all conditions hold, else `otherwise`.
  Choice choice(Runs otherwise = Runs::kComposition) const;

 private:
  std::string_view operation_, reason_;
  const at::Tensor& x_;
};

}  // namespace trireme

/// Returns what our kernel computes when `choice` says so. Without CUDA the call is compiled but never linked.
#define TRIREME_LAUNCH(choice, call)              \
  do {                                            \
    if constexpr (::trireme::kCudaBuild) {        \
      if ((choice).kernel()) return launch::call; \
    }                                             \
  } while (false)
