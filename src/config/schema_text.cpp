#include "schema_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/text.h"

namespace trireme {

namespace {

std::string alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == words.size() ? " or " : ", ", words[i]);
  return text;
}

std::string limit(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value) : format_exact(value);
}

std::string range(const Field& field) {
  const bool low = std::isfinite(field.min), high = std::isfinite(field.max);
  if (low && high && !field.above_min && !field.below_max)
    return fmt::format(" from {} to {}", limit(field.min), limit(field.max));
  std::string text;
  if (low) text += fmt::format(" {} {}", field.above_min ? ">" : ">=", limit(field.min));
  if (high) text += fmt::format("{} {} {}", low ? " and" : "", field.below_max ? "<" : "<=", limit(field.max));
  return text;
}

std::string base_text(const Field& field, Type type) {
  switch (type) {
    case Type::kString:
      if (field.or_count) {
        std::vector<std::string> choices = field.words;
        choices.push_back("an integer" + range(field));
        return alternatives(choices);
      }
      if (field.or_fraction) {
        std::vector<std::string> choices = field.words;
        choices.emplace_back("a share from 0 to 1 such as 1/3");
        return alternatives(choices);
      }
      if (!field.words.empty()) return alternatives(field.words);
      return field.path ? "a path" : "a string";
    case Type::kInteger: return "an integer" + range(field);
    case Type::kNumber: return "a number" + range(field);
    case Type::kBool: return "true or false";
    case Type::kStrings:
      if (field.or_count) return fmt::format("{}, or a list of integers{}", alternatives(field.words), range(field));
      if (!field.words.empty()) return "a list of " + alternatives(field.words);
      return field.one_or_more ? "a path or a list of paths" : "a list of strings";
    case Type::kNumbers:
      return fmt::format("a list of {}numbers{}", field.length > 0 ? fmt::format("{} ", field.length) : "",
                         range(field));
    case Type::kIntegers: return "a list of integers" + range(field);
  }
  return "";
}

}  // namespace

const char* without_feature(Feature feature) {
  switch (feature) {
    case Feature::kAlways: return "has everything";
    case Feature::kAdapters: return "trains all parameters";
    case Feature::kVocabularySize: return "keeps the model's vocabulary";
    case Feature::kPackedRows: return "reads rows of one sample each";
    case Feature::kRankMeans: return "averages and clips over all ranks";
    case Feature::kAccuracy: return "measures no accuracy";
    case Feature::kRecomputeMlp: return "recomputes whole blocks";
    case Feature::kMlperfSkip: return "has no rule of MLPerf for it";
    case Feature::kFp8Training: return "multiplies trained matrices in the compute type";
    case Feature::kMlperfLog: return "is of no benchmark of MLPerf";
    case Feature::kMegatronData: return "reads no indexed files of Megatron";
    case Feature::kDocumentStreams: return "reads rows that are packed already";
  }
  return "";
}

Field offered(const Field& field, const FeatureSet& features) {
  Field result = field;
  for (const TaggedWord& tagged : field.tagged)
    if (!features.has(tagged.feature)) std::erase(result.words, tagged.word);
  return result;
}

std::string expectation(const Field& field, Type type, bool optional) {
  return base_text(field, type) + (optional || field.may_be_absent ? ", or null" : "");
}

}  // namespace trireme
