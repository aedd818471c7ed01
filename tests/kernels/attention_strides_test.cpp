// Strides of attention's tensors: different ones for each tensor, and more than 2^31 elements apart.

#include "attention_problem.h"

#include <array>
#include <stdexcept>
#include <utility>

namespace trireme::kernels::testing::attention_strides_tests {

namespace {

/// A tensor [tokens, heads, d] inside a buffer, in elements.
struct Place {
  int64_t offset, token, head;
};

/// q, k, v, o, d_o, dq, dk and dv in one buffer of 16-bit elements; elements outside the tensors are all ones (NaN).
class Strided {
 public:
  enum Name { kQ, kK, kV, kO, kDo, kDq, kDk, kDv, kNames };

  Strided(const AttentionCase& c, Element element, const std::array<Place, kNames>& places, int64_t count)
      : run_(c, element), case_(c), element_(element), places_(places), count_(count) {
    if (cudaMalloc(&buffer_, static_cast<size_t>(2 * count)) != cudaSuccess)
      throw std::runtime_error("cudaMalloc failed");
    cudaMemset(buffer_, 0xff, static_cast<size_t>(2 * count));
    write(kQ, run_.inputs().q);
    write(kK, run_.inputs().k);
    write(kV, run_.inputs().v);
    write(kDo, run_.inputs().d_o);
  }
  Strided(const Strided&) = delete;
  Strided& operator=(const Strided&) = delete;
  ~Strided() { cudaFree(buffer_); }

  void compare(bool deterministic) {
    AttentionForward f = run_.forward_arguments();
    f.q = tensor(kQ), f.k = tensor(kK), f.v = tensor(kV), f.o = tensor(kO);
    CUDA_OK(attention_forward(f, nullptr));
    AttentionBackward b = run_.backward_arguments(deterministic);
    b.q = f.q, b.k = f.k, b.v = f.v, b.o = f.o, b.d_o = tensor(kDo);
    b.d_q = tensor(kDq), b.d_k = tensor(kDk), b.d_v = tensor(kDv);
    CUDA_OK(attention_backward(b, nullptr));
    const oracle::AttentionOutputs expected = run_.expected();
    const double bound = attention_bound(element_);
    EXPECT_LT(relative_error(read(kO), expected.o), bound);
    EXPECT_LT(relative_error(read(kDq), expected.dq), 2 * bound);
    EXPECT_LT(relative_error(read(kDk), expected.dk), 2 * bound);
    EXPECT_LT(relative_error(read(kDv), expected.dv), bound);
    EXPECT_TRUE(run_.counters_are_zero());
  }

  /// Fails if an element between the tensors has changed.
  void expect_nothing_beside() const {
    std::vector<uint16_t> all(static_cast<size_t>(count_));
    CUDA_OK(cudaMemcpy(all.data(), buffer_, 2 * all.size(), cudaMemcpyDeviceToHost));
    for (int name = 0; name < kNames; ++name) {
      const Place& p = places_[static_cast<size_t>(name)];
      for (int64_t t = 0; t < tokens(); ++t)
        for (int64_t h = 0; h < heads(static_cast<Name>(name)); ++h)
          for (int64_t e = 0; e < case_.d; ++e)
            all[static_cast<size_t>(p.offset + t * p.token + h * p.head + e)] = 0xffff;
    }
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(all[i], 0xffff) << "element " << i << ", which is outside every tensor, was written";
  }

