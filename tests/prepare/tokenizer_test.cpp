// Tokenizers: round trips, Llama's settings, special tokens, damaged models, and the real Llama 2 model if it is
// available.

#include "data/prepare/ultrachat.h"
#include "prepare_testing.h"
#include "trireme/base/error.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"

namespace trireme {
namespace {

using Ids = std::vector<int32_t>;
using TokenizerFiles = Scratch;
using TrainingTokenizers = Scratch;

std::string tokenizer_complaint(const std::string& model) {
  return message_of<DataError>([&] { Tokenizer(model, "given.model"); });
}

TEST(Tokenizer, RoundTripsAnyText) {
  const Tokenizer tokenizer = small_tokenizer();
  for (const std::string text : {"The trireme crossed 170 rowers.", "  two  spaces\tand a tab\n\nlines ",
                                 "中文 and \xF0\x9F\x9A\xA3", "never seen: @#~^", "x", " "}) {
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    for (const int32_t id : ids) {
      EXPECT_GT(id, 2) << "control or unknown piece for '" << text << "'";
      EXPECT_LT(id, 400);
    }
  }
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_LT(tokenizer.encode("The trireme crossed the narrow strait").size(), 15u) << "nothing was learnt";
}

TEST(Tokenizer, HasLlamasLayout) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 400);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.encode("\x01").back(), 3 + 1);  // byte pieces follow the control pieces
  const auto summary = read_sentencepiece_model(small_model(), "small.model");
  EXPECT_EQ(summary.pieces.size(), 400u);
  EXPECT_EQ(summary.unknown_id, 0);
  EXPECT_TRUE(summary.byte_fallback);
  const Ids digits = tokenizer.encode("480480");  // one piece a digit
  EXPECT_GE(digits.size(), 6u);
}

TEST(Tokenizer, ThreadsGiveTheSameIdsInTheSameOrder) {
  const Tokenizer tokenizer = small_tokenizer();
  std::vector<std::string> texts;
  for (int i = 0; i < 500; ++i) texts.push_back(fmt::format("Every oarsman remembered {} storms.", i));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto one = tokenizer.encode_all(views, 1), many = tokenizer.encode_all(views, 7);
  EXPECT_EQ(one, many);
  EXPECT_EQ(one[123], tokenizer.encode(texts[123]));
  EXPECT_TRUE(tokenizer.encode_all({}, 3).empty());
}

TEST(Tokenizer, SpecialTokensAreSplitOutLeftmostLongest) {
  Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.add_special("<s>"), 1);  // a piece of the model
  EXPECT_EQ(tokenizer.add_special("<a>"), 400);
  EXPECT_EQ(tokenizer.add_special("<a>b"), 401);
  EXPECT_EQ(tokenizer.add_special("<a>"), 400);
  EXPECT_EQ(tokenizer.vocab_size(), 402);
  const auto joined = [](std::initializer_list<Ids> parts) {
    Ids all;
    for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const Tokenizer plain = small_tokenizer();
  EXPECT_EQ(tokenizer.encode("x<a>bc<a><s>"), joined({plain.encode("x"), {401}, plain.encode("c"), {400, 1}}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("x<a>bc<a>")), "x<a>bc<a>");
  EXPECT_THROW(tokenizer.decode(Ids{402}), DataError);
  EXPECT_THROW(tokenizer.decode(Ids{-1}), DataError);
}

