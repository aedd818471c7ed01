#pragma once
// What a visitor of the configuration's description (schema.h) gets for each section and field.

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/config.h"

namespace trireme {

struct SectionInfo {
  const char* name = "";
  const char* help = "";
  Feature feature = Feature::kAlways;
  const char* instead = "";  // what a program without the feature is told to do
  bool may_change = false;   // as Field::may_change, of every key
};

/// One of a field's words that only programs with a feature take.
struct TaggedWord {
  const char* word = "";
  Feature feature = Feature::kAlways;
  const char* help = "";  // goes on from the field's own help
};

struct Field {
  const char* key = "";
  const char* help = "";
  std::vector<std::string> words = {};  // allowed texts; empty: any
  bool or_count = false;                // a word, or an integer from `min`, kept as text
  bool or_fraction = false;             // a word, or a share from 0 to 1 ("1/3", 0.25), kept as text
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  // the limit itself is excluded
  size_t length = 0;                          // exact length of a list; 0: any
  bool required = false;
  bool path = false;  // made absolute against the configuration file's directory; may differ between hosts and starts
  bool may_change = false;  // a run that goes on may have another value: it does not decide what is computed
  bool one_or_more = false,
       may_be_absent = false;           // lists: a scalar is a list of one (of texts); null is the empty list
  Feature feature = Feature::kAlways;   // programs without it lack the key
  const char* instead = "";             // what they are told to do
  std::vector<TaggedWord> tagged = {};  // of `words`
  const char* not_path = "";            // with `path`: a word that is kept as it is
};

/// `field` with the words that a program of these features takes.
Field offered(const Field& field, const FeatureSet& features);

inline constexpr double kMaxCount = 2147483647;  // 2^31 - 1

}  // namespace trireme
