// What other ranks tell a watch: messages of neighbours, and the views of another host's ranks.
#include "fuzz_target.h"
#include "watchdog/hang_report.h"
#include "watchdog/rank_peers.h"

#include <sstream>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string_view bytes = fuzz::as_text(data, size);
  // In two pieces the message is the same.
  for (const size_t first : {size / 2, size}) {
    const wire::Received message = wire::read_message(bytes.substr(0, first));
    if (message.what != wire::Received::kFailed) continue;
    fuzz::require(message.exit_code >= 1 && message.exit_code <= 255, "a failure has an exit code");
    fuzz::require(message.reason.size() <= wire::kMaxReason, "a reason of bounded length");
  }
  std::vector<RankView> views(4);
  for (size_t i = 0; i < views.size(); ++i) views[i].rank = static_cast<int>(i);
  std::istringstream in{std::string(bytes)};
  for (std::string line; std::getline(in, line);) {
    RankView view;
    if (!decode(line, view) || view.rank < 0 || view.rank >= 4) continue;
    RankView again;
    fuzz::require(decode(encode(view), again) && encode(again) == encode(view), "a view survives its own text");
    views[static_cast<size_t>(view.rank)] = view;
  }
  const HangReport report = analyse(views);
  fuzz::require(!report.sentence.empty() && report.sentence.size() < 4096 + 64 * size, "a sentence of bounded length");
  for (const int rank : report.responsible) fuzz::require(rank >= 0 && rank < 4, "ranks that are there");
  return 0;
}
