// One program under several names: the trainers, the tool `trireme`, and trireme-calibrate for `trireme calibrate`.
// train_llama, train_bert and train_gpt are links to it. main() finds the entry of such a name in training_programs()
// and calls train_main() (src/train/run.cpp).
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/cli/interface.h"
#include "trireme/formats/huggingface/staged_model.h"
#include "trireme/train/training_program.h"
#include "trireme/version.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

DType dtype_option(const char* tool, const std::string& word) {
  if (const auto type = parse_compute_dtype(word)) return *type;
  throw ConfigError(fmt::format("{}: --dtype is '{}'; choose fp32, bf16 or fp16", tool, word));
}

void require_model_output(const char* tool, const std::string& output, bool force, const std::string& source) {
  if (!force && holds_model(output))
    throw WriteError(
        fmt::format("{}: {} already holds a model; choose another directory or add --force", tool, output));
  if (const std::string file = model_file_in(output); !force && !file.empty())
    throw WriteError(
        fmt::format("{}: {} already holds {}, which a model's files replace; choose another directory or "
                    "add --force",
                    tool, output, file));
  if (std::filesystem::exists(std::filesystem::path(output) / "adapter_config.json"))
    throw WriteError(
        fmt::format("{}: {} holds an adapter, which no model replaces; choose another directory", tool, output));
  std::error_code ignored;
  if (!source.empty() && std::filesystem::equivalent(output, source, ignored))
    throw WriteError(fmt::format("{}: --output is the model's own directory", tool));
}

void write_output(const std::string& path, const std::string& content) {
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty()) make_directories(folder);
  write_file_atomic(path, content);
}

void require_output(const char* tool, const char* option, const std::string& path, const OutputKind& kind) {
  constexpr size_t kHead = 1 << 16;
  std::error_code error;
  if (std::filesystem::is_directory(path, error) || path.ends_with('/'))
    throw WriteError(fmt::format("{}: {} {} is a directory: name a file", tool, option, path));
  if (!std::filesystem::is_regular_file(path, error)) return;
  const std::string head = file_head(path, kHead);
  const bool empty = head.empty() && std::filesystem::file_size(path, error) == 0 && !error;
  if (!empty && (!head.starts_with(kind.begin) || head.find(kind.mark) == std::string::npos))
    throw ConfigError(fmt::format("{}: {} {} is there and is no {}: name another file", tool, option, path, kind.what));
}

}  // namespace trireme

namespace {

int run(int argc, char** argv) {
  CLI::App app("Trireme's tools: models, tokenizers, data, adapters, checkpoints, generation.");
  app.name("trireme");
  app.formatter(trireme::help_formatter());
  const std::string version = std::string("trireme ") + trireme::kVersion + " (" + trireme::kCommit + ")";
  app.set_version_flag("--version", version);
  trireme::add_interface_option(app, {version, {}, {}});
  app.require_subcommand(1);
  for (const auto add :
       {trireme::add_init_model_tool, trireme::add_model_tool, trireme::add_tokenizer_tool, trireme::add_data_tool,
        trireme::add_adapter_tool, trireme::add_checkpoint_tool, trireme::add_generate_tool, trireme::add_chat_tool,
        trireme::add_config_tool, trireme::add_launch_tool, trireme::add_plot_tool, trireme::add_profile_tool,
        trireme::add_report_tool, trireme::add_simulate_tool, trireme::add_calibrate_tool, trireme::add_doctor_tool})
    add(app);
  trireme::add_data_verify_tool(*app.get_subcommand("data"));
  trireme::refuse_odd_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    throw trireme::ConfigError(trireme::command_line_problem(app, argc, argv, error));
  }
  return 0;
}

std::string_view name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

/// The trainer of this name, null of another name.
const trireme::TrainingProgram* trainer_of(std::string_view path) {
  const std::string_view name = name_of(path);
  for (const trireme::TrainingProgram& program : trireme::training_programs())
    if (program.keys.name == name) return &program;
  return nullptr;
}

int run_by_name(int argc, char** argv) {
  // The caller chooses argv[0] freely: if it is not one of the program's names, the name of the executed file decides.
  const auto* file = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  const std::string_view started = argc > 0 ? argv[0] : "", executed = file != nullptr ? file : "";
  for (const std::string_view path : {started, executed})
    if (const trireme::TrainingProgram* program = trainer_of(path)) return trireme::train_main(argc, argv, *program);
  // A link of another name, such as train_lama, would be the tools and refuse what the trainer takes.
  const std::string_view name = name_of(name_of(started).starts_with("trireme") ? started : executed);
  if (!name.starts_with("trireme"))
    return trireme::run_main("trireme", [&]() -> int {
      std::string names = "trireme, trireme-calibrate";
      for (const trireme::TrainingProgram& program : trireme::training_programs()) names += ", " + program.keys.name;
      throw trireme::ConfigError("the program acts by the name that it is started under, and has none for '" +
                                 std::string(name_of(executed)) + "': name it one of " + names);
    });
  std::vector<char*> words(argv, argv + argc);
  std::string calibrate = "calibrate";
  if (name == "trireme-calibrate") words.insert(words.begin() + 1, calibrate.data());
  words.push_back(nullptr);
  const int count = static_cast<int>(words.size()) - 1;
  return trireme::run_main("trireme", [&] { return run(count, words.data()); });
}

}  // namespace

int main(int argc, char** argv) {
  const int code = run_by_name(argc, argv);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // The destructors of LibTorch's registries take a third of the time of a short command. With a GPU they run, because
  // the driver's profilers write at exit.
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == nullptr) {
    std::fflush(nullptr);
    _exit(code);
  }
#endif
  return code;
}
