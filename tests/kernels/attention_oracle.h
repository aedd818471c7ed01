#pragma once
// The formulas of attention.h in fp64 on the host.

#include "kernels/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace trireme::kernels::oracle {

inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  return x ^ (x >> 15);
}

/// Whether dropout keeps the probability at (row, column), counted from the start of a sequence.
inline bool attention_keeps(int64_t sample, uint32_t t0, uint32_t t1, int head, uint32_t row, uint32_t column,
                            uint32_t threshold) {
  const auto id = static_cast<uint64_t>(sample);
  const uint32_t a = mix(mix(static_cast<uint32_t>(id) ^ t0) ^ static_cast<uint32_t>(id >> 32) ^ t1);
  const uint32_t b = mix(a + 0x9e3779b9u);
  const uint32_t k0 = mix(a ^ (static_cast<uint32_t>(head) * 0x9e3779b9u + 1u)), k1 = mix(k0 ^ b);
  uint32_t x = ((row & ~8u) << 16 | (column & ~8u)) ^ k0;
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= (x >> 15) ^ k1;
  x *= 0x735a2d97u;
  x ^= x >> 15;
  const uint32_t byte = (row >> 3 & 1) + 2 * (column >> 3 & 1);
  return (x >> (8 * byte) & 0x7f) >= threshold;
}

struct AttentionInputs {
  std::vector<int32_t> cu_seqlens;
  int q_heads, kv_heads, d;
  bool causal;
  double scale;
  std::vector<double> q, k, v, d_o;  // [tokens, heads, d]
  // Dropout: threshold of 128, 0 for none; see kernels/attention/attention_dropout.cuh.
  uint32_t threshold = 0, t0 = 0, t1 = 0;
  std::vector<int64_t> sample_ids;  // one per sequence
  int64_t window = 0;               // tokens that a row sees, itself included; 0: all before it
  int first_head = 0;               // added to the number of a head, for dropout
};

/// Index of the first of a token's d values of a head.
inline size_t at(const AttentionInputs& in, int64_t token, int64_t heads, int64_t head) {
  return static_cast<size_t>((token * heads + head) * in.d);
}

inline double dot(const double* x, const double* y, int64_t d) {
  double sums[4] = {};
  for (int64_t e = 0; e < d; e += 4)
    for (int64_t i = 0; i < 4; ++i) sums[i] += x[e + i] * y[e + i];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

/// Calls f(0) … f(count - 1) in parallel.
template <class F>
void each(size_t count, const F& f) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) f(i);
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min<size_t>(count, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  work();
}

inline double multiplier(const AttentionInputs& in, size_t sequence, int head, int64_t row, int64_t column) {
  if (in.threshold == 0) return 1;
  const bool keeps = attention_keeps(in.sample_ids[sequence], in.t0, in.t1, in.first_head + head,
                                     static_cast<uint32_t>(row), static_cast<uint32_t>(column), in.threshold);
  return keeps ? 128.0 / (128.0 - in.threshold) : 0;
}

/// One query row of a head: p, z and do . v for each key that it attends to.
struct Row {
  std::vector<double> p, z, dp;
  double lse = 0, delta = 0;

  void compute(const AttentionInputs& in, size_t sequence, int head, int64_t i) {
    const int64_t begin = in.cu_seqlens[sequence], length = in.cu_seqlens[sequence + 1] - begin,
                  keys = in.causal ? i + 1 : length;
    const int64_t kv = head / (in.q_heads / in.kv_heads);
    const double *q = &in.q[at(in, begin + i, in.q_heads, head)], *d_o = &in.d_o[at(in, begin + i, in.q_heads, head)];
    p.resize(static_cast<size_t>(keys));
    z.resize(p.size());
    dp.resize(p.size());
    double maximum = -INFINITY, total = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      const size_t key = at(in, begin + static_cast<int64_t>(j), in.kv_heads, kv);
      p[j] = in.scale * dot(q, &in.k[key], in.d);
      if (in.window > 0 && static_cast<int64_t>(j) <= i - in.window) p[j] = -INFINITY;
      maximum = std::max(maximum, p[j]);
      z[j] = multiplier(in, sequence, head, i, static_cast<int64_t>(j));
      dp[j] = dot(d_o, &in.v[key], in.d);
    }
    for (double& x : p) total += x = std::exp(x - maximum);
    lse = maximum + std::log(total);
    delta = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      p[j] /= total;
      delta += z[j] * p[j] * dp[j];
    }
  }
};

inline void add(double* to, double factor, const double* x, int64_t d) {
  for (int64_t e = 0; e < d; ++e) to[e] += factor * x[e];
}

struct AttentionOutputs {
  std::vector<double> o, lse, dq, dk, dv;  // lse [q_heads, tokens]
};

