#include "key_store.h"

#include "trireme/base/hash.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/sockets.h"
#include "wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
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
/// Seconds of one attempt to connect to one address: a packet that is dropped is sent again after 1, 3 and 7 s.
constexpr double kConnectSeconds = 8;

/// Seconds for the answer to a request whose time is up.
constexpr double kAnswerSeconds = 20;

/// A call of the resolver cannot be interrupted and may take minutes: it runs in a thread that is abandoned when the
/// time is up. Empty, with the reason in `why`, if the name is unknown.
std::vector<std::string> resolve(const std::string& host, double seconds, std::string* why) {
  using Result = std::pair<std::vector<std::string>, std::string>;
  std::packaged_task<Result()> task([host] {
    Result found;
    found.first = addresses_of(host, &found.second);
    return found;
  });
  std::future<Result> result = task.get_future();
  std::thread(std::move(task)).detach();
  Result found{{}, "the name server does not answer for " + host};
  if (result.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready) found = result.get();
  if (found.first.empty()) *why = found.second;
  return found.first;
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

  std::string local_address() const { return trireme::local_address(fd_); }

  void send(const std::string& bytes) const {
    if (!send_all(fd_, bytes.data(), bytes.size())) throw std::runtime_error(std::strerror(errno));
  }

  void receive(void* data, size_t size) const {
    if (!receive_all(fd_, data, size))
      throw std::runtime_error(errno == 0 ? "the connection was closed" : std::strerror(errno));
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

/// An open port whose owner took the greeting and is silent, or closed the connection: nothing, try again.
/// NoKeyStore when the answer is wrong.
bool greeted(const Connection& connection, const std::string& own, int rank, int size, double deadline,
             std::string* reason) {
  const Greeting greeting{.identity = xxh3_64(own.data(), own.size()), .rank = rank, .size = size};
  try {
    connection.send(wire::bytes_of(greeting));
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

class TcpKeyStore final : public KeyStore {
 public:
  explicit TcpKeyStore(Connection connection) : connection_(std::move(connection)) {}
  std::string local_address() const override { return connection_.local_address(); }

  void set(const std::string& key, const std::string& value) override {
    std::string request(1, kSet);
    wire::append_text(request, key);
    request += value;
    const std::lock_guard lock(mutex_);
    submit(request);
  }

  std::optional<std::vector<std::string>> get(const std::vector<std::string>& keys, double seconds) override {
    std::string request(1, kGet);
    request += wire::bytes_of(seconds);
    for (const std::string& key : keys) wire::append_text(request, key);
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
    request += wire::bytes_of(number);
    wire::append_text(request, key);
    const std::lock_guard lock(mutex_);
    submit(request);
    return connection_.receive<int64_t>();
  }

  void remove(const std::vector<std::string>& keys) override {
    if (keys.empty()) return;
    std::string request(1, kRemove);
    for (const std::string& key : keys) wire::append_text(request, key);
    const std::lock_guard lock(mutex_);
    submit(request);
  }

 private:
  void submit(const std::string& request) const {
    if (request.size() > kMaxRequest)
      throw std::runtime_error(fmt::format("a request of {} bytes is longer than {}", request.size(), kMaxRequest));
    connection_.send(wire::bytes_of(static_cast<uint32_t>(request.size())) + request);
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
    std::vector<std::string> addresses;
    for (const std::string& name : split(host, ','))
      for (std::string& address : resolve(name, deadline - steady_seconds(), &reason))
        addresses.push_back(std::move(address));
    for (const std::string& address : addresses) {
      const double left = deadline - steady_seconds();
      if (left <= 0) break;
      const int fd = connect_to_address(address, port, std::min(left, kConnectSeconds), &reason);
      if (fd < 0) continue;
      set_timeouts(fd, 0);  // rank 0 may answer late
      keep_alive(fd);
      Connection connection(fd);
      if (greeted(connection, identity, rank, size, deadline, &reason))
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
