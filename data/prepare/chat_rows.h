#pragma once
// What `data chat` and `data preference` share: options, the model's tokenizer and template, reading of files, and rows
// of whole documents.

#include "data/chat/chat_model.h"
#include "data/prepare/progress.h"
#include "trireme/base/error.h"
#include "trireme/base/process.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

struct ChatRowOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path tokenizer;      // a model directory, or a tokenizer file beside tokenizer_config.json
  std::filesystem::path template_file;  // empty: the model's
  std::string template_name;
  nlohmann::ordered_json variables;  // of the template: an object
  int64_t seq_length = 0;
  std::filesystem::path output, valid_output;  // .npy (MLPerf's records), .h5 or .hdf5
  double valid_fraction = 0;                   // of the conversations
  bool one_per_row = false;
  bool skip_refused = false;  // drops what is no conversation or is refused by the template; else they are errors
  unsigned threads = 0;       // 0: one per core
};

/// ConfigError. Makes the folders of the outputs.
void check_row_options(const ChatRowOptions& options);

/// DataError where nothing was read, or nothing is left for one of the outputs. `what`: "conversation". `dropped`: how
/// many were dropped, and why.
void require_left(const ChatRowOptions& options, const std::string& what, int64_t read, bool train, bool valid,
                  const std::string& dropped);

/// The model of the options. ConfigError for variables that its template has not.
ChatModel open_chat_model(const ChatRowOptions& options);
/// DataError for a role that is user, assistant, system or tool but for its case, unless the template has it as it is,
/// and for parts of a content that are no texts. Parts that are texts become one, on lines of their own, where the
/// template reads no parts, as in vLLM.
void fit_messages(const ChatTemplate& chat, nlohmann::ordered_json& messages);
/// Names the first message of whose text the template writes nothing, or the reasoning of the last answer, or the first
/// tool, if it writes none, or arguments of a call that are JSON in a text, which it quotes; empty: there is none.
/// `text` is what it wrote for the conversation.
/// DataError for a call of a tool of which it writes nothing.
std::string unwritten_message(const ChatTemplate& chat, const Conversation& conversation, const std::string& text);
/// Warns of unlisted_end() and spelled_markers() of a template that was used.
void warn_of_template(const ChatRowOptions& options, const ChatModel& model);
/// Texts without a template, as TRL tokenises them: answers end with EOS (DataError where there is none), and what the
/// tokenizer puts before a text comes first.
std::string with_eos(const ChatModel& model, std::string text);
std::vector<int32_t> text_ids(const ChatModel& model, const std::string& text);
/// Length of the common beginning: where an answer begins, whose prompt alone may have other last tokens.
size_t common_ids(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

/// read(path, visit) visits the rows of each input, whose `bytes_done` is the progress. `make` makes something of each
/// row, on all threads; `keep` gets the results in the order of the rows. An error of reading comes after the rows
/// before it.
template <class Row, class Made>
void make_of_rows(const ChatRowOptions& options,
                  const std::function<void(const std::filesystem::path&, const std::function<void(Row)>&)>& read,
                  const std::function<Made(Row)>& make, const std::function<void(Made)>& keep) {
  constexpr size_t kBatch = 512;
  std::vector<Row> batch;
  const auto flush = [&] {
    std::vector<Row> rows = std::exchange(batch, {});  // an error of one must not bring them here again
    std::vector<Made> made(rows.size());
    parallel_for(rows.size(), options.threads, [&](size_t i) { made[i] = make(std::move(rows[i])); });
    for (Made& each : made) keep(std::move(each));
  };
  double before = 0;
  Progress progress("rendering", total_size(options.inputs), "MB", 1e6);
  for (const std::filesystem::path& path : options.inputs) {
    try {
      read(path, [&](Row row) {
        progress.update(before + row.bytes_done);
        batch.push_back(std::move(row));
        if (batch.size() >= kBatch) flush();
      });
    } catch (const Error&) {
      flush();  // an error of an earlier row is the first
      throw;
    }
    flush();
    before += total_size({path});
  }
  progress.finish();
}

/// A document of a row.
struct RowDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;  // as PackedRecord::loss_mask
};

/// The documents of each row: the longest first, each into the fullest row with enough space, or a new row. Rows are in
/// the order of their first documents.
std::vector<std::vector<size_t>> best_fit(const std::vector<size_t>& lengths, int64_t seq_length, bool one_per_row);

struct RowCounts {
  int64_t documents = 0, rows = 0, tokens = 0, targets = 0, padding = 0;  // targets: of mask 1 and 2
};

/// Writes rows of whole documents. Each `together` documents, from the first on, are beside each other in one row,
/// which has room for them, by best_fit(). The rest of a row is padding, a sequence of its own without loss.
/// WriteError.
RowCounts write_whole_rows(const std::filesystem::path& path, const std::vector<RowDocument>& documents,
                           size_t together, int64_t seq_length, bool one_per_row, int32_t padding);
/// Writes rows of these documents, which have room for them; the rest as above.
RowCounts write_rows_of(const std::filesystem::path& path, const std::vector<std::vector<const RowDocument*>>& rows,
                        int64_t seq_length, int32_t padding);

}  // namespace trireme
