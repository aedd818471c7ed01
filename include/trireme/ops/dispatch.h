#pragma once
// Chooses our kernel, the library's kernel or a composition of LibTorch operations for an operation. All operations use
// this rule, and its reason can be logged.
//
// TRIREME_LOG=dispatch logs each combination of operation and reason when it first occurs:
//   dispatch: rms_norm of bf16 [8192, 20480] on cuda:0: composition, because rows are wider than 16,384 elements
// and each product that is measured (matmul/measure.h).

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
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

/// Which of our kernels a device runs, the least first. kPortable: those that need compute capability 8.0, which are
/// all but attention. kHopper: attention too, and the others with Hopper's instructions.
enum class KernelClass { kNone, kPortable, kHopper };
/// "none", "portable", "hopper"
const char* name_of(KernelClass kernels);

/// TRIREME_KERNELS by its value: the class that it names, nullopt for "". ConfigError for another word.
std::optional<KernelClass> parse_kernel_class(std::string_view value);
/// The class of a GPU with compute capability `capability` (90: 9.0). `architectures`: what the kernels are built for,
/// in CMake's words separated by spaces: "80", "86-real", "100-virtual", "90a", "100f". `wanted`: what TRIREME_KERNELS
/// names; a class that the GPU or the build does not have is a ConfigError.
KernelClass choose_kernel_class(std::string_view architectures, int capability, std::optional<KernelClass> wanted);
/// The same with this build's architectures and TRIREME_KERNELS.
KernelClass kernel_class_of(int capability);
/// The class of a device: kNone of a CPU and in a build without CUDA. Every operation asks here.
KernelClass kernel_class(at::Device device);
/// What runs with the class, for people: "kernels: portable (TRIREME_KERNELS), attention by the library".
std::string describe_kernels(KernelClass kernels);
/// Why a GPU of compute capability `capability` runs no kernels of a build for `architectures`, and the remedy.
std::string missing_kernels(std::string_view architectures, int capability);
/// The same of this build; empty where the GPU's class is another one than kNone, or TRIREME_KERNELS asks for it.
std::string missing_kernels(KernelClass kernels, int capability);
/// The class that a plan counts with, of GPUs that are not here, of compute capability `capability`: what
/// TRIREME_KERNELS names, or all that a build may have. ConfigError: TRIREME_KERNELS names more.
KernelClass planned_kernel_class(int capability);
/// The same of a device. A CPU counts as a GPU with 9.0: its memory is not measured.
KernelClass planned_kernel_class(at::Device device);
/// 90 for compute capability 9.0; 0 of a CPU and in a build without CUDA.
int compute_capability(at::Device device);
/// Whether cuBLASLt multiplies FP8 codes with a scale per matrix, or `by_rows` with one per row, on such a GPU.
bool multiplies_fp8(int capability, bool by_rows);

/// Whether TRIREME_LOG asks for the choices.
bool logs_choices();

/// Collects the conditions of an operation's kernel; x is its main tensor:
///   const Choice choice = Dispatch("rms_norm", x).needs(x.size(-1) <= kWidest, "rows are wider than ...").choice();
class Dispatch {
 public:
  /// Conditions of every kernel: x's device runs kernels of the class `least`, and x is fp32, fp16, bf16, E4M3 or E5M2.
  Dispatch(std::string_view operation, const at::Tensor& x, KernelClass least = KernelClass::kPortable);
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
