#include "key_server.h"

#include "key_store.h"
#include "trireme/base/bytes.h"
#include "trireme/base/hash.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/sockets.h"
#include "wire.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace trireme {

namespace {

using namespace stored;

constexpr double kDrainSeconds = 5;
/// Time in which a rank of another job may read which job is served.
constexpr double kRefusedSeconds = 5;
constexpr uint32_t kInput = EPOLLIN;

/// One descriptor per rank: the soft limit is often 1,024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/// The addresses at which ranks that resolve `host` may connect; see KeyServer().
std::vector<std::string> addresses_to_serve(const std::string& host) {
  if (const auto chosen = listen_override()) return {*chosen};
  const std::vector<std::string> found = addresses_of(host), own = own_addresses();
  const auto is_own = [&own](const std::string& address) {
    return std::find(own.begin(), own.end(), address) != own.end();
  };
  const auto at = std::find_if(found.begin(), found.end(), is_own);
  if (at != found.end()) return {*at};
  const auto loopback = std::find_if(found.begin(), found.end(), is_loopback_address);
  if (loopback == found.end())
    throw std::runtime_error(fmt::format(
        "{} is no address of {}, which has {}; give MASTER_ADDR the address under which the other ranks reach this "
        "host, or where that is translated on the way TRIREME_LISTEN=all",
        found.empty() ? host : join(found, ", "), host_name(), own.empty() ? "none" : join(own, ", ")));
  if (is_numeric_address(host) || host == "localhost" || own.empty()) return {*loopback};
  // Other hosts resolve the name to another address. No packet goes to this one, which is reserved for documents.
  const std::string routed = address_towards("198.51.100.1");
  const std::string& outside = is_own(routed) ? routed : own.front();
  if (own.size() > 1)
    log_info(
        fmt::format("{} is {} on this host: rank 0 listens there and on {}; TRIREME_LISTEN names another interface",
                    host, *loopback, outside));
  return {*loopback, outside};
}

}  // namespace

KeyServer::KeyServer(const std::string& host, int port, std::string identity) : identity_(std::move(identity)) {
  raise_descriptor_limit();
  listen(host, port);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  // A greeting with the magic number is a rank's; one of another job is refused with an answer in welcome().
  queue_ = std::make_unique<GreetingQueue>(
      listeners_, GreetingQueue::Limits{.bytes = sizeof(Greeting)},
      [](const char* greeting) { return value_at<Greeting>(greeting).magic == kMagic; });
  for (const int fd : {wake_, queue_->fd()}) {
    epoll_event event{};
    event.events = kInput;
    event.data.fd = fd;
    (void)epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  thread_ = std::thread([this] { serve(); });
}

KeyServer::~KeyServer() {
  stop_ = true;
  (void)eventfd_write(wake_, 1);
  thread_.join();
  if (queue_->dropped() > 0) log_warn(fmt::format("rank 0's port {}: {}", port_, queue_->report()));
  for (const auto& [fd, client] : clients_) close(fd);
  for (const int fd : listeners_) close(fd);
  for (const int fd : {epoll_, wake_}) close(fd);
}

void KeyServer::listen(const std::string& host, int port) {
  const std::vector<std::string> addresses = addresses_to_serve(host);
  address_ = addresses.front().empty() ? "127.0.0.1" : addresses.front();
  port_ = port;
  for (const std::string& address : addresses) {
    try {
      const Listener listener = listen_at(address, port_, 4096);
      listeners_.push_back(listener.fd);
      listening_at_.push_back(address);
      port_ = listener.port;
    } catch (const std::runtime_error& error) {
      for (const int fd : listeners_) close(fd);
      throw std::runtime_error(
          fmt::format("{}; if another job uses the port, set MASTER_PORT to a free one", error.what()));
    }
  }
}

std::string KeyServer::addresses() const {
  std::vector<std::string> all;
  for (const std::string& address : listening_at_) {
    if (!address.empty()) {
      all.push_back(address);
      continue;
    }
    all = own_addresses();
    all.emplace_back("127.0.0.1");
  }
  std::stable_partition(all.begin(), all.end(), [](const std::string& at) { return !is_loopback_address(at); });
  return join(all, ",");
}

// --- the server's thread -------------------------------------------------------------------------

int KeyServer::timeout() const {
  int least = queue_->timeout();
  if (!deadlines_.empty()) {
    const double left = std::max(0.0, deadlines_.begin()->first - steady_seconds());
    const int milliseconds = static_cast<int>(std::min(1e9, std::ceil(left * 1000)));
    least = least < 0 ? milliseconds : std::min(least, milliseconds);
  }
  return least;
}

void KeyServer::serve() {
  std::array<epoll_event, 64> events{};
  while (!stop_) {
    const int ready = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout());
    for (int i = 0; i < ready; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      const auto at = clients_.find(fd);
      if (at == clients_.end()) continue;
      if ((events[static_cast<size_t>(i)].events & EPOLLOUT) != 0) send_some(at->second);
      if ((events[static_cast<size_t>(i)].events & ~EPOLLOUT) != 0) receive(at->second);
      for (const int broken : std::exchange(broken_, {})) close_client(broken);
    }
    const int64_t before = queue_->dropped();
    for (GreetingQueue::Caller& caller : queue_->serve()) welcome(std::move(caller));
    if (before == 0 && queue_->dropped() > 0) log_warn(fmt::format("rank 0's port {}: {}", port_, queue_->report()));
    keys_ = values_.size();
    end_late();
    for (const int broken : std::exchange(broken_, {})) close_client(broken);
  }
  drain();
}

