#include "reference_file.h"

#include "trireme/base/bytes.h"
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/formats/huggingface/safetensors.h"

#include <fmt/format.h>

#include <cstring>

namespace trireme {

namespace {

constexpr const char *kOrigin = "origin", *kHash = "xxh3";
constexpr const char *kKeys = "row_keys", *kAnswers = "answers", *kLogProbs = "log_probs";

/// The rows as three vectors, as they are in files and between ranks.
struct FlatReference {
  std::vector<uint64_t> keys;
  std::vector<int64_t> answers;
  std::vector<double> log_probs;
};

FlatReference flat(const ReferenceRows& rows) {
  FlatReference flat;
  for (const auto& [key, values] : rows) {
    flat.keys.push_back(key);
    flat.answers.push_back(static_cast<int64_t>(values.size()));
    flat.log_probs.insert(flat.log_probs.end(), values.begin(), values.end());
  }
  return flat;
}

std::string hash(const FlatReference& flat) {
  const auto add = [](const auto& values, uint64_t before) {
    return xxh3_64(values.data(), values.size() * sizeof(values[0]), before);
  };
  return hex64(add(flat.log_probs, add(flat.answers, add(flat.keys, 0))));
}

/// Adds to `rows`; false: the lengths do not fit each other.
bool add(ReferenceRows& rows, const FlatReference& flat) {
  if (flat.keys.size() != flat.answers.size()) return false;
  size_t at = 0;
  for (size_t r = 0; r < flat.keys.size(); ++r) {
    const auto count = static_cast<size_t>(flat.answers[r]);
    if (count > flat.log_probs.size() - at) return false;
    const double* first = flat.log_probs.data() + at;
    rows[flat.keys[r]].assign(first, first + count);
    at += count;
  }
  return at == flat.log_probs.size();
}

template <class T>
void put(std::string& bytes, const std::vector<T>& values) {
  const uint64_t size = values.size();
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes.append(reinterpret_cast<const char*>(values.data()), size * sizeof(T));
}

template <class T>
void take(const char*& at, std::vector<T>& values) {
  const auto size = value_at<uint64_t>(at);
  at += sizeof size;
  values.resize(size);
  if (size > 0) std::memcpy(values.data(), at, size * sizeof(T));
  at += size * sizeof(T);
}

}  // namespace

ReferenceRows gather_reference(Communicator& comm, const ReferenceRows& mine) {
  std::string bytes;
  const FlatReference own = flat(mine);
  put(bytes, own.keys);
  put(bytes, own.answers);
  put(bytes, own.log_probs);
  ReferenceRows all;
  for (const std::string& part : comm.gather_host(bytes)) {
    if (part.empty()) continue;
    FlatReference theirs;
    const char* at = part.data();
    take(at, theirs.keys);
    take(at, theirs.answers);
    take(at, theirs.log_probs);
    TRIREME_CHECK(add(all, theirs), "a rank's log-probabilities of the reference do not fit its rows");
  }
  return all;
}

void write_reference(const std::filesystem::path& path, const ReferenceRows& rows, const std::string& origin) {
  const FlatReference all = flat(rows);
  const auto size = [](const auto& values) { return std::vector<int64_t>{static_cast<int64_t>(values.size())}; };
  SafetensorsWriter writer(path,
                           {{kKeys, {DType::kI64, size(all.keys)}},
                            {kAnswers, {DType::kI64, size(all.answers)}},
                            {kLogProbs, {DType::kF64, size(all.log_probs)}}},
                           {{kOrigin, origin}, {kHash, hash(all)}});
  const auto append = [&](const auto& values) { writer.append(values.data(), values.size() * sizeof(values[0])); };
  append(all.keys);
  append(all.answers);
  append(all.log_probs);
  writer.commit();
}

std::optional<ReferenceRows> read_reference(const std::filesystem::path& path, const std::string& origin) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  const SafetensorsFile file(path);
  const auto found = file.metadata().find(kOrigin);
  if (!origin.empty() && (found == file.metadata().end() || found->second != origin)) return std::nullopt;
  const auto read = [&](const char* name, DType dtype, auto& values) {
    const auto entry = file.entries().find(name);
    if (entry == file.entries().end() || entry->second.info.dtype != dtype || entry->second.info.shape.size() != 1)
      throw ModelError(fmt::format("{}: has no vector {} of type {}", path.string(), name, dtype_name(dtype)));
    const auto bytes = file.bytes(entry->second);
    values.resize(bytes.size() / sizeof(values[0]));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  };
  FlatReference all;
  read(kKeys, DType::kI64, all.keys);
  read(kAnswers, DType::kI64, all.answers);
  read(kLogProbs, DType::kF64, all.log_probs);
  // Files of earlier versions have no hash.
  const auto hashed = file.metadata().find(kHash);
  if (hashed != file.metadata().end() && hashed->second != hash(all))
    throw ModelError(fmt::format("{}: is damaged: its values have hash {}, its metadata says {}", path.string(),
                                 hash(all), hashed->second));
  ReferenceRows rows;
  if (!add(rows, all))
    throw ModelError(fmt::format("{}: is damaged: its vectors do not fit each other", path.string()));
  return rows;
}

}  // namespace trireme
