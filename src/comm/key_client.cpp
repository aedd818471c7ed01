// A rank's connection to the key store that rank 0 serves.
#include "key_store.h"

#include "trireme/base/hash.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/listener.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme {

namespace {

using namespace stored;

/// Between two attempts to connect; doubled up to the second value.
constexpr double kFirstPause = 0.02, kLongestPause = 0.5;
/// Of one attempt to connect to one address: a packet that is dropped is sent again after 1, 3 and 7 s.
constexpr double kConnectSeconds = 8;

/// For the answer to a request whose time is up.
constexpr double kAnswerSeconds = 20;

using Address = std::vector<char>;  // a sockaddr

/// A call of the resolver cannot be interrupted and may take minutes: it runs in a thread that is abandoned when the
/// time is up.
std::pair<std::vector<Address>, std::string> resolve(const std::string& host, int port, double seconds) {
  using Result = std::pair<std::vector<Address>, std::string>;
  std::packaged_task<Result()> task([host, port]() -> Result {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (status != 0) return {{}, fmt::format("{} cannot be resolved: {}", host, gai_strerror(status))};
    Result result;
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      const char* bytes = reinterpret_cast<const char*>(at->ai_addr);
      result.first.emplace_back(bytes, bytes + at->ai_addrlen);
    }
    freeaddrinfo(found);
    return result;
  });
  std::future<Result> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready)
    return {{}, fmt::format("the name server does not answer for {}", host)};
  return result.get();
}

class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {}
  ~Connection() {
    if (fd_ >= 0) close(fd_);
  }
  Connection(Connection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  explicit operator bool() const { return fd_ >= 0; }

  std::string local_address() const { return trireme::local_address(fd_); }

  void send_all(const std::string& bytes) const {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) throw std::runtime_error(std::strerror(errno));
      at += static_cast<size_t>(sent);
    }
  }

  void receive(void* data, size_t size) const {
    for (size_t at = 0; at < size;) {
      const ssize_t got = recv(fd_, static_cast<char*>(data) + at, size - at, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) throw std::runtime_error("the connection was closed");
      if (got < 0) throw std::runtime_error(std::strerror(errno));
      at += static_cast<size_t>(got);
    }
  }

  template <class T>
  T receive() const {
    T value{};
    receive(&value, sizeof value);
    return value;
  }

  /// How many of `size` bytes arrive before `deadline`; fewer too when the connection ends.
  size_t receive_until(double deadline, void* data, size_t size) const {
    size_t at = 0;
    while (at < size) {
      const double left = deadline - steady_seconds();
      pollfd polled{fd_, POLLIN, 0};
      if (left <= 0) return at;
      if (poll(&polled, 1, static_cast<int>(std::ceil(left * 1000))) <= 0) continue;
      const ssize_t got = recv(fd_, static_cast<char*>(data) + at, size - at, MSG_DONTWAIT);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) return at;
      at += static_cast<size_t>(got);
    }
    return at;
  }

 private:
  int fd_;
};

int connect_within(const Address& address, double seconds, std::string* reason) {
  const auto* to = reinterpret_cast<const sockaddr*>(address.data());
  const int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // Linux applies the send time-out to connect() as well.
  timeval limit{static_cast<time_t>(seconds), static_cast<suseconds_t>(std::fmod(seconds, 1) * 1e6)};
  if (limit.tv_sec == 0) limit.tv_usec = std::max<suseconds_t>(limit.tv_usec, 1000);
  if (fd >= 0) {
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, to, static_cast<socklen_t>(address.size())) == 0) {
      const int on = 1;
      const timeval none{};
      (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
      (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
      return fd;
    }
  }
  *reason = errno == EINPROGRESS ? "no answer to the connection" : std::strerror(errno);
  if (fd >= 0) close(fd);
  return -1;
}

/// An open port whose owner took the greeting and is silent, or closed the connection: nothing, try again.
/// NoKeyStore when the answer is wrong.
bool greeted(const Connection& connection, const std::string& own, int rank, int size, double deadline,
             std::string* reason) {
  const Greeting greeting{.identity = xxh3_64(own.data(), own.size()), .rank = rank, .size = size};
  try {
    connection.send_all({reinterpret_cast<const char*>(&greeting), sizeof greeting});
  } catch (const std::runtime_error& error) {
    *reason = error.what();
    return false;
  }
  GreetingAnswer answer{};
  const size_t got = connection.receive_until(deadline, &answer, sizeof answer);
  const size_t magic_bytes = std::min(got, sizeof answer.magic);
  if (std::memcmp(&answer, &greeting, magic_bytes) != 0 || (got == sizeof answer && answer.length > 4096))
    throw NoKeyStore(NoKeyStore::kAlien, "it sent something else");
  if (got < sizeof answer) {
    *reason = steady_seconds() < deadline ? "the connection was closed without an answer" : "no answer to the greeting";
    return false;
  }
  std::string theirs(answer.length, '\0');
  if (connection.receive_until(deadline, theirs.data(), theirs.size()) < theirs.size()) {
    *reason = "the answer to the greeting ended early";
    return false;
  }
  if (answer.accepted == 0) throw NoKeyStore(NoKeyStore::kOtherJob, theirs);
  return true;
}

