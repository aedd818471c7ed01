// Every kept file that must be refused, with every line that it must be refused with.
#include <algorithm>
#include <map>

#include "config_testing.h"

namespace trireme {
namespace {

// Fixture -> problems, each without the leading "FILE:".
const std::map<std::string, std::vector<std::string>> kExpected = {
    {"anchor_alias",
     {"9:7: an anchor (&name); aliases are not supported", "11:11: an alias (*name); write the value out"}},
    {"bad_dedent", {"4:2: not valid YAML here: end of map not found"}},
    {"bad_indent", {"3:8: not valid YAML here: illegal map value"}},
    {"betas",
     {"9:10: optimizer.betas must be a list of 2 numbers >= 0 and < 1, not 1 of them",
      "11:19: lora.target_modules must be a list of q_proj, k_proj, v_proj, o_proj, gate_proj, "
      "up_proj, down_proj, c_attn, c_proj, c_fc, gate_up_proj, qkv_proj, embed_tokens or wte, a regular expression, or "
      "all-linear, not an empty list"}},
    {"betas_range",
     {"9:16: optimizer.betas must be a number >= 0 and < 1, not '1.0'",
      "11:28: lora.target_modules must be q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
      "down_proj, c_attn, c_proj, c_fc, gate_up_proj, qkv_proj, embed_tokens or wte, not 'q_prj'. Did you mean "
      "'q_proj'?"}},
    {"bool_words",
     {"9:11: logging.mlperf must be true or false, not 'yes'. Did you mean 'true'?",
      "10:16: logging.tensorboard must be true or false, not 'True'. Did you mean 'true'?",
      "12:16: optimizer.decay_norms must be true or false, not '0'. Did you mean 'false'?"}},
    {"byte_order_16", {"1:1: byte 0xff is not valid UTF-8", "1:4: control byte 0x00 (NUL): is this a text file?"}},
    {"colon_in_value", {"2:10: not valid YAML here: illegal map value"}},
    {"combinations",
     {"9:22: batch.global_batch_size 10 is not a multiple of batch.micro_batch_size 4: nearest are "
      "8 and 12",
      "12:17: schedule.warmup_steps 100 is more than train.max_steps 50",
      "13:11: schedule.min_lr 0.01 is more than optimizer.lr 0.0004",
      "17:18: eval.every_samples needs data.valid, which is not given",
      "18:16: eval.target_loss needs data.valid, which is not given",
      "20:15: precision.fp8_recipe delayed needs precision.linear: fp8"}},
    {"complex_key", {"8:3: a key must be a word, not a list", "10:3: a key must be a word, not a mapping"}},
    {"control_04", {"8:1: control byte 0x04"}},
    {"crlf_unicode_error",
     {"5:15: data.seq_length must be an integer from 2 to 16777216, not 'x'",
      "6:21: unknown key 'dri' in section 'output'. Did you mean 'dir'?"}},
    {"duplicate_in_flow",
     {"1:1: data.train is missing: a path or a list of paths",
      "1:1: data.seq_length is missing: an integer from 2 to 16777216", "1:1: output.dir is missing: a path",
      "1:22: duplicate key 'path', first on line 1", "2:31: duplicate key 'global_batch_size', first on line 2"}},
    {"duplicate_key", {"11:3: duplicate key 'lr', first on line 9"}},
    {"duplicate_section", {"8:1: duplicate key 'model', first on line 1"}},
    {"empty",
     {"1:1: the file is empty", "1:1: model.path is missing: a path",
      "1:1: data.train is missing: a path or a list of paths",
      "1:1: data.seq_length is missing: an integer from 2 to 16777216", "1:1: output.dir is missing: a path"}},
    {"empty_path",
     {"2:9: model.path must be a path, but \"\" is empty", "4:18: data.train must be a path, but \"\" is empty",
      "7:8: output.dir must be a path, but \"a\\x00b\" holds a NUL byte"}},
    {"float_for_int",
     {"9:14: train.max_steps must be an integer from 1 to 2147483647, not '1e3'. Did you mean "
      "'1000'?",
      "10:9: train.seed must be an integer from 0 to 4294967295, not '7.0'. Did you mean '7'?"}},
    {"float_for_int_2",
     {"9:14: train.max_steps must be an integer from 1 to 2147483647, not '1_000'. Did you mean "
      "'1000'?",
      "10:9: train.seed must be an integer from 0 to 4294967295, not '0x10'"}},
    {"folded_scalar", {"9:7: optimizer.lr must be a number >= 0, not '1.0e-3 0.5'"}},
    {"int_overflow",
     {"9:14: train.max_steps must be an integer from 1 to 2147483647, not '99999999999999999999'",
      "10:9: train.seed must be an integer from 0 to 4294967295, not '4294967296'"}},
    {"invalid_utf8", {"9:15: byte 0xff is not valid UTF-8"}},
    {"list_types",
     {"4:18: data.train must be a path, not '5'. If it is one, write it in quotes: \"5\"",
      "4:21: data.train must be a path, not a list", "4:26: data.train must be a path, not null"}},
    {"lora_empty", {"8:1: section 'lora' is empty: write 'lora: {}' for its defaults, or leave it out"}},
    {"many",
     {"1:1: model.path is missing: a path", "2:3: unknown key 'pth' in section 'model'. Did you mean 'path'?",
      "9:7: optimizer.lr must be a number >= 0, not 'fast'",
      "10:10: optimizer.betas must be a list of 2 numbers >= 0 and < 1, not '0.9'",
      "11:3: unknown key 'lrr' in section 'optimizer'. Did you mean 'lr'?",
      "12:1: unknown section 'training'. Did you mean 'train'?"}},
    {"merge_key", {"9:3: a merge key (<<); write the keys out"}},
    {"missing_required",
     {"1:1: model.path is missing: a path", "1:1: data.train is missing: a path or a list of paths",
      "1:1: data.seq_length is missing: an integer from 2 to 16777216", "1:1: output.dir is missing: a path"}},
    {"multiline_scalar", {"10:17: not valid YAML here: illegal map value"}},
    {"nan_lr",
     {"9:7: optimizer.lr must be a number >= 0, not '.nan'", "10:8: optimizer.eps must be a number > 0, not '.inf'",
      "11:17: optimizer.weight_decay must be a number >= 0, not 'nan'",
      "12:14: optimizer.grad_clip must be a number >= 0, not '1e999'. A double cannot hold that."}},
    {"negative",
     {"9:22: batch.global_batch_size must be an integer from 1 to 2147483647, not '-8'",
      "10:21: batch.micro_batch_size must be an integer from 1 to 2147483647, not '0'",
      "12:7: optimizer.lr must be a number >= 0, not '-1.0e-4'"}},
    {"nested_17", {"1:19: not valid YAML here: nested more than 16 levels deep"}},
    {"nul", {"9:10: control byte 0x00 (NUL): is this a text file?"}},
    {"null_key",
     {"9:3: a key must be a word, not nothing (null)", "11:3: a key must be a word, not nothing (null)",
      "11:3: a key must be a word, not a mapping"}},
    {"null_values",
     {"2:9: model.path must be a path, not null", "4:10: data.train must be a path or a list of paths, not null",
      "5:3: data.seq_length must be an integer from 2 to 16777216, not empty",
      "7:8: output.dir must be a path, not null"}},
    {"number_for_string",
     {"2:9: model.path must be a path, not 'true'. If it is one, write it in quotes: \"true\"",
      "7:8: output.dir must be a path, not '2026'. If it is one, write it in quotes: \"2026\""}},
    {"octal",
     {"9:22: batch.global_batch_size must be an integer from 1 to 2147483647, not '010'. Leave the "
      "leading zero out."}},
    {"only_comments",
     {"1:1: the file is empty", "1:1: model.path is missing: a path",
      "1:1: data.train is missing: a path or a list of paths",
      "1:1: data.seq_length is missing: an integer from 2 to 16777216", "1:1: output.dir is missing: a path"}},
    {"overlong_utf8", {"2:10: byte 0xc0 is not valid UTF-8"}},
    {"qkv_and_q",
     {"9:19: lora.target_modules has qkv_proj and q_proj: qkv_proj is one adapter over all three, "
      "remove qkv_proj or q_proj"}},
    {"quoted_numbers",
     {"9:14: train.max_steps must be an integer from 1 to 2147483647, not \"1000\". Leave the "
      "quotes out.",
      "11:7: optimizer.lr must be a number >= 0, not \"1e-4\". Leave the quotes out."}},
    {"section_in_section",
     {"9:3: unknown key 'schedule' in section 'optimizer'. 'schedule' is a section of its own: "
      "indent it less."}},
    {"seq_short", {"5:15: data.seq_length must be an integer from 2 to 16777216, not '1'"}},
    {"tab", {"2:1: a tab in the indentation: use spaces"}},
    {"tags",
     {"9:9: a tag 'tag:yaml.org,2002:str'; the type follows from the key",
      "10:14: a tag 'tag:yaml.org,2002:python/object:os.system'; the type follows from the key"}},
    {"target_twice", {"9:36: lora.target_modules has 'q_proj' twice"}},
    {"top_is_list", {"1:1: a configuration is made of sections (model:, data:, …) with keys under them"}},
    {"top_is_scalar", {"1:1: a configuration is made of sections (model:, data:, …) with keys under them"}},
    {"train_empty_list", {"4:10: data.train must be a path or a list of paths, not an empty list"}},
    {"two_documents", {"8:1: not valid YAML here: a second document; only one is allowed"}},
    {"unclosed", {"9:1: not valid YAML here: end of sequence flow not found"}},
    {"unclosed_quote", {"8:1: not valid YAML here: a quoted text is never closed"}},
    {"unknown_dotted", {"8:1: unknown section 'optimizer.lr'. Write 'optimizer:' and its keys indented under it."}},
    {"unknown_key", {"9:3: unknown key 'weigth_decay' in section 'optimizer'. Did you mean 'weight_decay'?"}},
    {"unknown_key_elsewhere", {"9:3: unknown key 'lr' in section 'train'. Did you mean 'optimizer.lr'?"}},
    {"unknown_key_top", {"8:1: unknown section 'lr'. Did you mean 'optimizer.lr'?"}},
    {"unknown_nothing_near", {"9:3: unknown key 'zebra_crossing' in section 'optimizer'."}},
    {"unknown_section", {"8:1: unknown section 'optimiser'. Did you mean 'optimizer'?"}},
    {"word_choices",
     {"9:15: parallel.shard_size must be auto, world or an integer from 1 to 1048576, not 'all'",
      "10:14: parallel.recompute must be auto, none, norms, mlp, attention, full or a share from 0 to 1 such as 1/3, "
      "not 'ful'. "
      "Did "
      "you mean 'full'?",
      "12:15: eval.skip_first must be mlperf or an integer from 0 to 2147483647, or null, not '-1'",
      "14:12: precision.compute must be fp32, bf16 or fp16, or null, not 'bfloat16'. Did you mean 'bf16'?"}},
    {"word_counts",
     {"9:15: parallel.shard_size must be auto, world or an integer from 1 to 1048576, not '0'",
      "11:15: eval.skip_first must be mlperf or an integer from 0 to 2147483647, or null, not "
      "'2.5'"}},
    {"wrong_shapes",
     {"8:12: section 'optimizer' must hold keys and values, not '5'",
      "9:11: section 'schedule' must hold keys and values, not a list",
      "11:19: lora.target_modules must be a list of q_proj, k_proj, v_proj, o_proj, gate_proj, "
      "up_proj, down_proj, c_attn, c_proj, c_fc, gate_up_proj, qkv_proj, embed_tokens or wte, a regular expression, or "
      "all-linear, not 'q_proj'. Did you mean '[q_proj]'?",
      "12:6: lora.r must be an integer from 1 to 65536, not a list",
      "14:14: train.max_steps must be an integer from 1 to 2147483647, not a mapping"}},
};

class Fixture : public testing::TestWithParam<std::pair<const std::string, std::vector<std::string>>> {};

TEST_P(Fixture, IsRefusedWithExactlyTheseLines) {
  const auto& [name, expected] = GetParam();
  const std::string file = (kFixtures / (name + ".yaml")).string();
  std::vector<std::string> lines = problems_of(file);
  ASSERT_FALSE(lines.empty()) << file << " was accepted";
  const std::string last = lines.back();
  lines.pop_back();
  std::vector<std::string> wanted;
  for (const std::string& text : expected) wanted.push_back(file + ":" + text);
  EXPECT_EQ(lines, wanted);
  EXPECT_TRUE(contains(last, "the configuration " + file + " has "));
}

INSTANTIATE_TEST_SUITE_P(Config, Fixture, testing::ValuesIn(kExpected),
                         [](const auto& test) { return test.param.first; });

TEST(Fixtures, EachIsExpectedToBeRefusedOrToLoad) {
  for (const auto& entry : std::filesystem::directory_iterator(kFixtures)) {
    const std::string name = entry.path().stem().string();
    if (name.starts_with("valid_")) {
      EXPECT_EQ(join(problems_of(entry.path()), "\n"), "") << name;
    } else {
      EXPECT_TRUE(kExpected.contains(name) || name == "alias_bomb") << name << " is in no table";
    }
  }
}

TEST(Fixtures, AliasBombNamesEveryAnchorAndAlias) {
  const std::string file = (kFixtures / "alias_bomb.yaml").string();
  const std::vector<std::string> lines = problems_of(file);
  const auto count = [&](const std::string& text) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  EXPECT_EQ(count(":1:4: an anchor"), 1);
  EXPECT_EQ(count(":2:8: an alias"), 1);
  EXPECT_EQ(count(": an anchor"), 9);
  EXPECT_EQ(count(": an alias"), 72);
}

TEST(Fixtures, ErrorsCarryTheExitCodeOfConfiguration) {
  failure(ExitCode::kConfig, [] { load_config(kFixtures / "octal.yaml", {}); });
}

TEST(Fixtures, EveryLayoutOfValidFilesMeansTheSame) {
  const Config minimal = load_config(kFixtures / "valid_minimal.yaml", {});
  EXPECT_EQ(load_config(kFixtures / "valid_crlf_bom.yaml", {}), minimal);
  EXPECT_EQ(minimal.model.path, (kFixtures / "llama").string());
  EXPECT_EQ(minimal.data.seq_length, 128);
  EXPECT_FALSE(minimal.lora);
  EXPECT_TRUE(minimal.data.valid.empty());

  const Config styles = load_config(kFixtures / "valid_styles.yaml", {});
  EXPECT_EQ(styles.data.train,
            (std::vector<std::string>{(kFixtures / "a.npy").string(), (kFixtures / "b c.npy").string()}));
  EXPECT_EQ(styles.model.init, ModelSection::Init::kRandom);
  EXPECT_EQ(styles.lora, LoraSection());
  EXPECT_EQ(styles.optimizer, OptimizerSection());

  const Config full = load_config(kFixtures / "valid_full.yaml", {});
  EXPECT_EQ(full.model.path, (kFixtures.parent_path() / "models" / "llama2-70b").string());
  EXPECT_EQ(full.lora->r, 16);
  EXPECT_EQ(full.optimizer.lr, 4e-4);
  EXPECT_EQ(full.optimizer.eps, 1e-8);
  EXPECT_EQ(full.optimizer.betas, (std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(full.eval.every_samples, 384);
  EXPECT_EQ(full.precision.compute, PrecisionSection::Compute::kBf16);
  EXPECT_EQ(full.output.save_every_samples, std::nullopt);
}

}  // namespace
}  // namespace trireme
