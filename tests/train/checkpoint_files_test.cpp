// MANIFEST.json and the files under it, without ranks.
#include "../base/base_testing.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// A checkpoint of one unit of `numel` fp32 elements (value = index), cut at random into files.
CheckpointManifest write_checkpoint(const fs::path& directory, int64_t numel, int files, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> cuts = {0, numel};
  for (int i = 1; i < files; ++i) cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(numel)));
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  CheckpointManifest manifest;
  manifest.run_id = "0123456789abcdef";
  manifest.step = 12;
  manifest.samples = 96;
  manifest.config = "model:\n  path: \"/m\xc3\xbc\"\n";
  manifest.config_hash = "ff";
  manifest.numbers["odd"] = {0.1, -0.0, std::numeric_limits<double>::infinity(), 5e-324, 1.7976931348623157e308};
  manifest.data = {{"/rows.npy", "00"}};
  manifest.units = {{"layers.0", numel, {{"a.weight", {2, 3}, 0}, {"b.weight", {numel - 6}, 6}}}};
  for (size_t f = 0; f + 1 < cuts.size(); ++f) {
    CheckpointFile file;
    file.name = "rank-" + std::to_string(f) + ".safetensors";
    const int64_t count = cuts[f + 1] - cuts[f];
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<float>(cuts[f] + i);
    SafetensorsWriter writer(directory / file.name, {{"master.layers.0", {DType::kF32, {count}}}});
    writer.append(values.data(), values.size() * sizeof(float));
    writer.commit();
    const MappedFile whole(directory / file.name, ExitCode::kModel);
    file.bytes = whole.bytes().size();
    file.header_xxh3 = xxh3_64(whole.bytes().data(), file.bytes - values.size() * sizeof(float));
    file.pieces = {
        {"master", "layers.0", DType::kF32, cuts[f], count, xxh3_64(values.data(), values.size() * sizeof(float))}};
    manifest.files.push_back(file);
  }
  std::shuffle(manifest.files.begin(), manifest.files.end(), random);
  write_file_atomic(directory / kManifestName, manifest_json(manifest));
  return manifest;
}

/// Whether the manifest is refused as a damaged checkpoint (exit code 4).
bool refused(std::string_view text) {
  try {
    parse_manifest(text, fs::temp_directory_path() / "step-1" / kManifestName);
    return false;
  } catch (const Error& error) {
    return error.code() == ExitCode::kModel;
  }
}

TEST(Manifest, ReadsBackWhatWasWritten) {
  const TemporaryDirectory directory;
  const CheckpointManifest written = write_checkpoint(directory.root(), 1000, 3, 1);
  const CheckpointManifest read = read_manifest(directory.root());
  EXPECT_EQ(manifest_json(read), manifest_json(written));
  EXPECT_EQ(read.numbers.at("odd"), written.numbers.at("odd"));
  EXPECT_TRUE(std::signbit(read.numbers.at("odd")[1]));
  EXPECT_EQ(read.units[0].tensors, written.units[0].tensors);
  EXPECT_TRUE(check_checkpoint_layout(directory.root(), read).empty());
  const TemporaryDirectory other;
  const std::filesystem::path renamed = other.path(checkpoint_name(read.step + 1));
  std::filesystem::create_directory_symlink(directory.root(), renamed);
  EXPECT_EQ(check_checkpoint_layout(renamed, read),
            std::vector<std::string>{"its name says step " + std::to_string(read.step + 1) + ", its manifest step " +
                                     std::to_string(read.step)});
}

// Whatever bit of the manifest flips, it is not believed.
TEST(Manifest, EveryFlippedBitIsRefused) {
  const TemporaryDirectory directory;
  const std::string good = manifest_json(write_checkpoint(directory.root(), 100, 2, 2));
  ASSERT_NO_THROW(parse_manifest(good, directory.path(kManifestName)));
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      EXPECT_TRUE(refused(bad)) << "byte " << at << " bit " << bit;
    }
  }
}

TEST(Manifest, EveryTruncationIsRefused) {
  const TemporaryDirectory directory;
  const std::string good = manifest_json(write_checkpoint(directory.root(), 100, 2, 3));
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_TRUE(refused(std::string_view(good).substr(0, length))) << length;
}

