#include "preference_task.h"

#include "trireme/base/hash.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/collective_check.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/plan/cost.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace trireme {

namespace {

constexpr const char* kReferenceFile = "reference_log_probs.safetensors";

struct PairMicroBatch final : MicroBatch {
  TokenBatch tokens;
  PairBatch pairs;
  at::Tensor counts, metrics;  // of StepBatch
};

/// The units of a run with other values of some replicated units, for a forward without gradient.
class ReferenceStore final : public UnitStore {
 public:
  ReferenceStore(UnitStore& units, const std::map<int, std::vector<at::Tensor>>& values)
      : units_(units), values_(values) {}
  const std::vector<at::Tensor>& parameters(int unit) override {
    const auto found = values_.find(unit);
    return found == values_.end() ? units_.parameters(unit) : found->second;
  }
  const std::vector<WeightState>& weight_states(int unit) override { return units_.weight_states(unit); }
  void pre_forward(int unit) override { units_.pre_forward(unit); }
  void post_forward(int unit) override { units_.post_forward(unit); }
  void pre_backward(int unit) override { units_.pre_backward(unit); }
  void post_backward(int unit) override { units_.post_backward(unit); }

 private:
  UnitStore& units_;
  const std::map<int, std::vector<at::Tensor>>& values_;
};

}  // namespace

PreferenceTask::PreferenceTask(const Config& config, const RankInfo& rank, const ProgramKeys& program)
    : CausalLmTask(config, rank, program),
      loss_(config.train.objective, config.preference.value_or(PreferenceSection())) {
  const PreferenceSection section = config.preference.value_or(PreferenceSection());
  precomputes_ = precomputes_reference(config);
  drops_ = !section.disable_dropout;
  facts_.metrics = loss_.metrics();
  facts_.nominal_denominator = 1;  // the losses come normalised
  facts_.flops = RowFlops(model_shape(config, /*element_size=*/1));
  const char* reference = !loss_.has_reference() ? "no reference"
                          : precomputes_         ? "the reference's log-probabilities in a file of output.dir"
                          : config.lora->adapter ? "the reference is the base with lora.adapter as it starts"
                                                 : "the reference is the base without adapters";
  facts_.description.push_back(fmt::format("objective: {}, beta {}, {}; dropout is {}", word_of(config.train.objective),
                                           format_exact(section.beta), reference,
                                           drops_ ? "on" : "off (preference.disable_dropout)"));
}

ModelShape PreferenceTask::model_shape(const Config& config, int64_t element_size) const {
  ModelShape shape = CausalLmTask::model_shape(config, element_size);
  shape.reference = loss_.has_reference() && !precomputes_;
  shape.head.again = true;
  return shape;
}

void PreferenceTask::weights_loaded(ShardedUnits& units, const WeightSource* source) {
  CausalLmTask::weights_loaded(units, source);
  if (!loss_.has_reference() || precomputes_) return;
  // A resumed run loads its adapters after this.
  for (size_t u = 0; u < units.units().size(); ++u) {
    if (!units.units()[u].replicated) continue;
    for (const at::Tensor& parameter : units.parameters(static_cast<int>(u)))
      start_[static_cast<int>(u)].push_back(parameter.clone());
  }
}

at::Tensor PreferenceTask::reference_log_probs(UnitStore& units, const TokenBatch& tokens) {
  const at::NoGradGuard no_grad;
  ReferenceStore store(units, start_);
  ForwardOptions options;
  options.train = false;
  options.adapters = config_.lora->adapter.has_value();  // new ones begin with B = 0
  return model_->log_probs(store, tokens, options);
}

PairSums PreferenceTask::pair_sums(UnitStore& units, const MicroBatch& micro_batch, const Recomputation& recompute,
                                   bool train) {
  const auto& batch = static_cast<const PairMicroBatch&>(micro_batch);
  at::Tensor reference = batch.pairs.reference_P2;
  if (loss_.has_reference() && !reference.defined())
    reference = PreferenceLoss::answer_sums(reference_log_probs(units, batch.tokens), batch.pairs);
  ForwardOptions options;
  options.train = train;
  options.dropout = drops_;
  options.seed = seed();
  options.recompute = recompute;
  return loss_.sums(model_->log_probs(units, batch.tokens, options), batch.pairs, reference);
}

