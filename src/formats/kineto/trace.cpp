#include "trireme/formats/kineto/trace.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/kineto/gzip.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <regex>
#include <unordered_map>

namespace trireme {

namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxEvents = size_t{1} << 28;
constexpr double kMaxMicroseconds = 1e17;  // 3,000 years; sums stay exact to less than a millisecond
constexpr size_t kMaxName = 4096;

/// The fields of one event as they come.
struct Fields {
  std::string phase, category, name, process, thread;
  std::optional<double> begin, duration;
  double bytes = 0, allocated = 0, reserved = 0, device_type = 0;
  bool has_bytes = false;
};

std::optional<Trace::Kind> kind_of(const std::string& category) {
  static const std::map<std::string, Trace::Kind> kinds = {
      {"kernel", Trace::Kind::kKernel},    {"gpu_memcpy", Trace::Kind::kCopy},
      {"gpu_memset", Trace::Kind::kCopy},  {"gpu_user_annotation", Trace::Kind::kGpuRange},
      {"cpu_op", Trace::Kind::kOperation}, {"user_annotation", Trace::Kind::kRange}};
  const auto found = kinds.find(category);
  return found == kinds.end() ? std::nullopt : std::optional(found->second);
}

int64_t whole(double value) {
  return std::abs(value) < 9e18 ? static_cast<int64_t>(value) : std::numeric_limits<int64_t>::max();
}

/// Receives the tokens of the JSON text. Keeps no tree: a trace may have gigabytes.
class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(Trace& trace, const GzipReader& reader) : trace_(trace), reader_(reader) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool binary(binary_t&) override { return true; }
  bool string(string_t& value) override {
    if (in_event() && depth_ == 3) {
      if (key_ == "ph") fields_.phase = value;
      if (key_ == "cat") fields_.category = value;
      if (key_ == "name") fields_.name = value.substr(0, kMaxName);
      if (key_ == "pid") fields_.process = value.substr(0, kMaxName);
      if (key_ == "tid") fields_.thread = value.substr(0, kMaxName);
    } else if (in_distributed_info() && key_ == "backend") {
      trace_.backend = value.substr(0, kMaxName);
    }
    return true;
  }
  bool key(string_t& value) override {
    key_ = value;
    if (depth_ == 1) top_ = value;
    if (depth_ == 3) event_key_ = value;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 0) is_object_ = true;
    descend();
    if (in_event() && depth_ == 3) fields_ = {};
    return true;
  }
  bool end_object() override {
    if (in_event() && depth_ == 3) finish_event();
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    descend();
    if (depth_ == 2 && top_ == "traceEvents") has_events_ = in_events_ = true;
    return true;
  }
  bool end_array() override {
    if (depth_ == 2) in_events_ = false;
    --depth_;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    const std::string text = error.what();
    const size_t reason = text.find("syntax error");
    fail(position, text.substr(reason == std::string::npos ? 0 : reason, 300));
    return false;
  }

  bool complete() const { return is_object_ && has_events_; }

 private:
  bool in_event() const { return in_events_ && depth_ >= 3; }
  bool in_distributed_info() const { return depth_ == 2 && top_ == "distributedInfo"; }
  [[noreturn]] void fail(uint64_t offset, const std::string& what) const {
    std::string shown = what;  // the parser's messages quote what it has read
    const bool readable = is_valid_utf8(shown);
    for (char& c : shown)
      if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte == 0x7F || (byte > 0x7F && !readable))
        c = '?';
    throw DataError(fmt::format("{}: at byte {} of the unpacked text: {}", trace_.file.string(), offset, shown));
  }
  void descend() {
    if (++depth_ > kMaxDepth) fail(reader_.offset(), fmt::format("nested deeper than {} levels", kMaxDepth));
  }
  bool number(double value) {
    if (in_event() && depth_ == 3) {
      if (key_ == "ts") fields_.begin = value;
      if (key_ == "dur") fields_.duration = value;
      if (key_ == "pid") fields_.process = fmt::format("{}", value);
      if (key_ == "tid") fields_.thread = fmt::format("{}", value);
    } else if (in_event() && depth_ == 4 && event_key_ == "args") {
      if (key_ == "Bytes") {
        fields_.bytes = value;
        fields_.has_bytes = true;
      }
      if (key_ == "Total Allocated") fields_.allocated = value;
      if (key_ == "Total Reserved") fields_.reserved = value;
      if (key_ == "Device Type") fields_.device_type = value;
    } else if (in_distributed_info() && (key_ == "rank" || key_ == "world_size")) {
      if (!(value >= 0 && value <= 1e9 && value == std::floor(value)))
        fail(reader_.offset(), fmt::format("distributedInfo has {} {}", key_, value));
      (key_ == "rank" ? trace_.rank : trace_.world_size) = static_cast<int>(value);
    }
    return true;
  }
  uint32_t number_of(std::unordered_map<std::string, uint32_t>& numbers, const std::string& text) {
    return numbers.emplace(text, static_cast<uint32_t>(numbers.size())).first->second;
  }
  void finish_event() {
    const bool span = fields_.phase == "X";
    const bool memory = fields_.phase == "i" && fields_.name == "[memory]" && fields_.has_bytes;
    const auto kind = kind_of(fields_.category);
    if (!memory && !(span && kind)) return;
    if (!fields_.begin || (span && !fields_.duration))
      fail(reader_.offset(), fmt::format("event '{}' has no {}", fields_.name, fields_.begin ? "dur" : "ts"));
    const double begin = *fields_.begin, duration = fields_.duration.value_or(0);
    if (!(std::abs(begin) < kMaxMicroseconds) || !(duration >= 0 && duration < kMaxMicroseconds))
      fail(reader_.offset(), fmt::format("event '{}' has ts {} and dur {}", fields_.name, begin, duration));
    if (trace_.events.size() + trace_.allocations.size() >= kMaxEvents)
      fail(reader_.offset(), fmt::format("more than {} events", kMaxEvents));
    const uint32_t thread = number_of(threads_, fields_.process + '/' + fields_.thread);
    if (memory) {
      trace_.allocations.push_back({begin, thread, fields_.device_type == 1, whole(fields_.bytes),
                                    whole(fields_.allocated), whole(fields_.reserved)});
      return;
    }
    const uint32_t name = number_of(names_, fields_.name);
    if (name == trace_.names.size()) trace_.names.push_back(fields_.name);
    trace_.events.push_back({name, *kind, thread, begin, begin + duration});
  }

  Trace& trace_;
  const GzipReader& reader_;
  int depth_ = 0;
  bool is_object_ = false, has_events_ = false, in_events_ = false;
  std::string key_, top_, event_key_;
  Fields fields_;
  std::unordered_map<std::string, uint32_t> names_, threads_;
};

}  // namespace

Trace read_trace(const std::filesystem::path& file) {
  Trace trace;
  trace.file = file;
  // Where the trace does not say its rank, the file's name may.
  std::smatch match;
  const std::string name = file.filename().string();
  if (std::regex_search(name, match, std::regex("rank[-_.]?([0-9]{1,6})"))) trace.rank = std::stoi(match[1]);
  GzipReader reader(file);
  Handler handler(trace, reader);
  nlohmann::json::sax_parse(reader.stream(), &handler);
  if (!handler.complete())
    throw DataError(
        fmt::format("{}: at byte {} of the unpacked text: the end, and no list 'traceEvents' came before it",
                    file.string(), reader.offset()));
  return trace;
}

}  // namespace trireme
