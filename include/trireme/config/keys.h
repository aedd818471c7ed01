#pragma once
// Queries about keys, answered by the description of the configuration.

#include "trireme/config/config.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace trireme {

/// The word of a choice: "fms_cosine" for ScheduleSection::Name::kFmsCosine.
const char* choice_word(const std::type_info& type, int64_t value);
template <class Choice>
  requires std::is_enum_v<Choice>
const char* word_of(Choice choice) {
  return choice_word(typeid(Choice), static_cast<int64_t>(choice));
}

/// nullopt: no such word.
std::optional<int64_t> choice_value(const std::type_info& type, std::string_view word);
template <class Choice>
  requires std::is_enum_v<Choice>
std::optional<Choice> choice_of(std::string_view word) {
  const auto value = choice_value(typeid(Choice), word);
  return value ? std::optional(static_cast<Choice>(*value)) : std::nullopt;
}

/// The names of the keys that describe_config() explains: "optimizer.lr".
std::vector<std::string> config_keys(const ProgramKeys& program);

/// Sets "section.key" to a value as print_config() writes it, texts without quotes: "8", "full", "[q_proj, v_proj]". An
/// absent optional section is made with its defaults. InternalError: there is no such key or choice.
void set_key(Config& config, const std::string& key, const std::string& value);

/// Properties of a key. `key`: "data.train", or an absent optional section, "lora".
struct KeyTraits {
  bool path = false;        // a path or paths: the value may differ between hosts
  bool may_change = false;  // a resumed run may have another value
};
KeyTraits key_traits(const std::string& key);

/// The kinds of data in data.train, as bits.
using DataKinds = uint32_t;
inline constexpr DataKinds kRowData = 1, kDocumentData = 2, kMegatronData = 4,
                           kAnyData = kRowData | kDocumentData | kMegatronData;

/// The keys of section data that differ from their default, have a meaning for data of `others` and have none for data
/// of `kind`: "data.splits, data.index_rules"; "": none.
std::string keys_without_meaning(const Config& config, DataKinds kind, DataKinds others = kAnyData);

/// The keys that are set and ask for an evaluation during or after training.
std::vector<const char*> keys_of_evaluation(const Config& config);

/// Keys that differ from the program's default and change nothing with the others as they are, "schedule.min_lr has no
/// effect: schedule.name is constant", and a default that is not for such a run. Not those of the data, whose kind is
/// unknown here.
std::vector<std::string> config_warnings(const Config& config, const ProgramKeys& program);

/// Every key of `program` with type, default and meaning, for --help.
std::string describe_config(const ProgramKeys& program);

/// docs/reference/keys.md: Markdown tables of every key of these programs with its values, default, programs and
/// meaning.
std::string key_reference(const std::vector<ProgramKeys>& every);

}  // namespace trireme
