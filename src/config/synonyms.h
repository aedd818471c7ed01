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

/// " Did you mean 'bf16'?" where another program's word, such as bfloat16, means some of `words`, or one of them is
/// spelt nearly so; else "".
std::string word_hint(const std::string& word, const std::vector<std::string>& words);

/// For `key` of `section` ("" at the top); null: nobody calls a key of ours so.
const Synonym* find_synonym(const std::string& section, const std::string& key);

}  // namespace trireme
