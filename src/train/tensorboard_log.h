#pragma once
// Private to train/: the numbers of a run as TensorBoard's scalars. Rank 0.

#include "metrics.h"
#include "trireme/config/config.h"
#include "trireme/formats/tensorboard/event_file.h"

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>

namespace trireme {

/// logging.tensorboard: tags train/..., perf/..., eval/... and test/... in output.dir/tensorboard. logging.style nemo:
/// NeMo's tags (reduced_train_loss, train_step_timing ...) in output.dir itself. The axis is the number of steps done.
/// Steps are written where a console line of them is due.
class TensorboardLog {
 public:
  /// Where event files of this configuration go; empty: none are written.
  static std::filesystem::path folder(const Config& config);

  /// `completed`: steps that were done before this process; what TensorBoard has of later ones is withdrawn.
  /// `description`: of the run, as text.
  TensorboardLog(const Config& config, int64_t completed, const std::string& description);

  void step(const TrainMetrics& metrics, bool due);
  void evaluation(const EvalMetrics& metrics);
  void test(const EvalMetrics& metrics);
  void flush() { file_.flush(); }

 private:
  void evaluated(const EvalMetrics& metrics, const char* name, const char* nemo_name);
  static constexpr size_t kTimedSteps = 5;  // NeMo's train_step_timing is the mean of so many
  bool nemo_, fp16_;
  EventFile file_;
  std::deque<double> newest_seconds_;
};

}  // namespace trireme
