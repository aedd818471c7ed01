#pragma once
// Reads Parquet columns through Arrow C++; no Arrow type appears in this interface. In a build without pyarrow the
// constructor throws ConfigError. Rows are visited in file order.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct ChatMessage {
  std::string_view role, content;
};

/// True when the file starts with Parquet's magic; false for absent and unreadable files too.
bool looks_like_parquet(const std::filesystem::path& path);

class ParquetFile {
 public:
  /// DataError when the file is damaged or not Parquet.
  explicit ParquetFile(const std::filesystem::path& path);
  ~ParquetFile();
  ParquetFile(ParquetFile&&) noexcept;
  int64_t rows() const;
  /// Rows of each row group.
  std::vector<int64_t> group_rows() const;

  // Each of these functions visits every row of the named columns. DataError with file, row and column for an absent
  // column, a column of another type, and a null where a value is required. Views are valid only during the call.
  using TextVisitor = std::function<void(int64_t row, std::string_view text)>;
  using ListsVisitor =
      std::function<void(int64_t row, std::span<const int64_t> first, std::span<const int64_t> second)>;
  using MessagesVisitor = std::function<void(int64_t row, std::span<const ChatMessage> messages)>;
  /// A string column; a null gives an empty text. UTF-8 is not checked.
  void read_text(const std::string& column, const TextVisitor& visit) const;
  /// The texts of one row group, copied. Not thread-safe.
  std::vector<std::string> read_text_group(const std::string& column, int64_t group) const;
  /// The integer lists of one row group; a null list is empty. Not thread-safe.
  std::vector<std::vector<int64_t>> read_list_group(const std::string& column, int64_t group) const;
  /// Two columns of integer lists (list, large_list or fixed-size list of any integer type).
  void read_integer_lists(const std::string& first, const std::string& second, const ListsVisitor& visit) const;
  bool has_column(const std::string& column) const;
  std::vector<std::string> columns() const;
  /// Whether a column holds lists of integers, and not text. DataError where it is absent or holds anything else.
  bool has_integer_lists(const std::string& column) const;
  /// A file has a member of one row in all rows, so null members of structs are absent: of a column in
  /// `without_nulls` all, of others those inside the structs of its list (a message keeps a content that is null).
  struct JsonColumns {
    std::vector<std::string> names;
    std::vector<std::string> without_nulls{};  // some of the names
    std::vector<std::string> optional{};       // some of the names: true where a value has no JSON form
  };
  using JsonVisitor =
      std::function<void(int64_t row, nlohmann::ordered_json object, const std::vector<std::string>& unread)>;
  /// Visits each row as an object of the named columns that exist, of any nested type with a JSON form; `unread` has
  /// the names of the file's other columns. DataError for texts that are not UTF-8.
  void read_json(const JsonColumns& columns, const JsonVisitor& visit) const;
  /// A list of structs that hold the strings `role` and `content`, or `from` and `value`.
  void read_messages(const std::string& column, const MessagesVisitor& visit) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