// Forged ones, whose own hash is right.
TEST(Manifest, WrongContentIsRefused) {
  const TemporaryDirectory directory;
  const CheckpointManifest good = write_checkpoint(directory.root(), 1000, 3, 4);
  const auto forged = [&](const char* what, const std::function<void(CheckpointManifest&)>& forge) {
    CheckpointManifest bad = good;
    forge(bad);
    EXPECT_TRUE(refused(manifest_json(bad))) << what;
  };
  forged("hole", [](auto& m) { m.files.pop_back(); });
  forged("overlap", [](auto& m) { m.files[0].pieces[0].count += 1; });
  forged("too long", [](auto& m) { m.units[0].numel -= 1; });
  forged("unknown unit", [](auto& m) { m.units[0].name = "other"; });
  forged("unit twice", [](auto& m) { m.units.push_back(m.units[0]); });
  forged("tensor outside", [](auto& m) { m.units[0].tensors[1].offset = 7; });
  forged("huge tensor", [](auto& m) { m.units[0].tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40}; });
  forged("two types", [](auto& m) { m.files[0].pieces[0].dtype = DType::kF64; });
  forged("negative begin", [](auto& m) { m.files[0].pieces[0].begin -= 1; });
  forged("no elements", [](auto& m) { m.files[0].pieces[0].count = 0; });
  forged("huge count", [](auto& m) { m.files[0].pieces[0].count = std::numeric_limits<int64_t>::max(); });
  forged("shard size over world", [](auto& m) { m.shard_size = 2; });
  forged("no ranks", [](auto& m) { m.world_size = 0; });
  for (const char* name : {"../x", "/etc/passwd", "a/b", "", ".", "..", "MANIFEST.json"})
    forged(name, [&](auto& m) { m.files[0].name = name; });
}

TEST(CheckpointReader, GivesAnyRangeWhateverTheFiles) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    const TemporaryDirectory directory;
    const int64_t numel = 7 + static_cast<int64_t>(random() % 3000);
    write_checkpoint(directory.root(), numel, 1 + static_cast<int>(random() % 9), random());
    CheckpointReader reader(directory.root(), read_manifest(directory.root()));
    for (int i = 0; i < 50; ++i) {
      int64_t begin = static_cast<int64_t>(random() % static_cast<uint64_t>(numel + 1)),
              end = static_cast<int64_t>(random() % static_cast<uint64_t>(numel + 1));
      if (begin > end) std::swap(begin, end);
      int64_t next = begin;
      for (const ElementSpan& span : reader.read("master", "layers.0", begin, end)) {
        for (int64_t j = 0; j < span.count; ++j, ++next) {
          float value;
          std::memcpy(&value, span.data + static_cast<size_t>(j) * sizeof value, sizeof value);
          ASSERT_EQ(value, static_cast<float>(next));
        }
      }
      ASSERT_EQ(next, end);
    }
    EXPECT_THROW(reader.read("master", "layers.0", 0, numel + 1), ModelError);
    EXPECT_THROW(reader.read("exp_avg", "layers.0", 0, 1), ModelError);
  }
}

/// A file of `pieces` fp32 vectors of `count` elements each, without the writer's fsync.
CheckpointFile write_rank_file(const fs::path& directory, int rank, int units, int64_t count) {
  CheckpointFile file;
  file.name = "rank-" + std::to_string(rank) + ".safetensors";
  const std::vector<float> values(static_cast<size_t>(count), static_cast<float>(rank));
  const size_t bytes = values.size() * sizeof(float);
  std::string header = "{";
  for (const char* kind : {"exp_avg", "exp_avg_sq", "master"})
    for (int unit = 0; unit < units; ++unit) {
      CheckpointPiece piece{kind,  "layers." + std::to_string(unit), DType::kF32, rank * count,
                            count, xxh3_64(values.data(), bytes)};
      const size_t at = file.pieces.size() * bytes;
      header += (header.size() > 1 ? ",\"" : "\"") + piece.tensor_name() + R"(":{"dtype":"F32","shape":[)" +
                std::to_string(count) + R"(],"data_offsets":[)" + std::to_string(at) + "," +
                std::to_string(at + bytes) + "]}";
      file.pieces.push_back(std::move(piece));
    }
  header += "}";
  const uint64_t length = header.size();
  std::ofstream out(directory / file.name, std::ios::binary);
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  text += header;
  out << text;
  for (size_t i = 0; i < file.pieces.size(); ++i)
    out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(bytes));
  file.bytes = text.size() + file.pieces.size() * bytes;
  file.header_xxh3 = xxh3_64(text.data(), text.size());
  return file;
}