inline AttentionOutputs attention(const AttentionInputs& in) {
  const int64_t tokens = in.cu_seqlens.back(), d = in.d, group = in.q_heads / in.kv_heads;
  AttentionOutputs out;
  out.o.resize(in.q.size());
  out.dq.resize(in.q.size());
  out.dk.resize(in.k.size());
  out.dv.resize(in.v.size());
  out.lse.resize(static_cast<size_t>(in.q_heads * tokens));
  // Sequences and query heads run in parallel, each with its own partial dk and dv.
  struct Part {
    std::vector<double> dk, dv;
  };
  const size_t q_heads = static_cast<size_t>(in.q_heads), tasks = (in.cu_seqlens.size() - 1) * q_heads;
  std::vector<Part> parts(tasks);
  each(tasks, [&](size_t task) {
    const size_t sequence = task / q_heads;
    const int head = static_cast<int>(task % q_heads);
    const int64_t begin = in.cu_seqlens[sequence], length = in.cu_seqlens[sequence + 1] - begin, kv = head / group;
    Row row;
    Part& part = parts[task];
    part.dk.resize(static_cast<size_t>(length * d));
    part.dv.resize(part.dk.size());
    for (int64_t i = 0; i < length; ++i) {
      const size_t query = at(in, begin + i, in.q_heads, head);
      row.compute(in, sequence, head, i);
      out.lse[static_cast<size_t>(head * tokens + begin + i)] = row.lse;
      for (size_t j = 0; j < row.p.size(); ++j) {
        const size_t key = at(in, begin + static_cast<int64_t>(j), in.kv_heads, kv), own = j * static_cast<size_t>(d);
        const double zp = row.z[j] * row.p[j], ds = row.p[j] * (row.z[j] * row.dp[j] - row.delta) * in.scale;
        add(&out.o[query], zp, &in.v[key], d);
        add(&part.dv[own], zp, &in.d_o[query], d);
        add(&out.dq[query], ds, &in.k[key], d);
        add(&part.dk[own], ds, &in.q[query], d);
      }
    }
  });
  for (size_t task = 0; task < tasks; ++task) {
    const int64_t begin = in.cu_seqlens[task / q_heads], kv = static_cast<int64_t>(task % q_heads) / group;
    for (size_t i = 0; i < parts[task].dk.size(); ++i) {
      const size_t to = at(in, begin + static_cast<int64_t>(i) / d, in.kv_heads, kv) + i % static_cast<size_t>(d);
      out.dk[to] += parts[task].dk[i];
      out.dv[to] += parts[task].dv[i];
    }
  }
  return out;
}

/// The same at the given tokens only, much faster for long sequences: o and dq [samples, q_heads, d], dk and dv
/// [samples, kv_heads, d]; lse covers all tokens.
inline AttentionOutputs attention_at(const AttentionInputs& in, const std::vector<int64_t>& samples) {
  const int64_t tokens = in.cu_seqlens.back(), d = in.d, group = in.q_heads / in.kv_heads;
  const size_t q_heads = static_cast<size_t>(in.q_heads), kv_heads = static_cast<size_t>(in.kv_heads),
               width = static_cast<size_t>(d);
  const auto sequence_of = [&](int64_t token) {
    return static_cast<size_t>(std::upper_bound(in.cu_seqlens.begin(), in.cu_seqlens.end(), token) -
                               in.cu_seqlens.begin()) -
           1;
  };
  AttentionOutputs out;
  out.lse.resize(q_heads * static_cast<size_t>(tokens));
  std::vector<double> delta(out.lse.size());
  each(out.lse.size(), [&](size_t task) {
    const int64_t token = static_cast<int64_t>(task) % tokens;
    const size_t sequence = sequence_of(token);
    Row row;
    row.compute(in, sequence, static_cast<int>(static_cast<int64_t>(task) / tokens), token - in.cu_seqlens[sequence]);
    out.lse[task] = row.lse;
    delta[task] = row.delta;
  });
  out.o.resize(samples.size() * q_heads * width);
  out.dq.resize(out.o.size());
  each(samples.size() * q_heads, [&](size_t task) {
    const int64_t token = samples[task / q_heads];
    const int head = static_cast<int>(task % q_heads);
    const size_t sequence = sequence_of(token);
    Row row;
    row.compute(in, sequence, head, token - in.cu_seqlens[sequence]);
    for (size_t j = 0; j < row.p.size(); ++j) {
      const size_t key = at(in, in.cu_seqlens[sequence] + static_cast<int64_t>(j), in.kv_heads, head / group);
      add(&out.o[task * width], row.z[j] * row.p[j], &in.v[key], d);
      add(&out.dq[task * width], row.p[j] * (row.z[j] * row.dp[j] - row.delta) * in.scale, &in.k[key], d);
    }
  });
  out.dk.resize(samples.size() * kv_heads * width);
  out.dv.resize(out.dk.size());
  each(samples.size() * kv_heads, [&](size_t task) {
    const int64_t token = samples[task / kv_heads], kv = static_cast<int64_t>(task % kv_heads);
    const size_t sequence = sequence_of(token), key = at(in, token, in.kv_heads, kv);
    const int64_t begin = in.cu_seqlens[sequence], end = in.cu_seqlens[sequence + 1];
    for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
      for (int64_t row = in.causal ? token : begin; row < (in.window > 0 ? std::min(end, token + in.window) : end);
           ++row) {
        const size_t query = at(in, row, in.q_heads, head), stat = static_cast<size_t>(head * tokens + row);
        const double p = std::exp(in.scale * dot(&in.q[query], &in.k[key], d) - out.lse[stat]);
        const double z = multiplier(in, sequence, static_cast<int>(head), row - begin, token - begin);
        add(&out.dv[task * width], z * p, &in.d_o[query], d);
        add(&out.dk[task * width], p * (z * dot(&in.d_o[query], &in.v[key], d) - delta[stat]) * in.scale, &in.q[query],
            d);
      }
    }
  });
  return out;
}

}  // namespace trireme::kernels::oracle
