// Rows of Megatron's indexed files: labels, ends of documents, and index maps of other files.
#include "data/megatron/megatron_dataset.h"
#include "../base/base_testing.h"
#include "data/token_pack.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

constexpr int32_t kEnd = 9;

class MegatronRows : public DirectoryTest {
 protected:
  fs::path write(const std::string& name, const std::vector<std::vector<int32_t>>& documents) {
    MegatronWriter writer(root_ / name, MegatronType::kU16);
    for (const auto& document : documents) writer.append(document);
    writer.commit();
    return root_ / name;
  }
  /// Three documents that end with kEnd: 1 2 9, 3 9, 4 5 6 9.
  fs::path small() { return write("small", {{1, 2, kEnd}, {3, kEnd}, {4, 5, 6, kEnd}}); }
  MegatronOptions in_order(int64_t seq_length) const {
    return {.seq_length = seq_length, .vocab_size = 10, .shuffle = false, .eod = kEnd};
  }
  static std::shared_ptr<const MegatronDataset> open(const fs::path& path, const MegatronOptions& options,
                                                     int64_t samples = 1) {
    return open_megatron_dataset({{path}, {}}, Split::kTrain, samples, options);
  }
};

TEST_F(MegatronRows, NeighboursShareAToken) {
  const auto data = open(small(), in_order(4));
  ASSERT_EQ(data->size(), 2);  // 9 tokens: rows of 0 to 4 and 4 to 8
  EXPECT_EQ(data->read(0).input_ids, (Ids{1, 2, 9, 3}));
  EXPECT_EQ(data->read(0).labels, (Ids{2, 9, 3, 9}));
  EXPECT_EQ(data->read(1).input_ids, (Ids{9, 4, 5, 6}));
  EXPECT_EQ(data->read(1).labels, (Ids{4, 5, 6, 9}));
  EXPECT_EQ(data->read(1).num_targets(), 4);
  EXPECT_EQ(data->read(1).sequence_starts, Ids{0});
  EXPECT_EQ(data->rows_per_epoch(), 2);
}

