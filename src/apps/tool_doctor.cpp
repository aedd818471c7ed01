// `trireme doctor`: what this machine has for training, on one screen.
#include "doctor_checks.h"
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

namespace {

std::vector<DoctorCheck> examine(const std::string& folder) {
  std::vector<DoctorCheck> checks = machine_checks();
  const auto add = [&](std::vector<DoctorCheck> more) {
    std::move(more.begin(), more.end(), std::back_inserter(checks));
  };
  std::vector<DoctorCheck> gpus = gpu_checks();
  const bool some = std::any_of(gpus.begin(), gpus.end(), [](const auto& c) { return c.name.starts_with("GPU"); });
  add(std::move(gpus));
  add(disk_checks(folder));
  add(cluster_checks(some));
  return checks;
}

std::string verdict_text(const std::vector<DoctorCheck>& checks) {
  const auto count = [&](DoctorCheck::State state) {
    return std::count_if(checks.begin(), checks.end(), [&](const auto& check) { return check.state == state; });
  };
  const auto uses = std::find_if(checks.begin(), checks.end(), [](const auto& c) { return c.name == "training uses"; });
  const auto warnings = count(DoctorCheck::State::kWarning), missing = count(DoctorCheck::State::kMissing);
  return fmt::format("training works here, on {}; {}, {} missing", uses->value, counted(warnings, "warning"), missing);
}

void print_text(const std::vector<DoctorCheck>& checks) {
  std::string text;
  for (const DoctorCheck& check : checks) {
    text += fmt::format("{:<8} {:<14} {}\n", state_name(check.state), check.name, check.value);
    if (!check.advice.empty()) text += fmt::format("{:<23}   {}\n", "", check.advice);
  }
  std::fputs(text.c_str(), stdout);
}

/// One line, as a log of MLPerf has it after `:::SYSJSON`.
void print_system() {
  nlohmann::ordered_json fields;
  for (const auto& [name, value] : system_description()) fields[name] = value;
  std::printf("%s\n", fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void run_doctor(const std::string& folder, bool json) {
  const std::vector<DoctorCheck> checks = examine(folder);
  const auto blocking = std::find_if(checks.begin(), checks.end(), [](const auto& check) { return check.blocks != 0; });
  const bool works = blocking == checks.end();
  const std::string verdict =
      works ? verdict_text(checks)
            : fmt::format("training does not work here: {}: {}. {}", blocking->name, blocking->value, blocking->advice);
  if (json) {
    nlohmann::ordered_json all = {{"works", works}, {"exit_code", works ? 0 : blocking->blocks}, {"verdict", verdict}};
    for (const DoctorCheck& check : checks)
      all["checks"].push_back(
          {{"name", check.name}, {"state", state_name(check.state)}, {"value", check.value}, {"advice", check.advice}});
    std::printf("%s\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    print_text(checks);
    if (works) std::printf("%s\n", verdict.c_str());
  }
  std::fflush(stdout);
  if (!works) throw Error(static_cast<ExitCode>(blocking->blocks), verdict);
}

}  // namespace

void add_doctor_tool(CLI::App& app) {
  struct Options {
    std::string folder = ".";
    bool json = false, system = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* tool = app.add_subcommand("doctor",
                                      "Check what training needs on this machine: driver, GPUs, NCCL, MPI, Slurm, "
                                      "disk; what is missing and how to get it");
  tool->add_option("--folder", options->folder, "Where runs will be written; the speed of its disk is measured")
      ->check(
          CLI::Validator([](const std::string& path) { return path.empty() ? "the folder's name is empty" : ""; }, ""))
      ->capture_default_str();
  tool->add_flag("--json", options->json, "Print one JSON object instead of the table");
  tool->add_flag("--system", options->system,
                 "Print only the system description of an MLPerf submission, one JSON object on a line");
  tool->callback([options] {
    if (options->system) return print_system();
    run_doctor(options->folder, options->json);
  });
}

}  // namespace trireme
