#include "trireme/fsdp/layout.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

UnitSpec unit() {
  UnitSpec spec;
  spec.name = "u";
  spec.parameters.push_back({"a", {3, 50}, {{"a.q", 1}, {"a.k", 2}}, Init::kNormal, 0.02, true});
  spec.parameters.push_back({"b", {7}, {{"b", 7}}, Init::kOnes, 0, false});
  return spec;
}

TEST(Layout, ParametersStartAlignedAndShardsAreEven) {
  for (const int shards : {1, 2, 3, 8}) {
    const UnitLayout layout = make_layout(unit(), shards);
    EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 256}));
    EXPECT_EQ(layout.numel % (UnitLayout::kAlignment * shards), 0);
    EXPECT_EQ(layout.shard_numel * shards, layout.numel);
    EXPECT_GE(layout.numel, 256 + 7);
  }
}

TEST(Layout, PiecesOfAllShardsCoverEveryTensorElementOnce) {
  for (const int shards : {1, 2, 3, 5}) {
    const UnitSpec spec = unit();
    const UnitLayout layout = make_layout(spec, shards);
    std::vector<std::vector<int>> seen = {std::vector<int>(50, 0), std::vector<int>(100, 0), std::vector<int>(7, 0)};
    for (int shard = 0; shard < shards; ++shard) {
      for (const LayoutPiece& piece :
           pieces_in_range(spec, layout, shard * layout.shard_numel, (shard + 1) * layout.shard_numel)) {
        EXPECT_GE(piece.flat_begin, shard * layout.shard_numel);
        EXPECT_LE(piece.flat_begin + piece.count, (shard + 1) * layout.shard_numel);
        for (int64_t i = 0; i < piece.count; ++i) ++seen[piece.tensor][piece.tensor_begin + i];
      }
    }
    for (const auto& tensor : seen)
      for (const int count : tensor) EXPECT_EQ(count, 1);
  }
}

TEST(Layout, FusedPartsLieBehindEachOther) {
  const UnitSpec spec = unit();
  const auto pieces = pieces_in_range(spec, make_layout(spec, 1), 0, 1 << 20);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1].flat_begin, pieces[0].flat_begin + pieces[0].count);
  EXPECT_EQ(pieces[1].tensor, 1);
}

}  // namespace
}  // namespace trireme
