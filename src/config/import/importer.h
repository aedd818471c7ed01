#pragma once
// What importers share: options of another trainer become keys. `Options` reads them by name (FmsOptions, TreeOptions).

#include "description.h"
#include "draft.h"
#include "trireme/base/error.h"

#include <fmt/format.h>

#include <string>
#include <type_traits>

namespace trireme {

template <class Options>
class Importer {
 protected:
  /// `source`: what is imported, for messages; `names`: the trainer's column of the description.
  template <class From>
  Importer(std::string source, const char* OptionNames::* names, const From& from)
      : draft_(std::move(source)), options_(from, draft_), names_(names) {}

  /// Sets a key from an option and reports it.
  void set(const std::string& option, const std::string& key, const std::string& value, const std::string& why = "") {
    draft_.set(key, value, options_.origin(option));
    draft_.say(options_.shown(option), fmt::format("{}: {}{}{}", key, value, why.empty() ? "" : "; ", why));
  }

  /// The option that the description names for `key`.
  std::string option_of(const std::string& key) const {
    const Key* described = find_key(key);
    TRIREME_CHECK(described != nullptr && *(described->option.*names_) != '\0', key, " has no option");
    return described->option.*names_;
  }

  /// Sets `key` from its option, or from `otherwise` where that is not given, and reports it.
  template <class Value>
  void take(const std::string& key, const Value& otherwise, const std::string& why = "") {
    const std::string option = option_of(key);
    set(option, key, yaml_text(options_.read(option, otherwise, *find_key(key))), why);
  }

  ImportDraft draft_;
  Options options_;

 private:
  const char* OptionNames::* names_;
};

}  // namespace trireme
