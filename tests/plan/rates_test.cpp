// Files of a machine's rates.
#include "trireme/plan/rates.h"

#include "../base/base_testing.h"
#include "trireme/base/file.h"
#include "trireme/plan/devices.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

class RatesFile : public DirectoryTest {
 protected:
  MachineRates read(const std::string& text) const {
    write_file_atomic(root_ / "rates.yaml", text);
    return read_rates(root_ / "rates.yaml");
  }
  std::string failure(const std::string& text) const {
    return message_of<ConfigError>([&] { return read(text); });
  }
};

TEST_F(RatesFile, WhatIsWrittenIsReadAgain) {
  MachineRates rates = machine_rates("NVIDIA H100");
  rates.name = "NVIDIA 'X' #1: \"q\"";
  std::set<std::string> all;
  double value = 2;
  for (const RateKey& key : rate_keys()) {
    rates.*key.value = std::min(key.most, std::max(key.least, value *= 1.5));
    all.insert(key.name);
  }
  const MachineRates again = read(rates_text(rates, all, {"a note: with 'signs' #", "- another"}));
  EXPECT_EQ(again.name, rates.name);
  EXPECT_EQ(again.file, (root_ / "rates.yaml").string());
  EXPECT_EQ(again.capability, 90);
  for (const RateKey& key : rate_keys())
    EXPECT_NEAR(again.*key.value, rates.*key.value, 1e-3 * rates.*key.value) << key.name;
}

TEST_F(RatesFile, SaysWhatTheGpuRuns) {
  EXPECT_EQ(read("name: x\n").capability, 90);
  for (const auto& [word, capability] : {std::pair{"8.9", 89}, {"8.0", 80}, {"12.0", 120}}) {
    const MachineRates rates = read(std::string("name: x\ncompute_capability: ") + word + "\n");
    EXPECT_EQ(rates.capability, capability);
    EXPECT_EQ(read(rates_text(rates, {}, {})).capability, capability);
  }
  EXPECT_TRUE(contains(failure("name: x\ncompute_capability: 89\n"), "compute_capability must be"));
}

TEST_F(RatesFile, WhatAFileLeavesOutIsOfTheTable) {
  const MachineRates rates = read("name: NVIDIA H100 80GB HBM3\nbf16_flops: 6.1e14\n");
  EXPECT_EQ(rates.bf16_flops, 6.1e14);
  EXPECT_EQ(rates.memory_bytes, machine_rates("NVIDIA H100").memory_bytes);
  EXPECT_NE(rates.memory_bytes, MachineRates{}.memory_bytes);
}

TEST_F(RatesFile, EverythingWrongIsSaidWithItsPlace) {
  const std::string text = failure("name: x\nbf16_flop: 1e15\nmemory_bytes: 3.9\nlink_bytes: fast\ninterference: -1\n");
  for (const char* part :
       {"rates.yaml:2:1: unknown key 'bf16_flop'. Did you mean 'bf16_flops'?",
        "rates.yaml:3:15: memory_bytes must be from 1e+10 to 1e+14, not '3.9'",
        "rates.yaml:4:13: link_bytes must be a number, not", "rates.yaml:5:15: interference must be"})
    EXPECT_TRUE(contains(text, part));
}

TEST_F(RatesFile, HostileFilesAreRefused) {
  const std::string deep(5000, '[');
  for (const std::string& text :
       {std::string(), std::string("# nothing\n"), std::string("bf16_flops: 1e15\n"), std::string("- name: x\n"),
        std::string("name: x\nname: y\n"), std::string("name: [x]\n"), std::string("name:\n"), std::string("name: 3\n"),
        std::string("name: x\nbf16_flops: nan\n"), std::string("name: x\nbf16_flops: .inf\n"),
        std::string("name: x\nbf16_flops: 1e400\n"), std::string("name: x\nbf16_flops: {a: 1}\n"),
        std::string("name: x\nbf16_flops:\n"), std::string("name: &a x\nlink_bytes: *a\n"),
        std::string("name: x\n---\nname: y\n"), "name: " + deep, std::string("name: \0x\n", 9),
        "name: " + std::string(300, 'x'), "name: x\n# " + std::string(2 << 20, 'x')})
    EXPECT_TRUE(contains(failure(text), "rates.yaml")) << text.substr(0, 40);
  EXPECT_THROW((void)read_rates(root_ / "none.yaml"), ConfigError);
  EXPECT_THROW((void)read_rates(root_), ConfigError);
}

