#include "trireme/base/html.h"

#include "trireme/base/text.h"

#include <fmt/format.h>

namespace trireme {

namespace {

constexpr const char* kPageStyle = R"(
body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1240px;padding:0 1em;background:var(--back);color:var(--text)}
h1{font-size:1.4em}h2{font-size:1.1em;margin:2em 0 .4em;border-top:1px solid var(--line);padding-top:1em}
table{border-collapse:collapse;margin:.6em 0;font-variant-numeric:tabular-nums}
th,td{padding:2px 12px 2px 0;text-align:right;border-bottom:1px solid var(--line)}
th:first-child{text-align:left;font-weight:600}
small,p.note{color:var(--faint)}
i{display:inline-block;width:.8em;height:.8em;margin-right:.5em;border-radius:2px}
)";

}  // namespace

std::string html_escaped(std::string_view text, size_t limit) {
  std::string result;
  text = text.substr(0, limit);
  for (const char c : text.substr(0, valid_utf8_prefix(text))) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return result;
}

std::string html_head(const std::string& title, std::string_view style) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><title>{0}</title>\n<style>{1}{2}{3}</style></head>\n"
      "<body><h1>{0}</h1>\n",
      html_escaped(title), kPageColours, kPageStyle, style);
}

}  // namespace trireme
