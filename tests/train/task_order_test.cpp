// A task is asked for batches after it knows how many rows go through the model at a time, never before.
#include "models/decoder/config.h"
#include "models/decoder/presets.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/config/config.h"
#include "trireme/formats/bert_config.h"
#include "trireme/formats/hdf5_rows.h"
#include "trireme/formats/npy.h"
#include "trireme/train/run.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {
namespace {

constexpr int64_t kRows = 8, kLength = 16;

class TaskOrder : public testing::Test {
 protected:
  TaskOrder() {
    char name[] = "/tmp/task_order_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~TaskOrder() override { std::filesystem::remove_all(root_); }

  Config config(const std::string& model) const {
    write_file_atomic(root_ / "run.yaml",
                      "model: {path: " + model +
                          ", init: random}\ndata: {train: rows, seq_length: 16}\n"
                          "batch: {global_batch_size: 8, micro_batch_size: 4}\noutput: {dir: out}\n");
    return load_config(root_ / "run.yaml", {});
  }

  std::unique_ptr<TrainingTask> llama() const {
    DecoderConfig shape = decoder_preset("llama-tiny");
    write_file_atomic(root_ / "llama.json", decoder_config_json(shape));
    write_npy_int32(root_ / "rows", std::vector<int32_t>(kRows * kLength, 1), kRows, kLength);
    return make_causal_lm_task(config("llama.json"), 0, 1, at::kCPU, at::kFloat);
  }

  std::unique_ptr<TrainingTask> bert() const {
    BertConfig shape;
    shape.hidden_size = 16;
    shape.num_hidden_layers = shape.num_attention_heads = 2;
    shape.intermediate_size = 32;
    shape.vocab_size = 64;
    shape.max_position_embeddings = kLength;
    write_file_atomic(root_ / "bert.json", bert_config_json(shape));
    Hdf5RowWriter writer(root_ / "rows");
    const auto put = [&](const char* name, int64_t length, int16_t value) {
      std::vector<int64_t> offsets;
      for (int64_t row = 0; row <= kRows; ++row) offsets.push_back(row * length);
      writer.write_rows(name, std::vector<int16_t>(static_cast<size_t>(kRows * length), value), offsets);
    };
    put("input_ids", kLength, 7);
    put("segment_ids", kLength, 0);
    put("masked_lm_positions", 1, 3);
    put("masked_lm_ids", 1, 9);
    put("packed_input_len", 1, kLength);
    put("next_sentence_labels", 1, 0);
    writer.commit();
    return make_masked_lm_task(config("bert.json"), 0, 1, at::kCPU, at::kFloat);
  }

  std::filesystem::path root_;
};

void check_order(TrainingTask& task) {
  EXPECT_THROW(task.prefetch(0), InternalError);
  EXPECT_THROW(task.batch(0), InternalError);
  EXPECT_THROW(task.synthetic_batch(), InternalError);
  task.set_rows_per_pass(2);
  task.prefetch(0);
  EXPECT_EQ(task.batch(0).micro_batches.size(), 4U);
  // What is being read has its rows already: they do not change under it.
  task.prefetch(1);
  EXPECT_THROW(task.set_rows_per_pass(4), InternalError);
  EXPECT_EQ(task.batch(1).micro_batches.size(), 4U);
}

TEST_F(TaskOrder, OfLlama) { check_order(*llama()); }
TEST_F(TaskOrder, OfBert) { check_order(*bert()); }

}  // namespace
}  // namespace trireme
