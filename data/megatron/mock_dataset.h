#pragma once
// NeMo's mock data set (data_impl: mock): rows that are drawn, not read, to measure speed with.

#include "data/dataset.h"

#include <memory>

namespace trireme {

/// Row i has `seq_length` inputs and as many labels, drawn one after the other from default_rng(seed + i), uniform in
/// [0, vocab_size): no input says anything about a label, and the loss stays near ln(vocab_size). The rows of train and
/// valid are the same.
std::unique_ptr<TokenDataset> open_mock_dataset(int64_t rows, int64_t seq_length, int64_t vocab_size, uint64_t seed);

}  // namespace trireme
