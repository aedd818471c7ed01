#pragma once
// Private to watchdog/: the TCP connections of rank_watch.h. The functions return whether they worked; errno is not
// reported.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::wire {

/// The request of a connection: neighbour (stays open); views of all ranks of this host; stack of this rank's training
/// thread.
enum Request : char { kNeighbour = 'N', kQuery = 'Q', kStack = 'S' };
/// The first bytes of a connection.
struct Greeting {
  uint64_t token;  // of the job; connections with another are closed
  int32_t rank;
  char request;
};
/// Messages between neighbours: orderly end, or failure (uint32 length, then "exit code\nreason").
enum Message : char { kBye = 'B', kFailure = 'F' };
constexpr size_t kMaxReason = 4000;
/// What a neighbour has sent so far.
struct Received {
  enum { kNothing, kIncomplete, kOrderlyEnd, kFailed, kJunk } what = kNothing;
  int exit_code = 0;  // of kFailed; from 1 to 255
  std::string reason;
};
Received read_message(std::string_view bytes);

/// Undoes SOCK_NONBLOCK.
void make_blocking(int fd);
/// Time limit in seconds of every later send, receive and connect.
void set_timeouts(int fd, double seconds);
/// Keep-alives: a host that vanishes without closing the connection is noticed after a minute.
void keep_alive(int fd);
bool send_all(int fd, const void* data, size_t size);
bool receive_all(int fd, void* data, size_t size);

}  // namespace trireme::wire
