#include "trireme/formats/tensorboard/event_file.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/time.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace trireme {

std::string event_file_name(double time) {
  static std::atomic<int> files = 0;
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<int64_t>(time), host_name(), getpid(),
                     files.fetch_add(1));
}

EventFile::EventFile(std::filesystem::path folder, std::function<double()> now, double flush_seconds)
    : folder_(std::move(folder)),
      now_(now ? std::move(now) : [] { return static_cast<double>(unix_milliseconds()) / 1e3; }),
      flush_seconds_(flush_seconds) {}

EventFile::~EventFile() { flush(); }

void EventFile::scalars(int64_t step, const TensorboardScalars& values) {
  const double time = now_();
  add(scalars_event(time, step, values), time);
}

void EventFile::text(int64_t step, const std::string& tag, const std::string& text) {
  const double time = now_();
  add(text_event(time, step, tag, text), time);
}

void EventFile::restart(int64_t step) {
  const double time = now_();
  add(restart_event(time, step), time);
}

void EventFile::add(const std::string& payload, double time) {
  if (broken_) return;
  collected_ += tfrecord(payload);
  if (time - last_flush_ >= flush_seconds_) flush();
}

bool EventFile::open(double time) {
  try {
    make_directories(folder_);
    file_.open(folder_ / event_file_name(time), /*append=*/false);
  } catch (const Error& error) {
    log_warn(fmt::format("no TensorBoard events are written: {}", error.what()));
    broken_ = true;
    collected_.clear();
    return false;
  }
  file_.write(tfrecord(version_event(time)));
  return true;
}

void EventFile::flush() {
  if (collected_.empty()) return;
  last_flush_ = now_();
  if (!file_.is_open() && !open(last_flush_)) return;
  file_.write(std::exchange(collected_, {}));
}

}  // namespace trireme
