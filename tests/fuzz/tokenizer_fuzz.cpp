// sentencepiece models: the strict reader, then the library on files that the reader accepts.
#include "data/tokenizer/tokenizer.h"
#include "fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::expect_only({ExitCode::kData}, [&] {
    const Tokenizer tokenizer(std::string(fuzz::as_text(data, size)), "fuzz.model");
    const std::vector<int32_t> ids = tokenizer.encode("The quick brown fox, 42 \xE2\x82\xAC\n");
    for (const int32_t id : ids) fuzz::require(id >= 0 && id < tokenizer.vocab_size(), "an id inside the vocabulary");
    tokenizer.decode(ids);
  });
  return 0;
}
