#pragma once
// Chooses our kernel, the library's kernel or a composition of LibTorch operations for an operation. All operations use
// this rule, and its reason can be logged.
//
// TRIREME_LOG=dispatch logs each combination of operation and reason when it first occurs:
//   dispatch: rms_norm of bf16 [8192, 20480] on cuda:0: composition, because rows are wider than 16,384 elements

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
  std::string_view reason;  // empty for a kernel; otherwise the first condition that is not met
  bool kernel() const { return who == Runs::kKernel; }
};

/// Whether our kernels run on the device: a GPU with compute capability 9.0, in a build with CUDA.
bool has_kernels(at::Device device);

/// Collects the conditions of an operation's kernel; x is its main tensor:
///   const Choice choice = Dispatch("rms_norm", x).needs(x.size(-1) <= kWidest, "rows are wider than ...").choice();
class Dispatch {
 public:
  /// Conditions of every kernel: has_kernels(), and x is fp32, fp16, bf16, E4M3 or E5M2.
  Dispatch(std::string_view operation, const at::Tensor& x);
  Dispatch& needs(bool condition, std::string_view otherwise_because);
  /// kKernel if all conditions hold, otherwise `otherwise`.
  Choice choice(Runs otherwise = Runs::kComposition) const;

 private:
  std::string_view operation_, reason_;
  const at::Tensor& x_;
};

}  // namespace trireme

/// Returns the result of our kernel if `choice` selects it. Without CUDA the call is compiled but never linked.
#define TRIREME_RETURN_LAUNCH(choice, call)       \
  do {                                            \
    if constexpr (::trireme::kCudaBuild) {        \
      if ((choice).kernel()) return launch::call; \
    }                                             \
  } while (false)
