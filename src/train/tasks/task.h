#pragma once
// What the Trainer trains: the meeting point of a model family and its data. The Trainer knows steps, ranks and
// weights; the task knows what a batch is and what its loss is.

#include "data/dataset.h"
#include "data/row_scan.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/config/config.h"
#include "trireme/formats/huggingface/weight_source.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/nn/recompute.h"
#include "trireme/nn/sequence_exchange.h"
#include "trireme/nn/unit.h"
#include "trireme/ops/matmul/recipe.h"
#include "trireme/plan/cost.h"
#include "trireme/plan/plan.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// The rank for which a task is made.
struct RankInfo {
  RankGrid grid;  // its data axis says which rows; shard groups are not known yet
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  /// No run: data files are not opened and need not be there. facts() has no rows, and only model_shape() may be
  /// called.
  bool plan_only = false;
  /// Of the GPUs that a dry run plans for, whose checks are made although `device` is the CPU; 0: none.
  int planned_capability = 0;
  /// The ranks of grid.context where there are several; outlives the task.
  SequenceExchange* exchange = nullptr;
};

/// Why precision.linear: fp8 cannot multiply with this recipe on this device in this type; empty: it can. `sizes`: of
/// the matrices, by their names in the model's configuration; `tokens`: of a micro-batch, 0: not asked. A CPU emulates
/// any.
std::string fp8_problem(const RankInfo& rank, const RecipeTraits& recipe,
                        std::vector<std::pair<const char*, int64_t>> sizes, int64_t tokens = 0);
/// Why precision.frozen: nf4 cannot store the matrices of these units; empty: it can.
std::string nf4_problem(const std::vector<UnitSpec>& units);
/// What it stores, for the log.
std::string nf4_description(const std::vector<UnitSpec>& units, at::ScalarType compute_dtype);

/// The files that decide a run's numbers, but for the base in safetensors.
struct RunFiles {
  std::vector<std::filesystem::path> data;       // of data.train
  std::filesystem::path configuration;           // of the model, in JSON; NeMo's directories have none
  std::vector<std::filesystem::path> tokenizer;  // makes tokens of data.train as the run reads it; none: it has tokens
  std::vector<std::filesystem::path> evaluation = {};  // rows of evaluations
  int64_t evaluation_rows = 0;                         // SplitRows::there
  std::vector<std::filesystem::path> test = {};        // of data.test
  std::vector<std::filesystem::path> weights = {};     // of the base, in formats other than safetensors
  bool adapter_rows = false;                           // every start reads rows of the vocabulary in lora.adapter
};

/// One forward's worth of rows on the device; the task knows what is inside.
struct MicroBatch {
  virtual ~MicroBatch() = default;
};

/// This rank's part of a global batch.
struct StepBatch {
  std::vector<std::unique_ptr<MicroBatch>> micro_batches;
  double denominator = 0;  // what the loss sum is divided by, this rank's part: samples with a target, or targets
  double samples = 0;      // this rank's
  double row_flops = 0;    // mean over this rank's rows, attention within their sequences; 0: flops_per_row()
  /// Numbers that the losses of all ranks are normalised with (fp64, on the device), this rank's part; summed over the
  /// ranks before the first forward. The micro-batches refer to the same tensor. Undefined: none.
  at::Tensor counts;
  /// Sums of TaskFacts::metrics (fp64 [K], on the device, zeros) to which loss() adds: this rank's part. Undefined:
  /// none.
  at::Tensor metrics;
};

/// Sums of one rank's evaluation, in an order that the task knows; added up over the ranks.
using EvalSums = std::vector<double>;
struct EvalResult {
  double loss = 0;
  std::optional<double> mlm_accuracy;  // part of all masked words, 0 to 1
  std::vector<double> metrics = {};    // of TaskFacts::metrics
};

