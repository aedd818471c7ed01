// Report lines under fms-fsdp's labels.
#include "fms_report.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TrainMetrics step(int64_t number, double loss, double norm) {
  TrainMetrics metrics;
  metrics.step = number;
  metrics.tokens = number * 8192;
  metrics.loss = loss;
  metrics.grad_norm = norm;
  metrics.lr = 0.25;
  return metrics;
}

TEST(FmsReport, LabelsAndMeansOfTheHead) {
  FmsReport report(false, 4096, 2, 100.0);
  report.add(step(11, 4, 1));
  report.add(step(12, 3, 2));
  EXPECT_EQ(report.lines(104.0, 2000, 1000),
            "step: 12\nloss: 3.5\nLR: 0.25\ntokens seen: 98304\ngradient norm: 1.5\nreserved memory: 2000\n"
            "allocated memory: 1000\ncurrent step time: 2\noverall step time: 2\ncurrent token per gpu per sec: 2048\n"
            "overall token per gpu per sec: 2048\noverall token per day: 353894400");
  report.add(step(13, 1, 5));
  const std::string second = report.lines(105.0, 0, 0);
  EXPECT_NE(second.find("\nloss: 1\n"), std::string::npos) << "the interval's mean, not the run's: " << second;
  EXPECT_NE(second.find("\ncurrent step time: 1\n"), std::string::npos) << second;
  EXPECT_NE(second.find("\noverall token per gpu per sec: 2457\n"), std::string::npos) << second;
}

TEST(FmsReport, LabelsOfMarch2024) {
  FmsReport report(true, 4096, 2, 0.0);
  for (int64_t i = 1; i <= 4; ++i) report.add(step(i, 2, 1));
  EXPECT_EQ(report.lines(8.0, 2000, 1000),
            "step: 4\ntokens seen: 32768\nloss: 2\ngradient norm: 1\nspeed for these 4 steps: 2\noverall speed: 2\n"
            "LR: 0.25\nreserved memory: 2000\nallocated memory: 1000\noverall token per gpu per sec: 2048\n"
            "token per day: 353894400");
}

}  // namespace
}  // namespace trireme