void KeyServer::welcome(GreetingQueue::Caller caller) {
  const auto greeting = value_at<Greeting>(caller.greeting.data());
  keep_alive(caller.fd);
  GreetingAnswer reply;
  reply.accepted = greeting.identity == xxh3_64(identity_.data(), identity_.size());
  reply.length = static_cast<uint32_t>(identity_.size());
  Client& client = clients_[caller.fd];
  client.fd = caller.fd;
  if (reply.accepted != 0) client.rank = greeting.rank;
  epoll_event event{};
  event.events = kInput;
  event.data.fd = caller.fd;
  (void)epoll_ctl(epoll_, EPOLL_CTL_ADD, caller.fd, &event);
  answer(client, std::make_shared<const std::string>(wire::bytes_of(reply) + identity_));
  if (reply.accepted != 0) return;
  // A rank of another job reads the answer, then closes its connection; requests before that end it here.
  client.refused_until = steady_seconds() + kRefusedSeconds;
  deadlines_.emplace(client.refused_until, client.fd);
}

void KeyServer::receive(Client& client) {
  std::array<char, 1 << 16> buffer;
  const ssize_t got = recv(client.fd, buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0 || client.refused_until > 0) {
    broken_.push_back(client.fd);
    return;
  }
  client.in.append(buffer.data(), static_cast<size_t>(got));
  size_t at = 0;
  for (uint32_t length = 0; client.in.size() - at >= sizeof length; at += sizeof length + length) {
    std::memcpy(&length, client.in.data() + at, sizeof length);
    if (length == 0 || length > kMaxRequest) {
      broken_.push_back(client.fd);
      return;
    }
    if (client.in.size() - at - sizeof length < length) break;
    if (!handle(client, client.in.data() + at + sizeof length, length)) {
      broken_.push_back(client.fd);
      return;
    }
  }
  client.in.erase(0, at);
}

bool KeyServer::handle(Client& client, const char* request, size_t size) {
  // A rank sends its next request when it has read the answer to the last one. Without this rule a client that reads
  // nothing makes the queue of its answers grow without limit.
  if (client.get || !client.out.empty()) return false;
  wire::Reader reader{request + 1, size - 1};
  switch (request[0]) {
    case kSet: {
      const std::string key = reader.text();
      if (!reader.ok) return false;
      set(key, std::make_shared<const std::string>(reader.at, reader.left));
      return true;
    }
    case kAdd: {
      const auto number = reader.number<int64_t>();
      const std::string key = reader.text();
      if (!reader.ok) return false;
      int64_t sum = number;
      if (const auto at = values_.find(key); at != values_.end()) {
        if (at->second->size() != sizeof sum) return false;
        std::memcpy(&sum, at->second->data(), sizeof sum);
        sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(number));  // wraps around
      }
      const auto value = std::make_shared<const std::string>(wire::bytes_of(sum));
      set(key, value);
      answer(client, value);
      return true;
    }
    case kGet: {
      const auto seconds = reader.number<double>();
      std::vector<std::string> keys = reader.texts();
      if (!reader.ok || std::isnan(seconds)) return false;
      client.get = Client::Get{std::move(keys), {}, seconds < 0 ? 0 : steady_seconds() + seconds};
      if (client.get->deadline > 0) deadlines_.emplace(client.get->deadline, client.fd);
      advance(client);
      return true;
    }
    case kRemove: {
      const std::vector<std::string> keys = reader.texts();
      for (const std::string& key : keys) values_.erase(key);
      return reader.ok;
    }
    default: return false;
  }
}

