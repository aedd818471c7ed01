// Byte-level BPE: the files and what is refused, long words, streams of ids, hand-written splitters against PCRE2.

#include "../base/base_testing.h"
#include "data/tokenizer/byte_level_tokenizer.h"
#include "data/tokenizer/byte_level_train.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unigram.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <ctime>
#include <filesystem>
#include <random>
#include <tuple>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

std::string text_to_train_on() {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text +=
        fmt::format("Rower {} of the trireme's crew sees the harbour, it's na\u00efve.\n\n    indented {}\n", i, i * 7);
  return text;
}

ByteLevelModel trained(const std::string& pattern = "gpt2", int64_t vocab_size = 400) {
  ByteLevelTrainer trainer({.vocab_size = vocab_size, .pattern = pattern});
  trainer.add(text_to_train_on());
  return trainer.train();
}

Tokenizer tokenizer_of(ByteLevelModel model) {
  return Tokenizer(std::make_unique<ByteLevelTokenizer>(std::move(model), "test.json"));
}

/// The text of a tokenizer.json with `from` replaced by `to`.
std::string changed(const std::string& from, const std::string& to) {
  std::string json = tokenizer_json(trained());
  const size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? json : json.replace(at, from.size(), to);
}

using ByteLevelFiles = DirectoryTest;

TEST(ByteLevel, RoundTripsEveryByteAndCharacter) {
  const Tokenizer tokenizer = tokenizer_of(trained());
  std::string text = "The trireme\u2019s crew \U0001F6A3 \xF4\x8F\xBF\xBF\r\n\t  end";
  for (int c = 0; c < 0x80; ++c) text += static_cast<char>(c);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_LT(tokenizer.encode("the trireme's crew sees").size(), 8u) << "nothing was learnt";
  EXPECT_TRUE(contains(message_of(ExitCode::kData, [&] { tokenizer.encode("abc\xC3("); }), "byte 3"));
  EXPECT_THROW(tokenizer.decode(Ids{400}), DataError);
  EXPECT_THROW(tokenizer.decode(Ids{-1}), DataError);
}

TEST(ByteLevel, ReplacesBrokenCharactersAsPythonDoes) {
  EXPECT_EQ(replace_invalid_utf8("ok"), "ok");
  // bytes(...).decode(errors="replace")
  EXPECT_EQ(replace_invalid_utf8("a\xE2\x82z\xF0\x9F\x98"), "a\uFFFDz\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xFF\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80\xE0\x9F"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
}

TEST(ByteLevel, StreamsTextOfWholeCharacters) {
  const Tokenizer tokenizer = tokenizer_of(trained());
  const std::string text = "na\u00efve \U0001F6A3\u4e2d trireme \xEF\xBF\xBD end \U0001F6A3";
  Ids ids = tokenizer.encode(text);
  ids.insert(ids.begin() + 3, 0);  // <|endoftext|>: no text
  for (const size_t cut : {ids.size(), ids.size() - 1, ids.size() - 2}) {
    StreamingDecoder decoder(tokenizer);
    std::string streamed;
    for (size_t i = 0; i < cut; ++i) {
      const std::string part = decoder.add(ids[i]);
      EXPECT_FALSE(part.ends_with("\uFFFD")) << i;
      streamed += part;
    }
    streamed += decoder.finish();
    EXPECT_EQ(streamed, tokenizer.decode(std::span(ids).first(cut)));
  }
}

TEST(ByteLevel, LongWordsAreNotQuadratic) {
  for (const char* pattern : {"gpt2", "qwen2"}) {
    const Tokenizer tokenizer = tokenizer_of(trained(pattern));
    for (const std::string& unit :
         {std::string("a"), std::string("trireme"), std::string(" "), std::string("\u00e9"), std::string("e\u0301")}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      const std::clock_t start = std::clock();
      EXPECT_FALSE(tokenizer.encode(text).empty());
      // It takes 0.3 s, and 11 s with sanitizers; a quadratic search would take hours.
      EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 60.0) << pattern << " '" << unit << "'";
    }
  }
}

