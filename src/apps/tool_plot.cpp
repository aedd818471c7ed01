// `trireme plot`: draws the loss of runs in the terminal.
#include "report_runs.h"
#include "tools.h"

#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

namespace {

ReportSeries finite_part(const ReportSeries& all) {
  ReportSeries curve;
  for (size_t i = 0; i < all.steps.size(); ++i)
    if (!std::isnan(all.values[i])) {
      curve.steps.push_back(all.steps[i]);
      curve.values.push_back(all.values[i]);
    }
  return curve;
}

/// The axis of a drawing: from `low` to `high`, with a label for each row from the top.
struct LossAxis {
  double low = 0, high = 0;
  std::vector<std::string> labels;  // of one width
};

/// Labels have as many digits as tell neighbours apart.
LossAxis loss_axis(const ReportSeries& curve, int rows) {
  const auto [lowest, highest] = std::minmax_element(curve.values.begin(), curve.values.end());
  LossAxis axis{*lowest, *highest, std::vector<std::string>(static_cast<size_t>(rows))};
  if (axis.low == axis.high) (axis.low > 0 ? axis.low : axis.high) = axis.low == 0 ? 1 : axis.low / 2;
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  const bool exponent = largest < 1e-2 || largest >= 1e5;
  for (int digits = exponent ? 2 : 3; digits <= 17; ++digits) {
    for (int row = 0; row < rows; ++row) {
      const double below = static_cast<double>(row) / std::max(1, rows - 1);
      const double value = axis.high * (1 - below) + axis.low * below;
      axis.labels[row] = exponent ? fmt::format("{:.{}e}", value, digits) : fmt::format("{:.{}f}", value, digits);
    }
    if (std::ranges::adjacent_find(axis.labels) == axis.labels.end()) break;
  }
  size_t width = 9;
  for (const std::string& label : axis.labels) width = std::max(width, label.size());
  for (std::string& label : axis.labels) label.insert(0, width - label.size(), ' ');
  return axis;
}

/// Cell of `value` where `low` is cell 0 and `high` cell `count` - 1. Operands are halved, so that no difference
/// overflows.
int cell_of(double value, double low, double high, int count) {
  const double part = (value / 2 - low / 2) / (high / 2 - low / 2);
  return part > 0 ? static_cast<int>(std::min(part, 1.0) * (count - 1)) : 0;
}

/// Whether text may have other characters than ASCII's: the character set that the environment names.
bool writes_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* locale = std::getenv(name); locale != nullptr && *locale != '\0')
      return strcasestr(locale, "utf-8") != nullptr || strcasestr(locale, "utf8") != nullptr;
  return false;
}

/// A cell of two dots across and four down, by the bits of Braille's characters. ASCII shows its halves.
std::string cell_text(int dots, bool utf8) {
  constexpr int kUpper = 0x01 | 0x02 | 0x08 | 0x10;
  if (!utf8) return std::string(1, " '.:"[((dots & kUpper) != 0 ? 1 : 0) + ((dots & ~kUpper) != 0 ? 2 : 0)]);
  std::string character;
  append_utf8(character, static_cast<char32_t>(0x2800 + dots));
  return character;
}

std::string draw(const ReportSeries& curve, const LossAxis& axis, int columns) {
  const int rows = static_cast<int>(axis.labels.size());
  // The steps of a run that resumed from a checkpoint do not ascend.
  const auto [first_it, last_it] = std::minmax_element(curve.steps.begin(), curve.steps.end());
  const double first = *first_it, last = std::max(*last_it, first + 1);
  const int width = columns * 2, height = rows * 4;
  std::vector<double> sums(width, 0), counts(width, 0);
  for (size_t i = 0; i < curve.steps.size(); ++i) {
    const int x = cell_of(curve.steps[i], first, last, width);
    sums[x] += curve.values[i];
    counts[x] += 1;
  }
  std::vector<std::vector<int>> cells(rows, std::vector<int>(columns, 0));
  static constexpr std::array<std::array<int, 4>, 2> kDots = {{{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}};
  int previous = -1;
  double value = curve.values.front();
  for (int x = 0; x < width; ++x) {
    if (counts[x] > 0) value = sums[x] / counts[x];
    const int y = cell_of(-value, -axis.high, -axis.low, height);  // from the top
    const int from = previous < 0 ? y : std::min(previous, y), to = previous < 0 ? y : std::max(previous, y);
    for (int dot = from; dot <= to; ++dot) cells[dot / 4][x / 2] |= kDots[x % 2][dot % 4];
    previous = y;
  }
  const bool utf8 = writes_utf8();
  std::string text;
  for (int row = 0; row < rows; ++row) {
    text += axis.labels[row] + " |";
    for (const int cell : cells[row]) text += cell_text(cell, utf8);
    text += '\n';
  }
  const size_t left = axis.labels[0].size();
  text += fmt::format("{:>{}} +{}\n{:>{}}{:<{}}{:>8}\n", "", left, std::string(columns, '-'), "step ", left + 2,
                      static_cast<int64_t>(first), columns - 8, static_cast<int64_t>(last));
  return text;
}

}  // namespace

void add_plot_tool(CLI::App& app) {
  struct Options {
    std::vector<std::string> files;
    std::string event = "train";
    int columns = 0, rows = 12;
  };
  auto options = std::make_shared<Options>();
  CLI::App* tool = app.add_subcommand("plot", "Draw the loss of metrics.jsonl files in the terminal");
  tool->add_option("files", options->files, "output.dir of each run, or its metrics.jsonl")->required();
  tool->add_option("--event", options->event, "Which losses: of the training steps (default) or of the evaluations")
      ->check(CLI::IsMember({"train", "eval"}));
  tool->add_option("--columns", options->columns,
                   "Width of the picture in characters; the default is 72, or what the terminal has room for")
      ->check(CLI::Range(10, 200));
  tool->add_option("--rows", options->rows, "Height of the picture in lines")->check(CLI::Range(2, 60));
  tool->callback([options] {
    const bool train = options->event == "train";
    const int room = static_cast<int>(terminal_columns());
    for (const std::string& file : options->files) {
      const ReportRun run = read_report_run(file, /*with_config=*/false);
      const ReportSeries &all = train ? run.loss : run.eval_loss, curve = finite_part(all);
      std::string missing = not_finite_losses(all, train ? "training" : "evaluation");
      if (!missing.empty()) missing.insert(0, ": ");
      if (curve.steps.empty())
        throw DataError(fmt::format("{} has no '{}' lines with a finite loss{}", file, options->event, missing));
      const LossAxis axis = loss_axis(curve, options->rows);
      const int beside = static_cast<int>(axis.labels[0].size()) + 2;
      const int columns = options->columns != 0 ? options->columns : room == 0 ? 72 : std::clamp(room - beside, 10, 72);
      std::printf("%s: %s loss %.7g -> %.7g%s\n%s", file.c_str(), options->event.c_str(), all.values.front(),
                  all.values.back(), missing.c_str(), draw(curve, axis, columns).c_str());
    }
  });
}

}  // namespace trireme
