// Our CUDA kernels, called through their operations, against the same operations in fp64 on the CPU. Each test first
// fills and frees blocks of the outputs' sizes with NaN, which the caching allocator then reuses for the outputs.
#include "activations.h"
#include "block_testing.h"
#include "norm_rows.h"
#include "trireme/ops/dispatch.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/embedding.h"
#include "trireme/ops/layers/loss_head.h"
#include "trireme/ops/matmul/nf4.h"
#include "trireme/ops/rope.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#ifdef TRIREME_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace trireme {
namespace {

class KernelsGpu : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  }
  at::Tensor random(at::IntArrayRef shape) const {
    return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(GetParam());
  }
  static void poison(int64_t bytes) {
    for (int i = 0; i < 4; ++i)
      (void)at::full({bytes / 4}, std::numeric_limits<float>::quiet_NaN(),
                     at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  }
  /// Half a unit in the last place of the largest value, for a result rounded once.
  double tolerance() const { return GetParam() == at::kFloat ? 2e-6 : GetParam() == at::kHalf ? 1e-3 : 8e-3; }
  void expect_close(const at::Tensor& got, const at::Tensor& want) const {
    const at::Tensor host = got.detach().to(at::kCPU, at::kDouble), expected = want.detach().to(at::kCPU, at::kDouble);
    ASSERT_EQ(host.sizes(), expected.sizes());
    const double scale = std::max(1e-3, expected.abs().max().item<double>());
    const double error = (host - expected).abs().max().item<double>() / scale;
    EXPECT_LT(error, tolerance()) << c10::toString(GetParam());  // NaN fails too
  }
};

TEST_P(KernelsGpu, Nf4HasTheBitsOfTheComposition) {
  for (const int64_t count : {64, 4096, 64 * 300 * 257}) {
    const at::Tensor values = random({count}), host = values.cpu();
    const auto make = [&](const at::Tensor& from) {
      const auto bytes = from.options().dtype(at::kByte), fp32 = from.options().dtype(at::kFloat);
      return std::pair(at::empty({nf4_code_bytes(count)}, bytes),
                       Nf4Scales{at::empty({nf4_blocks(count)}, bytes), at::empty({nf4_nested_blocks(count)}, fp32),
                                 at::empty({}, fp32)});
    };
    const auto [codes, scales] = make(values);
    const auto [host_codes, host_scales] = make(host);
    const at::Tensor absmax = nf4_quantize_(codes, values), host_absmax = nf4_quantize_(host_codes, host);
    EXPECT_TRUE(at::equal(codes.cpu(), host_codes) && at::equal(absmax.cpu(), host_absmax));
    nf4_quantize_scales_(scales, absmax);
    at::Tensor got = at::empty_like(values), want = at::empty_like(host);
    poison(static_cast<int64_t>(values.nbytes()));
    nf4_dequantize_(got, codes, scales);
    nf4_dequantize_(want, host_codes, {scales.absmax.cpu(), scales.nested.cpu(), scales.offset.cpu()});
    EXPECT_TRUE(at::equal(got.cpu(), want)) << count;
  }
}

bool same(const at::Tensor& a, const at::Tensor& b) { return a.view(at::kByte).equal(b.view(at::kByte)); }

