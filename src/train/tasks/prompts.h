#pragma once
// Private to train/: eval.prompts as ids, and the answers to them as texts.

#include "data/chat/chat_model.h"
#include "models/decoder/generation.h"
#include "task.h"
#include "trireme/config/config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

class Prompts {
 public:
  /// `room`: tokens of a forward pass, in which a prompt and its answer have to be. ConfigError, DataError.
  Prompts(const Config& config, const DecoderConfig& shape, int64_t room);
  const std::vector<std::vector<int32_t>>& ids() const { return ids_; }
  const GenerationOptions& options() const { return options_; }
  std::vector<SampledText> texts(const std::vector<Continuation>& answers) const;
  std::string description() const;

 private:
  ChatModel model_;
  bool chat_;
  std::vector<std::string> prompts_;
  std::vector<std::vector<int32_t>> ids_;
  GenerationOptions options_;
};

}  // namespace trireme
