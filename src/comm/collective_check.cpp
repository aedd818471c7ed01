#include "trireme/comm/collective_check.h"

#include "trireme/base/process.h"

#include <fmt/format.h>

namespace trireme {

std::vector<std::string> problems_of_ranks(Communicator& comm, const std::string& mine) {
  if (comm.all_reduce_host({mine.empty() ? 0.0 : 1.0}, ReduceOp::kMax)[0] == 0) return {};
  std::vector<std::string> all = comm.all_gather_host(mine);
  std::erase(all, "");
  return all;
}

void collective_check(Communicator& comm, const std::function<void()>& body) {
  std::string failure;
  const auto fail = [&](const Error& error) {
    failure = fmt::format("{}\n{}", static_cast<int>(error.code()), error.what());
    // Rank 0 throws the sentence for all: where it is another rank's, its last line says whose.
    if (comm.rank() != 0)
      failure.insert(failure.rfind('\n') + 1, fmt::format("rank {} on {}: ", comm.rank(), host_name()));
  };
  try {
    body();
  } catch (const Error& error) {
    fail(error);
  } catch (const std::filesystem::filesystem_error& error) {
    fail(path_error(error));
  }
  const std::vector<std::string> failures = problems_of_ranks(comm, failure);
  if (failures.empty()) return;
  const std::string& first = failures.front();
  const size_t newline = first.find('\n');
  throw CollectiveError(static_cast<ExitCode>(std::stoi(first.substr(0, newline))), first.substr(newline + 1));
}

}  // namespace trireme
