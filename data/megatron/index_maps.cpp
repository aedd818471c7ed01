#include "data/megatron/index_maps.h"

#include "trireme/base/error.h"
#include "trireme/base/rng.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace trireme {

namespace {

constexpr int64_t kMostI4 = std::numeric_limits<int32_t>::max();

/// E copies of the documents in the file's order, each shuffled with all others.
void append_epochs(const IndexRequest& request, int64_t epochs, NumpyRandom& random, std::vector<int32_t>& out) {
  const size_t begin = out.size();
  for (int64_t epoch = 0; epoch < epochs; ++epoch)
    for (int64_t d = request.first; d < request.last; ++d) out.push_back(static_cast<int32_t>(d));
  if (request.shuffle) random.shuffle(std::span(out).subspan(begin));
}

std::vector<int32_t> document_index(const IndexRequest& request, const IndexShape& shape, NumpyRandom& random) {
  std::vector<int32_t> documents;
  documents.reserve(static_cast<size_t>(shape.epochs * (request.last - request.first)));
  if (shape.separate_last) {
    append_epochs(request, shape.epochs - 1, random, documents);
    append_epochs(request, 1, random, documents);
  } else {
    append_epochs(request, shape.epochs, random, documents);
  }
  return documents;
}

/// The place of token i S for every i, by one pass over the documents. A sample that ends with the last token of a
/// document begins the next one in that document, at its last token: they share it.
template <class Place>
std::vector<Place> sample_index(const IndexRequest& request, const IndexShape& shape,
                                const std::vector<int32_t>& documents) {
  std::vector<Place> places;
  places.reserve(static_cast<size_t>(shape.rows + 1) * 2);
  size_t document = 0;
  int64_t offset = 0, left = request.size(documents[0]);
  places.push_back(0);
  places.push_back(0);
  for (int64_t row = 0; row < shape.rows; ++row) {
    int64_t wanted = request.seq_length + 1;
    while (left < wanted) {  // all of this document, and more of the next
      wanted -= left;
      left = request.size(documents[++document]);
      offset = 0;
    }
    offset += wanted - 1;
    left -= wanted - 1;
    places.push_back(static_cast<Place>(document));
    places.push_back(static_cast<Place>(offset));
  }
  return places;
}

template <class Row>
std::vector<Row> shuffle_index(const IndexRequest& request, const IndexShape& shape, NumpyRandom& random) {
  std::vector<Row> rows(static_cast<size_t>(shape.rows));
  std::iota(rows.begin(), rows.end(), Row{0});
  if (!request.shuffle) return rows;
  const auto first = static_cast<size_t>(shape.separate_last ? shape.rows_without_last : shape.rows);
  random.shuffle(std::span(rows).first(first));
  random.shuffle(std::span(rows).subspan(first));
  return rows;
}

}  // namespace

IndexShape index_shape(const IndexRequest& request, const std::string& name) {
  const int64_t tokens = request.tokens, length = request.seq_length;
  TRIREME_CHECK(length >= 1 && request.samples >= 0, "rows of ", length, ", ", request.samples, " samples");
  // Megatron repeats documents that are shorter than a row; nothing, or one pass that makes no row, is refused.
  if (tokens < 1 || (request.samples == 0 && tokens <= length))
    throw DataError(fmt::format(
        "{}: {} tokens in {} documents, and a row of data.seq_length {} reads {}: pack more text, or shorten the rows",
        name, format_count(tokens), format_count(request.last - request.first), length, length + 1));
  IndexShape shape;
  // Fewest E with (E T - 1) div S >= n.
  int64_t needed = 0;
  if (__builtin_mul_overflow(std::max<int64_t>(request.samples, 1), length, &needed))
    throw DataError(
        fmt::format("{}: {} rows of {} tokens are more than a run can count", name, request.samples, length));
  shape.epochs = std::max<int64_t>(1, (needed + tokens) / tokens);
  shape.rows = (shape.epochs * tokens - 1) / length;
  if (shape.epochs == 1) return shape;
  shape.rows_without_last = ((shape.epochs - 1) * tokens - 1) / length;
  const int64_t per_epoch = (tokens - 1) / length;
  shape.separate_last =
      request.samples - shape.rows_without_last < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
  return shape;
}

IndexMaps build_index_maps(const IndexRequest& request, const IndexShape& shape) {
  TRIREME_CHECK(request.last <= kMostI4, "document ", request.last, " has no 32-bit number");
  NumpyRandom random(request.seed);
  IndexMaps maps;
  std::vector<int32_t> documents = document_index(request, shape, random);
  const auto places = static_cast<int64_t>(documents.size());
  int64_t longest = 0;
  for (int64_t d = request.first; d < request.last; ++d) longest = std::max<int64_t>(longest, request.size(d));
  if (std::max(places, longest) <= kMostI4)
    maps.samples = NpyValues(sample_index<int32_t>(request, shape, documents), {shape.rows + 1, 2});
  else
    maps.samples = NpyValues(sample_index<int64_t>(request, shape, documents), {shape.rows + 1, 2});
  maps.documents = NpyValues(std::move(documents), {places});
  if (shape.rows < int64_t{std::numeric_limits<uint32_t>::max()} - 1)
    maps.shuffle = NpyValues(shuffle_index<uint32_t>(request, shape, random), {shape.rows});
  else
    maps.shuffle = NpyValues(shuffle_index<int64_t>(request, shape, random), {shape.rows});
  return maps;
}

}  // namespace trireme