TEST_F(TokenizerFiles, NameEndsAndTheBosBeforeAText) {
  write("tokenizer.model", small_model());
  const auto open = [&](const std::string& config) {
    write("tokenizer_config.json", config);
    return Tokenizer(root_);
  };
  const Tokenizer plain = open("{}");
  EXPECT_EQ(plain.leading(), Ids{1});
  EXPECT_EQ(open(R"({"add_bos_token": false})").leading(), Ids{});
  // transformers' class adds BOS only if its files say so.
  EXPECT_EQ(open(R"({"tokenizer_class": "LlamaTokenizer"})").leading(), Ids{});
  EXPECT_EQ(open(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true})").leading(), Ids{1});
  failure(ExitCode::kData, [&] { open(R"({"add_bos_token": "yes"})"); });
  const Tokenizer named = open(R"({"eos_token": "<0x0A>", "bos_token": null, "pad_token": {"content": "<new>"}})");
  EXPECT_EQ(named.eos_id(), 13);
  EXPECT_FALSE(named.bos_id());
  EXPECT_EQ(named.leading(), Ids{});
  EXPECT_EQ(named.vocab_size(), 401);  // as transformers adds it
  EXPECT_FALSE(named.pad_id());
  EXPECT_EQ(named.decode(Ids{400}), "");
  EXPECT_EQ(named.decode(Ids{400}, true), "<new>");
  EXPECT_EQ(open(R"({"eos_token": ""})").eos_id(), 2);
  // special_tokens_map.json wins where no tokens are listed.
  write("special_tokens_map.json", R"({"eos_token": "<0x0B>"})");
  EXPECT_EQ(open(R"({"eos_token": "<0x0A>"})").eos_id(), 14);
  EXPECT_EQ(open(R"({"eos_token": "<0x0A>", "added_tokens_decoder": {"400": {"content": "<a>"}}})").eos_id(), 13);
}

TEST(Tokenizer, EveryTruncationOfAModelIsRefused) {
  const std::string& model = small_model();
  ASSERT_GT(model.size(), 3000u);
  // Everything up to and including the normaliser's settings is required; only the empty denormaliser after it may be
  // missing.
  size_t accepted = 0;
  for (size_t size = 0; size < model.size(); ++size) {
    const std::string message = tokenizer_complaint(model.substr(0, size));
    if (message.empty()) {
      ++accepted;
      EXPECT_GT(size + 16, model.size()) << size << " of " << model.size() << " bytes were accepted";
    } else {
      EXPECT_TRUE(contains(message, "given.model"));
    }
  }
  EXPECT_LE(accepted, 4u);
}

TEST(Tokenizer, OtherFilesAreRefusedWithAReason) {
  EXPECT_TRUE(contains(tokenizer_complaint(""), "empty"));
  EXPECT_TRUE(contains(tokenizer_complaint("{\"version\": \"1.0\"}"), "tokenizer.json"));
  EXPECT_TRUE(contains(tokenizer_complaint("Plain text is no model."), "not a complete sentencepiece model"));
  EXPECT_TRUE(contains(tokenizer_complaint(std::string(100, '\xff')), "byte"));
  const std::string wrong = small_model() + "\x08\x01";  // a number where a piece is expected
  EXPECT_TRUE(contains(tokenizer_complaint(wrong),
                       fmt::format("field 1 at byte {} has wire type 0, expected 2", small_model().size())));
  failure(ExitCode::kData, [] { Tokenizer(std::filesystem::path("/absent/tokenizer.model")); });
}

TEST(Tokenizer, DamagedBytesNeverCrash) {
  // Each byte of the first kilobyte and of the settings at the end is changed in two ways: the model is refused or
  // still usable.
  const std::string& model = small_model();
  for (size_t at = 0; at < model.size(); at += (at < 1024 || at + 300 > model.size()) ? 1 : 97)
    for (const char flip : {'\x01', '\x80'}) {
      std::string copy = model;
      copy[at] = static_cast<char>(copy[at] ^ flip);
      try {
        const Tokenizer tokenizer(copy, "given.model");
        const Ids ids = tokenizer.encode("The trireme crossed 480 straits");
        for (const int32_t id : ids) ASSERT_LT(id, tokenizer.vocab_size());
      } catch (const DataError&) {
      }
    }
}