TEST(Unigram, ALongPieceDoesNotMakeOtherWordsSlow) {
  ByteLevelModel model;
  model.tokens = {"<unk>", "a", std::string(20'000, 'b')};
  for (char c = 'A'; c <= 'Z'; ++c) model.tokens.emplace_back(1, c);
  model.scores.assign(model.tokens.size(), -1);
  model.unknown_id = 0;
  const UnigramDecoder decoder(model);
  const std::clock_t start = std::clock();
  Ids ids;
  decoder.encode(std::string(20'000, 'a') + model.tokens[2], ids);
  EXPECT_EQ(ids.size(), 20'001u);
  EXPECT_EQ(ids.back(), 2);
  // A search for pieces of every length takes half an hour.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 30.0);
}

TEST(ByteLevel, SplittersEqualPcre2) {
  // The known patterns, in a form that only the general way takes: as one of two steps, behind a pattern that never
  // matches. ASCII and Latin-1 only: PCRE2 may know other Unicode versions.
  const char* bits[] = {"'",  "s", "'S", "'ll",   "'RE", " ",   "  ",     "\n",     "\r\n",   "\t",     "a",
                        "Zz", "7", "42", "12345", "-",   "...", "\u00a0", "\u00e9", "\u00b2", "\u0085", "_"};
  std::mt19937_64 rng(7);
  for (const char* pattern : {"gpt2", "llama3", "qwen2"}) {
    ByteLevelModel model = trained(pattern);
    model.normalisers.clear();
    const Tokenizer fast = tokenizer_of(model);
    model.steps[0].pattern = "(?:" + model.steps[0].pattern + ")";
    const Tokenizer general = tokenizer_of(model);
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      for (uint64_t n = rng() % 12; n > 0; --n) text += bits[rng() % std::size(bits)];
      ASSERT_EQ(fast.encode(text), general.encode(text)) << pattern << " '" << text << "'";
    }
  }
}

TEST(ByteLevel, AddsSpecialTokens) {
  Tokenizer tokenizer = tokenizer_of(trained());
  EXPECT_EQ(tokenizer.add_special("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer.add_special("<|im_end|>"), 400);
  EXPECT_EQ(tokenizer.add_special("<|im_end|>\n"), 401);
  EXPECT_EQ(tokenizer.add_special("<|im_end|>"), 400);
  EXPECT_EQ(tokenizer.vocab_size(), 402);
  EXPECT_EQ(tokenizer.base_vocab_size(), 400);
  const Ids ids = tokenizer.encode("a<|im_end|>\nb<|im_end|><|endoftext|>");
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_EQ(tokenizer.decode(ids), "a<|im_end|>\nb<|im_end|>");
  EXPECT_EQ(tokenizer.decode(ids, true), "a<|im_end|>\nb<|im_end|><|endoftext|>");
}

TEST(ByteLevel, IdsWithHolesAndUnknownBytes) {
  const std::string json =
      R"({"model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "vocab": {"a": 0, "b": 5, "ab": 9, "<unk>": 2}, "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})";
  const Tokenizer tokenizer = tokenizer_of(parse_tokenizer_json(json, "holes.json"));
  EXPECT_EQ(tokenizer.vocab_size(), 10);
  EXPECT_EQ(tokenizer.encode("abxyb"), (Ids{9, 2, 5}));
  EXPECT_EQ(tokenizer.decode(Ids{9, 4, 5}), "abb");
  std::string without = json;
  without.replace(without.find(R"("unk_token": "<unk>", )"), 22, "");
  const Tokenizer strict = tokenizer_of(parse_tokenizer_json(without, "strict.json"));
  EXPECT_TRUE(contains(message_of(ExitCode::kData, [&] { strict.encode("abx"); }), "byte 0x78"));
}

TEST(ByteLevel, FirstSpaceStandsBeforeTheTextsFirstCharacter) {
  const auto encode = [](const std::string& from, const std::string& to, const std::string& text) {
    const std::string json = fmt::format(
        R"({{"added_tokens": [{{"id": 6, "content": "i", "normalized": true, "special": false}}],
             "normalizer": {{"type": "Replace", "pattern": {{"String": "{}"}}, "content": "{}"}},
             "pre_tokenizer": {{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}},
             "model": {{"type": "BPE", "unk_token": "<unk>", "vocab": {{"<unk>": 0, "▁": 1, "!": 2, "h": 3, "?": 4, "▁h": 5, "i": 6}},
                        "merges": [["▁", "h"]]}}}})",
        from, to);
    return tokenizer_of(parse_tokenizer_json(json, "tokenizer.json")).encode(text);
  };
  EXPECT_EQ(encode("??", "!", "??h"), (Ids{2, 3})) << "what replaces a match comes from its last character";
  EXPECT_EQ(encode("??", "!", "h??"), (Ids{5, 2}));
  EXPECT_EQ(encode("?", "!", "?h"), (Ids{1, 2, 3}));
  EXPECT_EQ(encode("?", "", "?h"), (Ids{3}));
  EXPECT_EQ(encode("?", "ih", "?h"), (Ids{6, 5, 3}));
}

TEST(ByteLevel, ASplitAtWhatTheNormaliserReplacesIsNone) {
  const auto read = [](const std::string& from, const std::string& split, bool invert) {
    return message_of(ExitCode::kData, [&] {
      const Tokenizer tokenizer = tokenizer_of(parse_tokenizer_json(
          fmt::format(R"({{"normalizer": {{"type": "Replace", "pattern": {{"String": "{}"}}, "content": "▁"}},
                           "pre_tokenizer": {{"type": "Split", "pattern": {{"String": "{}"}},
                                              "behavior": "MergedWithPrevious", "invert": {}}},
                           "model": {{"type": "BPE", "unk_token": "<unk>", "vocab": {{"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}},
                                      "merges": [["▁", "a"]]}}}})",
                      from, split, invert),
          "tokenizer.json"));
      EXPECT_EQ(tokenizer.encode(" a"), (Ids{3}));
    });
  };
  EXPECT_EQ(read(" ", " ", false), "");
  const std::vector<std::tuple<const char*, const char*, bool>> kept = {
      {" ", " ", true}, {"  ", "  ", false}, {"  ", " ", false}};
  for (const auto& [from, split, invert] : kept) EXPECT_TRUE(contains(read(from, split, invert), "pre_tokenizer"));
}

TEST(ByteLevel, RefusesByName) {
  std::string normaliser = R"("normalizer": {"type": "Sequence", "normalizers": [)";
  for (int i = 0; i < 13; ++i)
    normaliser +=
        fmt::format(R"({}{{"type": "Replace", "pattern": {{"String": "a"}}, "content": "aa"}})", i > 0 ? "," : "");
  normaliser += "]}";
  std::string post = R"("post_processor": {"type": "TemplateProcessing", "single": [)";
  for (int i = 0; i < 1025; ++i) post += R"({"SpecialToken": {"id": "a"}},)";
  post += R"({"Sequence": {"id": "A"}}], "special_tokens": {"a": {"ids": [0]}}}, "unused": {)";
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"\"post_processor\": {", post.c_str()}, "post_processor: more than 1024 tokens"},
      {{"\"type\": \"BPE\"", "\"type\": \"Unigram\""}, "the vocabulary of a Unigram model"},
      {{"\"byte_fallback\": false", "\"byte_fallback\": true"}, "byte_fallback"},
      {{"\"dropout\": null", "\"dropout\": 0.1"}, "dropout 0.1"},
      {{"\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\""}, "end_of_word_suffix"},
      {{"\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}"}, "the normalizer 'Lowercase'"},
      {{"\"normalizer\": null", normaliser.c_str()}, "the normalizer makes texts up to 8.19e+03 times as long"},
      {{"\"type\": \"ByteLevel\"", "\"type\": \"Whitespace\""}, "the pre_tokenizer 'Whitespace'"},
      {{"\"unk_token\": null", "\"unk_token\": \"none\""}, "unk_token \"none\" is not in the vocabulary"},
      {{"\"!\": 1,", "\"!\": 2,"}, "both have the id 2"},
      {{"\"!\": 1,", "\"!\": -1,"}, "the id of token '!' is -1"},
      {{"\"!\": 1,", "\"!\": 9000000,"}, "ids up to 9000000"},
      {{"\"!\": 1,", "\"!\": 18446744073709551615,"}, "the id of token '!'"},
      {{"\"id\": 0,", "\"id\": 7,"}, "has the id 7 as an added token and 0"},
      {{"\"merges\": [", "\"merges\": [[\"a\", \"nowhere\"],"}, "merge 0 ('a' 'nowhere')"},
      {{"\"merges\": [", "\"merges\": [\"a b c\","}, "merge 0 is 'a b c'"},
      {{"\"merges\": [", "\"merges\": [7,"}, "merge 0 is neither"},
      {{"\"decoder\": {", "\"decoder\": {\"x\": 1, "}, ""},
  };
  for (const auto& [change, words] : cases) {
    const std::string message = message_of(ExitCode::kData, [&, &change = change] {
      parse_tokenizer_json(changed(change.first, change.second), "bad.json");
    });
    EXPECT_TRUE(contains(message, words)) << change.second;
  }
  const std::string whole = tokenizer_json(trained());
  for (size_t size = 0; size < whole.size() - 2; size += 977)
    EXPECT_NE(message_of(ExitCode::kData, [&] { parse_tokenizer_json(whole.substr(0, size), "cut.json"); }), "")
        << size;
  ByteLevelModel model = trained();
  for (const char* pattern : {"(", "[a", "\\p{N}{1,3}+", "[a-z&&[^b]]", "\\h+", "\\p{Nowhere}"}) {
    model.steps[0].pattern = pattern;
    EXPECT_TRUE(contains(message_of(ExitCode::kData, [&] { tokenizer_of(model); }), "the pattern of the pre_tokenizer"))
        << pattern;
  }
  model.steps[0].pattern = "(a+)+$";
  const Tokenizer slow = tokenizer_of(model);
  EXPECT_TRUE(contains(message_of(ExitCode::kData, [&] { slow.encode(std::string(60, 'a') + "b"); }), "match limit"));
}

