#pragma once
// The index maps of a Megatron data set, which give the tokens of sample i: three arrays, equal to Megatron's.
//
// Rules (NeMo 1.20, nlp/data/language_modeling/megatron/{gpt_dataset,base_dataset_utils,blendable_dataset}.py; Megatron
// core, core/datasets/{gpt_dataset,blended_megatron_dataset_builder}.py), with S = sequence length, T = tokens of the
// documents, n = samples asked for:
// - Sample i is S + 1 tokens of the concatenated documents from token i S on: neighbours share one token. One pass over
//   E epochs has (E T - 1) div S samples; E is the smallest number that gives n samples.
// - Document index: the documents, E times, shuffled together. If the last epoch gives fewer than int(0.8 of an
//   epoch's samples), E - 1 epochs are shuffled together and the last one by itself.
// - Sample index [N + 1, 2]: where sample i begins, as a place in the document index and an offset in that document.
// - Shuffle index [N]: the samples in a random order; those of a last epoch of its own come last, in an order of their
//   own. The three shuffles are np.random.RandomState(seed)'s, one after the other.

#include "trireme/formats/numpy/npy.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// NeMo's launcher and Megatron core build the same maps for the same documents and n, but take other documents and n:
///                  NeMo                                          core
/// splits           each split's share rounded; what the sum is   the cumulative shares rounded: no correction
///                  over or short is taken off every bound
/// samples of part  ceil(n w 1.005)                               ceil(ceil(n w) 1.005)
/// of a blend
/// size of a blend  sum of those                                  sum of ceil(n w)
enum class IndexRules { kNemo, kCore };

/// The shares of train, valid and test as written. ConfigError unless they are three numbers >= 0.
std::vector<double> split_shares(const std::string& splits);

/// Bounds of the documents of train, valid and test: [0, a, b, documents]. `splits`: "99990,8,2", with "," or "/".
/// ConfigError for a text that is not three numbers >= 0, at least one above 0.
std::vector<int64_t> split_bounds(const std::string& splits, int64_t documents, IndexRules rules);

/// Weights that sum to 1 as Megatron's tools compute them (the order of the sums counts in the last bits).
std::vector<double> blend_weights(const std::vector<double>& weights, IndexRules rules);
/// Samples that each part of a blend of `samples` is built for.
std::vector<int64_t> blend_part_samples(const std::vector<double>& normalised, int64_t samples, IndexRules rules);
/// Samples of the blend itself.
int64_t blend_size(const std::vector<double>& normalised, int64_t samples, IndexRules rules);

/// The order in which a blend takes from its parts: sample p comes from the part that is furthest behind its weight
/// (the first of equals), which gives its next sample. Computed as far as it is asked for.
class BlendOrder {
 public:
  /// `weights`: of blend_weights(); divided by their sum once more, as Megatron's blended set does.
  explicit BlendOrder(std::vector<double> weights);
  struct Place {
    int64_t part = 0, sample = 0;
  };
  Place at(int64_t position);
  /// Samples that each part gives to positions [0, end).
  std::vector<int64_t> counts(int64_t end);

 private:
  void extend(int64_t end);
  std::vector<double> weights_;
  std::vector<uint16_t> parts_;     // of every position so far
  std::vector<int64_t> taken_;      // of each part, through the last position
  std::vector<int64_t> snapshots_;  // taken_ at every kStep-th position
};

/// The inputs of the maps of one set.
struct IndexRequest {
  int64_t first = 0, last = 0;                    // documents [first, last)
  std::function<int32_t(int64_t document)> size;  // its tokens
  int64_t tokens = 0;                             // their sum over [first, last)
  int64_t samples = 0;                            // n
  int64_t seq_length = 0;
  uint32_t seed = 0;
  bool shuffle = true;  // false: documents and samples in the order of the file, E times
};

/// E, N and how the last epoch is treated: everything about the maps but their content.
struct IndexShape {
  int64_t epochs = 1, rows = 0;   // N
  int64_t rows_without_last = 0;  // (E - 1) T - 1 div S
  bool separate_last = false;
};
/// `request.samples` of 0 asks for one epoch, and is a DataError where that makes no sample.
IndexShape index_shape(const IndexRequest& request, const std::string& name);

struct IndexMaps {
  NpyValues documents;  // i4 [E D]
  NpyValues samples;    // i4 [N + 1, 2]; i8 where a place does not fit
  NpyValues shuffle;    // u4 [N]; i8 where N does not fit
};
IndexMaps build_index_maps(const IndexRequest& request, const IndexShape& shape);

}  // namespace trireme
