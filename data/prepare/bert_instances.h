#pragma once
// Training instances of BERT: sentence pairs with masked tokens. Equal to those of MLPerf's create_pretraining_data.py
// (algorithm of google-research/bert), with the same sequence of random numbers (CPython's random.Random).

#include "data/prepare/bert_tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace trireme {

struct BertInstanceOptions {
  int seq_length = 512;      // tokens with CLS and both SEP
  int max_predictions = 76;  // masked tokens of an instance
  double masked_lm_prob = 0.15;
  double short_seq_prob = 0.1;
  int dupe_factor = 10;   // passes over the documents
  uint32_t seed = 12345;  // of the random numbers of every part
  bool cased = false;     // BertTokenizer's
  /// ConfigError for values outside their range.
  void check() const;
  /// Masked tokens of an instance of `length` tokens: a function of the length alone.
  int masks(int length) const;
};

/// Tokenised text: documents of sentences of ids. Empty sentences and documents are omitted.
struct BertDocuments {
  std::vector<int16_t> tokens;
  std::vector<uint64_t> sentences{0};  // [sentences + 1] first token of each
  std::vector<uint32_t> documents{0};  // [documents + 1] first sentence of each
  size_t size() const { return documents.size() - 1; }
};

/// Reads text with one sentence a line and a blank line between documents. DataError with file and line if it is not
/// UTF-8.
BertDocuments read_bert_documents(const std::filesystem::path& path, BertTokenizer& tokenizer);

/// A view of one instance.
struct BertInstance {
  std::span<const int16_t> input_ids;         // CLS A SEP B SEP, masked
  int16_t first_length = 0;                   // tokens of segment 0: CLS A SEP
  int16_t random_next = 0;                    // next_sentence_label
  std::span<const int16_t> masked_positions;  // ascending
  std::span<const int16_t> masked_ids;        // the true tokens
};

/// Instances grouped by length. Instances of one length have records of one size, so no index is needed. Record:
/// input_ids, first_length, random_next, masked_positions, masked_ids, all int16.
struct BertInstances {
  int seq_length = 0;
  std::vector<uint16_t> masks;                // [seq_length + 1] by length
  std::vector<std::vector<int16_t>> records;  // [seq_length + 1] by length, in shuffled order within a length
  std::vector<std::vector<uint32_t>> ranks;  // [seq_length + 1] position of each in the shuffled order of all instances
  size_t count = 0;
};

size_t bert_record_size(int length, int masks);  // in int16
BertInstance bert_record(const int16_t* record, int length, int masks);

/// The instances of all passes over the documents, shuffled.
BertInstances make_bert_instances(const BertDocuments& documents, const BertVocab& vocab,
                                  const BertInstanceOptions& options);

}  // namespace trireme
