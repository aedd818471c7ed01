// MANIFEST.json of a training checkpoint: writing, and strict reading.
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/text.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

namespace trireme {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 16;

std::string dump(const Json& value) { return value.dump(1, ' ', false, Json::error_handler_t::replace); }

/// Typed access to the manifest's fields; errors name the file and the field.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail("is not an object");
  }
  int64_t integer(const char* key, int64_t min = 0, int64_t max = kMaxElements) const {
    const Json& value = at(key);
    if (!value.is_number_integer() || value.get<int64_t>() < min || value.get<int64_t>() > max ||
        (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(max)))
      fail(fmt::format("has {} {}, expected an integer from {} to {}", key, dump(value), min, max));
    return value.get<int64_t>();
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(fmt::format("has a {} that is not a string", key));
    return value.get<std::string>();
  }
  uint64_t hash(const char* key) const {
    const std::string digits = text(key);
    const auto value = parse_whole<uint64_t>(digits, 16);
    if (digits.size() != 16 || !value)
      fail(fmt::format("has {} '{}', expected a hash of 16 hexadecimal digits", key, digits));
    return *value;
  }
  const Json& list(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail(fmt::format("has a {} that is not a list", key));
    return value;
  }
  const Json& object(const char* key) const {
    const Json& value = at(key);
    if (!value.is_object()) fail(fmt::format("has a {} that is not an object", key));
    return value;
  }
  [[noreturn]] void fail(const std::string& what) const { throw ModelError(fmt::format("{} {}", where_, what)); }

 private:
  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(fmt::format("lacks {}", key));
    return *found;
  }
  const Json& object_;
  std::string where_;
};

DType state_dtype(const Fields& fields, const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64})
    if (name == dtype_name(dtype)) return dtype;
  fields.fail(fmt::format("has dtype '{}', which training state cannot have", name));
}

std::vector<Fingerprint> parse_fingerprints(const Json& list, const std::string& where) {
  std::vector<Fingerprint> result;
  for (const Json& entry : list) {
    const Fields fields(entry, where);
    result.push_back({fields.text("path"), fields.text("hash")});
  }
  return result;
}

Json fingerprints_json(const std::vector<Fingerprint>& prints) {
  Json list = Json::array();
  for (const Fingerprint& print : prints) list.push_back({{"path", print.path}, {"hash", print.hash}});
  return list;
}

CheckpointUnit parse_unit(const Json& value, const std::string& where) {
  const Fields fields(value, where + " unit");
  CheckpointUnit unit{fields.text("name"), fields.integer("numel"), {}};
  for (const Json& entry : fields.list("tensors")) {
    const Fields tensor(entry, fmt::format("{} unit {} tensor", where, unit.name));
    CheckpointTensor parsed{tensor.text("name"), {}, tensor.integer("offset")};
    for (const Json& extent : tensor.list("shape")) {
      if (!extent.is_number_unsigned() || extent.get<uint64_t>() > static_cast<uint64_t>(kMaxElements))
        tensor.fail(fmt::format("has extent {} in its shape", dump(extent)));
      parsed.shape.push_back(extent.get<int64_t>());
    }
    bool ok = false;
    const int64_t numel = checked_elements(parsed.shape, ok);
    if (!ok || numel > unit.numel - parsed.offset)
      tensor.fail(fmt::format("{} ends outside the unit's {} elements", parsed.name, unit.numel));
    unit.tensors.push_back(std::move(parsed));
  }
  return unit;
}

CheckpointFile parse_file(const Json& value, const std::string& where, const std::filesystem::path& directory) {
  const Fields fields(value, where + " file");
  CheckpointFile file;
  file.name = fields.text("name");
  (void)safe_join(directory, file.name, ExitCode::kModel);
  if (file.name.find('/') != std::string::npos || file.name == kManifestName || file.name == "." || file.name == "..")
    fields.fail(fmt::format("has the name '{}', which is not a checkpoint file's", file.name));
  file.bytes = static_cast<uint64_t>(fields.integer("bytes"));
  file.header_xxh3 = fields.hash("header_xxh3");
  for (const Json& entry : fields.list("tensors")) {
    const Fields piece(entry, fmt::format("{} file {} tensor", where, file.name));
    CheckpointPiece parsed;
    parsed.kind = piece.text("kind");
    parsed.unit = piece.text("unit");
    parsed.dtype = state_dtype(piece, piece.text("dtype"));
    parsed.begin = piece.integer("begin");
    parsed.count = piece.integer("count", 1);
    parsed.xxh3 = piece.hash("xxh3");
    file.pieces.push_back(std::move(parsed));
  }
  return file;
}

/// Checks that the pieces cover every vector of every unit exactly once, in one dtype.
void check_coverage(const CheckpointManifest& manifest, const std::string& where) {
  std::map<std::string, std::vector<const CheckpointPiece*>> vectors;
  std::map<std::string, int64_t> lengths;
  for (const CheckpointUnit& unit : manifest.units)
    if (!lengths.emplace(unit.name, unit.numel).second)
      throw ModelError(fmt::format("{} names unit {} twice", where, unit.name));
  std::set<std::string> names;
  for (const CheckpointFile& file : manifest.files) {
    if (!names.insert(file.name).second) throw ModelError(fmt::format("{} names file {} twice", where, file.name));
    for (const CheckpointPiece& piece : file.pieces) vectors[piece.tensor_name()].push_back(&piece);
  }
  for (auto& [name, pieces] : vectors) {
    std::sort(pieces.begin(), pieces.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });
    const std::string& unit = pieces.front()->unit;
    if (!unit.empty() && !lengths.contains(unit))
      throw ModelError(fmt::format("{} has {} of a unit that it does not describe", where, name));
    int64_t next = 0;
    for (const CheckpointPiece* piece : pieces) {
      if (piece->begin != next)
        throw ModelError(fmt::format("{}: {} has elements {} to {} {}", where, name, std::min(next, piece->begin),
                                     std::max(next, piece->begin), piece->begin < next ? "twice" : "missing"));
      if (piece->dtype != pieces.front()->dtype)
        throw ModelError(fmt::format("{}: {} comes in two types", where, name));
      next += piece->count;
    }
    const int64_t numel = unit.empty() ? 1 : lengths[unit];
    if (next != numel) throw ModelError(fmt::format("{}: {} has {} elements of {}", where, name, next, numel));
  }
}

}  // namespace

