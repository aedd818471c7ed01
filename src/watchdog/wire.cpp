#include "wire.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <system_error>

namespace trireme::wire {

namespace {

timeval time_value(double seconds) {
  return {static_cast<time_t>(seconds),
          static_cast<suseconds_t>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e6)};
}

}  // namespace

Received read_message(std::string_view bytes) {
  if (bytes.empty()) return {};
  if (bytes[0] == kBye) return {.what = bytes.size() == 1 ? Received::kOrderlyEnd : Received::kJunk, .reason = {}};
  if (bytes[0] != kFailure) return {.what = Received::kJunk, .reason = {}};
  uint32_t length = 0;
  if (bytes.size() < 1 + sizeof length) return {.what = Received::kIncomplete, .reason = {}};
  std::memcpy(&length, bytes.data() + 1, sizeof length);
  if (length > kMaxReason) return {.what = Received::kJunk, .reason = {}};
  const std::string_view message = bytes.substr(1 + sizeof length);
  if (message.size() < length) return {.what = Received::kIncomplete, .reason = {}};
  const size_t line = message.substr(0, length).find('\n');
  int code = 0;
  const auto [end, error] = std::from_chars(message.data(), message.data() + std::min<size_t>(line, length), code);
  if (line >= length || error != std::errc() || end != message.data() + line || code < 1 || code > 255)
    return {.what = Received::kJunk, .reason = {}};
  return {
      .what = Received::kFailed, .exit_code = code, .reason = std::string(message.substr(line + 1, length - line - 1))};
}

void make_blocking(int fd) { (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

void set_timeouts(int fd, double seconds) {
  const timeval time = time_value(seconds);
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

void keep_alive(int fd) {
  const int on = 1, idle = 10, interval = 5, count = 10, user_timeout = 60000;
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool send_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = recv(fd, at, size, 0);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace trireme::wire