TEST(DescribedRates, AnUnknownMachineIsToldToCalibrate) {
  const auto text = [](const char* device) { return describe_rates(machine_rates(device), device); };
  EXPECT_EQ(text("NVIDIA H200"), "rates: NVIDIA H200, built-in table");
  EXPECT_EQ(text("NVIDIA H100 80GB HBM3"), "rates: NVIDIA H100, built-in table");
  EXPECT_EQ(text(""), "rates: NVIDIA H200, built-in table");
  const std::string unknown = text("NVIDIA B200");
  EXPECT_TRUE(contains(unknown, "none of NVIDIA B200"));
  EXPECT_TRUE(contains(unknown, "trireme calibrate"));
  MachineRates file = machine_rates("NVIDIA H100");
  file.file = "r.yaml";
  EXPECT_EQ(describe_rates(file, "NVIDIA H100"), "rates: r.yaml, measured on NVIDIA H100");
  EXPECT_TRUE(contains(describe_rates(file, "NVIDIA H200"), "this is NVIDIA H200"));
}

TEST(Devices, AreScaledByTheirDatasheetsAndSaidToBeNotMeasured) {
  const MachineRates h200 = device_rates("h200");
  EXPECT_TRUE(h200.measured);
  EXPECT_EQ(device_rates("h100").memory_bytes, machine_rates("NVIDIA H100").memory_bytes);
  for (const std::string& word : device_words()) {
    const MachineRates rates = device_rates(word);
    for (const RateKey& key : rate_keys()) {
      EXPECT_GE(rates.*key.value, key.least) << word << " " << key.name;
      EXPECT_LE(rates.*key.value, key.most) << word << " " << key.name;
    }
    EXPECT_EQ(describe_rates(rates, rates.name).find("NOT MEASURED") == std::string::npos, rates.measured) << word;
    EXPECT_LT(rates.bf16_flops / rates.memory_bytes, 2.5 * h200.bf16_flops / h200.memory_bytes) << word;
  }
  const MachineRates a100 = device_rates("a100-80"), ada = device_rates("rtx4090");
  EXPECT_NEAR(a100.bf16_flops / h200.bf16_flops, 312.0 / 989, 1e-12);
  EXPECT_NEAR(a100.link_bytes / h200.link_bytes, 600.0 / 900, 1e-12);
  EXPECT_LT(ada.link_bytes, ada.host_bytes);
  const RecipeTraits &rows = traits_of(Recipe::kFp8Frozen), &matrices = traits_of(Recipe::kFp8Tensorwise);
  constexpr KernelClass kNone = KernelClass::kNone, kPortable = KernelClass::kPortable;
  for (const int capability : {80, 90, 120})
    EXPECT_EQ(fp8_problem_of(traits_of(Recipe::kCompute), kNone, capability, "x"), "");
  EXPECT_EQ(fp8_problem_of(rows, kPortable, 90, "x") + fp8_problem_of(matrices, kPortable, ada.capability, "x"), "");
  EXPECT_TRUE(contains(fp8_problem_of(rows, kPortable, ada.capability, "an Ada"), "an Ada has 8.9"));
  EXPECT_NE(fp8_problem_of(matrices, kPortable, a100.capability, "x"), "");
  EXPECT_TRUE(contains(fp8_problem_of(matrices, kNone, 90, "x"), "TRIREME_KERNELS is none"));
}

}  // namespace
}  // namespace trireme
