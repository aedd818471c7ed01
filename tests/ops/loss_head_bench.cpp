// The time of the loss head compared with that of its matrix products alone, and the memory that it uses beyond its
// results, on one GPU.
//
//   loss_head_bench [TOKENS WIDTH VOCABULARY]        default 8192 8192 32000, bf16
#include "trireme/ops/layers/loss_head.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

using namespace trireme;

namespace {

double milliseconds(const std::function<void()>& work) {
  constexpr int kRepeats = 4;
  const c10::Device device(at::kCUDA, 0);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device);
  c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  for (int i = 0; i < kRepeats; ++i) work();
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end) / kRepeats;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int64_t allocated(bool peak) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  const auto& bytes = stats.allocated_bytes[0];
  return peak ? bytes.peak : bytes.current;
}

void compare(const char* what, int64_t tokens, int64_t width, int64_t vocabulary, bool trained) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor hidden = at::randn({tokens, width}, options).requires_grad_(true),
                   weight = (at::randn({vocabulary, width}, options) * 0.02).requires_grad_(trained);
  const at::Tensor targets = at::randint(vocabulary, {tokens}, options.dtype(at::kLong)),
                   weights = at::full({tokens}, 1.0 / static_cast<double>(tokens), options.dtype(at::kFloat));
  const at::Tensor ones = at::ones({}, weights.options());
  const auto head = [&] {
    std::vector<at::Tensor> inputs = {hidden};
    if (trained) inputs.push_back(weight);
    torch::autograd::grad({loss_head(hidden, weight, targets, weights)}, inputs, {ones});
  };
  std::vector<double> alone, whole;
  int64_t extra = 0;
  {
    head();
    c10::cuda::device_synchronize();
    const int64_t results = hidden.numel() * 2 + (trained ? weight.numel() * 4 : 0), before = allocated(false);
    c10::cuda::CUDACachingAllocator::resetPeakStats(0);
    const at::Tensor loss = loss_head(hidden, weight, targets, weights);
    extra = allocated(true) - before - results;
  }
  {
    at::Tensor logits = at::randn({tokens, vocabulary}, options), d_hidden = at::empty_like(hidden).detach(),
               d_weight = at::empty({vocabulary, width}, options);
    const at::Tensor h = hidden.detach(), w = weight.detach(),
                     d_logits = at::randn({tokens, vocabulary}, options) * 1e-4;
    const auto products = [&] {
      at::mm_out(logits, h, w.t());
      at::mm_out(d_hidden, d_logits, w);
      if (trained) at::mm_out(d_weight, d_logits.t(), h);
    };
    for (int round = 0; round < 9; ++round) {
      alone.push_back(milliseconds(products));
      whole.push_back(milliseconds(head));
    }
  }
  std::printf(
      "%s, %lld tokens x %lld x %lld: products %.3f ms, loss head %.3f ms, ratio %.3f, extra "
      "memory %.0f MB\n",
      what, static_cast<long long>(tokens), static_cast<long long>(width), static_cast<long long>(vocabulary),
      median(alone), median(whole), median(whole) / median(alone), static_cast<double>(extra) / 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 1 && argc != 4) return std::fprintf(stderr, "usage: loss_head_bench [TOKENS WIDTH VOCABULARY]\n"), 2;
  const int64_t tokens = argc == 4 ? std::atoll(argv[1]) : 8192, width = argc == 4 ? std::atoll(argv[2]) : 8192,
                vocabulary = argc == 4 ? std::atoll(argv[3]) : 32000;
  compare("frozen head", tokens, width, vocabulary, false);
  compare("trained head", tokens, width, vocabulary, true);
  return 0;
}
