#include "console.h"

#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace trireme {

namespace {
constexpr int kBarWidth = 40;
constexpr double kRedrawSeconds = 0.1, kLineSeconds = 60.0;

std::string bar(int64_t done, int64_t total) {
  const auto filled = static_cast<size_t>(total > 0 ? kBarWidth * std::min(done, total) / total : 0);
  return std::string(filled, '#') + std::string(kBarWidth - filled, '.');
}

/// Whether the line that the cursor is in can be drawn again.
bool can_redraw() {
  return isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0 && environment("TERM", "dumb") != "dumb";
}

/// Of the metrics beside the loss those that a line has room for.
bool shown(const std::string& name) { return name == "rewards/accuracies" || name == "rewards/margins"; }
}  // namespace

Console::Console() : terminal_(can_redraw()), last_line_(steady_seconds()) {}

Console::~Console() { clear(); }

void Console::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

void Console::draw(const std::string& text) {
  const double now = steady_seconds();
  if (!terminal_ || now - last_draw_ < kRedrawSeconds) return;
  last_draw_ = now;
  // A line that wraps would not be cleared whole.
  const size_t columns = terminal_columns(), most = columns > 1 ? columns - 1 : text.size();
  std::fprintf(stderr, "\r\x1b[K%s", text.substr(0, most).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Console::line(const std::string& text) {
  clear();
  print_line(text);
  last_line_ = steady_seconds();
}

void Console::status(int64_t step, int64_t max_steps, const std::string& text) {
  draw(fmt::format("[{}] step {}/{}{}", bar(step, max_steps), step, max_steps, text.empty() ? "" : " | " + text));
}

void Console::eval_status(const char* what, int64_t done, int64_t total) {
  draw(fmt::format("[{}] {} {}/{}", bar(done, total), what, done, total));
  if (done == 1) last_line_ = steady_seconds();  // the time since the last line was no evaluation
  if (!terminal_ && done < total && steady_seconds() - last_line_ > kLineSeconds)
    line(fmt::format("{}: {} of {} passes", what, done, total));
}

std::string console_line(const TrainMetrics& m, double eta_seconds, size_t columns) {
  struct Part {
    int leaves;  // the smallest first; 0: stays
    std::string text;
  };
  std::vector<Part> parts = {{0, fmt::format("step {}/{}", m.step, m.max_steps)},
                             {0, fmt::format("loss {:.4f}", m.loss)},
                             {4, fmt::format("gnorm {:.3g}", m.grad_norm)},
                             {5, fmt::format("lr {:.2e}", m.lr)},
                             {0, format_duration(m.step_time_s)},
                             {1, fmt::format("{:.3g} samples/s", m.samples_per_s)},
                             {0, format_short(m.tokens_per_s) + " tok/s"}};
  for (const auto& [name, value] : m.more)
    if (shown(name)) parts.push_back({2, fmt::format("{} {:.3g}", name, value)});
  if (m.mfu) parts.push_back({3, fmt::format("MFU {:.1f}%", *m.mfu * 100)});
  parts.push_back({2, fmt::format("{:.1f} GiB", m.memory_gib)});
  if (const std::string eta = eta_text(eta_seconds); !eta.empty()) parts.push_back({0, eta});
  for (int leaving = 1;; ++leaving) {
    std::string text;
    for (const Part& part : parts) text += (text.empty() ? "" : " | ") + part.text;
    if (columns == 0 || text.size() <= columns || leaving > 5) return text;
    std::erase_if(parts, [&](const Part& part) { return part.leaves == leaving; });
  }
}

std::string eta_text(double seconds) {
  if (!(seconds >= 0.5)) return "";
  return "ETA " + (seconds < 59.5 ? fmt::format("{:.0f} s", seconds) : format_duration(seconds));
}

std::string test_console_line(const EvalMetrics& m) {
  std::string text = fmt::format("test after step {} | loss {:.5f}", m.step, m.loss);
  if (m.mlm_accuracy) text += fmt::format(" | accuracy {:.5f}", *m.mlm_accuracy);
  return text + fmt::format(" | {}", format_duration(m.seconds));
}

std::string console_line(const EvalMetrics& m, std::optional<double> target, std::optional<double> target_accuracy) {
  std::string text =
      fmt::format("eval after step {} ({} samples) | loss {:.5f}", m.step, format_count(m.samples), m.loss);
  if (m.mlm_accuracy) text += fmt::format(" | accuracy {:.5f}", *m.mlm_accuracy);
  for (const auto& [name, value] : m.more)
    if (shown(name)) text += fmt::format(" | {} {:.5g}", name, value);
  if (m.mlm_accuracy && target_accuracy)
    text += fmt::format(" | target {:.4g}{}", *target_accuracy, *m.mlm_accuracy >= *target_accuracy ? " reached" : "");
  if (target) text += fmt::format(" | target {:.4g}{}", *target, m.loss <= *target ? " reached" : "");
  return text + fmt::format(" | {}", format_duration(m.seconds));
}

}  // namespace trireme