// As for gates, below: maxima from the kernels of RMS norms and of row codes.
TEST_P(KernelsGpu, NormedAndQuantizedOperandsHaveTheCodesOfTheirPlainForms) {
  for (const auto& [tokens, width] : std::vector<std::pair<int64_t, int64_t>>{
           {16, 32}, {400, 1040}, {1104, 3584}, {48, 4096}, {304, 5120}, {16, 8192}, {32, 16384}, {16, 16400}})
    for (const bool hostile : {false, true}) {
      SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(width) + (hostile ? ", hostile" : ""));
      const at::Tensor x = random({tokens, width}), weight = random({width});
      x.select(1, 3).zero_();
      if (hostile) {
        x[5][7].fill_(std::nan(""));
        x[tokens - 1][9].fill_(-std::numeric_limits<double>::infinity());
        weight[11].fill_(std::numeric_limits<double>::infinity());
      }
      poison(static_cast<int64_t>(x.nbytes()));
      const auto all = [&](const OperandForms& wanted) {
        return std::vector<Operand>{rms_norm_forward(x, rms_norm(weight, 1e-5), wanted).y,
                                    rms_norm_forward(x, rms_norm_plus_one(weight, 1e-5), wanted).y,
                                    make_operand(x, wanted)};
      };
      for (const Operand& made : all({.plain = true, .rows = true, .columns = true})) {
        const Fp8Rows rows = quantize_rows(made.plain), columns = quantize_columns(made.plain);
        EXPECT_TRUE(same(made.rows.data, rows.data) && same(made.rows.inverse_scale, rows.inverse_scale));
        EXPECT_TRUE(same(made.columns.data, columns.data));
        EXPECT_TRUE(same(made.columns.inverse_scale, columns.inverse_scale));
        EXPECT_FALSE(made.maxima.columns.defined());
      }
      for (const CurrentCodes format : {CurrentCodes::kE4m3, CurrentCodes::kE5m2})
        for (const Operand& made : all({.plain = true, .current = format})) {
          const Operand codes = make_current_codes(made.plain, format, false);
          EXPECT_TRUE(same(made.codes.data, codes.codes.data));
          EXPECT_TRUE(same(made.codes.transposed, codes.codes.transposed));
          EXPECT_TRUE(same(made.codes.inverse.view({1}), codes.codes.inverse.view({1})));
        }
    }
#ifdef TRIREME_WITH_CUDA
  if (GetParam() == at::kFloat || kernel_class(at::Device(at::kCUDA, 0)) != KernelClass::kHopper) return;
  const at::Tensor x = random({16, 3584}), weight = random({3584});
  for (const Norm& norm : {rms_norm(weight, 1e-5), rms_norm_plus_one(weight, 1e-5)})
    EXPECT_TRUE(
        launch::rms_norm_forward(x, norm, {.plain = true, .current = CurrentCodes::kE4m3}).y.maxima.amax.defined());
  at::Tensor found;
  (void)quantize_rows(x, 1, &found);
  EXPECT_TRUE(found.defined());
#endif
}

// Columns and codes of a gate's operands are made of maxima that its kernel may have found: the same bits as from the
// plain form alone.
TEST_P(KernelsGpu, GatedOperandsHaveTheCodesOfTheirPlainForms) {
  for (const auto& [tokens, f] : std::vector<std::pair<int64_t, int64_t>>{
           {16, 32}, {400, 1040}, {48, 8208}, {304, 11008}, {32, 16384}, {16, 18944}, {320, 18944}, {32, 21520}})
    for (const Activation form : {Activation::kSwiglu, Activation::kGegluTanh})
      for (const bool hostile : {false, true}) {
        SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(f) + (hostile ? ", hostile" : ""));
        const at::Tensor gate_up = random({tokens, 2 * f}), dy = random({tokens, f});
        gate_up.select(1, 3).zero_();
        if (hostile) {
          gate_up[5][7].fill_(std::nan(""));
          gate_up[tokens - 1][f + 9].fill_(-std::numeric_limits<double>::infinity());
          dy[2][f - 1].fill_(std::numeric_limits<double>::infinity());
        }
        poison(static_cast<int64_t>(gate_up.nbytes()));
        const auto both = [&](const OperandForms& wanted) {
          return std::vector<Operand>{gated_forward(gate_up, form, wanted, false).y,
                                      gated_backward(dy, gate_up, {}, form, wanted)};
        };
        for (const Operand& made : both({.plain = true, .rows = true, .columns = true})) {
          const Fp8Rows columns = quantize_columns(made.plain);
          EXPECT_TRUE(same(made.columns.data, columns.data));
          EXPECT_TRUE(same(made.columns.inverse_scale, columns.inverse_scale));
          EXPECT_FALSE(made.maxima.columns.defined());
        }
        for (const CurrentCodes format : {CurrentCodes::kE4m3, CurrentCodes::kE5m2})
          for (const Operand& made : both({.plain = true, .column_sums = true, .current = format})) {
            const Operand codes = make_current_codes(made.plain, format, true);
            EXPECT_TRUE(same(made.codes.data, codes.codes.data));
            EXPECT_TRUE(same(made.codes.transposed, codes.codes.transposed));
            EXPECT_TRUE(same(made.codes.inverse.view({1}), codes.codes.inverse.view({1})));
            EXPECT_TRUE(same(made.column_sums, codes.column_sums));
          }
      }
