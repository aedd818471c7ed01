#pragma once
// Another library's attention beside ours, in the same process: what attention_bench.cu asks for and peers.cpp, built
// into kernel_bench_torch only, provides.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::kernels::bench {

struct AttentionProblem {
  std::vector<int32_t> bounds;  // of the sequences
  bool equal_lengths;
  int64_t q_heads, kv_heads, d;
  bool causal;
  double dropout;
};

struct AttentionPeer {
  std::string name;  // of the library's kernels
  std::function<cudaError_t()> forward, backward;
};

using AttentionPeerMaker = AttentionPeer (*)(const AttentionProblem&);
/// Null where no library is linked.
inline AttentionPeerMaker attention_peer = nullptr;

}  // namespace trireme::kernels::bench
