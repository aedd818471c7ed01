#pragma once
// Private to schema.h: the sections model, lora and data.

#include "schema_field.h"

namespace trireme {

template <class Visitor>
void describe(Visitor& v, ModelSection& s) {
  v.field({.key = "path",
           .help = "Hugging Face directory, or NeMo zarr checkpoint directory; BERT: also a TensorFlow checkpoint",
           .required = true,
           .path = true},
          s.path);
  v.field({.key = "init",
           .help = "weights from the checkpoint, or random (config.json alone is enough)",
           .words = {"checkpoint", "random"}},
          s.init);
  v.field(
      {.key = "read",
       .help =
           "per_rank: every rank reads its weights from the files; per_host: one rank of a host reads each weight and "
           "sends it to the others",
       .words = {"per_rank", "per_host"},
       .may_change = true},
      s.read);
  v.field({.key = "vocab_size",
           .help = "rows of the vocabulary; new rows start as the mean of the existing ones, as with transformers' "
                   "resize_token_embeddings; null = as many as the model has",
           .min = 1,
           .max = kMaxCount,
           .feature = Feature::kVocabularySize,
           .instead = "fill the vocabulary up with model.pad_vocab_to"},
          s.vocab_size);
  v.field({.key = "pad_vocab_to",
           .help = "rows are added to the vocabulary up to a multiple of this; 1 = none; null = {vocab_multiple}",
           .min = 1,
           .max = 65536},
          s.pad_vocab_to);
  v.field(
      {.key = "scaled_residual_init",
       .help = "with init random: projections whose output is added to the residual stream are drawn with the standard "
               "deviation initializer_range / sqrt(2 layers), as in GPT-2 and MLPerf's llama31_8b; null = what the "
               "model's family does",
       .feature = Feature::kVocabularySize,
       .instead = "leave it out"},
      s.scaled_residual_init);
}

template <class Visitor>
void describe(Visitor& v, LoraSection& s) {
  v.field({.key = "r", .help = "rank of the adapters", .min = 1, .max = 65536}, s.r);
  v.field({.key = "alpha", .help = "the adapter's output is scaled by alpha / r", .min = 0, .above_min = true},
          s.alpha);
  v.field({.key = "dropout", .help = "dropout before A, in training only", .min = 0, .max = 1, .below_max = true},
          s.dropout);
  v.field({.key = "target_modules",
           .help = "projections that get an adapter; qkv_proj = one fused adapter over q, k, v",
           .words = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "c_attn", "c_proj",
                     "c_fc", "qkv_proj"}},
          s.target_modules);
  v.field({.key = "adapter", .help = "PEFT directory to start from", .path = true}, s.adapter);
}

template <class Visitor>
void describe(Visitor& v, DataSection& s) {
  v.field({.key = "train",
           .help = "training rows; the format is detected from the content; mock = random ids, to measure speed",
           .required = true,
           .path = true,
           .one_or_more = true,
           .not_path = "mock"},
          s.train);
  v.field({.key = "weights",
           .help = "documents (Arrow, save_to_disk, Parquet, JSON lines): for each path of data.train its share of the "
                   "tokens, in any unit; or write entries with path, weight and name into data.train",
           .min = 0,
           .above_min = true,
           .feature = Feature::kDocumentStreams},
          s.weights);
  v.field({.key = "names",
           .help = "documents: the name that messages give to each path of data.train",
           .may_change = true,
           .may_be_absent = true,
           .feature = Feature::kDocumentStreams},
          s.names);
  v.field({.key = "valid",
           .help = "validation rows",
           .path = true,
           .one_or_more = true,
           .may_be_absent = true,
           .not_path = "mock"},
          s.valid);
  v.field({.key = "test",
           .help = "test rows, evaluated once, after the last step",
           .path = true,
           .one_or_more = true,
           .may_be_absent = true,
           .not_path = "mock"},
          s.test);
  v.field({.key = "seq_length", .help = "tokens in a row", .min = 2, .max = 16777216, .required = true}, s.seq_length);
  v.field({.key = "shuffle", .help = "shuffle the rows; false = the order of the file"}, s.shuffle);
  v.field({.key = "column",
           .help = "documents: column or field that holds them; null = tokens, input_ids or text, whichever is there",
           .feature = Feature::kDocumentStreams},
          s.column);
  v.field({.key = "bos_token",
           .help = "documents: id put before each one",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.bos_token);
  v.field({.key = "eos_token",
           .help = "documents: id put after each one; Megatron: id that already ends each one",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.eos_token);
  v.field({.key = "bol_token",
           .help = "documents: id that every row begins with",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.bol_token);
  v.field({.key = "eol_token",
           .help = "documents: id that every row ends with",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.eol_token);
  v.field({.key = "strip_tokens",
           .help = "documents: more ids that are removed at the start and end of a document, as the four ids above are",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.strip_tokens);
  v.field({.key = "min_length",
           .help = "documents: those with fewer tokens, bos and eos included, are skipped",
           .min = 1,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.min_length);
  v.field(
      {.key = "logical_shards",
       .help = "documents: number of parts that the ranks share out; a multiple of the number of ranks, the same for a "
               "whole run",
       .min = 1,
       .max = 1048576,
       .feature = Feature::kDocumentStreams},
      s.logical_shards);
  v.field(
      {.key = "splits",
       .help =
           "Megatron: shares of the documents of data.train for training, validation and test, such as '99990,8,2'; "
           "null = all for training",
       .feature = Feature::kMegatronData},
      s.splits);
  v.field(
      {.key = "index_rules",
       .help = "Megatron: whether splits are rounded and the rows of blends counted as in NeMo or as in Megatron core",
       .words = {"nemo", "core"},
       .feature = Feature::kMegatronData},
      s.index_rules);
  v.field({.key = "index_cache",
           .help = "Megatron: directory of the index maps; null = where each file lies",
           .path = true,
           .feature = Feature::kMegatronData},
          s.index_cache);
  v.field({.key = "reset_position_ids",
           .help = "Megatron: positions count from 0 again after each data.eos_token",
           .feature = Feature::kMegatronData},
          s.reset_position_ids);
  v.field({.key = "reset_attention_mask",
           .help = "Megatron: attention does not cross a data.eos_token",
           .feature = Feature::kMegatronData},
          s.reset_attention_mask);
  v.field({.key = "eod_mask_loss",
           .help = "Megatron: no loss on the prediction made at a data.eos_token",
           .feature = Feature::kMegatronData},
          s.eod_mask_loss);
}

}  // namespace trireme
