#pragma once
// Private to watchdog/: finds from the views of all ranks which of them block the others. Uses no clock and no network.

#include "rank_record.h"

#include <string>
#include <vector>

namespace trireme {

struct HangReport {
  /// "rank 1 on node7 never reached #412 all_reduce[1024] on world (step 7, section data since 61 s)"
  std::string sentence;
  /// One line for each group of ranks with the same step, section and collective.
  std::string positions;
  /// The ranks that the others wait for; empty when all wait for the network.
  std::vector<int> responsible;
  /// All responsible ranks are in a section whose allowance has not expired: the others should keep waiting.
  bool excused = false;
};

/// `views`: one per rank.
HangReport analyse(const std::vector<RankView>& views);

/// "rank 1 on node7 at #412 all_gather[77] on world, others at #412 all_reduce[1024] on world …" for the first number
/// under which ranks issued different collectives; empty when there is none. `responsible`: the minority.
std::string find_desync(const std::vector<RankView>& views, std::vector<int>* responsible = nullptr);

}  // namespace trireme
