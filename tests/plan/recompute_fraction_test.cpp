// Which blocks a share recomputes: fms-fsdp's golden cases, and what the plan makes of them.
#include "trireme/base/text.h"
#include "trireme/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace trireme {
namespace {

/// "FTF…" of 15 blocks.
std::string pattern(const std::string& share) {
  std::string text;
  for (const Recompute what : recompute_fraction(15, parse_fraction(share).value()))
    text += what == Recompute::kFull ? 'T' : 'F';
  return text;
}

std::string repeated(const std::string& part) {
  std::string text;
  while (text.size() < 15) text += part;
  return text.substr(0, 15);
}

TEST(RecomputeFraction, GoldenCasesOfFmsFsdp) {
  for (const char* none : {"0", "1/100", "-1"}) EXPECT_EQ(pattern(none), repeated("F")) << none;
  EXPECT_EQ(pattern("1/5"), repeated("FFTFF"));
  EXPECT_EQ(pattern("1/3"), repeated("FTF"));
  EXPECT_EQ(pattern("1/2"), repeated("TF"));
  EXPECT_EQ(pattern("3/5"), repeated("TFTFT"));
  EXPECT_EQ(pattern("2/3"), repeated("TFT"));
  for (const char* all : {"1", "5/3"}) EXPECT_EQ(pattern(all), repeated("T")) << all;
}

TEST(RecomputeFraction, TextsThatAreNoShare) {
  for (const char* text : {"", "/", "1/", "/3", "1/0", "1//3", "a", "auto", "none", "nan", "inf", "1/3 "})
    EXPECT_FALSE(parse_fraction(text)) << text;
  EXPECT_EQ(parse_fraction("1/3"), 1.0 / 3);
  EXPECT_EQ(parse_fraction("0.25"), 0.25);
}

TEST(RecomputeFraction, ThePlanTakesTheShareAsItIsAndCountsItsMemory) {
  std::vector<UnitSpec> units(1);
  units[0].name = "layers";
  units[0].trained = true;
  units[0].parameters.push_back({"w", {64, 64}, {{"w", 64}}, Init::kNormal, 0.02, true});
  PlanInput input;
  input.units = &units;
  input.num_blocks = 15;
  input.row.saved = 1000;
  input.row.saved_mlp = 700;
  input.row.saved_input = 100;
  for (const char* share : {"0", "1/5", "1/3", "1/2", "2/3", "1"}) {
    input.recompute_blocks = recompute_fraction(15, *parse_fraction(share));
    const TrainingPlan plan = find_plan(input).value();
    EXPECT_EQ(plan.recompute, input.recompute_blocks) << share;
    const auto full = std::count(plan.recompute.begin(), plan.recompute.end(), Recompute::kFull);
    // One recomputed block is whole again while backward runs through it; its input is counted once.
    EXPECT_EQ(plan.activations, (15 - full) * 1000 + full * 100 + (full > 0 ? 900 : 0)) << share;
    EXPECT_EQ(least_plan(input).recompute, plan.recompute) << share;
  }
  input.device_memory = 1;
  EXPECT_FALSE(find_plan(input)) << "a share that does not fit is not raised";
}

}  // namespace
}  // namespace trireme
