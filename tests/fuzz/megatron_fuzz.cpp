// Megatron's index (.idx) beside tokens of 4 KiB.
#include "fuzz_target.h"
#include "trireme/formats/megatron/indexed_file.h"

#include <algorithm>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  constexpr int64_t kTokenBytes = 4096, kSequences = 64;
  const fuzz::MemoryFile index(fuzz::as_text(data, size)), tokens(std::string(kTokenBytes, '\1'));
  fuzz::expect_only({ExitCode::kData}, [&] {
    const MegatronFile file(index.path(), tokens.path());
    fuzz::require(file.sequences() * 12 <= static_cast<int64_t>(size), "no more sequences than the file has room for");
    fuzz::require(file.boundary(file.documents()) == file.sequences(), "the last document ends with the last sequence");
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < std::min(file.sequences(), kSequences); ++i) {
      ids.clear();
      file.read(i, 0, file.length(i), ids);
      fuzz::require(static_cast<int64_t>(ids.size()) == file.length(i), "every token of a sequence");
      fuzz::require(file.byte_of(i, file.length(i)) <= kTokenBytes, "a sequence ends inside the .bin");
      fuzz::require(static_cast<int64_t>(file.bytes(i).size()) <= kTokenBytes, "its bytes are in the .bin");
    }
  });
  return 0;
}
