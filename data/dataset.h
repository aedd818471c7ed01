#pragma once
// Rows of tokens: what one is, sets of them, those of npy and HDF5 files, and the order in which a run reads these.
// Independent of LibTorch and ranks.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

enum class Split { kTrain, kValid, kTest };
const char* split_name(Split split);  // "train", "valid", "test", as in the names of Megatron's index maps

/// One row of exactly seq_length tokens. Position t predicts token t+1, or labels[t] where there are labels.
struct Sample {
  std::vector<int64_t> input_ids;  // [S]
  /// [S], of the *target* token: without labels of the token at the same place (0 at position 0 and at every sequence
  /// start), with labels of the label there.
  std::vector<uint8_t> loss_mask;        // 0 or 1
  std::vector<int64_t> sequence_starts;  // ascending, first 0
  std::vector<int64_t> labels;           // [S], or empty
  std::vector<int64_t> positions;        // [S], or empty: counted from each sequence start
  int64_t pairs = 0;                     // sequences 2 i and 2 i + 1 are those of pair i (Answers), from the first on
  std::vector<uint8_t> desirable;        // [pairs] of judged answers: 1 or 0
  int64_t num_targets() const;           // set bits of loss_mask
};

/// What the sequences of rows are that train.objective dpo, orpo and kto take, two by two; the last one of a row may be
/// padding. kPairs: the chosen and the rejected answer to a prompt; the file's loss_mask is 1 at the targets of chosen
/// answers and 2 at those of rejected ones. kJudged: an answer, 1 at its targets where it is desirable and 2 where it
/// is not; and its prompt with the answer to another prompt, 3 at its targets.
enum class Answers { kNone, kPairs, kJudged };

/// A row of one sequence with a loss on every position.
Sample one_sequence(std::vector<int64_t> input_ids);

/// Rows by number.
class TokenDataset {
 public:
  virtual ~TokenDataset() = default;
  virtual int64_t size() const = 0;
  virtual Answers answers() const { return Answers::kNone; }
  /// Rows through each file.
  virtual std::vector<int64_t> file_ends() const { return {size()}; }
  /// Row `index`, checked: length, ids in [0, vocab_size), mask, starts. DataError with file, row, byte offset and
  /// value. Thread-safe.
  virtual Sample read(int64_t index) const = 0;
  virtual std::string description() const = 0;  // "train.npy (MLPerf records, 3,901 rows)"
};

/// Rows of npy and HDF5 files, concatenated in the given order. The content of a file decides its format, never its
/// name. DataError for a file of another format, with a guess of it, and for rows of another length.
///
/// `answers`: what all rows have to be; null: as the first row is. Every answer has a target.
std::unique_ptr<TokenDataset> open_token_dataset(const std::vector<std::filesystem::path>& files, int64_t seq_length,
                                                 int64_t vocab_size, std::optional<Answers> answers = std::nullopt);

/// The stream of sample indices: one permutation per epoch, concatenated. shuffle: np.random.RandomState(seed)
/// shuffling arange(size) once per epoch (MLPerf's order); otherwise file order. Independent of the world size.
class Sampler {
 public:
  Sampler(int64_t dataset_size, uint64_t seed, bool shuffle);
  /// Dataset index of stream element `position` (0-based over the whole run). Random access; epochs are generated as
  /// needed.
  int64_t at(int64_t position);

 private:
  void generate_through(int64_t epoch);
  int64_t size_;
  uint64_t seed_;
  bool shuffle_;
  int64_t epoch_ = -1;
  std::vector<int64_t> permutation_;  // of epoch_
  struct Generator;
  std::shared_ptr<Generator> generator_;
};

}  // namespace trireme
