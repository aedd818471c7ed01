#pragma once
// Private to train/: what rank 0 prints: lines on stdout, and on a terminal one progress line that is redrawn on
// stderr.

#include "metrics.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

class Console {
 public:
  Console();
  ~Console();
  /// Prints a line; a progress line under it is cleared first.
  void line(const std::string& text);
  /// Redraws the progress line, on a terminal only: a bar, and `text`, what there is to say about the newest step.
  void status(int64_t step, int64_t max_steps, const std::string& text);
  /// Progress of an evaluation: redrawn on a terminal; elsewhere a line a minute, the first after a minute.
  void eval_status(const char* what, int64_t done, int64_t total);

 private:
  void draw(const std::string& text);
  void clear();
  bool terminal_ = false, drawn_ = false;
  double last_draw_ = 0, last_line_ = 0;
};

/// Step, loss, grad norm, lr, step time, samples/s, tokens/s, MFU, memory, ETA (less than half a second: none). Where
/// that is wider than `columns` (0: any width) the least important parts are omitted: samples/s, memory, MFU, grad
/// norm, lr.
std::string console_line(const TrainMetrics& metrics, double eta_seconds, size_t columns = 0);
/// "ETA 41 s", "ETA 5m07s"; empty below half a second.
std::string eta_text(double seconds);
/// "test after step 100 | loss 2.50000 | 1.2 s"
std::string test_console_line(const EvalMetrics& metrics);
std::string console_line(const EvalMetrics& metrics, std::optional<double> target_loss,
                         std::optional<double> target_accuracy);

}  // namespace trireme
