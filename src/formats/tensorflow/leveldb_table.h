#pragma once
// Private to formats/: reads a table in LevelDB's format (leveldb, doc/table_format.md).

#include "protobuf.h"

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace trireme {

/// ModelError of the file or tensor `what`.
DamagedAt damaged_model(const std::string& what);

/// Calls visit for every key and value in order; keys must ascend. `what`: the file, for messages.
void for_each_entry(std::span<const std::byte> table, const std::string& what,
                    const std::function<void(const std::string& key, std::span<const std::byte> value)>& visit);

}  // namespace trireme
