// Composition against what Hydra and OmegaConf made of the same files (compose/golden.py), and what is refused.
#include "trireme/compose/compose.h"

#include "config_testing.h"
#include "trireme/base/file.h"

#include <cstdlib>

namespace trireme {

namespace {

const std::filesystem::path kCompose = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests" / "config" / "compose";

/// The whole tree; interpolated with "*".
std::string composed(const std::string& primary, const std::string& what, const std::vector<std::string>& overrides) {
  ConfProblems problems;
  const Composition composition = compose(kCompose / "conf" / (primary + ".yaml"), overrides, problems);
  ConfNode root = composition.root;
  ConfResolver resolver(composition, problems);
  if (what == "*")
    for (ConfEntry& entry : root.entries) entry.value = resolver.at(entry.key).value_or(ConfNode{});
  problems.throw_if_any("the test");
  return conf_yaml(root);
}

std::string refusal(const std::string& primary, const std::vector<std::string>& overrides) {
  return message_of<ConfigError>([&] { return composed(primary, "*", overrides); });
}

/// A folder of files.
class Tree : TemporaryDirectory {
 public:
  explicit Tree(std::initializer_list<std::pair<const char*, const char*>> files) {
    for (const auto& [name, text] : files) write(name, text);
  }
  std::string refusal(const std::vector<std::string>& overrides = {}) const {
    ConfProblems problems;
    const Composition composition = compose(root_ / "config.yaml", overrides, problems);
    return message_of<ConfigError>([&] { problems.throw_if_any("the test"); });
  }
};

}  // namespace

TEST(Compose, EqualsHydra) {
  setenv("TRIREME_COMPOSE_TEST", "from the environment", 1);
  unsetenv("NOPE");
  size_t cases = 0;
  for (const std::string& line : split(read_text_file(kCompose / "cases.tsv", ExitCode::kData), '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> fields = split(line, '\t');
    const std::string expected = read_text_file(kCompose / "expected" / (fields[0] + ".yaml"), ExitCode::kData);
    EXPECT_EQ(composed(fields[1], fields[2], {fields.begin() + 3, fields.end()}), expected) << fields[0];
    ++cases;
  }
  EXPECT_GE(cases, 17u);
}

TEST(Compose, OverridesThatAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"prot=3"}, "override 'prot=3': there is no 'prot'. Did you mean 'port'? A new key is written +prot=3"},
      {{"server.nmae=3"}, "Did you mean 'name'?"},
      {{"+port=3"}, "'port' is there already, with 1: leave the + out to change it"},
      {{"port.x=1"}, "'port' is no section but 1"},
      {{"~prot"}, "there is no 'prot' to delete. Did you mean 'port'?"},
      {{"~port=2"}, "'port' is 1, not 2"},
      {{"name=1,2"}, "sweeps are not supported"},
      {{"name=choice(a,b)"}, "functions are not supported"},
      {{"name='open"}, "a quote (') is never closed"},
      {{"name=[1,2"}, "a [ is never closed"},
      {{"name={a:1"}, "a { is never closed"},
      {{"name={a}"}, "a {map} needs key:value"},
      {{"name=" + std::string(100000, '[')}, "nested deeper than 64 levels"},
      {{"name=${port"}, "an interpolation ${ is never closed"},
      {{"name"}, "has no '='"},
      {{"na me=1"}, "'na me' is no key"},
      {{"=1"}, "'' is no key"},
      {{"+a" + std::string(300000, '.') + "=1"}, "more than 1000 parts"},
      {{"server=apach"}, "apach.yaml is missing."},
      {{"server/mods=fsat"}, "Did you mean 'fast'?"},
      {{"db=pg"}, "the defaults list has no group 'db'"},
      {{"server={a:1}"}, "a group takes the name of a file, or null"},
  };
  for (const auto& [overrides, text] : cases) EXPECT_TRUE(contains(refusal("defaults", overrides), text));
  // A file that is missing is one problem: values in its place are none.
  EXPECT_EQ(split(refusal("defaults", {"server=apach", "server.port=1", "server.a.b=2", "+server.new=3"}), '\n').size(),
            2u)
      << refusal("defaults", {"server=apach", "server.port=1", "server.a.b=2", "+server.new=3"});
  EXPECT_TRUE(contains(refusal("defaults", {"server=apach", "prot=3"}), "there is no 'prot'"));
  const std::string several = refusal("defaults", {"prot=3", "name=1,2", "~prot"});
  EXPECT_EQ(split(several, '\n').size(), 4u) << several;
  EXPECT_TRUE(contains(several, "the test has 3 problems"));
}

