#include "trireme/base/text.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "trireme/base/time.h"

namespace trireme {
namespace {

TEST(EditDistance, CountsEditsAndTranspositions) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("dropuot", "dropout"), 1);
  EXPECT_EQ(edit_distance("lr", "rl"), 1);
  EXPECT_EQ(edit_distance("warmup_step", "warmup_steps"), 1);
}

TEST(NearestWord, SuggestsOnlyPlausibleSlips) {
  const std::vector<std::string> keys = {"lr", "betas", "eps", "weight_decay", "grad_clip"};
  EXPECT_EQ(nearest_word("weigth_decay", keys), "weight_decay");
  EXPECT_EQ(nearest_word("lrr", keys), "lr");
  EXPECT_EQ(nearest_word("LR", keys), "lr");
  EXPECT_EQ(nearest_word("nothing_like_it", keys), std::nullopt);
  EXPECT_EQ(nearest_word("x", {}), std::nullopt);
  EXPECT_EQ(did_you_mean("beta", keys), " Did you mean 'betas'?");
  EXPECT_EQ(did_you_mean("zzzzzz", keys), "");
}

TEST(NearestWord, CostsNothingForAHugeWord) {
  const double start = steady_seconds();
  EXPECT_EQ(nearest_word(std::string(10'000'000, 'a'), {"lr", "betas"}), std::nullopt);
  EXPECT_LT(steady_seconds() - start, 0.5);
}

TEST(Format, BytesCountsShort) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1024 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(12.3 * 1024 * 1024 * 1024), "12.3 GiB");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_count(6'738'415'616), "6,738,415,616");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(format_short(6738415616.0), "6.74G");
  EXPECT_EQ(format_short(65536), "65.5k");
  EXPECT_EQ(format_short(999), "999");
  EXPECT_EQ(format_short(999.7), "1k");
  EXPECT_EQ(format_short(0.5), "0.5");
}

TEST(Format, DurationsNeverShowSixtySeconds) {
  EXPECT_EQ(format_duration(0.412), "412 ms");
  EXPECT_EQ(format_duration(0.99999), "1.0 s");
  EXPECT_EQ(format_duration(41.2), "41.2 s");
  EXPECT_EQ(format_duration(59.96), "1m00s");
  EXPECT_EQ(format_duration(307), "5m07s");
  EXPECT_EQ(format_duration(3599.6), "1h00m");
  EXPECT_EQ(format_duration(20460), "5h41m");
  EXPECT_EQ(format_duration(3 * 86400 + 2 * 3600), "3d02h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::nan("")), "?");
}

TEST(FormatExact, ReadsBackToTheSameBits) {
  EXPECT_EQ(format_exact(0.1), "0.1");
  EXPECT_EQ(format_exact(1e-8), "1e-08");
  EXPECT_EQ(format_exact(std::nan("")), "nan");
  EXPECT_EQ(format_exact(-INFINITY), "-inf");
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    double value;
    do {
      const uint64_t bits = random();
      std::memcpy(&value, &bits, sizeof value);
    } while (!std::isfinite(value));
    const std::string text = format_exact(value);
    EXPECT_EQ(std::strtod(text.c_str(), nullptr), value) << text;
    EXPECT_LE(text.size(), 24U);
  }
}

TEST(Utf8, AcceptsTextAndRefusesWhatTheStandardRefuses) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8("plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x9A\xA3"));
  EXPECT_TRUE(is_valid_utf8("\xF4\x8F\xBF\xBF"));   // U+10FFFF
  EXPECT_FALSE(is_valid_utf8("\x80"));              // lone continuation
  EXPECT_FALSE(is_valid_utf8("\xC3"));              // truncated
  EXPECT_FALSE(is_valid_utf8("\xC0\xAF"));          // overlong '/'
  EXPECT_FALSE(is_valid_utf8("\xE0\x80\xAF"));      // overlong, three bytes
  EXPECT_FALSE(is_valid_utf8("\xED\xA0\x80"));      // surrogate
  EXPECT_FALSE(is_valid_utf8("\xF4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_FALSE(is_valid_utf8("\xFF"));
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_EQ(split("a.b.c", '.'), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(split(".a.", '.'), (std::vector<std::string>{"", "a", ""}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
  EXPECT_EQ(join({"a", "b"}, ", "), "a, b");
  EXPECT_EQ(join({}, ", "), "");
}

TEST(Wrap, BreaksBetweenWords) {
  EXPECT_EQ(wrap("one two three", 9, 2), "one two\n  three");
  EXPECT_EQ(wrap("one two", 7, 0), "one two");
  EXPECT_EQ(wrap("one two", 6, 0), "one\ntwo");
  EXPECT_EQ(wrap("a verylongword b", 6, 0), "a\nverylongword\nb");
  EXPECT_EQ(wrap("aé é", 4, 0), "aé é");  // characters, not bytes
  EXPECT_EQ(wrap("", 10, 3), "");
}

TEST(Time, ClocksAndStamp) {
  const double before = steady_seconds();
  EXPECT_GE(steady_seconds(), before);
  EXPECT_GT(unix_milliseconds(), 1'700'000'000'000);
  const std::string stamp = utc_timestamp();
  ASSERT_EQ(stamp.size(), 20U) << stamp;
  EXPECT_EQ(stamp[10], 'T');
  EXPECT_EQ(stamp.back(), 'Z');
}

}  // namespace
}  // namespace trireme