/// Collects the values that exist; answers when all do.
void KeyServer::advance(Client& client) {
  Client::Get& get = *client.get;
  while (get.values.size() < get.keys.size()) {
    const std::string& key = get.keys[get.values.size()];
    const auto at = values_.find(key);
    if (at == values_.end()) {
      waiting_[key].push_back(client.fd);
      return;
    }
    get.values.push_back(at->second);
  }
  deadlines_.erase({get.deadline, client.fd});
  const std::vector<Value> values = std::move(get.values);
  client.get.reset();
  answer(client, std::make_shared<const std::string>(1, '\1'));
  for (const Value& value : values) {
    answer(client, std::make_shared<const std::string>(wire::bytes_of(static_cast<uint64_t>(value->size()))));
    if (!value->empty()) answer(client, value);
  }
}

void KeyServer::set(const std::string& key, Value value) {
  values_[key] = std::move(value);
  const auto at = waiting_.find(key);
  if (at == waiting_.end()) return;
  const std::vector<int> fds = std::move(at->second);
  waiting_.erase(at);
  for (const int fd : fds) advance(clients_.at(fd));
}

void KeyServer::answer(Client& client, Value bytes) {
  client.out.push_back(std::move(bytes));
  if (!client.waits_to_send) send_some(client);
}

void KeyServer::send_some(Client& client) {
  while (!client.out.empty()) {
    const std::string& front = *client.out.front();
    const int more = client.out.size() > 1 ? MSG_MORE : 0;
    const ssize_t sent =
        send(client.fd, front.data() + client.out_at, front.size() - client.out_at, MSG_NOSIGNAL | MSG_DONTWAIT | more);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) {
      broken_.push_back(client.fd);
      client.out.clear();
      client.out_at = 0;
      return;
    }
    if (sent < 0) break;
    client.out_at += static_cast<size_t>(sent);
    if (client.out_at < front.size()) continue;
    client.out.pop_front();
    client.out_at = 0;
  }
  if (client.waits_to_send == !client.out.empty()) return;
  client.waits_to_send = !client.out.empty();
  epoll_event event{};
  event.events = client.waits_to_send ? kInput | EPOLLOUT : kInput;
  event.data.fd = client.fd;
  (void)epoll_ctl(epoll_, EPOLL_CTL_MOD, client.fd, &event);
}

void KeyServer::forget_wait(Client& client) {
  if (!client.get) return;
  const auto at = waiting_.find(client.get->keys[client.get->values.size()]);
  if (at != waiting_.end()) {
    std::erase(at->second, client.fd);
    if (at->second.empty()) waiting_.erase(at);
  }
  deadlines_.erase({client.get->deadline, client.fd});
  client.get.reset();
}

void KeyServer::close_client(int fd) {
  const auto at = clients_.find(fd);
  if (at == clients_.end()) return;
  forget_wait(at->second);
  deadlines_.erase({at->second.refused_until, fd});
  const int rank = at->second.rank;
  close(fd);
  clients_.erase(at);
  if (rank >= 0 && !stop_ && !values_.contains(left_key(rank)) && !values_.contains(kLost))
    set(kLost, std::make_shared<const std::string>(fmt::format("rank {} has ended", rank)));
}

void KeyServer::end_late() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= steady_seconds()) {
    Client& client = clients_.at(deadlines_.begin()->second);
    if (client.refused_until > 0) {
      close_client(client.fd);
      continue;
    }
    forget_wait(client);
    answer(client, std::make_shared<const std::string>(1, '\0'));
  }
}

void KeyServer::drain() {
  const double end = steady_seconds() + kDrainSeconds;
  std::array<epoll_event, 64> events{};
  std::array<char, 1 << 16> buffer;
  while (!clients_.empty() && steady_seconds() < end) {
    std::vector<int> gone = std::exchange(broken_, {});
    for (auto& [fd, client] : clients_) {
      if (client.out.empty()) (void)shutdown(fd, SHUT_WR);
    }
    const int ready = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 20);
    for (int i = 0; i < ready; ++i) {
      const auto at = clients_.find(events[static_cast<size_t>(i)].data.fd);
      if (at == clients_.end()) continue;
      send_some(at->second);
      const ssize_t got = recv(at->first, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) gone.push_back(at->first);
    }
    for (const int fd : gone) close_client(fd);
  }
}

}  // namespace trireme
