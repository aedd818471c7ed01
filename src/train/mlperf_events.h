#pragma once
// What the Trainer tells about a run, as the lines of one benchmark's MLPerf log: keys, values and order follow its
// submissions. Nothing happens when the log is off.

#include "metrics.h"
#include "mlperf_log.h"
#include "trireme/config/config.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// What the hyper-parameter block between init_start and init_stop says beside the configuration.
struct MlperfRun {
  int64_t train_samples = 0, eval_samples = 0, accumulation_steps = 1;
  int nodes = 1;
  std::string division;              // "closed" or "open"
  std::vector<std::string> tensors;  // names of the weights that are loaded
};

/// Since the last evaluation.
struct MlperfBlock {
  int64_t step = 0, samples = 0;  // after it
  int64_t steps = 0;              // in it
  double seconds = 0, loss = 0, samples_per_second = 0;
};

class MlperfEvents {
 public:
  explicit MlperfEvents(MlperfLog& log) : log_(log) {}
  virtual ~MlperfEvents() = default;
  virtual void configuration(const Config& config, const MlperfRun& run) = 0;
  virtual void start_run() = 0;
  virtual void start_block(int64_t samples) = 0;
  virtual void end_block(const MlperfBlock& block) = 0;
  virtual void train_loss(const TrainMetrics& metrics) = 0;
  virtual void start_evaluation(int64_t samples) = 0;
  virtual void end_evaluation(const EvalMetrics& metrics) = 0;
  /// `status`: "success" or "aborted"; `samples_per_second` over the whole run.
  virtual void end_run(const char* status, int64_t step, int64_t samples, double samples_per_second) = 0;

 protected:
  MlperfLog& log_;
};

/// With a lora section llama2_70b_lora, rounds 5.0 and 5.1; without one llama31_8b, round 5.1.
std::unique_ptr<MlperfEvents> make_llama_events(MlperfLog& log, const Config& config);
/// bert, rounds 4.1 and 5.0.
std::unique_ptr<MlperfEvents> make_bert_events(MlperfLog& log, const Config& config);

/// submission_benchmark … submission_platform, from MLPERF_SUBMISSION_* or defaults.
void log_submission(MlperfLog& log, const char* benchmark, const MlperfRun& run);

}  // namespace trireme