uint64_t CheckpointManifest::total_bytes() const {
  uint64_t total = 0;
  for (const CheckpointFile& file : files) total += file.bytes;
  return total;
}

std::string manifest_json(const CheckpointManifest& m) {
  Json units = Json::array(), files = Json::array(), numbers = Json::object();
  for (const CheckpointUnit& unit : m.units) {
    Json tensors = Json::array();
    for (const CheckpointTensor& tensor : unit.tensors)
      tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}, {"offset", tensor.offset}});
    units.push_back({{"name", unit.name}, {"numel", unit.numel}, {"tensors", tensors}});
  }
  for (const CheckpointFile& file : m.files) {
    Json pieces = Json::array();
    for (const CheckpointPiece& piece : file.pieces)
      pieces.push_back({{"kind", piece.kind},
                        {"unit", piece.unit},
                        {"dtype", dtype_name(piece.dtype)},
                        {"begin", piece.begin},
                        {"count", piece.count},
                        {"xxh3", hex64(piece.xxh3)}});
    files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"header_xxh3", hex64(file.header_xxh3)}, {"tensors", pieces}});
  }
  // Written as text: JSON has no NaN, and every digit must be kept.
  for (const auto& [name, values] : m.numbers) {
    Json list = Json::array();
    for (const double value : values) list.push_back(format_exact(value));
    numbers[name] = list;
  }
  Json manifest = {{"format_version", CheckpointManifest::kVersion},
                   {"run_id", m.run_id},
                   {"step", m.step},
                   {"samples", m.samples},
                   {"tokens", m.tokens},
                   {"evaluations", m.evaluations},
                   {"world_size", m.world_size},
                   {"shard_size", m.shard_size},
                   {"compute_dtype", m.compute_dtype},
                   {"config", m.config},
                   {"config_hash", m.config_hash},
                   {"seed", m.seed},
                   {"numbers", numbers},
                   {"data", fingerprints_json(m.data)},
                   {"base", fingerprints_json(m.base)},
                   {"inputs", fingerprints_json(m.inputs)},
                   {"evaluation", fingerprints_json(m.evaluation)},
                   {"units", units},
                   {"files", files}};
  const std::string body = dump(manifest);
  manifest["xxh3"] = hex64(xxh3_64(body.data(), body.size()));
  return dump(manifest) + "\n";
}

CheckpointManifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  const std::string where = path.string();
  Json object = parse_json(text, where, ExitCode::kModel, /*max_depth=*/8);
  const Fields fields(object, where);
  const int64_t version = fields.integer("format_version");
  if (version != CheckpointManifest::kVersion)
    throw ModelError(fmt::format("{} has format version {}; this build reads versions 1 and {}: {}", where, version,
                                 CheckpointManifest::kVersion,
                                 version > CheckpointManifest::kVersion
                                     ? "use the version of Trireme that wrote it, or a later one"
                                     : "the file is damaged"));
  if (dump(object) + "\n" != text) throw ModelError(where + " is not as it was written: the file is damaged");
  const std::string hash = fields.text("xxh3");
  object.erase("xxh3");
  const std::string body = dump(object);
  if (hex64(xxh3_64(body.data(), body.size())) != hash)
    throw ModelError(where + " does not match its own hash: the file is damaged");

  CheckpointManifest m;
  m.run_id = fields.text("run_id");
  m.step = fields.integer("step");
  m.samples = fields.integer("samples");
  m.tokens = fields.integer("tokens");
  m.evaluations = fields.integer("evaluations");
  m.world_size = fields.integer("world_size", 1, 1 << 30);
  m.shard_size = fields.integer("shard_size", 1, m.world_size);
  m.compute_dtype = fields.text("compute_dtype");
  m.config = fields.text("config");
  m.config_hash = fields.text("config_hash");
  m.seed = fields.integer("seed");
  for (const auto& [name, values] : fields.object("numbers").items()) {
    std::vector<double>& list = m.numbers[name];
    if (!values.is_array()) fields.fail(fmt::format("has numbers '{}' that are no list", name));
    for (const Json& value : values) {
      const auto number = value.is_string() ? parse_whole<double>(value.get<std::string>()) : std::nullopt;
      if (!number) fields.fail(fmt::format("has {} among the numbers '{}'", dump(value), name));
      list.push_back(*number);
    }
  }
  m.data = parse_fingerprints(fields.list("data"), where + " data");
  m.base = parse_fingerprints(fields.list("base"), where + " base");
  if (object.contains("inputs")) m.inputs = parse_fingerprints(fields.list("inputs"), where + " inputs");
  if (object.contains("evaluation"))
    m.evaluation = parse_fingerprints(fields.list("evaluation"), where + " evaluation");
  for (const Json& unit : fields.list("units")) m.units.push_back(parse_unit(unit, where));
  for (const Json& file : fields.list("files")) m.files.push_back(parse_file(file, where, path.parent_path()));
  check_coverage(m, where);
  return m;
}

}  // namespace trireme
