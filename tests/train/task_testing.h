#pragma once
// Tasks of both kinds on made-up rows, shapes and weights.

#include "../base/base_testing.h"
#include "models/decoder/family.h"
#include "task.h"
#include "trireme/base/file.h"
#include "trireme/config/config.h"
#include "trireme/formats/hdf5/hdf5_rows.h"
#include "trireme/formats/huggingface/bert_config.h"
#include "trireme/formats/numpy/npy.h"
#include "trireme/train/training_program.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme {

inline constexpr int64_t kRows = 8, kLength = 16;

class TaskTest : public DirectoryTest {
 protected:
  /// The configuration that write_decoder() or write_bert() has left, as `program` reads it.
  Config load(const ProgramKeys& program, const std::vector<std::string>& overrides) const {
    return load_config(root_ / "run.yaml", overrides, program);
  }

  /// A decoder of random weights and kRows rows of kLength tokens, each of another id; loss on every position.
  void write_decoder() const {
    const DecoderConfig shape = decoder_preset("llama-tiny");
    write_file_atomic(root_ / "model.json", decoder_config_json(shape));
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < kRows * kLength; ++i) ids.push_back(static_cast<int32_t>(1 + i / kLength));
    write_npy_int32(root_ / "rows", ids, kRows, kLength);
    write_run();
  }

  /// A BERT, and kRows rows of one sequence of kLength tokens with one masked word each.
  void write_bert() const {
    BertConfig shape;
    shape.hidden_size = 16;
    shape.num_hidden_layers = shape.num_attention_heads = 2;
    shape.intermediate_size = 32;
    shape.vocab_size = 64;
    shape.max_position_embeddings = kLength;
    write_file_atomic(root_ / "model.json", bert_config_json(shape));
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
    write_run();
  }

 private:
  void write_run() const {
    write_file_atomic(root_ / "run.yaml",
                      "model: {path: model.json, init: random}\ndata: {train: rows, seq_length: 16}\n"
                      "batch: {global_batch_size: 8, micro_batch_size: 4}\noutput: {dir: out}\n");
  }
};

}  // namespace trireme
