#include "trireme/base/dropout_steps.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(DropoutSteps, ProbabilitiesAreRoundedToWholeSteps) {
  EXPECT_EQ(dropout_threshold(0, 128), 0u);
  EXPECT_EQ(dropout_threshold(0.1, 128), 13u);
  EXPECT_EQ(dropout_threshold(0.1, 65536), 6554u);
  EXPECT_EQ(dropout_threshold(1.0 / 256, 128), 1u);
  EXPECT_EQ(dropout_threshold(0.9999, 128), 127u) << "a threshold of 128 would drop everything";
}

TEST(DropoutSteps, WhatWouldDropNothingOrEverythingIsRefused) {
  for (const int64_t steps : {kAttentionDropoutSteps, kActivationDropoutSteps}) {
    const double half = 0.5 / static_cast<double>(steps);
    EXPECT_EQ(dropout_problem(0, steps), "");
    EXPECT_EQ(dropout_problem(half, steps), "");
    EXPECT_EQ(dropout_problem(0.1, steps), "");
    EXPECT_EQ(dropout_problem(1 - 1.01 * half, steps), "");
    EXPECT_NE(dropout_problem(0.99 * half, steps), "");
    EXPECT_NE(dropout_problem(1e-300, steps), "");
    EXPECT_NE(dropout_problem(1 - 0.99 * half, steps), "");
  }
  EXPECT_EQ(dropout_problem(0.003, 128),
            "0.003 is less than half a step of 1/128 and would drop nothing: nearest are 0 and 0.0078125");
  EXPECT_EQ(dropout_problem(0.999, 128),
            "0.999 is less than half a step of 1/128 below 1 and would drop everything: the nearest is 0.9921875");
}

}  // namespace
}  // namespace trireme