/// Constant facts of a task.
struct TaskFacts : ModelFacts {
  int64_t parameters = 0, trained_parameters = 0;  // elements
  RowFlops flops{};                                // of a training step, for a row of data.seq_length tokens
  int64_t train_rows = 0;          // of data.train: what batch.global_batch_size counts and epochs are made of
  int64_t train_samples = 0;       // in these rows
  int64_t eval_samples = 0;        // of data.valid that an evaluation reads; 0: there is none
  int64_t test_samples = 0;        // of data.test that are evaluated at the end; 0: there is none
  double nominal_denominator = 1;  // the loss denominator of a step of which every sample counts; keeps sums near 1
  /// Samples that a step counts for where evaluations are due, when rows and samples are not the same; evaluation i
  /// then comes after step ceil(i * eval.every_samples / this) instead of every so many steps.
  std::optional<double> nominal_samples_per_step;
  std::string mlperf_division;       // for the MLPerf log: "closed" or "open"
  std::vector<std::string> metrics;  // names of what is measured beside the loss: "rewards/chosen"

  /// Passes over data.train that so many rows are.
  double epochs(int64_t rows) const {
    return train_rows > 0 ? static_cast<double>(rows) / static_cast<double>(train_rows) : 0;
  }
};

/// What the model answers to one of eval.prompts.
struct SampledText {
  std::string prompt, text;
  bool ended = false;  // by a token that ends an answer, before eval.max_new_tokens
};

/// What TrainingTask::prepare() needs to know.
struct BeforeSteps {
  Communicator& comm;
  int64_t completed = 0;            // steps of the run
  std::filesystem::path directory;  // output.dir
  std::function<void()> claim;      // makes it this run's: to be called before a file is written there
  std::function<void(int64_t done, int64_t total)> progress;  // called after each forward pass; may throw
};

class TrainingTask : public PlannedModel {
 public:
  const TaskFacts& facts() const final { return facts_; }
  // Members of facts().
  const std::vector<UnitSpec>& units() const { return *facts_.units; }
  int64_t num_parameters() const { return facts_.parameters; }
  int64_t num_trained_parameters() const { return facts_.trained_parameters; }
  double flops_per_row() const { return facts_.flops.whole_row(); }
  int64_t eval_samples() const { return facts_.eval_samples; }
  double nominal_denominator() const { return facts_.nominal_denominator; }
  std::optional<double> nominal_samples_per_step() const { return facts_.nominal_samples_per_step; }

  /// How many rows go through the model at a time: the plan's choice, a divisor of batch.micro_batch_size. Once, and
  /// before any batch is asked for: those cannot be made without (InternalError).
  void set_rows_per_pass(int rows);

  /// Compares the files that training starts from with the model: the headers of the weights, the adapter whole. No
  /// weights of the base are read. ModelError.
  void check_weights();
  /// Loads or draws the weights of all units; collective, once.
  void load_weights(ShardedUnits& units);
  /// When that has succeeded on all ranks: fills weights that follow from others. Collective.
  virtual void complete_weights(ShardedUnits& /*units*/) {}
  /// Between the loading of the weights and the first step of this process: what has to be computed with the weights
  /// before they change. Collective.
  virtual void prepare(ShardedUnits& /*units*/, const BeforeSteps& /*before*/) {}
  /// The rows to check before training; they own what they read.
  virtual std::vector<RowSet> row_sets() const = 0;
  /// DataError.
  virtual RunFiles files() const = 0;

