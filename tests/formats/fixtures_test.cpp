// Every kept damaged or hostile file (make_fixtures.py) through the interface that reads it: refused with the right
// exit code and a sentence that says why, within a second, in little memory, and without leaving anything behind. The
// files whose names begin with "valid" load.
#include "data/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "trireme/base/text.h"
#include "trireme/formats/hdf5/hdf5_tokens.h"
#include "trireme/formats/huggingface/safetensors.h"
#include "trireme/formats/huggingface/weight_source.h"
#include "trireme/formats/megatron/indexed_file.h"

#include "../base/base_testing.h"
#include "limited_child.h"

#include <algorithm>
#include <map>

namespace trireme {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests" / "formats" / "fixtures";
constexpr int64_t kSeqLength = 8, kVocabulary = 100;
constexpr size_t kMaxAllocation = 1 << 20;  // or the file's size if larger
constexpr size_t kMaxMemory = size_t{64} << 20;
constexpr double kMaxSeconds = 1.0;

// File -> part of the sentence.
const std::map<std::string, std::string> kRefused = {
    // F27: npy
    {"empty.npy", "an empty file"},
    {"short.npy", "is not an npy file"},
    {"magic_only.npy", "header should have 118 bytes and the file has 10"},
    {"version_4.npy", "npy version 4.0 is not supported"},
    {"header_past_end.npy", "header should have 60000 bytes"},
    {"header_4_gib.npy", "header should have 4294967295 bytes"},
    {"shape_overflows.npy", "shape overflows"},
    {"shape_2_to_60.npy", "is truncated"},
    {"shape_2_to_40_columns.npy", "is truncated"},
    {"trailing_bytes.npy", "has trailing bytes"},
    {"cut_off.npy", "take 96 bytes and 95 are there"},
    {"floats.npy", "elements of type '<f4'"},
    {"structured.npy", "structured arrays are not supported"},
    {"code_in_header.npy", "the descr is not a plain type"},
    {"object_strings.npy", "record 0 is not a dict"},
    {"object_integers.npy", "record 0 is not a dict"},
    {"object_dict_without_fields.npy", "has no 'input_ids'"},
    {"object_count_lies.npy", "declares 1099511627776 records and holds 1"},
    {"pickle_bomb_protocol_2.npy", "asks for posix.system, which token records do not need; nothing was executed"},
    {"pickle_bomb_protocol_4.npy", "asks for builtins.exec, which token records do not need; nothing was executed"},
    {"pickle_bomb_persistent_id.npy", "operation 0x50, which token records do not need; nothing was executed"},
    {"pickle_bomb_instance.npy", "operation 0x69, which token records do not need; nothing was executed"},
    {"pickle_nested_tuples.npy", "nested deeper than 32 levels"},
    {"pickle_holds_itself.npy", "that holds itself"},
    {"pickle_holds_itself_in_tuple.npy", "that holds itself"},
    {"pickle_decode_bomb.npy", "bytes of encoded text in a file of"},
    {"pickle_text_past_end.npy", "2147483647 bytes are declared and 4 are left"},
    {"pickle_frame_past_end.npy", "a frame of 9223372036854775807 bytes"},
    {"pickle_array_2_to_62.npy", "an array whose size overflows"},
    // F28: HDF5
    {"truncated.h5", "cannot be opened as HDF5"},
    {"truncated_to_header.h5", "cannot be opened as HDF5"},
    {"superblock_version_9.h5", "superblock version 9 is not supported"},
    {"addresses_of_4_bytes.h5", "addresses of 4 and lengths of 8 bytes"},
    {"base_address.h5", "its base address is 18446744073709551615"},
    {"end_past_file.h5", "it should have 1099511627776 bytes and has"},
    {"driver_information.h5", "one of several files that belong together"},
    {"wrong_name.h5", "has no dataset input_ids"},
    {"wrong_rank.h5", "has 1 dimensions, expected 2"},
    {"wrong_type.h5", "does not hold integers"},
    {"group_instead.h5", "is not a dataset"},
    {"zero_rows.h5", "is empty: [0, 8]"},
    {"external_link.h5", "is a link; only data inside the file is read"},
    {"soft_link.h5", "is a link; only data inside the file is read"},
    {"external_raw_file.h5", "keeps its data in external files; only data inside the file is read"},
    {"virtual.h5", "is virtual; only data inside the file is read"},
    {"rows_2_to_40.h5", "has 0 of its 1073741824 chunks"},
    {"rows_2_to_60.h5", "has an extent of 1152921504606846976"},
    {"columns_2_to_28.h5", "has 0 of its 262144 chunks"},
    {"rows_of_nothing.h5", "has 1048576 rows in a file of "},
    {"chunk_of_1_gib.h5", "has chunks of more than 268435456 bytes"},
    {"chunks_missing.h5", "has 1 of its 3 chunks: it was not written completely"},
    {"labels_without_mask.h5", "'labels' is not read: write a dataset loss_mask [3, 8], 1 where a token has a loss"},
    {"positions_without_starts.h5", "'position_ids' is not read: write seq_start_id"},
    {"mask_of_another_shape.h5", "loss_mask has another shape than input_ids"},
    {"mask_of_lists.h5",
     "loss_mask does not hold integers but lists of variable length: write an array of 2 dimensions, with rows of "
     "equal length"},
    {"mask_not_0_or_1.h5", "row 0, column 0: 4 is not from 0 to 3"},
    {"absent_filter.h5", "is compressed with filter 299"},
    {"flipped_with_checksum.h5", "row 0 cannot be read"},
    {"flipped_without_checksum.h5",
     "row 2, position 4 (dataset input_ids[2, 4]): token id 65556 is outside the model's "
     "vocabulary of 100"},
    // F29: safetensors, each with the name of upstream's error
    {"too_small.safetensors", "it has 4 bytes, the header length alone takes 8"},  // HeaderTooSmall
    {"header_past_end.safetensors", "the header should have 4096 bytes"},          // InvalidHeaderLength
    {"header_over_100_mb.safetensors", "at most 100000000 are allowed"},           // HeaderTooLarge
    {"header_length_2_to_63.safetensors", "at most 100000000 are allowed"},        // HeaderTooLarge
    {"header_no_brace.safetensors", "does not start with '{'"},                    // InvalidHeaderStart
    {"header_not_json.safetensors", "is not valid JSON"},                          // InvalidHeaderDeserialization
    {"header_not_utf8.safetensors", "is not valid UTF-8"},                         // InvalidHeader
    {"header_deep.safetensors", "nested deeper than 4 levels"},                    // InvalidHeaderDeserialization
    {"duplicate_name.safetensors", "key 'a' appears twice"},                       // InvalidHeaderDeserialization
    {"duplicate_field.safetensors", "key 'dtype' appears twice"},                  // InvalidHeaderDeserialization
    {"unknown_dtype.safetensors", "has dtype 'F31'"},                              // InvalidHeaderDeserialization
    {"shape_is_not_bytes.safetensors", "takes 8 bytes by its shape and type, but 4 by"},  // TensorInvalidInfo
    {"shape_overflows.safetensors", "a shape whose size overflows"},                      // ValidationOverflow
    {"offset_overflows.safetensors", "ends at 3 before it begins"},                       // InvalidOffset
    {"offset_too_large.safetensors", "data_offsets that are not two non-negative"},  // InvalidHeaderDeserialization
    {"offsets_overlap.safetensors", "tensors overlap"},                              // InvalidOffset
    {"offsets_gap.safetensors", "tensors leave a gap"},                              // InvalidOffset
    {"data_cut_off.safetensors", "its tensors take 4 bytes and 3 are there"},        // MetadataIncompleteBuffer
    {"data_left_over.safetensors", "its tensors take 4 bytes and 5 are there"},      // MetadataIncompleteBuffer
    // F32: pickles instead of safetensors
    {"pickle.safetensors", "could run code and is never opened: convert it once"},
    {"torch_zip.safetensors", "could run code and is never opened: convert it once"},
    {"git_lfs_pointer.safetensors", "git lfs pull"},
    // F30: tokenizers
    {"truncated.model", "not a complete sentencepiece model"},
    {"truncated_between_fields.model", "no trainer_spec after 12 pieces"},
    {"piece_twice.model", "pieces 4 and 12 are both 'a'"},
    {"piece_not_utf8.model", "piece 12 is not UTF-8"},
    {"piece_empty.model", "piece 12 is empty"},
    {"piece_score_nan.model", "piece 12 has the score nan"},
    {"two_unknowns.model", "pieces 0 and 12 are both marked unknown"},
    {"piece_unused.model", "the piece 'ab' is marked unused"},
    {"json.model", "looks like JSON"},
    {"length_past_end.model", "bytes, but only 0 are left"},
    // byte-level BPE
    {"tokenizer_truncated.json", "is not valid JSON"},
    {"tokenizer_token_twice.json", "key 'a' appears twice"},
    {"tokenizer_id_twice.json", "tokens 'a' and 'b' both have the id 0"},
    {"tokenizer_id_2_to_23.json", "3 tokens have ids up to 8388608"},
    {"tokenizer_id_2_to_63.json", "the id of token 'b' is 9223372036854775808"},
    {"tokenizer_merge_unknown.json", "merge 0 ('a' 'c'): 'ac' is not in the vocabulary"},
    {"tokenizer_added_twice.json", "added tokens '<x>' (id 4) and '<y>' (id 4)"},
    {"tokenizer_sentencepiece.json", "byte_fallback of a model with the pre_tokenizer ByteLevel"},
    {"tokenizer_web_page.json", "a web page, not a tokenizer: download the file itself"},
    {"tokenizer_wordpiece.json", "the model 'WordPiece': not supported"},
    {"tokenizer_pattern.json", "missing closing parenthesis"},
    {"tokenizer_deep.json", "nested deeper than 32 levels"},
    // Megatron's index
    {"empty.idx", "0 bytes, but the header of a Megatron index has 34"},
    {"short.idx", "33 bytes, but the header of a Megatron index has 34"},
    {"other_magic.idx", "byte 0: the old format TNTIDX"},
    {"version_2.idx", "byte 9: version 2, but only 1 is known"},
    {"type_0.idx", "byte 17: type 0, of which there are 1 to 8"},
    {"type_9.idx", "byte 17: type 9"},
    {"float64.idx", "byte 17: the .bin holds float64 numbers, but tokens are integers"},
    {"float32.idx", "byte 17: the .bin holds float32 numbers"},
    {"sequences_2_to_63.idx", "byte 18: 9223372036854775808 sequences"},
    {"sequences_overflow.idx", "byte 18: 4611686018427387907 sequences"},
    {"sequences_4.idx", "byte 26: 4 document boundaries"},
    {"boundaries_2_to_61.idx", "byte 26: 2305843009213693952 document boundaries"},
    {"no_boundaries.idx", "byte 26: no document boundaries"},
    {"length_negative.idx", "byte 38: sequence 1 has -8 tokens"},
    {"length_2_to_31.idx", "byte 54: sequence 1 of 2147483647 int32 tokens begins at byte 32"},
    {"token_past_end.idx", "byte 62: sequence 2 of 9 int32 tokens begins at byte 64"},
    {"offset_negative.idx", "begins at byte -32"},
    {"offset_2_to_63.idx", "begins at byte 9223372036854775807"},
    {"wider_type.idx", "sequence 2 of 8 int64 tokens begins at byte 64"},
    {"boundary_first.idx", "byte 70: the first document boundary is 1"},
    {"boundary_descends.idx", "byte 86: document boundary 2 is 1 after 2"},
    {"boundary_last.idx", "byte 94: the last document boundary is 4, expected the 3 sequences"},
    {"trailing.idx", "byte 102: 2 bytes after the document boundaries"},
    // F31: file names that lead outside of the directory
    {"index_parent.json", "it leads out of the directory"},
    {"index_parent_inside.json", "it leads out of the directory"},
    {"index_absolute.json", "it is an absolute path"},
    {"index_link.json", "a symbolic link leads out of the directory"},
    {"index_nul.json", "it holds a NUL byte"},
    {"index_long.json", "it is longer than 4096 bytes"},
    {"index_empty.json", "it is empty"},
    {"index_pickle.json", "'pytorch_model.bin' is not a safetensors file"},
    {"index_not_text.json", "is not a file name"},
    {"index_duplicate.json", "key 'a' appears twice"},
    {"index_deep.json", "nested deeper than 8 levels"},
};

bool is_tokenizer(const std::string& name) { return name.find("tokenizer") != std::string::npos; }

ExitCode code_of(const std::string& name) {
  if (is_tokenizer(name)) return ExitCode::kData;
  return name.ends_with(".safetensors") || name.ends_with(".json") ? ExitCode::kModel : ExitCode::kData;
}

class Fixtures : public DirectoryTest {
 protected:
  /// Reads every row or tensor.
  void load(const std::string& name) const {
    const auto path = kFolder / name;
    if (name.ends_with(".npy") || name.ends_with(".h5")) {
      const auto dataset = open_token_dataset({path}, kSeqLength, kVocabulary);
      for (int64_t row = 0; row < dataset->size(); ++row)
        rows_read_ += dataset->read(row).input_ids[0] == row * kSeqLength;
    } else if (name.ends_with(".idx")) {
      const MegatronFile file(path, kFolder / "tokens.bin");
      std::vector<int64_t> ids;
      for (int64_t i = 0; i < file.sequences(); ++i) {
        ids.clear();
        file.read(i, 0, file.length(i), ids);
        rows_read_ += ids.at(0) == i * kSeqLength;
      }
    } else if (name.ends_with(".safetensors")) {
      SafetensorsFile file(path);
    } else if (name.ends_with(".model") || is_tokenizer(name)) {
      Tokenizer(path).encode("abc");
    } else {
      // In the model directory only the index is damaged.
      std::filesystem::copy_file(path, root_ / "model" / "model.safetensors.index.json");
      open_weights(root_ / "model");
    }
  }
  void SetUp() override {
    DirectoryTest::SetUp();
    std::filesystem::create_directory(root_ / "model");
    std::filesystem::copy_file(kFolder / "valid.safetensors", root_ / "model" / "valid.safetensors");
    std::filesystem::copy_file(kFolder / "valid.safetensors", root_ / "outside.safetensors");
    std::filesystem::create_symlink("../outside.safetensors", root_ / "model" / "link.safetensors");
  }
  mutable int64_t rows_read_ = 0;
};

class Refused : public Fixtures, public testing::WithParamInterface<std::pair<const std::string, std::string>> {};

TEST_P(Refused, WithItsSentenceInLittleTimeAndMemory) {
  const auto& [name, sentence] = GetParam();
  const size_t size = std::filesystem::file_size(kFolder / name);
  const ChildResult result = run_limited(kMaxMemory, [&, &file = name] { load(file); });
  EXPECT_EQ(result.exit_code, static_cast<int>(code_of(name))) << result.message;
  EXPECT_TRUE(contains(result.message, sentence));
  // For a model directory the message contains the file; every other message begins with the path.
  const bool index = name.ends_with(".json") && !is_tokenizer(name);
  const std::string file = index ? "model" : name;
  EXPECT_TRUE(contains(result.message, file));
  EXPECT_LT(result.message.size(), 600u) << "one sentence";
  EXPECT_LE(result.largest_allocation, std::max(size, kMaxAllocation));
  EXPECT_LT(result.seconds, kMaxSeconds);
  EXPECT_FALSE(std::filesystem::exists("executed"));
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) files += !entry.is_directory();
  EXPECT_EQ(files, index ? 4u : 3u) << "nothing may be created";
}