#ifdef TRIREME_WITH_CUDA
  if (GetParam() == at::kFloat || kernel_class(at::Device(at::kCUDA, 0)) != KernelClass::kHopper) return;
  const at::Tensor gate_up = random({16, 2 * 18944}), dy = random({16, 18944});
  const OperandForms rows{.plain = true, .rows = true, .columns = true},
      current{.plain = true, .current = CurrentCodes::kE4m3};
  EXPECT_TRUE(launch::gated_forward(gate_up, Activation::kSwiglu, rows, false).y.maxima.columns.defined());
  EXPECT_TRUE(launch::gated_backward(dy, gate_up, {}, Activation::kSwiglu, rows).maxima.columns.defined());
  EXPECT_TRUE(launch::gated_forward(gate_up, Activation::kSwiglu, current, false).y.maxima.amax.defined());
  EXPECT_TRUE(launch::gated_backward(dy, gate_up, {}, Activation::kSwiglu, current).maxima.amax.defined());
#endif
}

TEST_P(KernelsGpu, DropoutMakesTheSameDecisionsAsTheTensorOperations) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{1, 1, 1}, {3, 5, 7}, {2, 17, 256}, {1, 64, 4096}, {4, 33, 1000}}) {
    const at::Tensor x = random(shape);
    Dropout dropout{0.1, 42,
                    at::arange(shape[0], at::TensorOptions(at::kCUDA).dtype(at::kLong)) * int64_t{5'000'000'000}};
    poison(static_cast<int64_t>(x.nbytes()) + 512);
    const at::Tensor ours = apply_dropout(x, dropout.at(9)), plain = apply_dropout_tensor_ops(x, dropout.at(9));
    EXPECT_TRUE(ours.eq(0).equal(plain.eq(0)));
    expect_close(ours, plain);
    at::Tensor sum = random(shape);
    const at::Tensor before = sum.clone();
    expect_close(add_dropout(before, x, dropout.at(9)), before.to(at::kDouble) + plain.to(at::kDouble));
    add_dropout_(sum, x, dropout.at(9));
    expect_close(sum, before.to(at::kDouble) + plain.to(at::kDouble));
    EXPECT_TRUE(apply_dropout(x, dropout.at(9)).equal(ours)) << "not deterministic";
  }
}

// Adapters of several ranks on one input, each with its own mask: ranks that the fused kernels group or pad with zeros,
// and inputs for which the composition runs (fp32, and samples of 48 tokens).
TEST_P(KernelsGpu, LoraWithDropout) {
  struct Shape {
    int64_t samples, tokens, in;
    std::vector<int64_t> ranks;
  };
  for (const Shape& s : {Shape{2, 64, 192, {16, 16, 16}},
                         {1, 96, 320, {8, 8, 4, 16, 8}},
                         {3, 32, 64, {32, 16, 64}},
                         {2, 48, 128, {16}}}) {
    constexpr int64_t kRows = 40;
    const int64_t adapters = static_cast<int64_t>(s.ranks.size());
    const at::Tensor ids =
        at::arange(s.samples, at::TensorOptions(at::kCUDA).dtype(at::kLong)) * int64_t{5'000'000'000};
    std::vector<at::Tensor> leaves = {random({s.samples * s.tokens, s.in}), random({adapters * kRows, s.in}) * 0.1};
    for (const int64_t rank : s.ranks)
      leaves.push_back(random({rank, s.in}) * 0.1), leaves.push_back(random({kRows, rank}) * 0.1);
    const at::Tensor dy = random({s.samples * s.tokens, adapters * kRows});
    const auto run = [&](at::Device device, at::ScalarType dtype, const auto& layer) {
      std::vector<at::Tensor> t;
      for (const at::Tensor& leaf : leaves) t.push_back(leaf.to(device, dtype).detach());
      for (size_t i = 0; i < t.size(); ++i) t[i].requires_grad_(i != 1);
      std::vector<LoraAdapter> list;
      for (size_t i = 0; i < s.ranks.size(); ++i)
        list.push_back(
            {t[2 + 2 * i], t[3 + 2 * i], static_cast<int64_t>(i) * kRows, 7 + i, 1.5 + static_cast<double>(i)});
      const at::Tensor y = layer(t[0], t[1], list, Dropout{0.1, 42, ids.to(device)});
      (y * dy.to(device, dtype)).sum().backward();
      std::vector<at::Tensor> results = {y};
      for (size_t i = 0; i < t.size(); ++i)
        if (i != 1) results.push_back(t[i].grad());
      return results;
    };
    poison(s.samples * s.tokens * s.in * 2);
    const auto layer = [](const at::Tensor& x, const at::Tensor& w, const std::vector<LoraAdapter>& list,
                          const Dropout& dropout) {
      return linear_residual(x, at::zeros({x.size(0), w.size(0)}, x.options().requires_grad(false)),
                             {{w, {}}, {}, {list, dropout}});
    };
    const auto reference = [](const at::Tensor& x, const at::Tensor& w, const std::vector<LoraAdapter>& list,
                              const Dropout& dropout) {
      return testing::linear_reference(x, {{w, {}}, {}, {list, dropout}});
    };
    const auto ours = run(at::kCUDA, GetParam(), layer), exact = run(at::kCPU, at::kDouble, reference);
    for (size_t i = 0; i < ours.size(); ++i) {
      SCOPED_TRACE("result " + std::to_string(i) + ", " + std::to_string(s.tokens) + " tokens");
      // A gradient has three roundings and sums of up to 200 products.
      const at::Tensor host = ours[i].detach().to(at::kCPU, at::kDouble), want = exact[i].detach();
      ASSERT_EQ(host.sizes(), want.sizes());
      const double error = (host - want).abs().max().item<double>() / want.abs().max().item<double>();
      EXPECT_LT(error, 3 * tolerance());
    }
  }
}

TEST_P(KernelsGpu, RopeSplitAndItsInverse) {
  struct Shape {
    int64_t b, s, n, k, h;
  };
  for (const Shape& shape : {Shape{1, 1, 1, 1, 16}, Shape{2, 37, 4, 2, 64}, Shape{1, 300, 8, 8, 128},
                             Shape{1, 65, 6, 1, 32}, Shape{1, 9, 2, 1, 20}}) {
    const int64_t width = (shape.n + 2 * shape.k) * shape.h;
    const at::Tensor positions = at::arange(shape.s, at::TensorOptions(at::kLong)).repeat({shape.b}) * 7;
    const RopeTable table = rope_table({}, shape.h, positions.to(at::kCUDA), {}, GetParam());
    const at::Tensor x = random({shape.b * shape.s, width}).requires_grad_(true);
    const at::Tensor copy = x * 1;  // the split rotates in place
    const auto [q, k, v] = rope_split_qkv_(copy, table, shape.n, shape.k, shape.h);
    const at::Tensor dq = at::randn_like(q), dk = at::randn_like(k), dv = at::randn_like(v);
    const at::Tensor d = torch::autograd::grad({q, k, v}, {x}, {dq, dk, dv})[0];

    const at::Tensor wide = x.detach().to(at::kCPU, at::kDouble).requires_grad_(true);
    const at::Tensor heads = wide.view({-1, shape.n + 2 * shape.k, shape.h});
    const at::Tensor cos = table.cos.to(at::kCPU, at::kDouble).unsqueeze(1),
                     sin = table.sin.to(at::kCPU, at::kDouble).unsqueeze(1);
    const auto turn = [&](const at::Tensor& y) {
      const at::Tensor a = y.narrow(-1, 0, shape.h / 2), b = y.narrow(-1, shape.h / 2, shape.h / 2);
      return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
    };
    const at::Tensor wq = turn(heads.narrow(1, 0, shape.n)), wk = turn(heads.narrow(1, shape.n, shape.k)),
                     wv = heads.narrow(1, shape.n + shape.k, shape.k);
    const auto host = [](const at::Tensor& t) { return t.to(at::kCPU, at::kDouble); };
    const at::Tensor dw = torch::autograd::grad({wq, wk, wv}, {wide}, {host(dq), host(dk), host(dv)})[0];
    expect_close(q, wq);
    expect_close(k, wk);
    expect_close(v, wv);
    expect_close(d, dw);
  }
}

at::Tensor on_host(const at::Tensor& x) { return x.detach().to(at::kCPU, at::kDouble); }

/// || a - b || / || b ||.
double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((on_host(a) - on_host(b)).norm() / on_host(b).norm().clamp_min(1e-30)).item<double>();
}

#ifdef TRIREME_WITH_CUDA
/// During its lifetime LibTorch rejects every synchronisation of the host with the GPU.
struct NoHostSynchronisation {
  NoHostSynchronisation() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoHostSynchronisation() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};
#else
struct NoHostSynchronisation {};  // a build without CUDA uses no GPU
#endif

TEST_P(KernelsGpu, LossHeadAndItsGradients) {
  struct Shape {
    int64_t tokens, width, vocabulary;
  };
  for (const Shape& shape :
       {Shape{1, 8, 16}, Shape{37, 64, 1000}, Shape{65, 40, 1003}, Shape{300, 128, 32000}, Shape{600, 16, 200000}}) {
    SCOPED_TRACE(std::to_string(shape.tokens) + " x " + std::to_string(shape.vocabulary));
    // Logits of about 1: with larger ones, 16-bit rounding would dominate all differences.
    const at::Tensor hidden = random({shape.tokens, shape.width}).requires_grad_(true),
                     weight = (random({shape.vocabulary, shape.width}) / std::sqrt(static_cast<double>(shape.width)))
                                  .detach()
                                  .requires_grad_(true);
    const at::Tensor targets = (at::arange(shape.tokens, at::TensorOptions(at::kCUDA).dtype(at::kLong)) * 7919 + 3)
                                   .remainder(shape.vocabulary);
    at::Tensor weights = at::rand({shape.tokens}, at::TensorOptions(at::kCUDA).dtype(at::kFloat)) * 1e-3 + 1e-4;
    if (shape.tokens > 2) weights.narrow(0, 1, 2).zero_();
    at::Tensor d_loss = at::full({}, 3.0, weights.options());
    poison(64 << 20);
    at::Tensor loss;
    std::vector<at::Tensor> d;
    {
      [[maybe_unused]] const NoHostSynchronisation watch;
      loss = loss_head(hidden, weight, targets, weights);
      d = torch::autograd::grad({loss}, {hidden, weight}, {d_loss});
    }
    const at::Tensor h = on_host(hidden).requires_grad_(true), w = on_host(weight).requires_grad_(true);
    const at::Tensor expected = loss_head(h, w, targets.cpu(), on_host(weights));
    const auto e = torch::autograd::grad({expected}, {h, w}, {on_host(d_loss)});
    const double relative = GetParam() == at::kFloat ? 2e-5 : GetParam() == at::kHalf ? 2e-3 : 1.5e-2;
    EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1.0, relative);
    EXPECT_LT(distance(d[0], e[0]), relative);
    EXPECT_LT(distance(d[1], e[1]), relative);
    // Gradients with a frozen head and with a frozen body.
    const at::Tensor only_hidden =
        torch::autograd::grad({loss_head(hidden, weight.detach(), targets, weights)}, {hidden}, {d_loss})[0];
    EXPECT_LT(distance(only_hidden, e[0]), relative);
    // In chunks of the same size, of 256 MiB, the bits are the same.
    const at::Tensor in_chunks = loss_head(hidden, weight, targets, weights, {}, {}, {}, nullptr, loss_head_logits(1));
    EXPECT_TRUE(only_hidden.equal(torch::autograd::grad({in_chunks}, {hidden}, {d_loss})[0]));
    const at::Tensor only_weight =
        torch::autograd::grad({loss_head(hidden.detach(), weight, targets, weights)}, {weight}, {d_loss})[0];
    EXPECT_TRUE(only_weight.equal(d[1])) << "not deterministic";
    for (const bool adds : {false, true}) {
      const at::Tensor before = d[1].to(at::kFloat);
      testing::CountingSink sink(before.clone(), adds);
      const at::Tensor h_with = torch::autograd::grad(
          {loss_head(hidden, weight.detach(), targets, weights, {}, {}, {}, &sink)}, {hidden}, {d_loss})[0];
      EXPECT_TRUE(h_with.equal(d[0]));
      EXPECT_LT(distance(adds ? sink.result.sum - before : sink.result.sum, e[1]), relative);
      EXPECT_EQ(sink.writes, 1);
    }
    at::NoGradGuard no_grad;
    EXPECT_NEAR(loss_head(hidden, weight, targets, weights).item<double>() / loss.item<double>(), 1.0, 1e-6);
  }
}

