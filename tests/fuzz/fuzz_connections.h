#pragma once
// For fuzz targets of servers: an input is a program of operations on a few TCP connections to a port of 127.0.0.1.
//
// Each operation is a byte: its two lowest bits choose the connection, the next three the operation (Operation). A
// connection is opened by its first operation. Numbers of bytes are one byte.

#include "fuzz_target.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#ifndef TRIREME_FUZZ_REPLAY
#include <spdlog/spdlog.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace trireme::fuzz {

/// Fuzzers run thousands of inputs, each with its warnings. A replay runs the few stored inputs and prints them: with
/// LibTorch's headers, whose fmt is another version than spdlog's, spdlog does not compile.
inline void log_nothing() {
#ifndef TRIREME_FUZZ_REPLAY
  spdlog::set_level(spdlog::level::off);
#endif
}

enum Operation : uint8_t {
  kRaw = 0,         // n, then n bytes as they are
  kFramed = 1,      // n, then n bytes after their length as uint32
  kGreet = 2,       // n: the next n bytes of the greeting of a member; 0: the rest
  kGreetFalse = 3,  // the same of a greeting that is not a member's
  kBytewise = 4,    // n, then n bytes, each in a packet of its own
  kClose = 5,       // with a reset
  kShutdown = 6,    // of the direction to the server: half-open
  kSettle = 7,      // waits until the server has handled what was sent
};

/// The server's end may be closed at any time: then sends are lost and receives end.
class Connection {
 public:
  explicit Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    // With a reset no port stays occupied for a minute.
    const linger reset{1, 0};
    int status = connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    if (status != 0 && errno == EINTR) {  // by a signal, as for a stack; it goes on in the background
      pollfd polled{fd_, POLLOUT, 0};
      while (poll(&polled, 1, 30'000) < 0 && errno == EINTR) {
      }
      socklen_t size = sizeof status;
      (void)getsockopt(fd_, SOL_SOCKET, SO_ERROR, &status, &size);
    }
    require(fd_ >= 0 && status == 0, "the port accepts");
    (void)setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    (void)setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)fcntl(fd_, F_SETFL, O_NONBLOCK);
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(std::string_view bytes) {
    sent_ += bytes;
    (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void half_close() { (void)shutdown(fd_, SHUT_WR); }
  /// What has arrived so far.
  void receive() {
    std::array<char, 4096> buffer;
    while (!ended_) {
      const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
      if (got < 0 && errno == EAGAIN) return;
      if (got > 0)
        received_.append(buffer.data(), static_cast<size_t>(got));
      else
        ended_ = true;
    }
  }
  /// Waits until `size` bytes have arrived.
  void receive(size_t size) {
    for (receive(); !ended_ && received_.size() < size; receive()) wait();
    require(received_.size() >= size, "an answer");
  }
  /// Waits until the server has closed it.
  void receive_end() {
    for (receive(); !ended_; receive()) wait();
  }
  std::string take() { return std::exchange(received_, {}); }
  const std::string& sent() const { return sent_; }
  const std::string& received() const { return received_; }
  bool ended() const { return ended_; }

 private:
  void wait() const {
    pollfd polled{fd_, POLLIN, 0};
    const int ready = poll(&polled, 1, 30'000);
    require(ready == 1 || (ready < 0 && errno == EINTR), "something to read within 30 s");
  }

  int fd_;
  std::string sent_, received_;
  bool ended_ = false;
};

struct Wire {
  int port = 0;
  std::string greeting, false_greeting;
  std::function<void()> settle;
  /// Called when a connection has settled, and before it is closed.
  std::function<void(const Connection&)> judge;
};

/// Runs the program; at its end every connection has settled and is judged.
inline void run_connections(const Wire& wire, std::string_view program) {
  struct Slot {
    std::unique_ptr<Connection> connection;
    size_t greeted = 0, false_greeted = 0;
  };
  std::array<Slot, 4> slots;
  size_t at = 0;
  const auto count = [&] { return at < program.size() ? static_cast<uint8_t>(program[at++]) : uint8_t{0}; };
  const auto take = [&] {
    const size_t size = count();
    const std::string_view taken = program.substr(std::min(at, program.size()), size);
    at += taken.size();
    return taken;
  };
  const auto settle_all = [&] {
    wire.settle();
    for (Slot& slot : slots) {
      if (!slot.connection) continue;
      slot.connection->receive();
      wire.judge(*slot.connection);
    }
  };
  int settled = 0;
  while (at < program.size()) {
    const auto operation = static_cast<uint8_t>(program[at++]);
    Slot& slot = slots[operation & 3];
    const int what = operation >> 2 & 7;
    if (what == kSettle) {
      if (++settled <= 4) settle_all();
      continue;
    }
    if (!slot.connection) slot = {std::make_unique<Connection>(wire.port), 0, 0};
    const auto greet = [&](const std::string& greeting, size_t& done) {
      const size_t size = count();
      const std::string_view part = std::string_view(greeting).substr(done, size == 0 ? std::string::npos : size);
      done += part.size();
      slot.connection->send(part);
    };
    switch (what) {
      case kRaw: slot.connection->send(take()); break;
      case kFramed: {
        const std::string_view request = take();
        const auto length = static_cast<uint32_t>(request.size());
        slot.connection->send(std::string(reinterpret_cast<const char*>(&length), sizeof length) +
                              std::string(request));
        break;
      }
      case kGreet: greet(wire.greeting, slot.greeted); break;
      case kGreetFalse: greet(wire.false_greeting, slot.false_greeted); break;
      case kBytewise:
        for (const char byte : take()) slot.connection->send({&byte, 1});
        break;
      case kClose:
        slot.connection->receive();
        wire.judge(*slot.connection);
        slot = {};
        break;
      default: slot.connection->half_close();
    }
  }
  settle_all();
}

}  // namespace trireme::fuzz
