#include "host_exchange.h"

#include "trireme/base/bytes.h"
#include "trireme/base/error.h"
#include "wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace trireme {

namespace {

std::string packed(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) wire::append_text(text, value);
  return text;
}

std::vector<std::string> unpacked(const std::string& text, int count) {
  wire::Reader reader{text.data(), text.size()};
  std::vector<std::string> values = reader.texts();
  TRIREME_CHECK(reader.ok && values.size() == static_cast<size_t>(count), "an exchange of ", text.size(), " bytes has ",
                values.size(), " values, not ", count);
  return values;
}

}  // namespace

std::vector<std::string> HostExchange::all_gather(const std::string& mine) {
  const std::vector<std::string> all = gather(mine);
  return unpacked(broadcast(rank_ == 0 ? packed(all) : ""), size_);
}

std::vector<double> HostExchange::all_reduce(const std::vector<double>& values, ReduceOp op) {
  std::string mine(values.size() * sizeof(double), '\0');
  std::memcpy(mine.data(), values.data(), mine.size());
  const std::vector<std::string> all = gather(mine);
  std::vector<double> result = values;
  std::string problem;
  for (int peer = 1; rank_ == 0 && peer < size_ && problem.empty(); ++peer) {
    const std::string& theirs = all[static_cast<size_t>(peer)];
    if (theirs.size() != mine.size()) {
      problem = fmt::format("rank {} reduces {} values, rank 0 reduces {}", peer, theirs.size() / sizeof(double),
                            values.size());
      break;
    }
    for (size_t i = 0; i < result.size(); ++i) {
      const auto value = value_at<double>(theirs.data() + i * sizeof(double));
      result[i] = op == ReduceOp::kSum ? result[i] + value : std::max(result[i], value);
    }
  }
  std::string answer;
  if (rank_ == 0) {
    std::string reduced(mine.size(), '\0');
    std::memcpy(reduced.data(), result.data(), reduced.size());
    answer = packed({problem, reduced});
  }
  const std::vector<std::string> parts = unpacked(broadcast(answer), 2);
  TRIREME_CHECK(parts[0].empty(), parts[0]);
  std::memcpy(result.data(), parts[1].data(), parts[1].size());
  return result;
}

void HostExchange::barrier() {
  (void)gather("");
  (void)broadcast("");
}

}  // namespace trireme
