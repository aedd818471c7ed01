#pragma once
// TensorBoard's event files. Sources: tensorflow/tensorboard, compat/proto/{event,summary,tensor}.proto and
// summary/writer/{record_writer,event_file_writer}.py; plugins/text/metadata.py.
//
// A file is a sequence of records: u64 length, u32 masked CRC-32C of the length's 8 bytes, the payload, u32 masked
// CRC-32C of the payload, all little-endian. A payload is a protocol buffer message Event; the first has the file's
// version only.

#include "trireme/base/append_file.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Tag and value.
using TensorboardScalars = std::vector<std::pair<std::string, double>>;

/// The framed record of a payload.
std::string tfrecord(std::string_view payload);

/// Functions that make payloads. `time`: seconds since 1970. Values are stored as fp32, as TensorBoard's scalars are.
std::string version_event(double time);
std::string scalars_event(double time, int64_t step, const TensorboardScalars& values);
/// Markdown, shown by the text plugin.
std::string text_event(double time, int64_t step, const std::string& tag, const std::string& text);
/// An event by which TensorBoard drops this step and later steps of earlier files in the folder.
std::string restart_event(double time, int64_t step);

/// "events.out.tfevents.<time>.<host>.<process>.<number>", with a new number in each call of a process.
std::string event_file_name(double time);

/// One file of events, created with the first event. Events are collected and appended together: when `flush_seconds`
/// have passed since the last time, by flush(), and at the end. A file that cannot be created or written (disk full)
/// does not end the run: a warning reports it, and if the file exists, events are kept as by AppendFile.
class EventFile {
 public:
  static constexpr double kFlushSeconds = 10;
  /// `now`: seconds since 1970. The folder is created with the file.
  explicit EventFile(std::filesystem::path folder, std::function<double()> now = {},
                     double flush_seconds = kFlushSeconds);
  ~EventFile();
  void scalars(int64_t step, const TensorboardScalars& values);
  void text(int64_t step, const std::string& tag, const std::string& text);
  void restart(int64_t step);
  void flush();
  /// Empty before the first flush.
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void add(const std::string& payload, double time);
  bool open(double time);
  std::filesystem::path folder_;
  std::function<double()> now_;
  double flush_seconds_, last_flush_ = 0;
  std::string collected_;                                 // whole records
  AppendFile file_{"blocks of events", /*headed=*/true};  // the version
  bool broken_ = false;                                   // the file cannot be made
};

}  // namespace trireme
