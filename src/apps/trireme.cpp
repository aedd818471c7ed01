// The tool `trireme`: everything except training.
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/cli/help.h"
#include "trireme/cli/interface.h"
#include "trireme/cli/problem.h"
#include "trireme/version.h"

#include <cstdio>
#include <string>

namespace {

int run(int argc, char** argv) {
  CLI::App app("Trireme's tools: models, tokenizers, data, adapters, checkpoints, generation.");
  app.name("trireme");
  app.formatter(trireme::help_formatter());
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
  trireme::add_calibrate_tool(app);
  trireme::add_doctor_tool(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    throw trireme::ConfigError(trireme::command_line_problem(app, argc, argv, error));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main("trireme", [&] { return run(argc, argv); });
}
