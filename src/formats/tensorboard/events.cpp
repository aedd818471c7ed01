// Events as protocol buffer messages, written by hand: seven messages of few fields each.
#include "protobuf.h"
#include "trireme/formats/tensorboard/event_file.h"
#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include <cstring>
#include <span>

namespace trireme {

namespace {

template <class T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
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

}  // namespace trireme
