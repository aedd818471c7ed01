#include "data/megatron/megatron_part.h"

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace trireme {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMapNames[] = {"_doc_idx.npy", "_sample_idx.npy", "_shuffle_idx.npy"};

fs::path cache_file(const fs::path& name, int map) { return name.string() + kMapNames[map]; }

/// Maps that Megatron would not make of the same name get another one.
std::string cache_suffix(const MegatronOptions& options) {
  return std::string(options.rules == IndexRules::kCore ? "_core" : "") + (options.shuffle ? "" : "_in_order");
}

/// Tokens [from, end) of `tokens` belong to a document, from its token `begin` on.
void check_ids(const MegatronFile& file, int64_t vocab_size, const std::vector<int64_t>& tokens, size_t from,
               int64_t document, int64_t begin) {
  for (size_t i = from; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    const int64_t token = begin + static_cast<int64_t>(i - from);
    throw DataError(
        fmt::format("{}: byte {} (document {}, token {}): token id {} is outside the model's vocabulary of {} (0 to "
                    "{}): was the data made with another tokenizer?",
                    file.token_path().string(), file.byte_of(document, token), document, token, tokens[i], vocab_size,
                    vocab_size - 1));
  }
}

}  // namespace

MegatronPart::MegatronPart(const fs::path& path, Split split, int64_t samples, const MegatronOptions& options)
    : file_(path), vocab_size_(options.vocab_size) {
  request_.first = 0;
  request_.last = file_.sequences();
  const std::string name = file_.prefix().string();
  if (options.splits) {
    const auto bounds = split_bounds(*options.splits, file_.sequences(), options.rules);
    request_.first = bounds[static_cast<size_t>(split)];
    request_.last = bounds[static_cast<size_t>(split) + 1];
    if (request_.first >= request_.last)
      throw DataError(fmt::format(
          "{}: data.splits '{}' gives {} none of the {} documents: give it a larger share or a file of its own, or "
          "leave data.splits out",
          name, *options.splits, split_name(split), format_count(file_.sequences())));
  }
  request_.size = [this](int64_t document) { return file_.length(document); };
  for (int64_t d = request_.first; d < request_.last; ++d) request_.tokens += file_.length(d);
  request_.seq_length = options.seq_length;
  request_.seed = options.seed;
  request_.shuffle = options.shuffle;
  request_.samples = samples > 0 ? samples : rows_per_epoch();
  shape_ = index_shape(request_, options.splits ? fmt::format("{}, its {} part", name, split_name(split)) : name);
  const fs::path directory = options.index_cache.empty() ? file_.prefix().parent_path() : options.index_cache;
  cache_ =
      directory / fmt::format("{}_{}_indexmap_{}ns_{}sl_{}s{}", file_.prefix().filename().string(), split_name(split),
                              request_.samples, request_.seq_length, request_.seed, cache_suffix(options));
}

std::string MegatronPart::order() const {
  if (!request_.shuffle) return "";
  return fmt::format("{}{}", counted(shape_.epochs, "epoch"),
                     shape_.separate_last ? ", the last of them shuffled by itself" : "");
}

/// What tells the maps from those that this part builds: their shapes, and with `all` their documents; else "".
std::string MegatronPart::unlike(const IndexMaps& maps, bool all) const {
  const auto is = [](const NpyValues& map, std::vector<int64_t> shape) { return map.shape() == shape; };
  if (!is(maps.documents, {shape_.epochs * documents()}))
    return fmt::format("not {} epochs of {} documents", shape_.epochs, documents());
  if (!is(maps.samples, {shape_.rows + 1, 2}) || !is(maps.shuffle, {shape_.rows}))
    return fmt::format("not {} samples", shape_.rows);
  if (!all) return "";
  const auto [first, last] = maps.documents.range();
  return first == request_.first && last == request_.last - 1
             ? ""
             : fmt::format("documents {} to {}, not {} to {}", first, last, request_.first, request_.last - 1);
}

std::optional<IndexMaps> MegatronPart::read_cache() const {
  std::error_code error;
  for (int map = 0; map < 3; ++map)
    if (!fs::is_regular_file(cache_file(cache_, map), error)) return std::nullopt;
  return IndexMaps{NpyValues(cache_file(cache_, 0)), NpyValues(cache_file(cache_, 1)),
                   NpyValues(cache_file(cache_, 2))};
}

