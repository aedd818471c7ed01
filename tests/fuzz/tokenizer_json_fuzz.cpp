// Byte-level BPE: a tokenizer.json; or, with a NUL in the input, vocab.json before it and merges.txt behind it.
#include "data/tokenizer/byte_level_tokenizer.h"
#include "fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::expect_only({ExitCode::kData}, [&] {
    const std::string_view text = fuzz::as_text(data, size);
    const size_t cut = text.find('\0');
    ByteLevelModel model = cut == std::string_view::npos ? parse_tokenizer_json(text, "tokenizer.json")
                                                         : parse_vocab_and_merges(text.substr(0, cut), "vocab.json",
                                                                                  text.substr(cut + 1), "merges.txt");
    const std::string again = tokenizer_json(model) + vocab_json(model) + merges_txt(model);
    fuzz::require(!again.empty(), "a model can be written");
    const Tokenizer tokenizer(std::make_unique<ByteLevelTokenizer>(std::move(model), "tokenizer.json"));
    const std::vector<int32_t> ids = tokenizer.encode(
        "The  quick <|endoftext|> fox's abc, 42 \xE2\x82\xAC\n\n e\xCC\x81 "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    for (const int32_t id : ids) fuzz::require(id >= 0 && id < tokenizer.vocab_size(), "an id inside the vocabulary");
    tokenizer.decode(ids);
  });
  return 0;
}
