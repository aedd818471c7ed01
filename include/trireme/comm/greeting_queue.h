#pragma once
// Accepts the connections of listening sockets and keeps each connection until it has sent its greeting, a fixed number
// of bytes. Nothing blocks: a connection that sends nothing, or sends slowly, delays no other. Connections that send
// anything else, that close, or whose greeting is not complete in time are closed and counted. If the queue is full,
// arrived greetings are read before the oldest connection is closed.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme {

class GreetingQueue {
 public:
  struct Limits {
    size_t bytes = 0;    // of a greeting
    double seconds = 5;  // from accept to the greeting's last byte
    size_t most = 1024;  // connections without greeting; the oldest is closed when there are more
  };
  /// `listeners`: non-blocking listening sockets, which the caller closes. `valid` gets the bytes of a greeting.
  GreetingQueue(std::vector<int> listeners, Limits limits, std::function<bool(const char*)> valid);
  ~GreetingQueue();
  GreetingQueue(const GreetingQueue&) = delete;
  GreetingQueue& operator=(const GreetingQueue&) = delete;

  /// A descriptor for poll() and epoll: readable when serve() has something to do.
  int fd() const { return epoll_; }
  /// Milliseconds until serve() must be called although fd() is not readable; -1: never.
  int timeout() const;

  struct Caller {
    int fd = -1;  // non-blocking; the receiver owns it
    std::string greeting;
  };
  /// Reads what has arrived. Returns the connections with a valid greeting.
  std::vector<Caller> serve();

  int64_t dropped() const { return silent_ + wrong_ + closed_ + surplus_; }
  /// "7 connections of unknown callers closed: 2 sent something else, 3 did not say who they are within 5 s, …"
  std::string report() const;

 private:
  struct Pending {
    int fd = -1;
    double deadline = 0;  // steady seconds
    std::string received;
  };
  using Connections = std::map<uint64_t, Pending>;  // by order of arrival
  void accept_waiting(int listener, std::vector<Caller>& callers);
  /// Reads what has arrived on a connection, which is then a caller, dropped, or still pending.
  void read(Connections::iterator at, std::vector<Caller>& callers);
  Connections::iterator drop(Connections::iterator at, int64_t& counter);

  std::vector<int> listeners_;
  int epoll_;
  Limits limits_;
  std::function<bool(const char*)> valid_;
  uint64_t next_;  // order of the next connection; smaller numbers are the listeners
  Connections pending_;
  int64_t silent_ = 0, wrong_ = 0, closed_ = 0, surplus_ = 0;
  std::string last_;  // address of the connection dropped last
};

}  // namespace trireme