 private:
  int64_t tokens() const { return case_.cu_seqlens.back(); }
  int64_t heads(Name name) const {
    return name == kK || name == kV || name == kDk || name == kDv ? case_.kv_heads : case_.q_heads;
  }
  char* at(Name name, int64_t head) const {
    const Place& p = places_[name];
    return static_cast<char*>(buffer_) + 2 * (p.offset + head * p.head);
  }
  AttentionTensor tensor(Name name) const { return {at(name, 0), {places_[name].token, places_[name].head}}; }
  /// Copies a head's rows between the buffer and [tokens, heads, d] on the host.
  void copy(Name name, unsigned char* host, bool to_device) const {
    const auto row = static_cast<size_t>(2 * case_.d), host_pitch = row * static_cast<size_t>(heads(name)),
               pitch = static_cast<size_t>(2 * places_[name].token);
    for (int64_t h = 0; h < heads(name); ++h) {
      unsigned char* const own = host + static_cast<size_t>(h) * row;
      const cudaError_t status = to_device ? cudaMemcpy2D(at(name, h), pitch, own, host_pitch, row,
                                                          static_cast<size_t>(tokens()), cudaMemcpyHostToDevice)
                                           : cudaMemcpy2D(own, host_pitch, at(name, h), pitch, row,
                                                          static_cast<size_t>(tokens()), cudaMemcpyDeviceToHost);
      EXPECT_EQ(status, cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    }
  }
  void write(Name name, const Values& values) const {
    std::vector<unsigned char> bytes(2 * values.size());
    for (size_t i = 0; i < values.size(); ++i) encode(values[i], element_, bytes.data() + 2 * i);
    copy(name, bytes.data(), true);
  }
  Values read(Name name) const {
    std::vector<unsigned char> bytes(static_cast<size_t>(2 * tokens() * heads(name) * case_.d));
    copy(name, bytes.data(), false);
    Values values;
    for (size_t i = 0; i < bytes.size(); i += 2) values.push_back(decode(bytes.data() + i, element_));
    return values;
  }

  AttentionProblem run_;
  AttentionCase case_;
  Element element_;
  std::array<Place, kNames> places_;
  int64_t count_;
  void* buffer_ = nullptr;
};

class AttentionStridesTest : public HopperKernelTest {};

TEST_F(AttentionStridesTest, EachTensorHasItsOwn) {
  for (const AttentionCase& c : {AttentionCase{{0, 100, 101, 333}, 8, 2, 128, true},
                                 {{0, 100, 101, 333}, 4, 2, 128, false},
                                 {{0, 100, 101, 333}, 4, 4, 64, true},
                                 {{0, 100, 101, 333}, 4, 2, 64, true},
                                 {{0, 100, 101, 333}, 3, 3, 64, false, 1, 13}}) {
    SCOPED_TRACE(name_of(c, Element::kBF16));
    const int64_t t = c.cu_seqlens.back(), d = c.d, q = c.q_heads, kv = c.kv_heads;
    // Token-major with a gap after the heads, head-major, token-major with gaps between the heads; no two tensors of an
    // operation have equal strides.
    std::array<Place, Strided::kNames> places{{{0, q * d + 8, d},
                                               {0, d, t * d + 64},
                                               {0, kv * (d + 24) + 40, d + 24},
                                               {0, d, t * d},
                                               {0, q * (d + 8), d + 8},
                                               {0, d + 16, t * (d + 16)},
                                               {0, kv * d + 72, d},
                                               {0, d, t * d + 8}}};
    const std::array<int64_t, Strided::kNames> sizes{t * (q * d + 8),   kv * (t * d + 64), t * (kv * (d + 24) + 40),
                                                     q * t * d,         t * q * (d + 8),   q * t * (d + 16),
                                                     t * (kv * d + 72), kv * (t * d + 8)};
    int64_t count = 64;
    for (size_t i = 0; i < places.size(); ++i) {
      places[i].offset = count;
      count += (sizes[i] + 71) / 8 * 8;
    }
    for (const bool deterministic : {false, true}) {
      Strided run(c, Element::kBF16, places, count);
      run.compare(deterministic);
      run.expect_nothing_beside();
    }
  }
}

TEST_F(AttentionStridesTest, ElementsMoreThanTwoToThe31Apart) {
  constexpr int64_t kToken = int64_t{1} << 23, kHead = int64_t{1} << 20, kTokens = 300;
  static_assert(kToken * kTokens > int64_t{1} << 31);
  size_t free = 0, total = 0;
  CUDA_OK(cudaMemGetInfo(&free, &total));
  if ((free >> 30) < 6) GTEST_SKIP() << "needs 6 GiB of device memory, " << (free >> 30) << " are free";
  std::array<Place, Strided::kNames> places;
  for (size_t i = 0; i < places.size(); ++i) places[i] = {static_cast<int64_t>(i) * 256, kToken, kHead};
  for (const AttentionCase& c : {AttentionCase{{0, 130, kTokens}, 4, 2, 128, true},
                                 {{0, 130, kTokens}, 2, 2, 64, false},
                                 {{0, 130, kTokens}, 4, 2, 64, true}}) {
    SCOPED_TRACE(name_of(c, Element::kBF16));
    Strided(c, Element::kBF16, places, kToken * kTokens).compare(false);
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::attention_strides_tests
