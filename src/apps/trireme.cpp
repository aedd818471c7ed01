// The tool `trireme`: everything except training.
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/cli/interface.h"
#include "trireme/version.h"

#include <cstdio>
#include <string>
#include <vector>

namespace {

/// Adds a did-you-mean suggestion to CLI11's message.
std::string suggestion(const CLI::App& app, int argc, char** argv) {
  const CLI::App* level = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    std::vector<std::string> known;
    const CLI::App* next = nullptr;
    for (const CLI::App* sub : level->get_subcommands([](const CLI::App*) { return true; })) {
      known.push_back(sub->get_name());
      if (sub->get_name() == word) next = sub;
    }
    if (next != nullptr) {
      level = next;
      continue;
    }
    for (const CLI::Option* option : level->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    const std::string name = trireme::split(word, '=').front();
    bool is_known = false;
    for (const std::string& candidate : known) is_known |= candidate == name;
    const bool is_word =
        word.starts_with("--") || i == 1 || level->get_subcommands([](const CLI::App*) { return true; }).size() > 0;
    if (!is_known && is_word) return trireme::did_you_mean(name, known);
  }
  return "";
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
    throw trireme::ConfigError(std::string(error.what()) + suggestion(app, argc, argv) + " (see trireme --help)");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main("trireme", [&] { return run(argc, argv); });
}
