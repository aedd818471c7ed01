// Which kernels a GPU runs, by its compute capability, the build's architectures and TRIREME_KERNELS.
#include "trireme/ops/dispatch.h"

#include "../base/base_testing.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

constexpr KernelClass kNone = KernelClass::kNone, kPortable = KernelClass::kPortable, kHopper = KernelClass::kHopper;

TEST(KernelClasses, OfACapabilityAndABuild) {
  struct Case {
    std::string architectures;
    int capability;
    KernelClass expected;
  };
  for (const Case& c : std::vector<Case>{{"90a", 90, kHopper},
                                         {"90a", 80, kNone},
                                         {"90a", 100, kNone},
                                         {"", 90, kNone},
                                         {"80 86 89 90a 100 120", 90, kHopper},
                                         {"80 86 89 90a 100 120", 80, kPortable},
                                         {"80 86 89 90a 100 120", 87, kPortable},
                                         {"80 86 89 90a 100 120", 103, kPortable},
                                         {"80 86 89 90a 100 120", 121, kPortable},
                                         {"80 86 89 90a 100 120", 75, kNone},
                                         {"80", 90, kPortable},           // PTX
                                         {"80-virtual", 120, kPortable},  // PTX
                                         {"80-real", 90, kNone},          // no PTX
                                         {"80-real 90a-real", 89, kPortable},
                                         {"90", 90, kPortable},
                                         {"90a-virtual", 90, kNone},  // launches need the image
                                         {"80 90a-real", 100, kPortable},
                                         {"86-real", 80, kNone},
                                         {"120a-real", 120, kPortable},
                                         {"120a", 121, kNone},
                                         {"100f", 103, kPortable},
                                         {"100f", 120, kNone}})
    EXPECT_EQ(choose_kernel_class(c.architectures, c.capability, {}), c.expected)
        << "built for '" << c.architectures << "', on " << c.capability;
}

TEST(KernelClasses, TheSwitchNamesOneThatTheGpuHas) {
  const auto refusal = [](const char* architectures, int capability, KernelClass wanted) {
    return message_of<ConfigError>([&] { EXPECT_EQ(choose_kernel_class(architectures, capability, wanted), wanted); });
  };
  const char* const all = "80 90a";
  for (const int capability : {70, 80, 90, 120}) EXPECT_EQ(refusal(all, capability, kNone), "");
  EXPECT_EQ(refusal(all, 90, kHopper), "");
  EXPECT_EQ(refusal(all, 80, kPortable), "");
  EXPECT_EQ(refusal("80", 90, kPortable), "");
  EXPECT_TRUE(contains(refusal(all, 80, kHopper), "on a GPU of compute capability 8.0"));
  EXPECT_TRUE(contains(refusal("80", 90, kHopper), "this build (for 80) has no kernels for Hopper"));
  EXPECT_TRUE(contains(refusal(all, 90, kPortable), "-DTRIREME_CUDA_ARCHITECTURES=80"))
      << "CUDA would run the image for sm_90a";
  EXPECT_TRUE(contains(refusal("90a", 80, kPortable), "add 80 to TRIREME_CUDA_ARCHITECTURES"));
}

TEST(KernelClasses, WhyThereAreNone) {
  EXPECT_EQ(missing_kernels("90a", 80),
            "this build (for 90a) has no kernels for compute capability 8.0: configure it with "
            "-DTRIREME_CUDA_ARCHITECTURES=80");
  EXPECT_TRUE(contains(missing_kernels("80-real", 90), "-DTRIREME_CUDA_ARCHITECTURES=90a"));
  EXPECT_TRUE(contains(missing_kernels("80-real", 120), "-DTRIREME_CUDA_ARCHITECTURES=120"));
  EXPECT_EQ(missing_kernels("90a", 75),
            "the kernels are for GPUs of compute capability 8.0 and later, this one has 7.5");
  EXPECT_EQ(missing_kernels(kPortable, 80), "");
}

TEST(KernelClasses, TheSwitchsWords) {
  EXPECT_EQ(parse_kernel_class(""), std::nullopt);
  for (const KernelClass one : {kNone, kPortable, kHopper}) EXPECT_EQ(parse_kernel_class(name_of(one)), one);
  for (const char* wrong : {"Hopper", "portable ", "sm_80", "0"}) EXPECT_THROW(parse_kernel_class(wrong), ConfigError);
  EXPECT_EQ(kernel_class(at::kCPU), kNone);
}

}  // namespace
}  // namespace trireme
