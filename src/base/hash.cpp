#include "trireme/base/hash.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme {

uint64_t xxh3_64(const void* data, size_t size, uint64_t seed) { return XXH3_64bits_withSeed(data, size, seed); }

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace trireme
