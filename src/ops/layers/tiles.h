#pragma once
// Private to ops/: a node that goes through its tokens in tiles, so that the memory that it works in does not grow with
// the tokens. A node is then a loop over the tiles of an object that does the work for some rows:
//
//   forward    y = by_tiles(tiles, [&](const Tile& tile) { ... return the tile's rows of y; });
//   backward   TileGradients sums(gradients, tiles.size());
//              dx = by_tiles(tiles, [&](const Tile& tile) { ... backward of the rows with sums.of_tile() ...; });
//              sums.finish();
//
// One tile is the whole: it has the bits of the node without tiles.

#include "trireme/nn/autograd_node.h"
#include "trireme/nn/weight.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <vector>

namespace trireme {

class LinearLayer;

struct Tile {
  int64_t begin = 0, count = 0;
  at::Tensor of(const at::Tensor& rows) const { return rows.defined() ? rows.narrow(0, begin, count) : at::Tensor(); }
};

/// Tiles of at most `most` tokens, 0: of all. `counts`: numbers of samples of the node's dropouts, 0: no dropout. A
/// tile is a part of one of the fewest samples, or has whole ones: dropout counts positions in a sample.
std::vector<Tile> cut_tiles(int64_t tokens, int64_t most, std::initializer_list<int64_t> counts);

/// Joins the rows that f(tile) returns for each tile; undefined if they are.
template <class F>
at::Tensor by_tiles(const std::vector<Tile>& tiles, const F& f) {
  if (tiles.size() == 1) return f(tiles[0]);
  at::Tensor whole;
  for (const Tile& tile : tiles) {
    const at::Tensor rows = f(tile);
    if (!rows.defined()) continue;
    if (!whole.defined()) whole = rows.new_empty({tiles.back().begin + tiles.back().count, rows.size(1)});
    tile.of(whole).copy_(rows);
  }
  return whole;
}

/// Adds up the gradients of a node's parameters over its tiles: in fp32 (fp64 for fp64), rounded once at the end. The
/// gradient of a matrix with a sink is added in the sink's target, or if that has 16 bits in an fp32 copy of it.
class TileGradients {
 public:
  TileGradients(Gradients& whole, size_t tiles) : whole_(whole), several_(tiles > 1) {}

  /// Has the layer of one tile write its weight gradient to the sum.
  void attach(LinearLayer& layer);
  /// Calls f(gradients of the tile's parameters); returns its result.
  template <class F>
  auto add(const F& f) {
    if (!several_) return f(whole_);
    Gradients tile = whole_.empty_copy();
    auto result = f(tile);
    add_values(tile.take());
    return result;
  }
  /// After the last tile.
  void finish();

 private:
  /// The sink of one matrix in each tile.
  struct Sum final : GradientSink {
    explicit Sum(GradientSink* whole_sink) : whole(whole_sink) {}
    GradientTarget target() override;
    void written() override {}
    void finish();
    GradientSink* whole;
    GradientTarget result;  // of `whole`
    at::Tensor wide;        // fp32, if the result has 16 bits
  };
  void add_values(variable_list values);

  Gradients& whole_;
  bool several_;
  std::deque<Sum> sums_;  // one per matrix
  variable_list values_;  // one per input
  std::vector<at::ScalarType> types_;
};

}  // namespace trireme