  /// Starts reading and collating global batch `step` (0-based) in the background.
  virtual void prefetch(int64_t step) = 0;
  /// This rank's part of global batch `step` (0-based), in micro-batches of set_rows_per_pass() rows. DataError.
  virtual StepBatch batch(int64_t step) = 0;
  /// The position in this rank's data after `completed` steps, the last of which batch() has returned; empty where the
  /// place follows from the number of steps. The lists of all ranks, one after the other, are what restore_data_state()
  /// takes on any number of ranks.
  virtual std::vector<double> data_state(int64_t completed) const = 0;
  /// Goes on after `completed` steps from such numbers; none: a checkpoint that has no place in this data. ModelError.
  virtual void restore_data_state(int64_t completed, const std::vector<double>& numbers) = 0;
  /// A batch of one pass made up without touching the data: what runs before the clock of a benchmark starts.
  virtual StepBatch synthetic_batch() = 0;
  /// Sum of weighted losses of the micro-batch: fp32 scalar, differentiable when `train`.
  virtual at::Tensor loss(UnitStore& units, const MicroBatch& batch, const Recomputation& recompute, bool train) = 0;
  /// Evaluation over this rank's share of the validation data, same number of forward passes on every rank.
  /// `progress(done, total)` is called after each forward pass and may throw.
  virtual EvalSums evaluate(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) = 0;
  /// The same over data.test, where facts().test_samples says that there is any.
  virtual EvalSums test(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) = 0;
  /// Answers to eval.prompts, on rank 0; collective. `progress` as in evaluate(), the same on all ranks.
  virtual std::vector<SampledText> sample(ShardedUnits& /*units*/, Communicator& /*comm*/,
                                          const std::function<void(int64_t, int64_t)>& /*progress*/) {
    return {};
  }
  /// From sums over all ranks and rows of `split`. DataError where none of these has a target.
  virtual EvalResult eval_result(const EvalSums& sums, Split split) const = 0;

  /// Writes the final artefact (adapter/ or model/) below `directory`; collective, rank 0 writes. WriteError.
  virtual void save_artefact(ShardedUnits& units, const std::filesystem::path& directory) = 0;
  /// Bytes of its tensors, at least: an adapter's in fp32, a model's in the compute dtype.
  uint64_t artefact_bytes() const;

 protected:
  TrainingTask(const Config& config, const RankInfo& rank) : config_(config), rank_(rank) {}

  /// Reads what the run starts from beside the weights of model.path: an adapter. ModelError.
  virtual void check_start() {}
  /// Opens the weights of model.path for the model. ModelError.
  virtual std::unique_ptr<WeightSource> open_weights() const = 0;
  /// All units have their weights, from `source` or, null, drawn at random. Collective.
  virtual void weights_loaded(ShardedUnits&, const WeightSource*) {}

  uint64_t seed() const { return static_cast<uint64_t>(config_.train.seed); }

  /// Writes all weights in the compute dtype with a Writer that has append(name, tensor), called on rank 0 in the order
  /// of the units; collective. `make` is called on rank 0. Returns the writer there, null elsewhere. An error of the
  /// writer is thrown on rank 0, when all ranks are through.
  template <class MakeWriter>
  auto export_model(ShardedUnits& units, const MakeWriter& make) const {
    decltype(make()) writer;
    units.export_tensors(
        rank_.compute_dtype, [](int) { return true; },
        [&](const std::string& name, const at::Tensor& value) {
          if (!writer) writer = make();
          writer->append(name, value);
        });
    return writer;
  }

  /// InternalError while set_rows_per_pass() has not been called.
  int64_t rows_per_pass() const;

  const Config config_;
  const RankInfo rank_;
  TaskFacts facts_;  // filled by the constructors of families

 private:
  int64_t rows_per_pass_ = 0;
  bool checked_ = false;
  std::unique_ptr<WeightSource> source_;  // from check_weights() to load_weights()
};

/// Next-token prediction on token rows: decoders, with adapters or without (models/decoder).
std::unique_ptr<TrainingTask> make_causal_lm_task(const Config& config, const RankInfo& rank,
                                                  const ProgramKeys& program);
/// Masked words and next sentence on packed rows (models/bert).
std::unique_ptr<TrainingTask> make_masked_lm_task(const Config& config, const RankInfo& rank,
                                                  const ProgramKeys& program);

}  // namespace trireme
