#pragma once
// Private to train/: the log-probabilities of a reference model, computed once and kept in a file of output.dir.

#include "trireme/comm/communicator.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// By the key of a row (TokenPack::row_keys): the sums of log p of each of its answers, in the order of the row.
using ReferenceRows = std::map<uint64_t, std::vector<double>>;

/// The rows of all ranks, on rank 0. Collective.
ReferenceRows gather_reference(Communicator& comm, const ReferenceRows& mine);

/// safetensors: row_keys I64 [R], answers I64 [R] (of each row), log_probs F64 [sum of answers], and in the metadata a
/// hash of the three. `origin`: identifies weights and data files. WriteError.
void write_reference(const std::filesystem::path& path, const ReferenceRows& rows, const std::string& origin);
/// nullopt: there is no such file, or it has another origin (empty: any). ModelError where it is damaged.
std::optional<ReferenceRows> read_reference(const std::filesystem::path& path, const std::string& origin);

}  // namespace trireme