TEST_P(KernelsGpu, LossHeadWithSmoothedLabels) {
  const int64_t tokens = 300, width = 64;
  for (const int64_t vocabulary : {1003, 32000}) {
    const LabelSmoothing smoothing{0.1, vocabulary - 3};
    const at::Tensor hidden = random({tokens, width}).requires_grad_(true),
                     weight = (random({vocabulary, width}) / 8).detach().requires_grad_(true);
    const at::Tensor targets =
        (at::arange(tokens, at::TensorOptions(at::kCUDA).dtype(at::kLong)) * 7919 + 3).remainder(smoothing.vocabulary);
    const at::Tensor weights = at::rand({tokens}, at::TensorOptions(at::kCUDA).dtype(at::kFloat)) + 0.1;
    const at::Tensor loss = loss_head(hidden, weight, targets, weights, {}, {}, smoothing);
    const auto d = torch::autograd::grad({loss}, {hidden, weight});
    const at::Tensor h = on_host(hidden).requires_grad_(true), w = on_host(weight).requires_grad_(true);
    const at::Tensor expected = loss_head(h, w, targets.cpu(), on_host(weights), {}, {}, smoothing);
    const auto e = torch::autograd::grad({expected}, {h, w});
    const double relative = GetParam() == at::kFloat ? 2e-5 : GetParam() == at::kHalf ? 3e-3 : 1.5e-2;
    EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1.0, relative);
    EXPECT_LT(distance(d[0], e[0]), relative);
    EXPECT_LT(distance(d[1], e[1]), relative);
  }
}

