#pragma once
// Private to train/: files of conversations, which a run does not read as they are.

#include "trireme/config/config.h"

#include <string>
#include <vector>

namespace trireme {

/// DataError with the command that makes rows of them if the first of `files` (of `key`, "data.train") that is JSON or
/// Parquet holds conversations: the field or column `messages` or `conversations`, where data.column names no other.
void refuse_conversations(const Config& config, const std::string& key, const std::vector<std::string>& files);

}  // namespace trireme
