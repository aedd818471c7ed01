#include "trireme/comm/greeting_queue.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

namespace trireme {

namespace {

/// Connections accepted, and connections read, in one call of serve(): greetings are read while others still arrive.
constexpr int kAtOnce = 64;

/// "10.1.2.3:4711", without asking a name server: that can take seconds for each connection.
std::string peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return fmt::format("{}:{}", host.data(), port.data());
}

void watch_for_input(int epoll, int fd, uint64_t label) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = label;
  (void)epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

// epoll's label of a listening socket is its index, the label of a connection its order.
GreetingQueue::GreetingQueue(std::vector<int> listeners, Limits limits, std::function<bool(const char*)> valid)
    : listeners_(std::move(listeners)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      limits_(limits),
      valid_(std::move(valid)),
      next_(listeners_.size()) {
  TRIREME_CHECK(epoll_ >= 0, "epoll_create1: ", std::strerror(errno));
  for (size_t i = 0; i < listeners_.size(); ++i) watch_for_input(epoll_, listeners_[i], i);
}

GreetingQueue::~GreetingQueue() {
  for (const auto& [order, connection] : pending_) close(connection.fd);
  close(epoll_);
}

int GreetingQueue::timeout() const {
  if (pending_.empty()) return -1;
  return static_cast<int>(std::ceil(std::max(0.0, pending_.begin()->second.deadline - steady_seconds()) * 1000));
}

GreetingQueue::Connections::iterator GreetingQueue::drop(Connections::iterator at, int64_t& counter) {
  ++counter;
  last_ = peer_address(at->second.fd);
  close(at->second.fd);
  return pending_.erase(at);
}

void GreetingQueue::read(Connections::iterator at, std::vector<Caller>& callers) {
  Pending& connection = at->second;
  std::string more(limits_.bytes - connection.received.size(), '\0');
  const ssize_t got = recv(connection.fd, more.data(), more.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    drop(at, closed_);
    return;
  }
  connection.received.append(more, 0, static_cast<size_t>(got));
  if (connection.received.size() < limits_.bytes) return;
  if (!valid_(connection.received.data())) {
    drop(at, wrong_);
    return;
  }
  (void)epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.fd, nullptr);
  callers.push_back({connection.fd, std::move(connection.received)});
  pending_.erase(at);
}

void GreetingQueue::accept_waiting(int listener, std::vector<Caller>& callers) {
  for (int i = 0; i < kAtOnce; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      const bool no_descriptor = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (no_descriptor && !pending_.empty())
        drop(pending_.begin(), surplus_);
      else if (no_descriptor)
        usleep(10'000);  // the listening socket stays readable
      return;
    }
    if (pending_.size() >= limits_.most) read(pending_.begin(), callers);
    if (pending_.size() >= limits_.most) drop(pending_.begin(), surplus_);
    const uint64_t order = next_++;
    pending_[order] = {fd, steady_seconds() + limits_.seconds, {}};
    watch_for_input(epoll_, fd, order);
  }
}

std::vector<GreetingQueue::Caller> GreetingQueue::serve() {
  std::vector<Caller> callers;
  std::array<epoll_event, kAtOnce> events{};
  const int ready = epoll_wait(epoll_, events.data(), kAtOnce, 0);
  for (int i = 0; i < ready; ++i) {
    const uint64_t label = events[static_cast<size_t>(i)].data.u64;
    if (label < listeners_.size()) {
      accept_waiting(listeners_[label], callers);
      continue;
    }
    const auto at = pending_.find(label);
    if (at != pending_.end()) read(at, callers);  // else dropped or read since epoll_wait()
  }
  for (auto at = pending_.begin(); at != pending_.end() && at->second.deadline <= steady_seconds();)
    at = drop(at, silent_);
  return callers;
}

std::string GreetingQueue::report() const {
  std::vector<std::string> parts;
  const auto add = [&](int64_t count, const std::string& what) {
    if (count > 0) parts.push_back(fmt::format("{} {}", count, what));
  };
  add(wrong_, "sent something else");
  add(silent_, fmt::format("did not say who they are within {:g} s", limits_.seconds));
  add(closed_, "hung up before that");
  add(surplus_, fmt::format("were more than {} at once", limits_.most));
  return fmt::format("{} of unknown callers closed: {}; the last came from {}", counted(dropped(), "connection"),
                     join(parts, ", "), last_);
}

}  // namespace trireme
