// The tool `trireme`: everything except training.
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/cli/interface.h"
#include "trireme/version.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

/// What is wrong with the command line, in place of CLI11's message where that does not say it.
std::string explain(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const CLI::App* level = &app;
  std::string command = "trireme", wrong;
  for (int i = 1; i < argc && wrong.empty(); ++i) {
    const std::string word = argv[i];
    std::vector<std::string> known;
    const CLI::App* next = nullptr;
    for (const CLI::App* sub : level->get_subcommands([](const CLI::App*) { return true; })) {
      known.push_back(sub->get_name());
      if (sub->get_name() == word) next = sub;
    }
    if (next != nullptr) {
      level = next;
      command += ' ' + word;
      continue;
    }
    for (const CLI::Option* option : level->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    const std::string name = trireme::split(word, '=').front();
    bool is_known = false;
    for (const std::string& candidate : known) is_known |= candidate == name;
    const bool is_word =
        word.starts_with("--") || i == 1 || level->get_subcommands([](const CLI::App*) { return true; }).size() > 0;
    if (!is_known && is_word)
      wrong = fmt::format("{} '{}'.{}", word.starts_with("--") ? "unknown option" : "unknown tool", name,
                          trireme::did_you_mean(name, known));
  }
  const std::string help = fmt::format(" (see {} --help)", command);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !wrong.empty()) return wrong + help;
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    std::string what = error.what();  // "Could not convert: --steps = abc"
    if (const size_t at = what.find(": "); at != std::string::npos) what.erase(0, at + 2);
    return fmt::format("{}: not a value of that option{}", what, help);
  }
  if (const auto subs = level->get_subcommands([](const CLI::App*) { return true; });
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !subs.empty() && level->get_subcommands().empty()) {
    std::vector<std::string> names;
    for (const CLI::App* sub : subs) names.push_back(sub->get_name());
    return fmt::format("{} needs one of: {}{}", command, trireme::join(names, ", "), help);
  }
  return error.what() + help;
}

int run(int argc, char** argv) {
  CLI::App app("Trireme's tools: models, tokenizers, data, adapters, checkpoints, generation.");
  app.name("trireme");
  const std::string version = std::string("trireme ") + trireme::kVersion + " (" + trireme::kCommit + ")";
  app.set_version_flag("--version", version);
  trireme::add_interface_option(app, {version, {}, {}});
  app.require_subcommand(1);
  trireme::add_init_model_tool(app);
  trireme::add_model_tool(app);
  trireme::add_tokenizer_tool(app);
  trireme::add_data_tool(app);
  trireme::add_data_verify_tool(*app.get_subcommand("data"));
  trireme::add_adapter_tool(app);
  trireme::add_checkpoint_tool(app);
  trireme::add_generate_tool(app);
  trireme::add_config_tool(app);
  trireme::add_launch_tool(app);
  trireme::add_plot_tool(app);
  trireme::add_profile_tool(app);
  trireme::add_report_tool(app);
  trireme::add_simulate_tool(app);
  trireme::add_doctor_tool(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    throw trireme::ConfigError(explain(app, error, argc, argv));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main("trireme", [&] { return run(argc, argv); });
}