TEST_F(TrainingTokenizers, ReportsLimitsOfTheVocabulary) {
  TokenizerTraining training;
  training.inputs = {write("text.txt", training_text())};
  training.vocab_size = 20000;
  const std::string message = message_of<ConfigError>([&] { return train_tokenizer(training); });
  const auto at = message.find("at most ");
  ASSERT_NE(at, std::string::npos) << message;
  // The limit in the message works, one more does not.
  training.vocab_size = std::stoll(message.substr(at + 8));
  EXPECT_EQ(Tokenizer(train_tokenizer(training).serialized_model, "m").vocab_size(), training.vocab_size);
  ++training.vocab_size;
  EXPECT_THROW(train_tokenizer(training), ConfigError);
  training.vocab_size = 261;
  EXPECT_THROW(train_tokenizer(training), ConfigError);
  training.vocab_size = 10;
  EXPECT_THROW(train_tokenizer(training), ConfigError);
  training.vocab_size = 400;
  training.model_type = "word";
  EXPECT_THROW(train_tokenizer(training), ConfigError);
}

TEST_F(TrainingTokenizers, UnigramTrainsToo) {
  TokenizerTraining training;
  training.inputs = {write("text.txt", training_text())};
  training.model_type = "unigram";
  training.vocab_size = 320;
  const Tokenizer tokenizer(train_tokenizer(training).serialized_model, "m");
  EXPECT_EQ(tokenizer.vocab_size(), 320);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("Athens followed 7 \xF0\x9F\x9A\xA3")),
            "Athens followed 7 \xF0\x9F\x9A\xA3");
}

TEST_F(TrainingTokenizers, CountsWhatItDrops) {
  TokenizerTraining training;
  training.inputs = {write("a.txt", training_text()),
                     write("b.txt", "good\n\nbad \xff\nbad \xc3\n" + std::string(1 << 21, 'x'))};
  training.vocab_size = 350;
  const TrainedTokenizer trained = train_tokenizer(training);
  EXPECT_EQ(trained.lines, 216 + 1);
  EXPECT_EQ(trained.invalid_lines, 2);
  EXPECT_EQ(trained.long_lines, 1);
  EXPECT_TRUE(trained.first_invalid.ends_with("b.txt:3")) << trained.first_invalid;
  training.inputs = {write("c.txt", "\n\n\xff\n")};
  failure(ExitCode::kData, [&] { train_tokenizer(training); });
  training.inputs = {path("absent.txt")};
  failure(ExitCode::kData, [&] { train_tokenizer(training); });
}

TEST(Llama2Tokenizer, EqualsTheReference) {
  if (!std::filesystem::exists(llama2_model())) GTEST_SKIP() << "no ../shared/data/llama2/tokenizer.model";
  Tokenizer tokenizer{llama2_model()};
  EXPECT_EQ(tokenizer.vocab_size(), 32000);
  EXPECT_EQ(tokenizer.encode("Hello world"), (Ids{15043, 3186}));
  EXPECT_EQ(tokenizer.decode(Ids{15043, 3186}), "Hello world");
  const auto specials = add_chatml_specials(tokenizer);
  const std::vector<std::pair<std::string, int32_t>> expected = {{"<unk>", 0},
                                                                 {"<s>", 1},
                                                                 {"</s>", 2},
                                                                 {"<|im_end|>", 32000},
                                                                 {"<pad>", 32001},
                                                                 {"<|im_start|>user", 32002},
                                                                 {"<|im_start|>assistant", 32003},
                                                                 {"<|im_start|>system", 32004}};
  EXPECT_EQ(specials, expected);
  EXPECT_EQ(tokenizer.vocab_size(), 32005);
  const ChatMessage messages[] = {
      {"user", " Hello <s> w\xC3\xB6rld</s> <unk>x"}, {"tool", "a\n\nb  c"}, {"assistant", ""}};
  // What LlamaTokenizerFast of transformers 4.40.2 gives for this conversation with the recipe's
  // overrides.
  EXPECT_EQ(tokenizer.encode(render_chatml(messages)),
            (Ids{32002, 29871, 13,    15043, 29871, 1,     29871, 281,   1340,  430,   2,     259,   0,     921,
                 32000, 29871, 13,    29966, 29989, 326,   29918, 2962,  29989, 29958, 10154, 13,    29874, 13,
                 13,    29890, 29871, 274,   32000, 29871, 13,    32003, 29871, 13,    32000, 29871, 13}));
}

}  // namespace
}  // namespace trireme