at::Tensor PreferenceTask::loss(UnitStore& units, const MicroBatch& micro_batch, const Recomputation& recompute,
                                bool train) {
  const auto& batch = static_cast<const PairMicroBatch&>(micro_batch);
  const PairSums sums = pair_sums(units, micro_batch, recompute, train);
  at::Tensor loss = sums.loss / batch.counts[0];
  if (loss_.nll_weight() > 0) loss = loss + loss_.nll_weight() * sums.nll / batch.counts[1];
  batch.metrics.add_(loss_.means(sums.metrics, batch.counts));
  return loss.to(at::kFloat);
}

StepBatch PreferenceTask::to_device(const std::vector<TokenPack>& passes) const {
  StepBatch step;
  step.row_flops = row_flops(passes);
  step.denominator = 1.0 / rank_.grid.data.size;
  std::vector<double> counts(PreferenceLoss::kCounts);
  for (const TokenPack& pack : passes) {
    step.samples += static_cast<double>(pack.rows);
    std::ranges::transform(counts, loss_.counts(pack), counts.begin(), std::plus());
  }
  step.counts = copy_to_device(counts, rank_.device);
  step.metrics = at::zeros({static_cast<int64_t>(facts_.metrics.size())}, step.counts.options());
  for (const TokenPack& pack : passes) {
    auto batch = std::make_unique<PairMicroBatch>();
    batch->tokens = token_batch_on(rank_.device, pack, loss_.counted(pack));
    batch->pairs = pair_batch_on(rank_.device, pack);
    batch->counts = step.counts;
    batch->metrics = step.metrics;
    if (precomputes_) {
      std::vector<double> reference;
      for (const uint64_t key : pack.row_keys) {
        const auto found = reference_.find(key);
        if (found == reference_.end())
          throw DataError(fmt::format(
              "{} has no log-probabilities of a row of data.train, data.valid or data.test: the file was "
              "written before the first step, and the rows changed since, or a split was added; put the old "
              "rows back, or start in another output.dir",
              reference_path_.string()));
        reference.insert(reference.end(), found->second.begin(), found->second.end());
      }
      batch->pairs.reference_P2 =
          copy_to_device(reference, rank_.device).view({static_cast<int64_t>(pack.chosen.size()), 2});
    }
    step.micro_batches.push_back(std::move(batch));
  }
  return step;
}

at::Tensor PreferenceTask::score(UnitStore& units, const MicroBatch& batch) {
  const PairSums sums = pair_sums(units, batch, {}, /*train=*/false);
  return at::cat({at::stack({sums.loss, sums.nll}), sums.metrics});
}

EvalSums PreferenceTask::counts(const TokenPack& pack) const { return loss_.counts(pack); }

EvalResult PreferenceTask::eval_result(const EvalSums& sums, Split split) const {
  const size_t count = facts_.metrics.size();
  const at::Tensor all = copy_to_device(sums, at::kCPU),
                   counts = all.narrow(0, 2 + static_cast<int64_t>(count), PreferenceLoss::kCounts);
  const double pairs = sums.at(2 + count), tokens = sums.at(3 + count);
  if (pairs == 0) throw without_targets(config_, split, rows().without_target);
  EvalResult result = {sums[0] / pairs, {}};
  if (loss_.nll_weight() > 0) result.loss += loss_.nll_weight() * sums[1] / tokens;
  const at::Tensor means = loss_.means(all.narrow(0, 2, static_cast<int64_t>(count)), counts);
  result.metrics.assign(means.const_data_ptr<double>(), means.const_data_ptr<double>() + count);
  return result;
}