TEST_F(ByteLevelFiles, OpensDirectoriesAndFiles) {
  const ByteLevelModel model = trained("llama3");
  const std::string text = "The trireme's 12345 rowers\n\n see it";
  EXPECT_TRUE(contains(message_of(ExitCode::kData, [&] { Tokenizer tokenizer(root_); }),
                       "tokenizer.json, or vocab.json with merges.txt"));
  write("vocab.json", vocab_json(model));
  EXPECT_TRUE(
      contains(message_of(ExitCode::kData, [&] { Tokenizer tokenizer(root_ / "vocab.json"); }), "no merges.txt"));
  write("merges.txt", merges_txt(model));
  const Tokenizer two(root_);  // GPT-2's words
  EXPECT_EQ(two.encode("the trireme"), Tokenizer(root_ / "merges.txt").encode("the trireme"));
  EXPECT_EQ(two.eos_id(), 0);
  EXPECT_TRUE(two.leading().empty());
  write("tokenizer_config.json", R"({"add_bos_token": true})");
  EXPECT_EQ(Tokenizer(root_).leading(), Ids{0});
  fs::remove(root_ / "tokenizer_config.json");
  write("tokenizer.json", tokenizer_json(model));
  const Tokenizer one(root_);
  EXPECT_EQ(one.kind(), "byte-level BPE");
  EXPECT_EQ(one.encode(text), tokenizer_of(model).encode(text));
  EXPECT_NE(one.encode(text), two.encode(text));  // 123 45, not 12345
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"content": "e"}, "pad_token": "<|endoftext|>"})");
  const Tokenizer named(root_);
  EXPECT_FALSE(named.bos_id());
  EXPECT_EQ(named.decode(Ids{*named.eos_id()}, true), "e");
  EXPECT_EQ(named.decode(Ids{*named.eos_id()}), "") << "named: special";
  EXPECT_EQ(named.pad_id(), 0);
  write("tokenizer_config.json", R"({"eos_token": "<nowhere>", "pad_token": "<pad>"})");
  const Tokenizer longer(root_);
  EXPECT_EQ(longer.eos_id(), one.vocab_size());  // as transformers adds it
  EXPECT_EQ(longer.encode("<nowhere>"), Ids{*longer.eos_id()});
  EXPECT_FALSE(longer.pad_id());
  fs::remove(root_ / "tokenizer_config.json");
  write("merges.txt", "#version: 0.2\nt\n");
  EXPECT_TRUE(contains(message_of(ExitCode::kData, [&] { Tokenizer tokenizer(root_ / "vocab.json"); }),
                       "merges.txt:2: expected two tokens"));
  write("tokenizer.model", "IQ== 0\nIg== 1\n");  // tiktoken's, as Llama 3 has it
  EXPECT_EQ(Tokenizer(root_).encode(text), one.encode(text));
  EXPECT_TRUE(
      contains(message_of(ExitCode::kData, [&] { Tokenizer tokenizer(root_ / "tokenizer.model"); }), "tiktoken"));
}