TEST_P(KernelsGpu, LossHeadWithoutTargetsIsZero) {
  const at::Tensor hidden = random({9, 16}).requires_grad_(true), weight = random({100, 16}).requires_grad_(true);
  const auto options = at::TensorOptions(at::kCUDA);
  const at::Tensor loss = loss_head(hidden, weight, at::full({9}, -100, options.dtype(at::kLong)),
                                    at::zeros({9}, options.dtype(at::kFloat)));
  const auto d = torch::autograd::grad({loss}, {hidden, weight});
  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_EQ(d[0].abs().max().item<double>(), 0);
  EXPECT_EQ(d[1].abs().max().item<double>(), 0);
}

TEST_P(KernelsGpu, EmbeddingAndItsGradient) {
  struct Shape {
    int64_t b, s, vocabulary, width;
  };
  for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{3, 5, 7, 9}, Shape{2, 300, 50, 64}, Shape{1, 2000, 3000, 136},
                             Shape{2, 37, 100, 4096}}) {
    const at::Tensor table = random({shape.vocabulary, shape.width}).requires_grad_(true);
    const at::Tensor ids =
        at::randint(shape.vocabulary, {shape.b, shape.s}, at::TensorOptions(at::kCUDA).dtype(at::kLong))
            .clamp_max(shape.vocabulary / 2 + 1);
    const at::Tensor clamped = ids.clamp_max(shape.vocabulary - 1), dy = random({shape.b, shape.s, shape.width});
    poison(static_cast<int64_t>(dy.nbytes()) + 512);
    at::Tensor y, d;
    {
      [[maybe_unused]] const NoHostSynchronisation watch;
      y = embed(table, clamped);
      d = torch::autograd::grad({y}, {table}, {dy})[0];
    }
    const at::Tensor wide = on_host(table).requires_grad_(true), expected = at::embedding(wide, clamped.cpu());
    EXPECT_TRUE(on_host(y).equal(expected.detach()));
    const at::Tensor exact = torch::autograd::grad({expected}, {wide}, {on_host(dy)})[0];
    expect_close(d, exact);
    for (const bool adds : {false, true}) {
      testing::CountingSink sink(at::ones(table.sizes(), table.options().dtype(at::kFloat)), adds);
      embed(table.detach(), clamped, &sink).backward(dy);
      const at::Tensor got = sink.result.sum - (adds ? 1 : 0);
      // Our kernel does not round the sum to the dtype of dy.
      const double relative = kernel_class({at::kCUDA, 0}) == KernelClass::kNone ? tolerance() : 2e-6;
      EXPECT_LT((on_host(got) - exact).abs().max().item<double>(), relative * (1 + exact.abs().max().item<double>()));
    }
    const auto padding = clamped.flatten()[0].item<int64_t>();
    exact.select(0, padding).zero_();
    expect_close(torch::autograd::grad({embed(table, clamped, nullptr, padding)}, {table}, {dy})[0], exact);
    // Rows of a matrix, some of them selected twice.
    const at::Tensor rows = clamped.view({-1});
    EXPECT_TRUE(gather_rows(table, rows).equal(y.view({-1, shape.width})));
  }
}

