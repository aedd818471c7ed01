// Events as protocol buffer messages, written by hand: seven messages of few fields each.
#include "trireme/formats/tensorboard/event_file.h"

#include "protobuf.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/time.h"
#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <span>

namespace trireme {

namespace {

template <class T>
void put_raw(std::string& out, T value) {
  out += as_text(std::as_bytes(std::span(&value, 1)));
}

void put_double(std::string& out, uint32_t field, double value) {
  put_key(out, field, WireType::kFixed64);
  put_raw(out, value);
}

void put_float(std::string& out, uint32_t field, float value) {
  put_key(out, field, WireType::kFixed32);
  put_raw(out, value);
}

// Field numbers of event.proto and summary.proto.
constexpr uint32_t kEventTime = 1, kEventStep = 2, kEventVersion = 3, kEventSummary = 5, kEventSession = 7;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kValueTensor = 8, kValueMetadata = 9;

std::string event_head(double time, int64_t step) {
  std::string event;
  put_double(event, kEventTime, time);
  put_int(event, kEventStep, step);
  return event;
}

uint32_t masked(std::string_view bytes) { return masked_crc32c(std::as_bytes(std::span(bytes.data(), bytes.size()))); }

}  // namespace

std::string tfrecord(std::string_view payload) {
  std::string record;
  put_raw(record, static_cast<uint64_t>(payload.size()));
  put_raw(record, masked(record));
  record += payload;
  put_raw(record, masked(payload));
  return record;
}

std::string version_event(double time) {
  std::string event;
  put_double(event, kEventTime, time);
  put_bytes(event, kEventVersion, "brain.Event:2");
  return event;
}

std::string scalars_event(double time, int64_t step, const TensorboardScalars& values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, kValueTag, tag);
    put_float(value, kValueSimple, static_cast<float>(number));
    put_bytes(summary, kSummaryValue, value);
  }
  std::string event = event_head(time, step);
  put_bytes(event, kEventSummary, summary);
  return event;
}

std::string text_event(double time, int64_t step, const std::string& tag, const std::string& text) {
  constexpr int64_t kStringType = 7, kTensorClass = 2;
  std::string dimension, shape, tensor, plugin, metadata, value, summary;
  put_int(dimension, 1, 1);            // size
  put_bytes(shape, 2, dimension);      // dim
  put_int(tensor, 1, kStringType);     // dtype
  put_bytes(tensor, 2, shape);         // tensor_shape
  put_bytes(tensor, 8, text);          // string_val
  put_bytes(plugin, 1, "text");        // plugin_name
  put_bytes(metadata, 1, plugin);      // plugin_data
  put_int(metadata, 4, kTensorClass);  // data_class
  put_bytes(value, kValueTag, tag);
  put_bytes(value, kValueTensor, tensor);
  put_bytes(value, kValueMetadata, metadata);
  put_bytes(summary, kSummaryValue, value);
  std::string event = event_head(time, step);
  put_bytes(event, kEventSummary, summary);
  return event;
}

std::string restart_event(double time, int64_t step) {
  constexpr int64_t kStart = 1;  // SessionLog.START
  std::string session, event = event_head(time, step);
  put_int(session, 1, kStart);
  put_bytes(event, kEventSession, session);
  return event;
}

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
