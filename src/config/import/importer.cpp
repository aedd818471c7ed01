#include "importer.h"

#include "trireme/base/text.h"
#include "trireme/config/config.h"

#include <algorithm>

namespace trireme {

namespace {

using Kind = ConfNode::Kind;
constexpr const char* kResult = "the imported configuration";

}  // namespace

std::string yaml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c == '\n' ? "\\n" : std::string(1, c);
  }
  return text + '"';
}

std::string yaml_text(double value) { return format_exact(value); }
std::string yaml_text(int64_t value) { return std::to_string(value); }
std::string yaml_text(bool value) { return value ? "true" : "false"; }

void set_ends(ImportedModel& model, const std::optional<ImportedTokenizer>& tokenizer) {
  if (tokenizer) {
    model.bos = tokenizer->bos;
    model.eos = tokenizer->eos;
  } else if (model.gpt) {
    model.bos = model.eos = std::min<int64_t>(model.vocab_size - 1, 50256);  // GPT-2's <|endoftext|>, its last token
  } else if (model.vocab_size == 128256) {
    model.bos = 128000;
    model.eos = 128001;
  }
}

bool Importer::enter_section(const std::string& name, const std::string& place) {
  const auto next = known_.lower_bound(name + ".");
  if (next != known_.end() && next->first.starts_with(name + ".")) return true;
  if (ignore_unknown_) return say(name, "ignored: an unknown section"), false;
  std::vector<std::string> sections;
  for (const auto& [known, why] : known_) sections.push_back(known.substr(0, known.rfind('.')));
  problem(fmt::format("{}: unknown section [{}].{}", place, name, did_you_mean(name, sections)));
  return false;
}

void Importer::add(const std::string& name, ConfNode value, const std::string& text, const std::string& place) {
  const std::string shown = fmt::format("{} = {}", name, text);
  if (known_.contains(name)) {
    options_[name] = {std::move(value), shown, place};
    return;
  }
  if (ignore_unknown_) return say(shown, "ignored: an unknown key");
  const std::vector<std::string> names = keys_of(known_);
  std::string hint = did_you_mean(name, names);
  const std::string last = name.substr(name.rfind('.') + 1);
  for (const std::string& candidate : names)
    if (hint.empty() && candidate.ends_with("." + last)) hint = fmt::format(" Did you mean '{}'?", candidate);
  problem(fmt::format("{}: unknown key '{}'.{}", place, name, hint));
}

bool Importer::given(const std::string& name) const {
  const auto found = options_.find(name);
  return found != options_.end() && !found->second.value.is(Kind::kNull);
}

bool Importer::is_fraction(const std::string& name) const {
  const auto found = options_.find(name);
  return found != options_.end() && found->second.value.is(Kind::kNumber);
}

bool Importer::equal(const std::string& name, const std::string& other) const {
  const auto a = options_.find(name), b = options_.find(other);
  return a != options_.end() && b != options_.end() &&
         a->second.shown.substr(name.size()) == b->second.shown.substr(other.size());
}

bool Importer::has_section(const std::string& name) const {
  const auto found = options_.lower_bound(name + ".");
  return found != options_.end() && found->first.starts_with(name + ".");
}

const ConfNode* Importer::find(const std::string& name) {
  TRIREME_CHECK(known_.contains(name), "'", name, "' is not in the table of known options");
  read_.insert(name);
  return given(name) ? &options_.at(name).value : nullptr;
}

std::string Importer::shown(const std::string& name) const {
  shown_.insert(name);
  const auto found = options_.find(name);
  return found == options_.end() ? name + " (default)" : found->second.shown;
}

std::string Importer::origin(const std::string& name) const {
  const auto found = options_.find(name);
  return (found == options_.end() || found->second.place.empty() ? "" : found->second.place + ": ") + shown(name);
}

std::string Importer::text(const std::string& name, const std::string& otherwise) {
  const ConfNode* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is(Kind::kText)) return value->text;
  if (value->is(Kind::kInteger)) return std::to_string(value->integer);  // selective_ac_option = 2, precision: 16
  refuse(name, "must be a string");
  return otherwise;
}

std::string Importer::word(const std::string& name, const std::string& otherwise,
                           const std::vector<std::string>& words) {
  const std::string value = text(name, otherwise);
  if (std::find(words.begin(), words.end(), value) != words.end()) return value;
  refuse(name, fmt::format("one of {}.{}", join(words, ", "), did_you_mean(value, words)));
  return otherwise;
}

int64_t Importer::integer(const std::string& name, int64_t otherwise) {
  const ConfNode* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is(Kind::kInteger)) return value->integer;
  refuse(name, "must be an integer");
  return otherwise;
}

int64_t Importer::count(const std::string& name, int64_t otherwise, int64_t least) {
  const int64_t value = integer(name, otherwise);
  if (value >= least && value <= 2147483647) return value;
  refuse(name, fmt::format("must be from {} to 2147483647", least));
  return std::max<int64_t>(1, least);
}

