// `trireme report`: runs as one HTML page.
#include "report_page.h"
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

void add_report_tool(CLI::App& app) {
  struct Options {
    std::vector<std::string> runs;
    std::string output = "report.html";
  };
  auto options = std::make_shared<Options>();
  CLI::App* tool =
      app.add_subcommand("report", "Draw runs on one HTML page: curves, throughput, memory, configuration");
  tool->add_option("runs", options->runs, "output.dir of each run, or its metrics.jsonl")->required();
  tool->add_option("--output", options->output, "HTML page to write")->capture_default_str();
  tool->callback([options] {
    if (options->runs.size() > kMostReportRuns)
      throw ConfigError(fmt::format("report: {} runs; a page shows at most {}", options->runs.size(), kMostReportRuns));
    std::vector<ReportRun> runs;
    for (const std::string& path : options->runs) runs.push_back(read_report_run(path));
    const std::string page = report_page(runs);
    if (const auto folder = std::filesystem::path(options->output).parent_path(); !folder.empty())
      make_directories(folder);
    write_file_atomic(options->output, page);
    std::printf("%zu run%s, page: %s (%s)\n", runs.size(), runs.size() == 1 ? "" : "s", options->output.c_str(),
                format_bytes(static_cast<double>(page.size())).c_str());
  });
}

}  // namespace trireme
