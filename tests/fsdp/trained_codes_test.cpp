// TrainedCodes of one rank: scales from amaxes that are known and from those that are not, vectors beside the codes.
#include "trained_codes.h"

#include "trireme/ops/matmul/fp8.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace trireme {
namespace {

TEST(TrainedCodes, AMatrixOfSeveralTensorsHasOneScaleAndVectorsKeepTheirDtype) {
  UnitSpec spec;
  spec.name = "block";
  spec.trained = true;
  spec.parameters = {{"norm", {4}, {{"norm", 4}}, Init::kOnes, 0, false},
                     {"fused", {3, 4}, {{"q", 1}, {"k", 2}}, Init::kNormal, 0.1, true, /*linear=*/true}};
  TrainedCodes codes({&spec}, at::kCPU, at::kBFloat16);
  const UnitLayout layout = make_layout(spec, 1);
  std::vector<at::Tensor> tensors = {codes.vectors(0).narrow(0, 0, 4), {}};
  at::Tensor flat = at::zeros({layout.numel}, at::kFloat8_e4m3fn);
  TrainedShard shard;
  shard.master = at::zeros({layout.numel});
  shard.num_tensors = 3;
  for (const LayoutPiece& piece : pieces_in_range(spec, layout, 0, layout.numel))
    shard.ranges.push_back({piece.flat_begin, piece.flat_begin + piece.count, piece.tensor, true});
  codes.add(0, {layout, 0, flat, tensors}, shard);
  const at::Tensor norm = shard.master.narrow(0, layout.offsets[0], 4),
                   matrix = shard.master.narrow(0, layout.offsets[1], 12);
  norm.fill_(1.5);
  matrix.copy_(at::arange(12, at::kFloat) - 3);  // the largest magnitude is in the second tensor

  codes.update_scales(nullptr);
  codes.write(0);
  EXPECT_TRUE(tensors[0].eq(1.5).all().item<bool>());
  EXPECT_EQ(tensors[0].scalar_type(), at::kBFloat16);
  const at::Tensor inverse = codes.inverse_scales(0)[1];
  EXPECT_TRUE(inverse.equal(fp8_inverse_scale(at::full({}, 8.0f))));
  const at::Tensor values = flat.narrow(0, layout.offsets[1], 12).to(at::kFloat) * inverse;
  EXPECT_LE((values - matrix).abs().max().item<double>(), 8.0 / 16);
  EXPECT_EQ(values[11].item<float>(), 8.0f);

  // An optimizer that has seen the largest magnitudes says so, once.
  shard.amax.fill_(16);
  shard.amax_known = true;
  codes.update_scales(nullptr);
  EXPECT_TRUE(codes.inverse_scales(0)[1].equal(fp8_inverse_scale(at::full({}, 16.0f))));
  codes.update_scales(nullptr);
  EXPECT_TRUE(codes.inverse_scales(0)[1].equal(fp8_inverse_scale(at::full({}, 8.0f))));
}

}  // namespace
}  // namespace trireme