TEST(Compose, InterpolationsThatAreRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a=${zz}", "override 'a=${zz}': a: the interpolation 'zz' finds no 'zz'."},
      {"a=${m.hh}", "finds no 'hh'. Did you mean 'h'?"},
      {"a=${b}", "a circle of interpolations: a -> b -> a"},
      {"a=${now:%Y-%m}", "there is no resolver 'now' here"},
      {"a=${multiply:x,2}", "multiply takes numbers, not 'x'"},
      {"a=${multiply:2}", "multiply takes two numbers, not 1"},
      {"a=${multiply:9223372036854775807,2}", "exceeds 64 bits"},
      {"a=${divide_ceil:1,0}", "divide_ceil by zero"},
      {"a=${oc.env:NOPE}", "the environment has no NOPE"},
      {"a=${.....x}", "leads above the root"},
      {"a=${hydra:job.name}", "only hydra:runtime.choices.GROUP has a meaning here"},
      {"a=???", "??? must be set: add a=…"},
      {"a=${}", "an empty interpolation"},
      {"a=${list[9]}", "finds no '9'"},
  };
  for (const auto& [one, text] : cases) EXPECT_TRUE(contains(refusal("interpolation", {one}), text));
  // Ten values need it; the place where it is written is said once.
  EXPECT_TRUE(contains(refusal("interpolation", {"a=${zz}"}), "has one problem"));
}

TEST(Compose, FilesThatAreRefused) {
  EXPECT_TRUE(contains(Tree({{"config.yaml", "a: 1\na: 2\nb: [1\n"}}).refusal(), "config.yaml:"));
  const std::string two =
      Tree({{"config.yaml", "defaults:\n  - g: x\n  - h: y\n  - 3\n"}, {"g/xx.yaml", "a: 1\n"}}).refusal();
  EXPECT_TRUE(contains(two, "config.yaml:2:5: "));
  EXPECT_TRUE(contains(two, "Did you mean 'xx'?"));
  EXPECT_TRUE(contains(two, "config.yaml:3:5: "));
  EXPECT_TRUE(contains(two, "config.yaml:4:5: an entry of defaults is"));
  EXPECT_TRUE(
      contains(Tree({{"config.yaml", "defaults: [g: x]\n"}, {"g/x.yaml", "defaults: [g@_here_: x]\n"}}).refusal(),
               "is missing"));
  EXPECT_TRUE(
      contains(Tree({{"config.yaml", "defaults: [/g@a: x]\n"}, {"g/x.yaml", "defaults: [/g@a: x]\n"}}).refusal(),
               "nested more than 16 deep"));
  std::string deep = "# @package a";
  for (int i = 0; i < 300000; ++i) deep += ".a";
  EXPECT_TRUE(
      contains(Tree({{"config.yaml", "defaults: [g: x]\n"}, {"g/x.yaml", (deep + "\nb: 1\n").c_str()}}).refusal(),
               "1000 parts"));
  EXPECT_TRUE(contains(Tree({{"config.yaml", "- 1\n"}}).refusal(), "is a mapping of keys"));
  EXPECT_TRUE(contains(Tree({}).refusal(), "config.yaml"));
  EXPECT_EQ(Tree({{"config.yaml", "defaults: [optional g: x, h: null]\n"}}).refusal(), "");
  EXPECT_EQ(Tree({{"config.yaml", "a: 1\n"}}).refusal({"hydra.run.dir=."}), "");
}

}  // namespace trireme
