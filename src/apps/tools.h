#pragma once
// The subcommands of the `trireme` tool, one file each (tool_*.cpp). Each adds a CLI11 subcommand whose callback does
// the work and throws trireme::Error on failure.

#include "trireme/base/dtype.h"
#include "trireme/base/html.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// fp32, bf16 or fp16, or config.json's words; ConfigError, which begins with the name of the tool, for others.
DType dtype_option(const char* tool, const std::string& word);
/// WriteError if --output holds a model, which only --force replaces, or an adapter, or is the directory of `source`,
/// if one is given.
void require_model_output(const char* tool, const std::string& output, bool force, const std::string& source = "");
/// What holds the tokenizer of a base and an adapter: the adapter's directory where its trainer saved one, else the
/// base's.
std::filesystem::path tokenizer_directory(const std::filesystem::path& model, const std::filesystem::path& adapter);
/// Writes the file of an option such as --output, in a folder that need not be there. WriteError.
void write_output(const std::string& path, const std::string& content);
/// How a tool knows the files that it writes from others.
struct OutputKind {
  const char* what;  // "page"
  std::string_view begin, mark = "";
};
/// The pages of html_head().
inline constexpr OutputKind kPageOutput{"page of this program", "<!doctype html>", kPageColours};
/// Before any work: ConfigError, which begins with the name of the tool, where the file of `option` is there and is of
/// another kind; WriteError where it is a directory.
void require_output(const char* tool, const char* option, const std::string& path, const OutputKind& kind);
/// The first characters of a text on one line.
std::string excerpt(const std::string& text, size_t characters = 200);

/// --template, --template-name and --variable of a command that renders conversations.
template <class Path>
void add_template_options(CLI::App& command, Path& file, std::string& name, std::vector<std::string>& variables) {
  command.add_option("--template", file, "A Jinja file instead of the model's template");
  command.add_option("--template-name", name, "Which of the model's templates (default: default)");
  command.add_option("--variable", variables,
                     "NAME=VALUE: a variable of the template, such as enable_thinking=false (JSON, else a text)");
}
/// What --variable gave; null: nothing. ConfigError.
nlohmann::ordered_json template_variables(const std::vector<std::string>& texts);

void add_init_model_tool(CLI::App& app);        // tool_init_model.cpp
void add_model_tool(CLI::App& app);             // tool_model.cpp
void add_quantize_tool(CLI::App& model);        // tool_quantize.cpp: `model quantize`
void add_tokenizer_tool(CLI::App& app);         // tool_tokenizer.cpp
void add_data_tool(CLI::App& app);              // tool_data.cpp
void add_bert_data_tool(CLI::App& data);        // tool_data_bert.cpp: `data bert`
void add_chat_data_tool(CLI::App& data);        // tool_data_chat.cpp: `data chat`
void add_preference_data_tool(CLI::App& data);  // tool_data_chat.cpp: `data preference`
void add_megatron_data_tool(CLI::App& data);    // tool_data_megatron.cpp: `data megatron`
void add_data_verify_tool(CLI::App& data);      // tool_data_verify.cpp: `data verify`
void add_adapter_tool(CLI::App& app);           // tool_adapter.cpp
void add_generate_tool(CLI::App& app);          // tool_generate.cpp
void add_chat_tool(CLI::App& app);              // tool_generate.cpp
void add_calibrate_tool(CLI::App& app);         // tool_calibrate.cpp
void add_checkpoint_tool(CLI::App& app);        // tool_checkpoint.cpp
void add_checkpoint_export(CLI::App& tool);     // tool_checkpoint_export.cpp: `checkpoint export`
void add_config_tool(CLI::App& app);            // tool_config.cpp
void add_launch_tool(CLI::App& app);            // tool_launch.cpp
void add_plot_tool(CLI::App& app);              // tool_plot.cpp
void add_profile_tool(CLI::App& app);           // tool_profile.cpp
void add_doctor_tool(CLI::App& app);            // tool_doctor.cpp
void add_report_tool(CLI::App& app);            // tool_report.cpp
void add_simulate_tool(CLI::App& app);          // tool_simulate.cpp

}  // namespace trireme