bool MegatronPart::fill_cache() const {
  const auto say = [&](const std::string& what) {
    log_warn(fmt::format("index maps {}_*_idx.npy: {}", cache_.string(), what));
  };
  try {
    const auto found = read_cache();
    const std::string difference = found ? unlike(*found, /*all=*/true) : "";
    if (found && difference.empty()) return false;
    if (found) say("made from other documents or splits (" + difference + "): they are built again");
  } catch (const DataError& damaged) {
    say(fmt::format("damaged, they are built again ({})", damaged.what()));
  }
  try {
    // An unwritable directory is found out before the work, not after it.
    make_directories(cache_.parent_path());
    const TemporaryFile probe(cache_file(cache_, 0));
  } catch (const WriteError& reason) {
    say(fmt::format(
        "cannot be written, so every rank builds them in memory; data.index_cache names another directory ({})",
        reason.what()));
    return false;
  }
  const IndexMaps built = build_index_maps(request_, shape_);
  built.documents.save(cache_file(cache_, 0));
  built.samples.save(cache_file(cache_, 1));
  built.shuffle.save(cache_file(cache_, 2));
  return true;
}

const IndexMaps& MegatronPart::maps() const {
  std::call_once(loaded_, [this] {
    std::optional<IndexMaps> found;
    try {
      found = read_cache();
      if (found && !unlike(*found, /*all=*/false).empty()) found.reset();
    } catch (const DataError&) {
      // fill_cache() has said what is wrong with them.
    }
    maps_ = found ? std::move(*found) : build_index_maps(request_, shape_);
  });
  return maps_;
}

void MegatronPart::fail(const NpyValues& map, int64_t row, const std::string& what) const {
  throw DataError(fmt::format(
      "{}: row {}: {}, of {} ({} documents): made from another file? Remove the index maps, they are built again",
      map.name(), row, what, file_.index_path().string(), format_count(file_.sequences())));
}

std::vector<int64_t> MegatronPart::read(int64_t row) const {
  const IndexMaps& index = maps();
  TRIREME_CHECK(row >= 0 && row < shape_.rows, "row ", row, " of ", shape_.rows);
  const int64_t sample = index.shuffle.at(row);
  if (sample < 0 || sample >= shape_.rows)
    fail(index.shuffle, row, fmt::format("sample {} of {}", sample, shape_.rows));
  const int64_t last_place = index.samples.at(2 * sample + 2), last_offset = index.samples.at(2 * sample + 3);
  int64_t offset = index.samples.at(2 * sample + 1);
  std::vector<int64_t> tokens;
  tokens.reserve(static_cast<size_t>(request_.seq_length + 1));
  for (int64_t place = index.samples.at(2 * sample); place <= last_place; ++place, offset = 0) {
    if (place < 0 || place >= index.documents.size())
      fail(index.samples, sample, fmt::format("place {} of {}", place, index.documents.size()));
    const int64_t document = index.documents.at(place);
    if (document < request_.first || document >= request_.last)
      fail(index.documents, place,
           fmt::format("document {}, not one of {} to {}", document, request_.first, request_.last - 1));
    const int64_t end = place == last_place ? last_offset + 1 : file_.length(document);
    if (offset < 0 || offset > end || end > file_.length(document) ||
        static_cast<int64_t>(tokens.size()) + end - offset > request_.seq_length + 1)
      fail(index.samples, sample,
           fmt::format("tokens {} to {} of document {}, which has {}", offset, end, document, file_.length(document)));
    const size_t before = tokens.size();
    file_.read(document, offset, end - offset, tokens);
    check_ids(file_, vocab_size_, tokens, before, document, offset);
  }
  if (static_cast<int64_t>(tokens.size()) != request_.seq_length + 1)
    fail(index.samples, sample, fmt::format("{} tokens, expected {}", tokens.size(), request_.seq_length + 1));
  return tokens;
}

void MegatronPart::check_document(int64_t index) const { check_megatron_document(file_, index, vocab_size_); }

void check_megatron_document(const MegatronFile& file, int64_t document, int64_t vocab_size) {
  constexpr int64_t kBlock = int64_t{1} << 16;  // a hostile length is no allocation of its own
  const int64_t length = file.length(document);
  std::vector<int64_t> tokens;
  for (int64_t begin = 0; begin < length; begin += kBlock) {
    tokens.clear();
    file.read(document, begin, std::min(kBlock, length - begin), tokens);
    check_ids(file, vocab_size, tokens, 0, document, begin);
  }
}

}  // namespace trireme
