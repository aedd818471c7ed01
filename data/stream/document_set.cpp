#include "data/stream/document_set.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <algorithm>
#include <utility>

namespace trireme {

ConcatenatedDocuments::ConcatenatedDocuments(std::vector<std::unique_ptr<DocumentSet>> sets) : sets_(std::move(sets)) {
  for (const auto& set : sets_) ends_.push_back(size() + set->size());
}

std::pair<const DocumentSet*, int64_t> ConcatenatedDocuments::locate(int64_t index) const {
  TRIREME_CHECK(index >= 0 && index < size(), "document ", index, " of ", size());
  const auto set = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return {sets_[set].get(), index - (set == 0 ? 0 : ends_[set - 1])};
}

void ConcatenatedDocuments::read(int64_t index, std::vector<int64_t>& tokens) const {
  const auto [set, document] = locate(index);
  set->read(document, tokens);
}

std::string ConcatenatedDocuments::place(int64_t index) const {
  const auto [set, document] = locate(index);
  return set->place(document);
}

std::string ConcatenatedDocuments::kind() const {
  std::vector<std::string> kinds;
  for (const auto& set : sets_)
    if (std::find(kinds.begin(), kinds.end(), set->kind()) == kinds.end()) kinds.push_back(set->kind());
  return join(kinds, ", ");
}

}  // namespace trireme