void append(std::string& request, const void* data, size_t size) {
  request.append(static_cast<const char*>(data), size);
}

void append_text(std::string& request, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  append(request, &size, sizeof size);
  request += text;
}

class TcpKeyStore final : public KeyStore {
 public:
  explicit TcpKeyStore(Connection connection) : connection_(std::move(connection)) {}
  std::string local_address() const override { return connection_.local_address(); }

  void set(const std::string& key, const std::string& value) override {
    std::string request(1, kSet);
    append_text(request, key);
    request += value;
    const std::lock_guard lock(mutex_);
    submit(request);
  }

  std::optional<std::vector<std::string>> get(const std::vector<std::string>& keys, double seconds) override {
    std::string request(1, kGet);
    append(request, &seconds, sizeof seconds);
    for (const std::string& key : keys) append_text(request, key);
    const std::lock_guard lock(mutex_);
    submit(request);
    char all_there = 0;
    // Rank 0 answers in time unless it is stopped.
    if (seconds < 0)
      all_there = connection_.receive<char>();
    else if (connection_.receive_until(steady_seconds() + seconds + kAnswerSeconds, &all_there, 1) < 1)
      throw std::runtime_error("the connection was closed, or rank 0 is stopped");
    if (all_there == 0) return std::nullopt;
    std::vector<std::string> values(keys.size());
    for (std::string& value : values) {
      const auto size = connection_.receive<uint64_t>();
      if (size > kMaxRequest) throw std::runtime_error(fmt::format("an answer of {} bytes is announced", size));
      value.resize(size);
      connection_.receive(value.data(), value.size());
    }
    return values;
  }

  int64_t add(const std::string& key, int64_t number) override {
    std::string request(1, kAdd);
    append(request, &number, sizeof number);
    append_text(request, key);
    const std::lock_guard lock(mutex_);
    submit(request);
    return connection_.receive<int64_t>();
  }

  void remove(const std::vector<std::string>& keys) override {
    if (keys.empty()) return;
    std::string request(1, kRemove);
    for (const std::string& key : keys) append_text(request, key);
    const std::lock_guard lock(mutex_);
    submit(request);
  }

 private:
  void submit(const std::string& request) const {
    if (request.size() > kMaxRequest)
      throw std::runtime_error(fmt::format("a request of {} bytes is longer than {}", request.size(), kMaxRequest));
    const auto length = static_cast<uint32_t>(request.size());
    connection_.send_all(std::string(reinterpret_cast<const char*>(&length), sizeof length) + request);
  }

  std::mutex mutex_;  // a request and its answer
  Connection connection_;
};

}  // namespace

std::unique_ptr<KeyStore> connect_key_store(const std::string& host, int port, const std::string& identity, int rank,
                                            int size, double seconds) {
  const double deadline = steady_seconds() + seconds;
  std::string reason = "no time to try";
  double pause = kFirstPause;
  while (steady_seconds() < deadline) {
    std::vector<Address> addresses;
    for (const std::string& name : split(host, ',')) {
      auto [found, problem] = resolve(name, port, deadline - steady_seconds());
      if (found.empty()) reason = problem;
      addresses.insert(addresses.end(), found.begin(), found.end());
    }
    for (const Address& address : addresses) {
      const double left = deadline - steady_seconds();
      if (left <= 0) break;
      Connection connection(connect_within(address, std::min(left, kConnectSeconds), &reason));
      if (connection && greeted(connection, identity, rank, size, deadline, &reason))
        return std::make_unique<TcpKeyStore>(std::move(connection));
    }
    // Ranks whose attempts coincide come apart again.
    const double spread = 0.75 + 0.5 * ((rank * 7919) % 97) / 97.0;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::clamp(deadline - steady_seconds(), 0.0, pause * spread)));
    pause = std::min(2 * pause, kLongestPause);
  }
  throw NoKeyStore(NoKeyStore::kUnreachable, reason);
}

}  // namespace trireme
