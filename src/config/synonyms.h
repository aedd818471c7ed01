#pragma once
// What other trainers call our keys: Hugging Face, PEFT, torchtitan, Megatron, PyTorch.

#include <string>
#include <vector>

namespace trireme {

struct Synonym {
  std::vector<std::string> keys;  // ours, qualified, the best first; several: offered together unless `first_only`
  bool first_only = false;        // only the first that the program has
  const char* note = "";          // a sentence after them, or in place of them
};

/// For `key` of `section` ("" at the top); null: nobody calls a key of ours so.
const Synonym* find_synonym(const std::string& section, const std::string& key);

}  // namespace trireme