TEST_F(MegatronRows, EndsOfDocuments) {
  MegatronOptions options = in_order(8);
  const fs::path path = small();
  const Ids ids = {1, 2, 9, 3, 9, 4, 5, 6};
  options.eod_mask_loss = true;
  EXPECT_EQ(open(path, options)->read(0).loss_mask, (std::vector<uint8_t>{1, 1, 0, 1, 0, 1, 1, 1}));
  EXPECT_TRUE(open(path, options)->read(0).positions.empty());
  EXPECT_EQ(open(path, options)->read(0).sequence_starts, Ids{0});
  options.reset_position_ids = true;
  EXPECT_EQ(open(path, options)->read(0).positions, (Ids{0, 1, 2, 0, 1, 0, 1, 2}));
  EXPECT_EQ(open(path, options)->read(0).sequence_starts, Ids{0});
  options.reset_attention_mask = true;  // both: positions follow from the sequences
  EXPECT_TRUE(open(path, options)->read(0).positions.empty());
  EXPECT_EQ(open(path, options)->read(0).sequence_starts, (Ids{0, 3, 5}));
  options.reset_position_ids = false;
  EXPECT_EQ(open(path, options)->read(0).positions, (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(open(path, options)->read(0).input_ids, ids);
  const TokenPack pack = make_token_pack({open(path, options)->read(0)}, {3}, /*per_token=*/true);
  EXPECT_EQ(pack.boundaries, (std::vector<int32_t>{0, 3, 5, 8}));
  EXPECT_EQ(pack.positions, (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(pack.labels, (Ids{2, 9, 3, 9, 4, 5, 6, 9}));
  EXPECT_EQ(pack.loss_weights, (std::vector<float>{1, 1, 0, 1, 0, 1, 1, 1}));
  EXPECT_EQ(pack.denominator, 6);
  // An end of a document as the last input begins nothing.
  options = in_order(5);
  options.reset_attention_mask = options.reset_position_ids = true;
  EXPECT_EQ(open(path, options)->read(0).sequence_starts, (Ids{0, 3}));
}

TEST_F(MegatronRows, FillersAndPatternsHaveLabels) {
  const Sample pattern = with_labels(pattern_sample(8, 100));
  const TokenPack plain = make_token_pack({pattern_sample(8, 100)}, {0}, false);
  const TokenPack labelled = make_token_pack({pattern, with_labels(filler_sample(8))}, {0, -1}, false);
  EXPECT_EQ(labelled.labels.size(), 16u);
  EXPECT_EQ(labelled.denominator, plain.denominator);
  for (size_t t = 0; t < 8; ++t) EXPECT_EQ(labelled.loss_weights[t], plain.loss_weights[t]) << t;
  for (size_t t = 8; t < 16; ++t) EXPECT_EQ(labelled.loss_weights[t], 0) << t;
  EXPECT_THROW(make_token_pack({pattern, filler_sample(8)}, {0, 1}, false), InternalError);
}

TEST_F(MegatronRows, BadIdsAreToldWithTheirByte) {
  const fs::path path = write("bad", {{1, 2, 3}, {4, 77, 5, 6}});
  EXPECT_EQ(message_of<DataError>([&] { (void)open(path, in_order(6))->read(0); }),
            path.string() +
                ".bin: byte 8 (document 1, token 1): token id 77 is outside the model's vocabulary of 10 (0 "
                "to 9): was the data made with another tokenizer?");
  const auto data = open(path, in_order(6));
  data->check_document(0);
  EXPECT_TRUE(contains(message_of<DataError>([&] { data->check_document(1); }), "token id 77"));
}

TEST_F(MegatronRows, TooLittleText) {
  EXPECT_TRUE(contains(message_of<DataError>([&] { (void)open(write("short", {{1, 2}, {3}}), in_order(3), 0); }),
                       "3 tokens in 2 documents, and a row of data.seq_length 3 reads 4"));
  MegatronOptions options = in_order(3);
  options.splits = "98,1,1";
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { (void)open_megatron_dataset({{small()}, {}}, Split::kTest, 1, options); }),
               "data.splits '98,1,1' gives test none of the 3 documents"));
  for (const char* splits : {"1,2", "a,1,1", "0,0,0", "-1,1,1", "", "1,1,1,1", "inf,1,1"}) {
    options.splits = splits;
    EXPECT_THROW((void)open(small(), options), ConfigError) << splits;
  }
}

/// The cache as rank 0 fills it and others read it.
TEST_F(MegatronRows, CachesOfOtherFilesAreBuiltAgain) {
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 40; ++d) documents.emplace_back(static_cast<size_t>(1 + d % 7), d % 9);
  const fs::path path = write("many", documents);
  MegatronOptions options{.seq_length = 5, .vocab_size = 10, .seed = 3};
  options.index_cache = root_ / "cache";
  const auto rows = [&] {
    std::vector<Ids> all;
    const auto data = open(path, options, 100);
    for (int64_t row = 0; row < 100; ++row) all.push_back(data->read(row).input_ids);
    return all;
  };
  const auto expected = rows();
  EXPECT_FALSE(fs::exists(options.index_cache)) << "reading writes nothing";
  open(path, options, 100)->fill_cache();
  const fs::path shuffle = options.index_cache / "many_train_indexmap_100ns_5sl_3s_shuffle_idx.npy";
  const fs::path order = options.index_cache / "many_train_indexmap_100ns_5sl_3s_doc_idx.npy";
  const fs::path samples = options.index_cache / "many_train_indexmap_100ns_5sl_3s_sample_idx.npy";
  ASSERT_TRUE(fs::exists(shuffle) && fs::exists(order) && fs::exists(samples));
  EXPECT_EQ(rows(), expected);
  const auto written = fs::last_write_time(order);
  open(path, options, 100)->fill_cache();
  EXPECT_EQ(fs::last_write_time(order), written) << "good maps are kept";
  // The documents of another split under the same name, as Megatron's names allow.
  const auto shape = NpyValues(order).shape();
  std::vector<int32_t> others(static_cast<size_t>(shape[0]));
  for (size_t i = 0; i < others.size(); ++i) others[i] = 60 + static_cast<int32_t>(i % 40);
  NpyValues(others, shape).save(order);
  EXPECT_TRUE(contains(message_of<DataError>([&] { rows(); }), "doc_idx.npy: row "));
  open(path, options, 100)->fill_cache();
  EXPECT_EQ(rows(), expected);
  // Places that no sample can have.
  NpyValues good(samples);
  std::vector<int32_t> places(static_cast<size_t>(good.size()));
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(good.at(static_cast<int64_t>(i)));
  for (const int32_t wrong : {-1, 1 << 30}) {
    std::vector<int32_t> damaged = places;
    damaged[2] = damaged[5] = wrong;
    NpyValues(damaged, good.shape()).save(samples);
    EXPECT_TRUE(contains(message_of<DataError>([&] { rows(); }), "sample_idx.npy: row ")) << wrong;
  }
  NpyValues(places, NpyValues(samples).shape()).save(samples);
  EXPECT_EQ(rows(), expected);
  fs::resize_file(shuffle, 100);  // damaged: read as absent, built again
  EXPECT_EQ(rows(), expected);
  open(path, options, 100)->fill_cache();
  EXPECT_GT(fs::file_size(shuffle), 100u);
}

