#include "console.h"

#include "trireme/base/process.h"
#include "trireme/base/time.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

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
  const char* kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0 && kind != nullptr &&
         std::string_view(kind) != "dumb" && *kind != '\0';
}
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

}  // namespace trireme
