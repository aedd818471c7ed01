#pragma once
// Private to watchdog/: from where all ranks stand to who is to blame. Pure: no clock, no network.

#include "rank_record.h"

#include <string>
#include <vector>

namespace trireme {

struct HangReport {
  /// One sentence: "rank 1 on node7 never reached #412 all_reduce[1024] on world (it is in step 7, section data, since
  /// 61 s)".
  std::string sentence;
  /// A line per rank; ranks that stand at the same place share one.
  std::string positions;
  std::vector<int> culprits;
  /// Of every culprit: it is in a section whose allowance is not used up. The others should wait on.
  bool excused = false;
};

/// `views`: one per rank, those nobody can tell of with answered = false.
HangReport analyse(const std::vector<RankView>& views);

/// Where ranks have issued different collectives under the same number: "rank 1 issued #412 all_gather[77] on world,
/// the others #412 all_reduce[1024] on world; …", else empty. Fills `culprits`.
std::string find_desync(const std::vector<RankView>& views, std::vector<int>* culprits = nullptr);

/// "rank 1 on node7" / "ranks 1, 3-5"
std::string rank_names(const std::vector<RankView>& views, const std::vector<int>& ranks);

}  // namespace trireme
