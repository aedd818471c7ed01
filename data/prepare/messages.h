#pragma once
// Messages, and what else the rows of conversations and of preferences have in common.

#include "data/chat/chat_template.h"
#include "data/prepare/progress.h"
#include "data/stream/documents.h"
#include "data/text_file.h"
#include "trireme/base/error.h"

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// A row of a file, with the names of the columns that are not in it. `place`: "chat.jsonl:17", for messages.
struct SourceRow {
  const nlohmann::ordered_json& object;
  const std::string& place;
  const std::vector<std::string>& unread;

  std::vector<std::string> names() const;
  /// row_tool_hint() of what is not null.
  std::string hint() const;
  /// Counts what is filled beside `columns`, and columns that are not read in each row.
  void count_unread(const std::vector<std::string>& columns, std::map<std::string, int64_t>& counts) const;
};

/// Names what rows have that is not read, with the number of rows, because it may be meant for the loss.
void say_unread(const std::filesystem::path& path, const std::map<std::string, int64_t>& counts);

/// Columns of pictures and sounds, and those where other programs have the question, or a part of it.
inline const std::vector<std::string> kMediaColumns = {"images", "image", "videos", "video", "audios", "audio"},
                                      kBesideTexts = {"question",      "query",    "instruction",  "input",
                                                      "conversations", "messages", "system",       "history",
                                                      "system_prompt", "context",  "conversation", "trajectory"};

/// DataError where a column of kMediaColumns is filled.
void refuse_media(const nlohmann::ordered_json& object, const std::string& place);
/// DataError where a column of kBesideTexts is filled with what none of the texts holds, which are what is read.
/// `known`: the columns that are read, too.
void refuse_beside_texts(const nlohmann::ordered_json& object, std::initializer_list<std::string> texts,
                         const std::string& place, std::initializer_list<std::string_view> known = {});

/// Without blanks, tabs and line ends at both ends.
std::string_view trimmed(std::string_view text);

/// Null where the field is absent.
const nlohmann::ordered_json& field_of(const nlohmann::ordered_json& object, const char* name);

/// DataError for a row that is no object.
void require_object(const nlohmann::ordered_json& object, const std::string& place);
/// DataError that names the first of these fields of `object`, which are there, that is null.
void require_filled(const nlohmann::ordered_json& object, const std::string& place,
                    std::initializer_list<const char*> names);

/// The value, or what it holds if it is a text: files whose rows differ in their types keep JSON in texts. An empty
/// text is null.
nlohmann::ordered_json unwrapped(const nlohmann::ordered_json& value, const std::string& name,
                                 const std::string& place);

/// The text of a field; a null is empty, but for Alpaca's output. DataError for what is no text.
std::string text_of(const nlohmann::ordered_json& value, const std::string& name, const std::string& place);

/// The messages of a list of {role, content} or of ShareGPT's {from, value}, as {role, content, …}: keys that are null
/// are absent, `train` and `training` become `weight`. DataError naming the message for what is none.
nlohmann::ordered_json messages_of(const nlohmann::ordered_json& list, const std::string& name,
                                   const std::string& place);

/// The text `system` of a row becomes the first message. DataError if another system message is there.
void add_system(const nlohmann::ordered_json& object, const std::string& place, nlohmann::ordered_json& messages);

/// The messages of Alpaca's fields system, history, instruction and input, as LLaMA-Factory makes them.
nlohmann::ordered_json question_of(const nlohmann::ordered_json& object, const std::string& place);
/// The assistant's message with the text of field `name`.
nlohmann::ordered_json answer_of(const nlohmann::ordered_json& object, const char* name, const std::string& place);

/// Reads the fields tools, of which a bare function becomes {type, function}, and chat_template_kwargs.
void read_extras(const nlohmann::ordered_json& object, const std::string& place, Conversation& conversation);

/// Visits what `read` makes of each object of a file; a DataError of it is the row's problem.
template <class Row>
void for_each_row(const std::filesystem::path& path, const std::vector<std::string>& columns,
                  const std::vector<std::string>& optional, const std::function<void(Row)>& visit,
                  const std::function<Row(const SourceRow&)>& read) {
  std::vector<std::string> names = columns, without_form = optional;
  for (auto* list : {&names, &without_form}) list->insert(list->end(), kMediaColumns.begin(), kMediaColumns.end());
  double before = 0;
  std::map<std::string, int64_t> unread_counts;
  for (const std::filesystem::path& file :
       std::filesystem::is_directory(path) ? document_files(path) : std::vector<std::filesystem::path>{path}) {
    for_each_object(file,
                    {.names = names, .without_nulls = {"tools", "chat_template_kwargs"}, .optional = without_form},
                    [&](const std::string& place, double bytes_done,
                        const std::function<nlohmann::ordered_json()>& object, const std::vector<std::string>& unread) {
                      Row row;
                      try {
                        const nlohmann::ordered_json value = object();
                        refuse_media(value, place);
                        const SourceRow source{value, place, unread};
                        row = read(source);
                        source.count_unread(row.columns, unread_counts);
                      } catch (const Error& error) {
                        if (error.code() != ExitCode::kData) throw;
                        row.problem = error.what();
                      }
                      row.place = place;
                      row.bytes_done = before + bytes_done;
                      visit(std::move(row));
                    });
    before += total_size({file});
  }
  say_unread(path, unread_counts);
}

}  // namespace trireme