INSTANTIATE_TEST_SUITE_P(File, Refused, testing::ValuesIn(kRefused), [](const auto& test) {
  std::string name = test.param.first;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST_F(Fixtures, EachIsRefusedOrLoads) {
  int valid = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    if (name == "tokens.bin") continue;  // of the .idx
    if (!name.starts_with("valid")) {
      EXPECT_TRUE(kRefused.contains(name)) << "is in no table";
      continue;
    }
    ++valid;
    rows_read_ = 0;
    EXPECT_NO_THROW(load(name));
    if (name.ends_with(".npy") || name.ends_with(".h5") || name.ends_with(".idx")) {
      EXPECT_EQ(rows_read_, 3) << "rows 0-7, 8-15, 16-23";
    }
  }
  EXPECT_EQ(valid, 13);
}

// A reader that checks only the end of a file would accept these.
TEST_F(Fixtures, EveryCutOfEveryValidFileIsRefused) {
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("valid") || name.ends_with(".h5")) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(in)), {});
    for (size_t size = 0; size < whole.size(); ++size) {
      SCOPED_TRACE(name + " cut to " + std::to_string(size));
      const auto path = write("cut" + entry.path().extension().string(), whole.substr(0, size));
      failure(code_of(name), [&] {
        if (name.ends_with(".npy"))
          open_token_dataset({path}, kSeqLength, kVocabulary);
        else if (name.ends_with(".idx"))
          MegatronFile file(path, kFolder / "tokens.bin");
        else if (name.ends_with(".model") || is_tokenizer(name))
          Tokenizer tokenizer(path);
        else
          SafetensorsFile file(path);
      });
    }
  }
}

TEST_F(Fixtures, OurHdf5CarriesChecksums) {
  Hdf5TokenWriter writer(root_ / "ours.h5", 8, {.loss_mask = true, .seq_start_id = true});
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7}, starts = {0};
  const std::vector<uint8_t> mask(8, 1);
  writer.append(ids, mask, starts);
  writer.commit();
  std::ifstream in(root_ / "ours.h5", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  size_t found = 0;
  for (size_t at = whole.find("fletcher32"); at != std::string::npos; at = whole.find("fletcher32", at + 1)) ++found;
  EXPECT_EQ(found, 2u) << "input_ids and loss_mask";
}

TEST_F(Fixtures, AFileInThePlaceOfAModelDirectoryIsNotOpened) {
  for (const std::string name : {"model.pt", "pytorch_model.bin"}) {
    std::filesystem::copy_file(kFolder / "torch_zip.safetensors", root_ / name);
    EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { open_weights(root_ / name); }), "convert it once"));
  }
}

}  // namespace
}  // namespace trireme
