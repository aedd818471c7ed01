#pragma once
// Private to watchdog/: the TCP connections of rank_watch.h. Everything here says by its result whether it worked;
// nobody is told of errno.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::wire {

/// The first bytes of a connection, and what is asked for: to be a lifeline, the positions of all ranks of this host,
/// the stack of this rank's training thread.
enum Request : char { kLifeline = 'L', kQuery = 'Q', kStack = 'S' };
struct Greeting {
  uint64_t token;  // of the job: strangers have another
  int32_t rank;
  char request;
};
/// What runs along a lifeline: an orderly end, or a failure (uint32 length, then "exit code\nreason").
enum Message : char { kBye = 'B', kFailure = 'F' };
constexpr size_t kMaxReason = 4000;

/// For every later send and receive (and connect).
void set_timeouts(int fd, double seconds);
/// A host that vanishes without a word is noticed by keep-alives after a minute.
void keep_alive(int fd);
bool send_all(int fd, const void* data, size_t size);
bool receive_all(int fd, void* data, size_t size);
/// IPv4 addresses under which other hosts may reach this one.
std::vector<std::string> own_addresses();
/// A connected socket, or -1.
int connect_address(const std::string& address, int port, double seconds);

}  // namespace trireme::wire
