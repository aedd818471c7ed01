#pragma once
// Documents of token ids behind one interface, whatever files they come from. Independent of LibTorch and ranks.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

class DocumentSet {
 public:
  virtual ~DocumentSet() = default;
  virtual int64_t size() const = 0;
  /// Replaces `tokens` with the ids of document `index` as stored, unchecked. Thread-safe. DataError with file and
  /// place for bytes that cannot be read.
  virtual void read(int64_t index, std::vector<int64_t>& tokens) const = 0;
  /// "train-00000.arrow: batch 3, row 17", for messages.
  virtual std::string place(int64_t index) const = 0;
  virtual std::string kind() const = 0;  // "Arrow file"
};

/// The documents of several sets, in the given order.
class ConcatenatedDocuments : public DocumentSet {
 public:
  explicit ConcatenatedDocuments(std::vector<std::unique_ptr<DocumentSet>> sets);
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(int64_t index, std::vector<int64_t>& tokens) const override;
  std::string place(int64_t index) const override;
  std::string kind() const override;

 private:
  /// The set that holds document `index`, and its number there.
  std::pair<const DocumentSet*, int64_t> locate(int64_t index) const;
  std::vector<std::unique_ptr<DocumentSet>> sets_;
  std::vector<int64_t> ends_;  // documents through set i
};

}  // namespace trireme