double Importer::number(const std::string& name, double otherwise) {
  const ConfNode* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is(Kind::kInteger)) return static_cast<double>(value->integer);
  if (value->is(Kind::kNumber)) return value->number;
  refuse(name, "must be a number");
  return otherwise;
}

bool Importer::flag(const std::string& name, bool otherwise) {
  const ConfNode* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is(Kind::kBool)) return value->boolean;
  refuse(name, "must be true or false");
  return otherwise;
}

std::vector<std::string> Importer::list(const std::string& name) {
  const ConfNode* value = find(name);
  if (value == nullptr) return {};
  if (value->is(Kind::kText)) return value->text.empty() ? std::vector<std::string>{} : split(value->text, ',');
  std::vector<std::string> items;
  for (const ConfNode& item : value->items) items.push_back(item.str());
  if (value->is(Kind::kList)) return items;
  refuse(name, "must be a list of strings");
  return {};
}

std::string Importer::absolute(const std::string& path) const {
  const bool kept = path.empty() || path.front() == '~' || path.front() == '/' ||
                    path.find("${") != std::string::npos || path.find("://") != std::string::npos;
  if (base_.empty() || kept) return path;
  const std::filesystem::path whole = base_ / path;
  return (path.find("..") == std::string::npos ? whole.lexically_normal() : whole).string();  // links before ".."
}

void Importer::put(const std::string& key, const std::string& value, const std::string& from) {
  const size_t dot = key.find('.');
  TRIREME_CHECK(dot != std::string::npos, "'", key, "' is no section.key");
  const Entry made = {key.substr(0, dot), key.substr(dot + 1), value, from};
  const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.section == made.section && entry.key == made.key;
  });
  (known == entries_.end() ? entries_.emplace_back() : *known) = made;
}

void Importer::set(const std::string& option, const std::string& key, const std::string& value,
                   const std::string& why) {
  put(key, value, origin(option));
  became(option, fmt::format("{}: {}{}{}", key, value, why.empty() ? "" : "; ", why));
}

std::string Importer::option_of(const std::string& key) const {
  const Key* described = find_key(key);
  TRIREME_CHECK(described != nullptr && *(described->option.*names_) != '\0', key, " has no option");
  return described->option.*names_;
}

void Importer::no_key(const std::string& option, const std::string& why) {
  if (find(option) != nullptr) became(option, why);
}

void Importer::problem(const std::string& text) {
  if (std::find(problems_.begin(), problems_.end(), text) == problems_.end()) problems_.push_back(text);
}

void Importer::refuse(const std::string& option, const std::string& why) {
  problem(fmt::format("{}: {}", origin(option), why));
}

void Importer::rest() {
  for (const auto& [name, option] : options_) {
    const std::string& why = known_.at(name);
    if (option.value.is(Kind::kNull)) {
      if (!shown_.contains(name)) became(name, "not set there");
    } else if (!why.empty()) {
      became(name, why);
    } else if (!shown_.contains(name)) {
      became(name, read_.contains(name) ? "counted in the lines of its section above"
                                        : "nothing: the option that it belongs to is off");
    }
  }
}

std::string Importer::yaml() {
  std::vector<std::string> sections;
  for (const Entry& one : entries_)
    if (std::find(sections.begin(), sections.end(), one.section) == sections.end()) sections.push_back(one.section);
  std::string text = fmt::format("# From {} by `trireme config import`.\n", source_);
  for (const std::string& section : sections) {
    text += section + ":\n";
    for (Entry& one : entries_) {
      if (one.section != section) continue;
      one.line = 1 + static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
      text += fmt::format("  {}: {}\n", one.key, one.value);
    }
  }
  return text;
}

std::vector<std::string> Importer::refusals(const std::string& text) const {
  std::vector<std::string> all;
  try {
    (void)parse_config(text, kResult);
    return all;
  } catch (const ConfigError& error) {
    all = split(error.what(), '\n');
  }
  if (all.size() > 1) all.pop_back();  // how many there are
  const std::string prefix = fmt::format("{}:", kResult);
  for (std::string& problem : all) {
    if (!problem.starts_with(prefix)) continue;
    const auto line = static_cast<size_t>(std::atoll(problem.c_str() + prefix.size()));
    const size_t what = problem.find(": ", prefix.size());
    // The entry of the line, or the list that it is inside of.
    const Entry* of = nullptr;
    for (const Entry& one : entries_)
      if (one.line <= line && (of == nullptr || one.line > of->line)) of = &one;
    if (of == nullptr || what == std::string::npos) continue;
    problem = fmt::format("{}becomes {}.{}: {}, which is refused: {}", of->origin.empty() ? "" : of->origin + ": ",
                          of->section, of->key, of->value, problem.substr(what + 2));
  }
  return all;
}

ImportedConfig Importer::finish() {
  const std::string text = yaml();
  if (problems_.empty())
    for (const std::string& refusal : refusals(text)) problem(refusal);
  if (!problems_.empty())
    throw ConfigError(fmt::format("{}\n{} in {}: nothing was written", join(problems_, "\n"),
                                  counted(problems_.size(), "problem"), source_));
  return {text, std::move(model_), std::move(report_)};
}

}  // namespace trireme
