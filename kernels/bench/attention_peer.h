#pragma once
// Another library's attention, timed in the same process as ours. attention_bench.cu calls it; peers.cpp, which is part
// of kernel_bench_torch only, provides it.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::kernels::bench {

struct AttentionProblem {
  std::vector<int32_t> bounds;  // offsets of the sequences
  bool equal_lengths;
  int64_t q_heads, kv_heads, d;
  bool causal;
  double dropout;
};

struct AttentionPeer {
  std::string name;  // name of the library's kernels
  std::function<cudaError_t()> forward, backward;
};

using AttentionPeerMaker = AttentionPeer (*)(const AttentionProblem&);
/// Null if no library is linked.
inline AttentionPeerMaker attention_peer = nullptr;

}  // namespace trireme::kernels::bench
