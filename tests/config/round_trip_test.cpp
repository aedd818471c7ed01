// print_config() then load_config() gives the same Config, to the last bit of every number.
#include <cmath>
#include <cstring>
#include <random>

#include "config_testing.h"

namespace trireme {
namespace {

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  Config config() {
    Config c;
    c.model.path = path();
    c.model.init = word({"checkpoint", "random"});
    c.model.read = word({"per_rank", "per_host"});
    if (coin()) c.model.scaled_residual_init = coin();
    if (coin()) c.model.vocab_size = integer(1, 2147483647);
    if (coin()) c.model.pad_vocab_to = integer(1, 65536);
    if (coin()) {
      c.lora.emplace();
      c.lora->r = integer(1, 65536);
      c.lora->alpha = positive();
      c.lora->dropout = fraction();
      c.lora->target_modules = {word({"q_proj", "qkv_proj"}), "o_proj"};
      if (coin()) c.lora->adapter = path();
    }
    c.data.train = {path() + "1", path() + "2"};
    c.data.seq_length = integer(3, 16777216);
    c.data.shuffle = coin();
    if (coin()) c.data.weights = {positive(), positive()};
    if (coin()) c.data.names = {"a: b", "\"#"};
    if (coin()) c.data.column = "12";
    for (auto* id : {&c.data.bos_token, &c.data.eos_token, &c.data.bol_token, &c.data.eol_token})
      if (coin()) *id = integer(0, 100000);
    if (coin()) c.data.strip_tokens = {integer(0, 2147483647), 0};
    c.data.min_length = integer(1, 100);
    c.data.logical_shards = integer(1, 1048576);
    if (coin()) c.data.valid = {path()};
    if (c.data.valid.empty() && coin()) c.data.splits = word({"99990,8,2", "1/1/1"});
    c.data.index_rules = word({"nemo", "core"});
    if (coin()) c.data.index_cache = path();
    if (c.data.eos_token) {
      for (bool* at_ends : {&c.data.reset_position_ids, &c.data.reset_attention_mask, &c.data.eod_mask_loss})
        *at_ends = coin();
    }
    c.batch.micro_batch_size = integer(1, 100);
    c.batch.global_batch_size = c.batch.micro_batch_size * integer(1, 1000);
    c.batch.packing_rate = 1 + 1023 * fraction();
    c.optimizer = {word({"adamw", "lamb"}),
                   positive(),
                   {fraction(), fraction()},
                   positive(),
                   positive(),
                   coin(),
                   positive(),
                   word({"global", "local"}),
                   word({"decayed", "all"})};
    c.train.max_steps = integer(1, 1000000);
    c.train.seed = integer(0, 4294967295);
    c.train.loss = word({"sample_mean", "token_mean", "rank_mean"});
    if (coin()) c.train.max_time = word({"00:00:00:01", "5:23:30:00"});
    c.train.deterministic = coin();
    if (!c.data.splits && coin()) c.data.test = {path()};
    if ((!c.data.test.empty() || c.data.splits) && coin()) c.eval.test_samples = integer(1, 2147483647);
    c.schedule.name = word({"cosine", "linear", "constant", "wsd", "fms_cosine", "annealing"});
    const bool wsd = c.schedule.name == "wsd", factor = wsd || c.schedule.name == "fms_cosine";
    if (c.schedule.name != "annealing")
      c.schedule.warmup_steps = integer(0, wsd ? c.train.max_steps / 2 : c.train.max_steps);
    if (c.schedule.name != "annealing" && !factor) c.schedule.min_lr = c.optimizer.lr * fraction();
    if (factor && coin()) c.schedule.min_lr_factor = fraction();
    if (wsd && coin()) c.schedule.decay_ratio = fraction() / 2;
    if (wsd) c.schedule.decay_type = word({"linear", "sqrt", "cosine"});
    if (!c.data.valid.empty() && coin()) c.eval.every_samples = integer(1, int64_t{1} << 53);
    if (!c.data.valid.empty() && coin()) c.eval.target_loss = coin() ? positive() : -positive();
    if (!c.data.valid.empty() && coin()) c.eval.samples = integer(1, 2147483647);
    if (!c.data.valid.empty() && coin()) c.eval.target_accuracy = 1 - fraction();
    if (coin()) c.eval.skip_first = coin() ? "mlperf" : std::to_string(integer(0, 1000));
    if (coin()) c.precision.compute = word({"fp32", "bf16", "fp16"});
    if (c.precision.compute == "fp16" && coin()) c.precision.loss_scale = 1 + 1000 * fraction();
    c.precision.linear = coin() ? "fp8" : "compute";
    if (c.precision.linear == "fp8" && !c.lora && coin()) {
      c.precision.fp8_recipe = word({"rowwise", "tensorwise", "delayed"});
      c.precision.fp8_skip_first = integer(0, 3), c.precision.fp8_skip_last = integer(0, 3);
    }
    c.parallel.shard_size = coin() ? word({"auto", "world"}) : std::to_string(integer(2, 1024));
    c.parallel.policy = c.lora ? word({"auto", "none"}) : word({"auto", "none", "optimizer", "gradients", "full"});
    c.parallel.recompute = word({"auto", "none", "norms", "mlp", "full", "1/3", "0.25", "1", "0"});
    c.output.dir = path();
    if (coin()) c.output.save_every_samples = integer(1, int64_t{1} << 53);
    if (coin()) c.output.save_every_minutes = 1e-3 + 1000 * fraction();
    c.output.save_on_stop = coin();
    c.output.keep_last = integer(2, 1000);
    c.logging = {integer(1, 1000), word({"plain", "fms", "fms_2024", "nemo"}), coin(), coin(), {}};
    if (coin()) {
      c.logging.profile_step = integer(1, c.train.max_steps);
    } else if (coin()) {
      const int64_t wait = integer(0, c.train.max_steps - 1);
      c.profile = {wait,  integer(0, c.train.max_steps - 1 - wait), integer(1, 100), integer(0, 9), {}, coin(), coin(),
                   coin()};
      c.profile->ranks = coin() ? std::vector<std::string>{"all"} : std::vector<std::string>{"3", "0"};
    }
    return c;
  }