/// Processor seconds, per rank that wrote, of rank 0's part of a save (manifest, reading it back, layout) and of
/// resuming: hashes of every file, and the reads of as many ranks, each of its own elements.
double seconds_per_rank(int ranks) {
  constexpr int kUnits = 4;
  constexpr int64_t kCount = 16;
  const TemporaryDirectory directory;
  CheckpointManifest manifest;
  manifest.world_size = manifest.shard_size = ranks;
  for (int unit = 0; unit < kUnits; ++unit)
    manifest.units.push_back({"layers." + std::to_string(unit), ranks * kCount, {}});
  for (int rank = 0; rank < ranks; ++rank)
    manifest.files.push_back(write_rank_file(directory.root(), rank, kUnits, kCount));
  const std::clock_t began = std::clock();
  write_file_atomic(directory.path(kManifestName), manifest_json(manifest));
  EXPECT_EQ(check_checkpoint_layout(directory.root(), read_manifest(directory.root())), std::vector<std::string>{});
  for (size_t f = 0; f < manifest.files.size(); ++f)
    EXPECT_EQ(check_checkpoint_hashes(directory.root(), manifest, f), std::vector<std::string>{});
  CheckpointReader reader(directory.root(), read_manifest(directory.root()));
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (const char* kind : {"master", "exp_avg", "exp_avg_sq"}) {
      // Shifted by half a shard: two files hold it, as after a change of the number of ranks.
      const int64_t begin = rank * kCount + (rank + 1 < ranks ? kCount / 2 : 0);
      const auto spans = reader.read(kind, "layers.3", begin, begin + (rank + 1 < ranks ? kCount : 1));
      float value = -1;
      std::memcpy(&value, spans.front().data, sizeof value);
      EXPECT_EQ(value, static_cast<float>(rank));
      EXPECT_EQ(spans.size(), rank + 1 < ranks ? 2U : 1U);
    }
  return static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC / ranks;
}

TEST(CheckpointScale, TimeGrowsWithTheNumberOfRanksNotWithItsSquare) {
  const double few = std::min(seconds_per_rank(64), seconds_per_rank(64)), more = seconds_per_rank(256),
               many = seconds_per_rank(1024);
  std::printf("per rank: %.3f ms of 64, %.3f ms of 256, %.3f ms of 1024\n", 1e3 * few, 1e3 * more, 1e3 * many);
  // Quadratic time would make it 16 times as long per rank.
  EXPECT_LT(many, 4 * few);
}

TEST(CheckpointHashes, NameTheTensorOfAnyFlippedByte) {
  const TemporaryDirectory directory;
  const CheckpointManifest manifest = write_checkpoint(directory.root(), 300, 1, 6);
  const fs::path file = directory.path(manifest.files[0].name);
  for (uint64_t at = 8; at < manifest.files[0].bytes; at += 37) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    stream.seekg(static_cast<std::streamoff>(at)).read(&byte, 1);
    const char flipped = static_cast<char>(byte ^ 4);
    stream.seekp(static_cast<std::streamoff>(at)).write(&flipped, 1).flush();
    std::vector<std::string> differences = check_checkpoint_layout(directory.root(), manifest);
    if (differences.empty()) differences = check_checkpoint_hashes(directory.root(), manifest, 0);
    EXPECT_FALSE(differences.empty()) << "byte " << at;
    stream.seekp(static_cast<std::streamoff>(at)).write(&byte, 1).flush();
  }
  EXPECT_TRUE(check_checkpoint_hashes(directory.root(), manifest, 0).empty());
}

TEST(Fingerprint, SeesSizeAndBlocks) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path("rows");
  std::ofstream(path, std::ios::binary) << std::string(size_t{5} << 20, 'x');
  const std::string all = fingerprint_file(path, ExitCode::kData), some = fingerprint_file(path, ExitCode::kData, 2);
  EXPECT_NE(all, some);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp((size_t{5} << 20) - 1)
      .write("y", 1)
      .flush();
  EXPECT_NE(fingerprint_file(path, ExitCode::kData), all);
  EXPECT_NE(fingerprint_file(path, ExitCode::kData, 2), some) << "the last block is always one of them";
  EXPECT_THROW(fingerprint_file(directory.path("none"), ExitCode::kData), Error);
}

TEST(CheckpointNames, OnlyWholeNamesCount) {
  EXPECT_EQ(checkpoint_name(12), "step-00000012");
  EXPECT_EQ(checkpoint_step("a/step-00000012"), 12);
  for (const char* name :
       {"step-", "step-1.tmp-ab", "step-00000012.damaged", "step--1", "stepp-1", "step-99999999999999999999999"})
    EXPECT_EQ(checkpoint_step(name), std::nullopt) << name;
}

}  // namespace
}  // namespace trireme
