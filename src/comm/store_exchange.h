#pragma once
// Private to comm/: host values through a c10d store that rank 0 serves.

#include "host_exchange.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// Conversion of strings to stored bytes, and the first line of c10d's error messages (the rest is a stack).
namespace stored {
inline std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string text_of(const std::vector<uint8_t>& data) { return {data.begin(), data.end()}; }
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
}  // namespace stored

/// Largest stored value in bytes; longer ones are set in pieces. c10d's server closes the connection of a client that
/// sets more than 8 MiB at once.
constexpr size_t kMaxStoredBytes = size_t{4} << 20;

/// The exchange of the ranks that use keys with `prefix`. `store`: this rank's connection, with the time-out for
/// waiting. `place`: where rank 0 listens, for messages.
std::unique_ptr<HostExchange> make_store_exchange(c10::intrusive_ptr<c10d::Store> store, std::string place,
                                                  std::string prefix, int rank, int size);

}  // namespace trireme