TEST_F(MegatronRows, UnwritableCacheIsBuiltInMemory) {
  if (geteuid() == 0) {
    // Root writes everywhere; a file in the place of the directory refuses it too.
    std::ofstream(root_ / "cache") << "no directory";
  } else {
    fs::create_directory(root_ / "cache");
    fs::permissions(root_ / "cache", fs::perms::owner_read);
  }
  MegatronOptions options = in_order(4);
  options.index_cache = root_ / "cache" / "deeper";
  const auto data = open(small(), options);
  data->fill_cache();
  EXPECT_EQ(data->read(1).labels, (Ids{4, 5, 6, 9}));
}

TEST_F(MegatronRows, BlendsFollowTheirWeights) {
  const fs::path a = write("a", {std::vector<int32_t>(200, 1)});
  const fs::path b = write("b", {std::vector<int32_t>(200, 2)});
  const auto data = open_megatron_dataset({{a, b}, {3, 1}}, Split::kTrain, 400, in_order(4));
  std::string order;
  for (int64_t row = 0; row < 12; ++row) order += static_cast<char>('0' + data->read(row).input_ids[0]);
  EXPECT_EQ(order, "121112111211");  // each from the part that is furthest behind 3/4 or 1/4 of the rows before
  EXPECT_EQ(data->rows_per_epoch(), 49 + 49);
  EXPECT_EQ(data->documents(), 2);
  MegatronOptions options = in_order(4);
  options.index_cache = root_;
  fs::create_directories(root_ / "other");
  const fs::path c = write("other/a", {std::vector<int32_t>(200, 2)});
  EXPECT_THROW((void)open_megatron_dataset({{a, c}, {1, 1}}, Split::kTrain, 400, options), ConfigError);
}

TEST_F(MegatronRows, ShortDocumentsAreRepeated) {
  const auto data = open(write("short", {{1, 2}, {3}}), in_order(4), 3);
  ASSERT_EQ(data->size(), 3);
  EXPECT_EQ(data->read(0).input_ids, (Ids{1, 2, 3, 1}));
  EXPECT_EQ(data->read(2).labels, (Ids{1, 2, 3, 1}));
  EXPECT_EQ(data->rows_per_epoch(), 0);
  EXPECT_THROW((void)open(write("empty", {{}, {}}), in_order(4), 3), DataError);
}

TEST_F(MegatronRows, OnePathWithAWeightIsABlend) {
  const fs::path a = write("a", {std::vector<int32_t>(4001, 1)});
  MegatronOptions options = in_order(4);
  const auto rows = [&](std::vector<double> weights) {
    return open_megatron_dataset({{a}, std::move(weights)}, Split::kTrain, 1000, options)->size();
  };
  EXPECT_EQ(rows({}), 1000);
  EXPECT_EQ(rows({0.7}), 1005) << "maps of 1.005 n rows, which are two epochs";
  options.rules = IndexRules::kCore;
  EXPECT_EQ(rows({0.7}), 1000);
}

TEST(BlendOrder, CountsAndPlacesAgree) {
  BlendOrder order({0.61, 0.08, 0.3, 0.01});
  std::vector<int64_t> taken(4, 0);
  for (int64_t position = 0; position < 10000; ++position) {
    const BlendOrder::Place place = order.at(position);
    ASSERT_EQ(place.sample, taken[static_cast<size_t>(place.part)]++) << position;
  }
  EXPECT_EQ(BlendOrder({0.61, 0.08, 0.3, 0.01}).counts(10000), taken);
  EXPECT_EQ(order.at(5000).sample, BlendOrder({0.61, 0.08, 0.3, 0.01}).at(5000).sample);
}

}  // namespace
}  // namespace trireme
