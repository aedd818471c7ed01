#include "trireme/base/time.h"

#include "trireme/base/text.h"

#include <chrono>
#include <ctime>

namespace trireme {

namespace {
const double kProcessBegin = steady_seconds();
}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double process_begin() { return kProcessBegin; }

int64_t unix_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string utc_timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  const size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, size};
}

std::optional<int64_t> parse_day_time(std::string_view text) {
  constexpr size_t kTail = 9;  // ":HH:MM:SS"
  constexpr size_t kMostDayDigits = 5;
  if (text.size() <= kTail || text.size() > kTail + kMostDayDigits) return std::nullopt;
  int64_t numbers[4] = {};
  size_t part = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t to_end = text.size() - i;
    if (to_end == 9 || to_end == 6 || to_end == 3) {
      if (text[i] != ':') return std::nullopt;
      ++part;
    } else if (!is_digit(text[i])) {
      return std::nullopt;
    } else {
      numbers[part] = numbers[part] * 10 + (text[i] - '0');
    }
  }
  if (numbers[1] > 23 || numbers[2] > 59 || numbers[3] > 59) return std::nullopt;
  const int64_t seconds = ((numbers[0] * 24 + numbers[1]) * 60 + numbers[2]) * 60 + numbers[3];
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

}  // namespace trireme
