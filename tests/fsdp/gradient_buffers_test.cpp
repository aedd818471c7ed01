// GradientBuffers of one rank: what arrives from autograd and from a matrix's sink, over micro-batches.
#include "gradient_buffers.h"

#include "mpi_test_main.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

class GradientBuffersTest : public testing::Test {
 protected:
  GradientBuffersTest() {
    spec_.name = "block";
    spec_.trained = true;
    spec_.parameters = {{"matrix", {2, 3}, {{"matrix", 2}}, Init::kNormal, 0.1, true, /*linear=*/true},
                        {"bias", {3}, {{"bias", 3}}, Init::kZeros, 0, false}};
    layout_ = make_layout(spec_, 1);
    shard_.master = at::zeros({layout_.numel});
    tensors_ = {at::zeros({2, 3}), at::zeros({3})};
    buffers_ = std::make_unique<GradientBuffers>(test_world().communicator(), nullptr, nullptr, nullptr,
                                                 GradientBuffers::Options{});
    buffers_->add(spec_, layout_, /*divided=*/false, tensors_, shard_);
  }
  void matrix_gradient(float value) {
    GradientSink& sink = *buffers_->sink(0, 0);
    const GradientTarget target = sink.target();
    if (target.adds)
      target.sum.add_(value);
    else
      target.sum.fill_(value);
    sink.written();
  }
  void bias_gradient(float value) { (tensors_[1] * value).sum().backward(); }
  at::Tensor part(size_t parameter) const {
    return shard_.gradient.narrow(0, layout_.offsets[parameter], spec_.parameters[parameter].numel());
  }

  UnitSpec spec_;
  UnitLayout layout_;
  TrainedShard shard_;
  std::vector<at::Tensor> tensors_;
  std::unique_ptr<GradientBuffers> buffers_;
};

TEST_F(GradientBuffersTest, SumsMicroBatchesAndClearsThePadding) {
  EXPECT_EQ(buffers_->sink(0, 1), nullptr);
  EXPECT_TRUE(tensors_[1].requires_grad());
  for (const bool last : {false, true}) {
    buffers_->begin_micro_batch(last);
    matrix_gradient(2);
    bias_gradient(3);
    EXPECT_FALSE(tensors_[1].grad().defined()) << "no second copy stays";
  }
  buffers_->finish();
  EXPECT_TRUE(part(0).eq(4).all().item<bool>());
  EXPECT_TRUE(part(1).eq(6).all().item<bool>());
  EXPECT_EQ(shard_.gradient.sum().item<double>(), 6 * 4 + 3 * 6);
  buffers_->clear();
  EXPECT_FALSE(shard_.gradient.defined());
}

TEST_F(GradientBuffersTest, AMissingOrSecondGradientIsAnError) {
  buffers_->begin_micro_batch(true);
  matrix_gradient(1);
  EXPECT_THROW(matrix_gradient(1), InternalError);
  EXPECT_THROW(buffers_->finish(), InternalError) << "the bias has none";
}

TEST_F(GradientBuffersTest, TheObserverSeesAndChangesEachGradientBeforeItIsReduced) {
  std::vector<std::string> seen;
  buffers_->observe([&](const ParameterSpec& parameter, const at::Tensor& gradient) {
    seen.push_back(parameter.name);
    gradient.mul_(10);
  });
  buffers_->begin_micro_batch(true);
  matrix_gradient(1);
  bias_gradient(2);
  buffers_->finish();
  EXPECT_EQ(seen, (std::vector<std::string>{"matrix", "bias"}));
  EXPECT_TRUE(part(0).eq(10).all().item<bool>());
  EXPECT_TRUE(part(1).eq(20).all().item<bool>());
}

TEST_F(GradientBuffersTest, AnObserverDoesNotChangeTheTypeOfASum) {
  buffers_ = std::make_unique<GradientBuffers>(test_world().communicator(), nullptr, nullptr, nullptr,
                                               GradientBuffers::Options{.reduce_dtype = at::kBFloat16});
  buffers_->add(spec_, layout_, /*divided=*/false, tensors_, shard_);
  buffers_->observe([](const ParameterSpec&, const at::Tensor&) {});
  for (const bool last : {false, true}) {
    buffers_->begin_micro_batch(last);
    const GradientTarget target = buffers_->sink(0, 0)->target();
    EXPECT_EQ(target.sum.scalar_type(), at::kFloat) << "a sum over micro-batches";
    EXPECT_EQ(target.adds, last);
    target.sum.fill_(1);
    buffers_->sink(0, 0)->written();
    bias_gradient(1);
  }
  buffers_->finish();
}

TEST_F(GradientBuffersTest, ClippingReadsTheWholeSumOnce) {
  int calls = 0;
  buffers_->clip_before_reduction([&](const std::vector<at::Tensor>& gradients) {
    ++calls;
    EXPECT_EQ(gradients.size(), 1U);
    EXPECT_NEAR(gradients.at(0).square().sum().item<double>(), 6 * 16 + 3 * 36, 1e-3);
    return at::full({}, 0.5f);
  });
  for (const bool last : {false, true}) {
    buffers_->begin_micro_batch(last);
    matrix_gradient(2);
    bias_gradient(3);
  }
  buffers_->finish();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(part(0).eq(2).all().item<bool>());
  EXPECT_TRUE(part(1).eq(3).all().item<bool>());
}

}  // namespace
}  // namespace trireme