std::string PreferenceTask::origin() const {
  std::string text = fmt::format("{} ", c10::toString(rank_.compute_dtype));
  const auto add = [&](const std::vector<Fingerprint>& prints) {
    for (const Fingerprint& print : prints) text += print.hash + " ";
  };
  for (const auto* entries : {&config_.data.train, &config_.data.valid, &config_.data.test})
    add(fingerprint_files(to_paths(row_files(*entries)), ExitCode::kData));
  add(fingerprint_model(config_.model.path, config_.model.init == ModelSection::Init::kCheckpoint));
  if (config_.lora && config_.lora->adapter) add(fingerprint_model(*config_.lora->adapter, /*with_weights=*/true));
  return hex64(xxh3_64(text.data(), text.size()));
}

void PreferenceTask::prepare(ShardedUnits& units, const BeforeSteps& before) {
  if (!precomputes_) return;
  Communicator& comm = before.comm;
  reference_path_ = before.directory / kReferenceFile;
  std::string from, state;  // rank 0's
  collective_check(comm, [&] {
    if (comm.rank() != 0) return;
    // After the first step the base may be elsewhere; rows that are not the file's are found by their keys.
    if (before.completed == 0) from = origin();
    try {
      state = read_reference(reference_path_, from) ? "there" : "";
    } catch (const ModelError& error) {
      if (before.completed > 0)
        throw ModelError(
            fmt::format("{}; after step {} it cannot be computed again: put a sound copy back, or start in "
                        "another output.dir",
                        error.what(), before.completed));
      log_warn(fmt::format("{}; it is computed again", error.what()));
    }
  });
  if (comm.all_gather_host(state)[0].empty()) {
    if (before.completed > 0)
      throw CollectiveError(
          ExitCode::kModel,
          fmt::format("{} is not there, and the reference that it was computed with is gone after step "
                      "{}: put it back, or start in another output.dir",
                      reference_path_.string(), before.completed));
    const double begin = steady_seconds();
    const ReferenceRows mine = compute_reference(units, before.progress), all = gather_reference(comm, mine);
    collective_check(comm, [&] {
      if (comm.rank() != 0) return;
      before.claim();
      write_reference(reference_path_, all, from);
    });
    log_info(fmt::format("log-probabilities of the reference computed in {}: {}",
                         format_duration(steady_seconds() - begin), reference_path_.string()));
  }
  collective_check(comm, [&] {
    auto read = read_reference(reference_path_, "");
    if (!read) throw ModelError(fmt::format("{} is not there", reference_path_.string()));
    reference_ = std::move(*read);
  });
}

ReferenceRows PreferenceTask::compute_reference(ShardedUnits& units,
                                                const std::function<void(int64_t, int64_t)>& progress) {
  const at::NoGradGuard no_grad;
  const ShardedUnits::Evaluation evaluating(units);
  const int64_t count = rows_per_pass();
  // Opened anew: the background thread reads the first step's rows from the others.
  std::vector<SplitRows<Sample>> splits;
  int64_t total = 0, done = 0;
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const SplitRows<Sample> opened = open_split(split);
    if (!opened.of_files) continue;
    // All rows once, of which a run with shares or with eval.samples reads some later or never.
    splits.push_back({.read = opened.of_files, .rows = opened.there});
    total += passes_over(splits.back(), count);
  }
  ForwardOptions options;
  options.train = false;
  ReferenceRows rows;
  for (const SplitRows<Sample>& split : splits) {
    const int64_t passes = passes_over(split, count);
    for (int64_t pass = 0; pass < passes; ++pass) {
      const TokenPack pack = rows_of_pass(split, pass, count);
      const at::Tensor log_probs =
          model_->log_probs(units, token_batch_on(rank_.device, pack, pack.loss_weights), options);
      const at::Tensor sums = PreferenceLoss::answer_sums(log_probs, pair_batch_on(rank_.device, pack)).cpu();
      units.release();
      const double* next = sums.const_data_ptr<double>();
      for (size_t r = 0; r < pack.row_keys.size(); ++r) {
        rows[pack.row_keys[r]].assign(next, next + 2 * pack.row_pairs[r]);
        next += 2 * pack.row_pairs[r];
      }
      progress(++done, total);
    }
  }
  return rows;
}

}  // namespace trireme