TEST(ByteLevelTraining, HasItsLimits) {
  EXPECT_THROW(ByteLevelTrainer({.vocab_size = 256}), ConfigError);
  EXPECT_THROW(ByteLevelTrainer({.vocab_size = 300, .specials = {"a", "a"}}), ConfigError);
  EXPECT_THROW(ByteLevelTrainer({.vocab_size = 300, .pattern = "gpt3"}), ConfigError);
  EXPECT_THROW(ByteLevelTrainer({.vocab_size = 300}).train(), DataError);
  ByteLevelTrainer trainer({.vocab_size = 5000});
  trainer.add(std::string(1 << 20, 'x') + " yes yes");
  EXPECT_EQ(trainer.long_words(), 1);
  EXPECT_EQ(trainer.train().merges.size(), 3u) << "y e, ye s, Ġ yes";
}

TEST(ByteLevelTraining, SpecialTokensHaveTheRoleOfTheirNames) {
  const auto roles = [](std::vector<std::string> specials) {
    ByteLevelTrainer trainer({.vocab_size = 260, .specials = std::move(specials)});
    trainer.add("yes");
    const ByteLevelModel model = trainer.train();
    return std::pair(*model.bos_id, *model.eos_id);
  };
  EXPECT_EQ(roles({"<|begin_of_text|>", "<|end_of_text|>"}), std::pair(0, 1));
  EXPECT_EQ(roles({"<pad>", "</s>", "<s>"}), std::pair(2, 1));
  EXPECT_EQ(roles({"<pad>", "<|endoftext|>"}), std::pair(0, 1));
  EXPECT_EQ(roles({"<a>", "<b>"}), std::pair(0, 0));
}

}  // namespace
}  // namespace trireme
