// How far a NaN of one token propagates: what kernels/attention/attention.h says about tokens beyond a sequence's end.

#include "attention_problem.h"

#include <array>
#include <limits>
#include <string>

namespace trireme::kernels::testing::attention_nan_tests {

namespace {

using Input = AttentionProblem::Input;

/// The results of a forward and a backward pass, [tokens, heads, d] each.
struct Outputs {
  std::array<Values, 4> all;  // o, dq, dk, dv
  static const char* name(size_t i) { return std::array{"o", "dq", "dk", "dv"}[i]; }
};

Outputs outputs(AttentionProblem& run) {
  run.poison();
  EXPECT_EQ(run.forward(), cudaSuccess);
  EXPECT_EQ(run.backward(/*deterministic=*/true), cudaSuccess);
  return {{run.o(), run.dq(), run.dk(), run.dv()}};
}

/// The values of the tokens of a sequence.
Values part(const Values& all, int64_t tokens, int32_t begin, int32_t end) {
  const auto width = static_cast<int64_t>(all.size()) / tokens;
  return {all.begin() + begin * width, all.begin() + end * width};
}

bool finite(const Values& values) {
  for (const double v : values)
    if (!std::isfinite(v)) return false;
  return true;
}

/// Whether a NaN in `input`, beyond the end of a sequence that reads it, propagates to output i of that sequence.
bool reaches(Input input, size_t i) {
  switch (input) {
    case Input::kV: return i <= 2;  // o, and through o dq and dk
    case Input::kK: return i == 1;  // dq
    case Input::kQ:
    case Input::kDo: return i >= 2;  // dk and dv
  }
  return false;
}

class AttentionNanTest : public HopperKernelTest {};

TEST_F(AttentionNanTest, ReachesItsOwnSequenceAndThoseThatReadItAsPadding) {
  const std::vector<int32_t> bounds{0, 200, 300, 301, 428, 600};
  for (const AttentionCase& c : {AttentionCase{bounds, 2, 1, 128, true},
                                 {bounds, 2, 2, 128, false},
                                 {bounds, 2, 1, 64, true},
                                 {bounds, 2, 2, 64, true},
                                 {bounds, 2, 2, 64, false, 1, 13}}) {
    AttentionProblem clean_run(c, Element::kBF16);
    const Outputs clean = outputs(clean_run);
    for (const Values& values : clean.all) ASSERT_TRUE(finite(values));
    for (const Input input : {Input::kQ, Input::kK, Input::kV, Input::kDo}) {
      for (const int32_t token : {300, 301, 428, 599}) {
        AttentionProblem run(c, Element::kBF16);
        run.fill_token(input, token, std::numeric_limits<double>::quiet_NaN());
        const Outputs got = outputs(run);
        EXPECT_TRUE(run.counters_are_zero());
        for (size_t s = 0; s + 1 < bounds.size(); ++s) {
          const int32_t begin = bounds[s], end = bounds[s + 1];
          const bool own = begin <= token && token < end,
                     reads = token >= end && token < begin + (end - begin + 127) / 128 * 128;
          for (size_t i = 0; i < got.all.size(); ++i) {
            SCOPED_TRACE(name_of(c, Element::kBF16) + ", NaN in input " + std::to_string(static_cast<int>(input)) +
                         " of token " + std::to_string(token) + ", " + Outputs::name(i) + " of sequence " +
                         std::to_string(s));
            const Values now = part(got.all[i], bounds.back(), begin, end);
            if (own) continue;
            if (!reads) {
              EXPECT_TRUE(now == part(clean.all[i], bounds.back(), begin, end)) << "the bits differ";
            } else {
              EXPECT_EQ(finite(now), !reaches(input, i));
            }
          }
        }
      }
    }
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::attention_nan_tests