TEST_P(KernelsGpu, BertEmbeddingAndItsGradients) {
  for (const int64_t width : {24, 768, 1024}) {
    for (const double p : {0.0, 0.1}) {
      const int64_t b = 3, s = 50, vocabulary = 200, padding = p > 0 ? 7 : -1;
      const auto ids = [&](int64_t below) {
        return at::randint(below, {b * s}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
      };
      const std::vector<at::Tensor> tables = {random({vocabulary, width}), random({64, width}), random({2, width}),
                                              random({width}), random({width})};
      for (const at::Tensor& t : tables) t.requires_grad_(true);
      const at::Tensor words = ids(vocabulary), types = ids(2), dy = random({b * s, width}),
                       positions = at::arange(s, words.options()).repeat({b});
      const at::Tensor samples = at::arange(b, words.options()) * int64_t{5'000'000'000};
      poison(static_cast<int64_t>(dy.nbytes()) + 512);
      const at::Tensor y = bert_embedding({tables[0], tables[1], tables[2], tables[3], tables[4], nullptr, padding},
                                          {words, positions, types}, 1e-5, {p, 42, samples, 9});
      const auto d = torch::autograd::grad({y}, tables, {dy});

      std::vector<at::Tensor> wide;
      for (const at::Tensor& t : tables) wide.push_back(on_host(t).requires_grad_(true));
      const at::Tensor expected =
          bert_embedding({wide[0], wide[1], wide[2], wide[3], wide[4], nullptr, padding},
                         {words.cpu(), positions.cpu(), types.cpu()}, 1e-5, {p, 42, samples.cpu(), 9});
      const auto e = torch::autograd::grad({expected}, wide, {on_host(dy)});
      const double bound = GetParam() == at::kFloat ? 2e-6 : GetParam() == at::kHalf ? 2e-3 : 1.2e-2;
      EXPECT_LT(distance(y, expected), bound);
      EXPECT_TRUE(y.eq(0).cpu().equal(expected.eq(0)) || p == 0.0);
      for (size_t i = 0; i < d.size(); ++i) EXPECT_LT(distance(d[i], e[i]), bound) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KernelsGpu, ::testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& each) { return std::string(c10::toString(each.param)); });

}  // namespace
}  // namespace trireme
