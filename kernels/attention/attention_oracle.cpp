#include "kernels/attention/attention_oracle.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace trireme::kernels::oracle {

namespace {

uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  return x ^ (x >> 15);
}

}  // namespace

bool attention_keeps(int64_t sample, uint32_t t0, uint32_t t1, int head, uint32_t row, uint32_t column, uint32_t threshold) {
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

AttentionOutputs attention(const AttentionInputs& in) {
  const int64_t tokens = in.cu_seqlens.back(), d = in.d, group = in.q_heads / in.kv_heads;
  const auto at = [d](int64_t token, int64_t heads, int64_t head) { return static_cast<size_t>((token * heads + head) * d); };
  AttentionOutputs out;
  out.o.resize(in.q.size());
  out.dq.resize(in.q.size());
  out.dk.resize(in.k.size());
  out.dv.resize(in.v.size());
  out.lse.resize(static_cast<size_t>(in.q_heads * tokens));
  const double keep_scale = 128.0 / (128.0 - in.threshold);
  // Sequences and query heads side by side, each with its own part of dk and dv.
  struct Part {
    std::vector<double> dk, dv;
  };
  const size_t q_heads = static_cast<size_t>(in.q_heads), tasks = (in.cu_seqlens.size() - 1) * q_heads;
  std::vector<Part> parts(tasks);
  const auto compute = [&](size_t task) {
    const size_t sequence = task / q_heads;
    const int head = static_cast<int>(task % q_heads);
    std::vector<double> p, z, dp;
    const int64_t begin = in.cu_seqlens[sequence], length = in.cu_seqlens[sequence + 1] - begin, kv = head / group;
    Part& part = parts[task];
    part.dk.resize(static_cast<size_t>(length * d));
    part.dv.resize(part.dk.size());
    for (int64_t i = 0; i < length; ++i) {
      const int64_t keys = in.causal ? i + 1 : length;
      const double *q = &in.q[at(begin + i, in.q_heads, head)], *d_o = &in.d_o[at(begin + i, in.q_heads, head)];
      double *o = &out.o[at(begin + i, in.q_heads, head)], *dq = &out.dq[at(begin + i, in.q_heads, head)];
      p.assign(static_cast<size_t>(keys), 0);
      z.assign(p.size(), 1);
      dp.assign(p.size(), 0);
      double maximum = -INFINITY, total = 0;
      for (int64_t j = 0; j < keys; ++j) {
        const double* k = &in.k[at(begin + j, in.kv_heads, kv)];
        double s = 0;
        for (int64_t e = 0; e < d; ++e) s += q[e] * k[e];
        p[static_cast<size_t>(j)] = s * in.scale;
        maximum = std::max(maximum, s * in.scale);
      }
      for (double& x : p) total += x = std::exp(x - maximum);
      for (double& x : p) x /= total;
      out.lse[static_cast<size_t>(head * tokens + begin + i)] = maximum + std::log(total);
      double delta = 0;
      for (int64_t j = 0; j < keys; ++j) {
        const auto n = static_cast<size_t>(j);
        if (in.threshold > 0)
          z[n] = attention_keeps(in.sample_ids[sequence], in.t0, in.t1, head, static_cast<uint32_t>(i), static_cast<uint32_t>(j), in.threshold)
                     ? keep_scale
                     : 0;
        const double* v = &in.v[at(begin + j, in.kv_heads, kv)];
        double* dv = &part.dv[static_cast<size_t>(j * d)];
        for (int64_t e = 0; e < d; ++e) {
          o[e] += z[n] * p[n] * v[e];
          dp[n] += d_o[e] * v[e];
          dv[e] += z[n] * p[n] * d_o[e];
        }
        delta += z[n] * p[n] * dp[n];
      }
      for (int64_t j = 0; j < keys; ++j) {
        const auto n = static_cast<size_t>(j);
        const double ds = p[n] * (z[n] * dp[n] - delta) * in.scale;
        const double* k = &in.k[at(begin + j, in.kv_heads, kv)];
        double* dk = &part.dk[static_cast<size_t>(j * d)];
        for (int64_t e = 0; e < d; ++e) {
          dq[e] += ds * k[e];
          dk[e] += ds * q[e];
        }
      }
    }
  };
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t task = next++; task < tasks; task = next++) compute(task);
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min<size_t>(tasks, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  work();
  threads.clear();
  for (size_t task = 0; task < tasks; ++task) {
    const int64_t begin = in.cu_seqlens[task / q_heads], kv = static_cast<int64_t>(task % q_heads) / group;
    for (size_t i = 0; i < parts[task].dk.size(); ++i) {
      const size_t to = at(begin + static_cast<int64_t>(i) / d, in.kv_heads, kv) + i % static_cast<size_t>(d);
      out.dk[to] += parts[task].dk[i];
      out.dv[to] += parts[task].dv[i];
    }
  }
  return out;
}

}  // namespace trireme::kernels::oracle
