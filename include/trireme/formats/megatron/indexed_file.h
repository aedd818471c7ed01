#pragma once
// Megatron's indexed data set: PREFIX.bin holds the tokens of all sequences one after the other, PREFIX.idx their
// lengths and places (Megatron-LM, megatron/core/datasets/indexed_dataset.py). All numbers are little-endian:
//   9 bytes "MMIDIDX" and two NULs; u64 version 1; u8 type; u64 sequences S; u64 document boundaries D;
//   i32 lengths [S]; i64 byte offsets in the .bin [S]; i64 boundaries [D], from 0 to S, or 0 alone; optional i8 modes
//   [S].
// GPT's files have one sequence a document. Every field is checked against the sizes of both files; a fault is a
// DataError with file and byte.

#include "trireme/base/file.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme {

/// Codes of the type byte. f64 and f32 are refused: tokens are integers.
enum class MegatronType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kF64 = 6, kF32 = 7, kU16 = 8 };
const char* megatron_type_name(MegatronType type);  // "uint16"
/// The type that Megatron's tools write for a vocabulary: u16 below 65,500 ids, else i32.
MegatronType megatron_type_for(int64_t vocab_size);

/// The index file that `path` names: PREFIX.idx itself, or PREFIX or PREFIX.bin with PREFIX.idx beside it; nullopt if
/// there is no such file or it does not begin with Megatron's magic.
std::optional<std::filesystem::path> megatron_index_path(const std::filesystem::path& path);

/// Both files of a prefix, mapped. Const members are thread-safe.
class MegatronFile {
 public:
  /// `path`: as megatron_index_path() takes it.
  explicit MegatronFile(const std::filesystem::path& path);
  MegatronFile(const std::filesystem::path& index, const std::filesystem::path& tokens);
  const std::filesystem::path& index_path() const { return index_.path(); }
  const std::filesystem::path& token_path() const { return tokens_.path(); }
  std::filesystem::path prefix() const { return std::filesystem::path(index_path()).replace_extension(); }
  MegatronType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return lists_documents() ? boundaries_ - 1 : sequences_; }
  int64_t tokens() const { return total_; }
  bool has_modes() const { return has_modes_; }

  /// Tokens of a sequence.
  int32_t length(int64_t sequence) const { return load<int32_t>(kHeader + sequence * 4); }
  /// Sequences of document d are [boundary(d), boundary(d + 1)).
  int64_t boundary(int64_t document) const {
    return lists_documents() ? load<int64_t>(kHeader + sequences_ * 12 + document * 8) : document;
  }
  /// Appends tokens [begin, begin + count) of a sequence, unchecked; the caller checks the bounds of the sequence. A
  /// u64 above 2^63 cannot occur: the types have at most 63 bits.
  void read(int64_t sequence, int64_t begin, int64_t count, std::vector<int64_t>& out) const;
  /// Byte offset of a token in the .bin.
  int64_t byte_of(int64_t sequence, int64_t token) const { return offset(sequence) + token * item_size_; }
  /// The bytes of the .bin that hold a sequence.
  std::span<const std::byte> bytes(int64_t sequence) const;

 private:
  static constexpr int64_t kHeader = 34;
  /// Files that Megatron's older tools merged, and writers that end no document, have the boundary 0 alone: each
  /// sequence is a document there, as Megatron's GPT data set reads all files.
  bool lists_documents() const { return boundaries_ > 1 || sequences_ == 0; }
  template <class T>
  T load(int64_t at) const {
    return value_at<T>(index_.bytes().data() + at);
  }
  int64_t offset(int64_t sequence) const { return load<int64_t>(kHeader + sequences_ * 4 + sequence * 8); }
  void open_tokens(const std::filesystem::path& path);
  void check_header();
  void check_sequences();
  void check_boundaries() const;
  [[noreturn]] void fail(int64_t at, const std::string& what) const;

  MappedFile index_, tokens_;
  MegatronType type_ = MegatronType::kU8;
  int64_t item_size_ = 1, sequences_ = 0, boundaries_ = 0, total_ = 0;
  bool has_modes_ = false;
};

/// Writes a prefix, one sequence a document. Both files appear whole, the .bin first; without commit() neither does.
class MegatronWriter {
 public:
  /// Writes PREFIX.bin and PREFIX.idx.
  MegatronWriter(const std::filesystem::path& prefix, MegatronType type);
  ~MegatronWriter();
  /// Tokens of one document. DataError for an id that the type does not hold, WriteError.
  void append(std::span<const int32_t> tokens);
  /// Appends all sequences of another file unchanged; documents of several sequences stay together. DataError if the
  /// file has another type or modes.
  void append(const MegatronFile& file);
  int64_t documents() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t tokens() const { return total_; }
  void commit();

 private:
  std::filesystem::path prefix_;
  MegatronType type_;
  int64_t item_size_, total_ = 0;
  std::unique_ptr<AtomicFile> tokens_;
  std::vector<std::byte> buffer_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_ = {0};  // in sequences
};

}  // namespace trireme
