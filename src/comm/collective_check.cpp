#include "trireme/comm/collective_check.h"

#include "trireme/base/process.h"

#include <fmt/format.h>

namespace trireme {

void collective_check(Communicator& comm, const std::function<void()>& body) {
  std::string failure;
  try {
    body();
  } catch (const Error& error) {
    failure = fmt::format("{}\n{}", static_cast<int>(error.code()), error.what());
    // Rank 0 throws the sentence for all: where it is another rank's, its last line says whose.
    if (comm.rank() != 0)
      failure.insert(failure.rfind('\n') + 1, fmt::format("rank {} on {}: ", comm.rank(), host_name()));
  }
  for (const std::string& text : comm.all_gather_host(failure)) {
    if (text.empty()) continue;
    const size_t newline = text.find('\n');
    throw CollectiveError(static_cast<ExitCode>(std::stoi(text.substr(0, newline))), text.substr(newline + 1));
  }
}

}  // namespace trireme
