#include "layers/tiles.h"

#include "layers/linear_layer.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

std::vector<Tile> cut_tiles(int64_t tokens, int64_t most, std::initializer_list<int64_t> counts) {
  if (most == 0 || most >= tokens) return {{0, tokens}};
  int64_t samples = 0;
  for (const int64_t count : counts)
    if (count > 0) samples = samples == 0 ? count : std::min(samples, count);
  samples = std::max<int64_t>(samples, 1);
  TRIREME_CHECK(most > 0 && tokens % samples == 0, "tiles of ", most, " of ", tokens, " tokens in ", samples,
                " samples");
  const int64_t length = tokens / samples;
  const int64_t run = most >= length ? tokens : length, size = most >= length ? most / length * length : most;
  std::vector<Tile> tiles;
  for (int64_t begin = 0; begin < tokens; begin += run)
    for (int64_t first = 0; first < run; first += size) tiles.push_back({begin + first, std::min(size, run - first)});
  return tiles;
}

GradientTarget TileGradients::Sum::target() {
  if (result.sum.defined()) return {wide.defined() ? wide : result.sum, true};
  result = whole->target();
  if (result.sum.element_size() != 2) return result;
  wide = at::empty(result.sum.sizes(), result.sum.options().dtype(at::kFloat));
  return {wide, false};
}

void TileGradients::Sum::finish() {
  if (wide.defined()) {
    if (result.adds)
      result.sum.add_(wide);
    else
      result.sum.copy_(wide);
  }
  whole->written();
}

void TileGradients::attach(LinearLayer& layer) {
  GradientSink* sink = layer.sink();
  if (!several_ || sink == nullptr) return;
  auto sum = std::find_if(sums_.begin(), sums_.end(), [&](const Sum& one) { return one.whole == sink; });
  if (sum == sums_.end()) sum = sums_.emplace(sums_.end(), sink);
  layer.set_sink(&*sum);
}

void TileGradients::add_values(variable_list values) {
  values_.resize(values.size());
  types_.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    types_[i] = values[i].scalar_type();
    if (values_[i].defined())
      values_[i].add_(values[i]);
    else
      values_[i] = values[i].to(accumulate_type(values[i]), /*non_blocking=*/false, /*copy=*/true);
  }
}

void TileGradients::finish() {
  for (Sum& sum : sums_) sum.finish();
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i].defined()) whole_.set({{}, static_cast<int64_t>(i)}, values_[i].to(types_[i]));
}

}  // namespace trireme
