// The manifest of a training checkpoint. First byte 1: manifest.json of version 1, with the files of two ranks.
// Otherwise MANIFEST.json. It contains its own hash, which mutations break: the input is read as it is, and again with
// a new hash in the writer's format, so that the checks after the hash are reached.
#include "../base/temporary_directory.h"
#include "fuzz_target.h"
#include "trireme/base/hash.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"

#include <nlohmann/json.hpp>

namespace {

std::string dump(const nlohmann::json& value) {
  return value.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string hashed_again(std::string_view text) {
  nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::string(text);
  object.erase("xxh3");
  const std::string body = dump(object);
  object["xxh3"] = trireme::hex64(trireme::xxh3_64(body.data(), body.size()));
  return dump(object) + "\n";
}

/// A checkpoint of version 1 whose manifest is the input.
class VersionOne : trireme::TemporaryDirectory {
 public:
  VersionOne() {
    for (const char* name : {"rank-00000.safetensors", "rank-00001.safetensors"}) {
      trireme::SafetensorsWriter writer(
          root_ / name, {{"master.embed", {trireme::DType::kF32, {2}}}, {"loss_scale", {trireme::DType::kF32, {1}}}});
      writer.append("twelve bytes", 12);
      writer.commit();
    }
  }
  void read(std::string_view manifest) const {
    write("manifest.json", manifest);
    const trireme::CheckpointManifest read = trireme::read_manifest(root_);
    trireme::check_checkpoint_layout(root_, read);
    trireme::CheckpointReader reader(root_, read);
    for (const trireme::CheckpointUnit& unit : read.units) reader.read("master", unit.name, 0, unit.numel);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::filesystem::path directory = "/nonexistent/step-00000001";
  const std::string_view text = fuzz::as_text(data, size);
  if (text.starts_with('1')) {
    static const VersionOne directory_of_version_1;
    fuzz::expect_only({ExitCode::kModel}, [&] { directory_of_version_1.read(text.substr(1)); });
    return 0;
  }
  fuzz::expect_only({ExitCode::kModel}, [&] { parse_manifest(text, directory / kManifestName); });
  fuzz::expect_only({ExitCode::kModel}, [&] {
    const std::string again = hashed_again(text);
    const CheckpointManifest manifest = parse_manifest(again, directory / kManifestName);
    const std::string written = manifest_json(manifest);
    fuzz::require(manifest_json(parse_manifest(written, directory / kManifestName)) == written,
                  "a written manifest reads as the one that was written");
    for (const CheckpointFile& file : manifest.files)
      fuzz::require(file.name.find('/') == std::string::npos && file.name != "..",
                    "files lie in the checkpoint's directory");
    fuzz::require(check_checkpoint_layout(directory, manifest).size() >= manifest.files.size(),
                  "files that are not there are missed");
    CheckpointReader reader(directory, manifest);
    for (const CheckpointFile& file : manifest.files)
      for (const CheckpointPiece& piece : file.pieces)
        reader.read(piece.kind, piece.unit, piece.begin, piece.begin + piece.count);
  });
  return 0;
}