 private:
  bool coin() { return (random_() >> 40 & 1) != 0; }
  int64_t integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  std::string word(std::initializer_list<const char*> words) {
    return *(words.begin() + integer(0, static_cast<int64_t>(words.size()) - 1));
  }
  double fraction() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  // Any positive finite double, denormals included.
  double positive() {
    for (;;) {
      const uint64_t bits = random_() >> 1;
      double value;
      std::memcpy(&value, &bits, sizeof value);
      if (std::isfinite(value) && value > 0) return value;
    }
  }
  // An absolute path made of what YAML, shells and terminals find hard.
  std::string path() {
    static const std::vector<std::string> kPieces = {"a",
                                                     " ",
                                                     "\"",
                                                     "'",
                                                     "\\",
                                                     "#",
                                                     ": ",
                                                     "- ",
                                                     "{",
                                                     "]",
                                                     ",",
                                                     "&a",
                                                     "*b",
                                                     "\t",
                                                     "\n",
                                                     "\r",
                                                     "?",
                                                     "|",
                                                     ">",
                                                     "%",
                                                     "@",
                                                     "`",
                                                     "~",
                                                     "null",
                                                     "1e3",
                                                     "---",
                                                     "!",
                                                     "\x7f",
                                                     "\x01",
                                                     "é",
                                                     "漢",
                                                     "🚣",
                                                     "\xC2\x85",
                                                     "\xC2\xA0",
                                                     "\xE2\x80\xA8",
                                                     "\xEF\xBB\xBF",
                                                     "\xEF\xBF\xBE"};
    std::string text = "/";
    const int64_t pieces = integer(1, 8);
    for (int64_t i = 0; i < pieces; ++i)
      text += kPieces[static_cast<size_t>(integer(0, static_cast<int64_t>(kPieces.size()) - 1))];
    return text + "x";
  }

  std::mt19937_64 random_;
};

TEST(RoundTrip, RandomConfigurations) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Config config = Generator(seed).config();
    const std::string text = print_config(config);
    try {
      const Config again = load_text(text);
      ASSERT_EQ(again, config) << "seed " << seed << "\n" << text << "\nbecame\n" << print_config(again);
    } catch (const ConfigError& error) {
      FAIL() << "seed " << seed << ": " << error.what() << "\n" << text;
    }
  }
}

TEST(RoundTrip, DefaultsOfAMinimalFile) {
  const Config config = load_text(kMinimal);
  EXPECT_EQ(load_text(print_config(config)), config);
  EXPECT_EQ(config.optimizer, OptimizerSection());
  EXPECT_EQ(config.train, TrainSection());
}

TEST(RoundTrip, ResolvedPathsDoNotDependOnWhereTheyAreRead) {
  const Config config = load_config(kFixtures / "valid_full.yaml", {});
  EXPECT_EQ(load_text(print_config(config)), config);
}

TEST(Help, NamesEveryKeyThatIsPrinted) {
  Config config;
  config.lora.emplace();
  const std::string help = describe_config({});
  int keys = 0;
  for (const std::string& line : split(print_config(config), '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const bool key = line.starts_with("  ");
    keys += key ? 1 : 0;
    EXPECT_NE(help.find(key ? "\n" + line.substr(0, colon) + " " : line.substr(0, colon + 1)), std::string::npos)
        << line;
  }
  EXPECT_GE(keys, 42) << "every key of every section is looked at";
  EXPECT_NE(help.find("adamw or lamb; default adamw"), std::string::npos);
}

}  // namespace
}  // namespace trireme
