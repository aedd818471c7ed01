#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"

int main(int argc, char** argv) {
  return trireme::run_main("trireme", [&] {
    CLI::App app("The tokenizer and data tools of trireme.");
    app.require_subcommand(1);
    trireme::add_tokenizer_tool(app);
    trireme::add_data_tool(app);
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& success) {
      return app.exit(success);
    } catch (const CLI::ParseError& error) {
      throw trireme::ConfigError(error.what());
    }
    return 0;
  });
}
