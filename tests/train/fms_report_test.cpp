// Report lines under fms-fsdp's labels.
#include "../base/base_testing.h"
#include "console.h"
#include "log_styles.h"

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

TEST(ConsoleLine, FitsTheTerminal) {
  TrainMetrics metrics = step(1199999, 12.3456, 0.00123);
  metrics.max_steps = 1200000;
  metrics.lr = 4e-4;
  metrics.step_time_s = 1.052;
  metrics.samples_per_s = 15.2;
  metrics.tokens_per_s = 124300;
  metrics.mfu = 0.439;
  metrics.memory_gib = 132.4;
  const std::string whole = console_line(metrics, 1.2e6);
  EXPECT_GT(whole.size(), 120u) << whole;
  EXPECT_EQ(console_line(metrics, 1.2e6, whole.size()), whole);
  const std::string narrow = console_line(metrics, 1.2e6, whole.size() - 1);
  EXPECT_FALSE(contains(narrow, "samples/s"));
  EXPECT_TRUE(contains(narrow, "132.4 GiB"));
  for (size_t columns : {140, 120, 110, 100, 90, 80}) {
    const std::string line = console_line(metrics, 1.2e6, columns);
    EXPECT_LE(line.size(), columns) << line;
    for (const char* part : {"step 1199999/1200000", "loss 12.3456", "tok/s", "ETA"}) EXPECT_TRUE(contains(line, part));
  }
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
  EXPECT_TRUE(contains(second, "\nloss: 1\n")) << "the interval's mean, not the run's";
  EXPECT_TRUE(contains(second, "\ncurrent step time: 1\n"));
  EXPECT_TRUE(contains(second, "\noverall token per gpu per sec: 2457\n"));
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
