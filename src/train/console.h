#pragma once
// What rank 0 prints: lines on stdout, and on a terminal one progress line that is redrawn on stderr.

#include <cstddef>
#include <cstdint>
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

}  // namespace trireme
