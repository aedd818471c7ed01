// print_config() then load_config() gives the same Config, to the last bit of every number.
#include "config_testing.h"
#include "description.h"
#include "rules.h"
#include "trireme/config/keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

namespace trireme {
namespace {

/// Random values of every key of the description, as far as the rules let them stand together.
class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  Config config() {
    Config c = load_text(kMinimal);
    for (const Section& section : sections()) {
      if (section.optional) section.exist(c, coin());
      if (section.at(c) == nullptr) continue;
      for (const Key& key : section.keys) {
        // Loading replaces them by steps.
        if (key.name == std::string("epochs") || key.name == std::string("warmup_ratio")) continue;
        if (coin()) continue;
        const Config before = c;
        section.set(c, key, value(key));
        if (!check_rules(c, {}, std::nullopt).empty()) c = before;
      }
    }
    return check_rules(c, {}, std::nullopt).empty() ? c : config();
  }

 private:
  bool coin() { return (random_() >> 40 & 1) != 0; }
  size_t below(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  Value value(const Key& key) {
    if ((key.optional || key.may_be_absent) && coin()) return {};
    const size_t count = !key.list && !key.map ? 1 : key.length > 0 ? key.length : 1 + below(3);
    Value items;
    if (key.map) {
      Key one = key;
      one.choices.clear();
      for (size_t i = 0; i < std::min(count, std::max<size_t>(1, key.choices.size())); ++i)
        items.insert(items.end(), {key.choices.empty() ? "layers." + std::to_string(i) + "\\..*" : key.choices[i].word,
                                   key.lists ? "[" + item(one) + "]" : item(one)});
      return items;
    }
    if (key.selector && coin()) return {"", coin() ? "all-linear" : ".*\\.(q|v)_proj"};
    while (items.size() < count) {
      const std::string one = item(key);
      if (std::find(items.begin(), items.end(), one) == items.end()) items.push_back(one);
    }
    return items;
  }
  std::string item(const Key& key) {
    const bool word = !key.choices.empty() && (key.type == Type::kText || coin());
    if (word) return key.choices[below(key.choices.size())].word;
    switch (key.type) {
      case Type::kBool: return coin() ? "true" : "false";
      case Type::kShare: return std::vector<std::string>{"1/3", "0.25", "1", "0"}[below(4)];
      case Type::kInteger: {
        const double most = std::min(key.max, std::vector<double>{key.min + 3, 1000, 1e18}[below(3)]);
        return std::to_string(
            std::uniform_int_distribution<int64_t>(static_cast<int64_t>(key.min), static_cast<int64_t>(most))(random_));
      }
      case Type::kNumber: return format_exact(number(key));
      case Type::kText: break;
    }
    return key.has_form == nullptr && (key.path || coin()) ? path() : "5:23:30:00";
  }
  /// Any double that the key takes, denormals and negative ones included.
  double number(const Key& key) {
    for (;;) {
      const uint64_t bits = random_();
      double any;
      std::memcpy(&any, &bits, sizeof any);
      const double fraction = std::uniform_real_distribution<double>(0, 1)(random_);
      const double found =
          std::isfinite(key.max) && std::isfinite(key.min) ? key.min + (key.max - key.min) * fraction : any;
      if (std::isfinite(found) && found > key.min && found < key.max) return found;
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
    const size_t pieces = 1 + below(8);
    for (size_t i = 0; i < pieces; ++i) text += kPieces[below(kPieces.size())];
    return text + "x";
  }

  std::mt19937_64 random_;
};

TEST(RoundTrip, RandomConfigurations) {
  std::set<std::string> changed;
  const auto defaults = flatten_config(load_text(kMinimal));
  for (uint64_t seed = 0; seed < 700; ++seed) {
    const Config config = Generator(seed).config();
    const std::string text = print_config(config);
    for (const auto& pair : flatten_config(config))
      if (std::find(defaults.begin(), defaults.end(), pair) == defaults.end()) changed.insert(pair.first);
    try {
      const Config again = load_text(text);
      ASSERT_EQ(again, config) << "seed " << seed << "\n" << text << "\nbecame\n" << print_config(again);
    } catch (const ConfigError& error) {
      FAIL() << "seed " << seed << ": " << error.what() << "\n" << text;
    }
  }
  const std::set<std::string> fixed = {"train.epochs", "schedule.warmup_ratio"};
  for (const std::string& key : config_keys({})) EXPECT_NE(changed.contains(key), fixed.contains(key)) << key;
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
    EXPECT_TRUE(contains(help, key ? "\n" + line.substr(0, colon) + " " : line.substr(0, colon + 1))) << line;
  }
  EXPECT_GE(keys, 42) << "every key of every section is looked at";
  EXPECT_TRUE(contains(help, "adamw, lamb or muon; default adamw"));
}

}  // namespace
}  // namespace trireme
