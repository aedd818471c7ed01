#pragma once
// XXH3 hashes for identity of data and shards (not for security).

#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme {

uint64_t xxh3_64(const void* data, size_t size, uint64_t seed = 0);
std::string hex64(uint64_t value);

}  // namespace trireme
