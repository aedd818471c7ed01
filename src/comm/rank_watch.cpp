#include "rank_watch.h"

#include "hang_report.h"
#include "progress_ring.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "world_backend.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <future>
#include <map>
#include <sstream>

namespace trireme {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr double kFirstStepLimit = 300, kLeastLimit = 60, kMedianSteps = 10;
constexpr double kConnectSeconds = 5, kQuerySeconds = 2;
constexpr size_t kMaxReason = 4000;
/// A failure here may be the consequence of a death elsewhere, whose news is on its way.
constexpr milliseconds kNewsTravels{300};

enum Request : char { kLifeline = 'L', kQuery = 'Q' };
enum Message : char { kBye = 'B', kFailure = 'F' };

struct Greeting {
  uint64_t token;
  int32_t rank;
  char request;
};

timeval time_value(double seconds) {
  return {static_cast<time_t>(seconds), static_cast<suseconds_t>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e6)};
}

void set_timeouts(int fd, double seconds) {
  const timeval time = time_value(seconds);
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

/// A host that vanishes without a word is noticed by keep-alives after a minute.
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

/// Addresses under which other hosts may reach this one.
std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_LOOPBACK) != 0 || (at->ifa_flags & IFF_UP) == 0)
      continue;
    char text[INET_ADDRSTRLEN];
    sockaddr_in address;
    std::memcpy(&address, at->ifa_addr, sizeof address);
    if (inet_ntop(AF_INET, &address.sin_addr, text, sizeof text) != nullptr) found.emplace_back(text);
  }
  freeifaddrs(list);
  return found;
}

int connect_address(const std::string& address, int port, double seconds) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return -1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  set_timeouts(fd, seconds);  // Linux applies the send time-out to connect() as well
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

RankWatch::RankWatch(int rank, int size, const AllGather& all_gather, Hooks hooks) : rank_(rank), size_(size), hooks_(std::move(hooks)) {
  if (std::getenv("TRIREME_HANG_SECONDS") != nullptr) fixed_limit_ = positive_seconds("TRIREME_HANG_SECONDS", 0);
  ProgressRing::instance().set_rank(rank);
  ProgressRing::instance().beat();
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listen();
  meet(all_gather(introduction()));
  server_ = std::thread([this] { serve(); });
  const int next = (rank_ + 1) % size_;
  const int fd = connect_to(next, kConnectSeconds);
  bool reached = fd >= 0;
  if (reached) {
    const Greeting greeting{token_, rank_, kLifeline};
    char answer = 0;
    reached = send_all(fd, &greeting, sizeof greeting) && receive_all(fd, &answer, 1) && answer == kLifeline;
  }
  if (reached) {
    keep_alive(fd);
    const std::lock_guard lock(lines_mutex_);
    lines_[kNext].fd = fd;
    lines_[kNext].rank = next;
  } else {
    if (fd >= 0) close(fd);
    log_warn(fmt::format("rank {} cannot reach rank {} on {} (port {} of {}): a dead rank will be noticed late", rank_, next,
                         peers_[static_cast<size_t>(next)].host, peers_[static_cast<size_t>(next)].port,
                         join(peers_[static_cast<size_t>(next)].addresses, ", ")));
  }
  (void)eventfd_write(wake_, 1);
  watchdog_ = std::thread([this] { watch(); });
}

RankWatch::~RankWatch() {
  stop_ = true;
  (void)eventfd_write(wake_, 1);
  if (server_.joinable()) server_.join();
  if (watchdog_.joinable()) watchdog_.join();
  for (Line& line : lines_)
    if (line.fd >= 0) close(line.fd);
  if (listener_ >= 0) close(listener_);
  if (wake_ >= 0) close(wake_);
}

// --- meeting -----------------------------------------------------------------------------------------------------------------------

void RankWatch::listen() {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 || ::listen(listener_, 64) != 0)
    throw ConfigError(fmt::format("rank {} on {} cannot listen on any port: {}", rank_, host_name(), std::strerror(errno)));
}

std::string RankWatch::introduction() {
  sockaddr_in bound{};
  socklen_t length = sizeof bound;
  (void)getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &length);
  ProgressRing& ring = ProgressRing::instance();
  std::string text = fmt::format("{} {} {} {} {}", host_name(), getpid(), ring.record_fd(), ring.record_token(), ntohs(bound.sin_port));
  for (const std::string& address : own_addresses()) text += " " + address;
  return text;
}

void RankWatch::meet(const std::vector<std::string>& introductions) {
  const std::string own_host = host_name();
  for (int rank = 0; rank < size_; ++rank) {
    Peer peer;
    int fd = -1;
    uint64_t token = 0;
    std::istringstream in(introductions[static_cast<size_t>(rank)]);
    in >> peer.host >> peer.pid >> fd >> token >> peer.port;
    TRIREME_CHECK(static_cast<bool>(in), "rank ", rank, " introduced itself as '", introductions[static_cast<size_t>(rank)], "'");
    if (rank == 0) token_ = token;
    if (peer.host == own_host) peer.addresses.push_back("127.0.0.1");
    for (std::string address; in >> address;) peer.addresses.push_back(address);
    if (peer.host == own_host) peer.record = map_record(peer.pid, fd, token);
    hosts_.push_back(peer.host);
    peers_.push_back(std::move(peer));
  }
}

int RankWatch::connect_to(int rank, double seconds) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  for (const std::string& address : peer.addresses) {
    const int fd = connect_address(address, peer.port, seconds);
    if (fd >= 0) return fd;
  }
  return -1;
}

// --- lifelines and questions: the server's thread ----------------------------------------------------------------------------------

void RankWatch::serve() {
  while (!stop_) {
    pollfd polled[4] = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
    {
      const std::lock_guard lock(lines_mutex_);
      polled[2].fd = lines_[kNext].fd;
      polled[3].fd = lines_[kPrevious].fd;
    }
    int timeout = -1;
    if (previous_lost_) timeout = static_cast<int>(std::max<int64_t>(0, std::chrono::ceil<milliseconds>(*previous_lost_ + kNewsTravels - Clock::now()).count()));
    (void)poll(polled, 4, timeout);
    if (stop_) return;
    if ((polled[0].revents & POLLIN) != 0) {
      eventfd_t value = 0;
      (void)eventfd_read(wake_, &value);
    }
    if ((polled[1].revents & POLLIN) != 0) accept_one();
    if (polled[2].revents != 0 && polled[2].fd == lines_[kNext].fd) read_line(lines_[kNext]);
    if (polled[3].revents != 0 && polled[3].fd == lines_[kPrevious].fd) read_line(lines_[kPrevious]);
    if (previous_lost_ && Clock::now() >= *previous_lost_ + kNewsTravels) lost(lines_[kPrevious]);
  }
}

void RankWatch::accept_one() {
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  set_timeouts(fd, 1);
  Greeting greeting{};
  if (!receive_all(fd, &greeting, sizeof greeting) || greeting.token != token_) {
    close(fd);
    return;
  }
  if (greeting.request == kLifeline && greeting.rank == (rank_ + size_ - 1) % size_) {
    const char answer = kLifeline;
    if (send_all(fd, &answer, 1)) {
      keep_alive(fd);
      const std::lock_guard lock(lines_mutex_);
      lines_[kPrevious].fd = fd;
      lines_[kPrevious].rank = greeting.rank;
      return;
    }
  } else if (greeting.request == kQuery) {
    std::string text;
    const double now = steady_seconds();
    for (const Peer& peer : peers_) {
      if (peer.record == nullptr) continue;
      RankView view = view_of(*peer.record, now);
      view.host = peer.host;
      text += encode(view) + "\n";
    }
    (void)send_all(fd, text.data(), text.size());
  }
  close(fd);
}

void RankWatch::read_line(Line& line) {
  char buffer[4096];
  const ssize_t got = recv(line.fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    const std::lock_guard lock(lines_mutex_);
    close(line.fd);
    line.fd = -1;
    if (line.received == std::string(1, kBye) || stop_) return;
    // Both neighbours of a dead rank notice; the one before it speaks, the other gives it a moment to.
    if (&line == &lines_[kPrevious] && size_ > 2) previous_lost_ = Clock::now();
    else previous_lost_.reset();
  } else {
    line.received.append(buffer, static_cast<size_t>(got));
    if (line.received.size() >= 5 && line.received[0] == kFailure) {
      uint32_t length = 0;
      std::memcpy(&length, line.received.data() + 1, sizeof length);
      if (line.received.size() < 5 + std::min<size_t>(length, kMaxReason)) return;
      const std::string message = line.received.substr(5, length);
      const int code = std::atoi(message.c_str());
      const std::string reason = message.substr(message.find('\n') + 1);
      claim_end();
      if (rank_ == 0) print_failure(rank_, "leaving because " + reason);
      pass_on(reason, code);
      end_stopped();
      _exit(code);
    }
    return;
  }
  if (!previous_lost_) lost(line);
}

void RankWatch::lost(const Line& line) {
  claim_end();
  const Peer& peer = peers_[static_cast<size_t>(line.rank)];
  std::string text;
  if (peer.record != nullptr) {
    RankView view = view_of(*peer.record, steady_seconds());
    const auto* at = view.position();
    text = fmt::format("rank {} on {} (process {}) died in step {}", line.rank, peer.host, peer.pid, view.step);
    if (!view.section.empty()) text += ", section " + view.section;
    if (at != nullptr) text += fmt::format(", {} {}", at->ended_ago >= 0 ? "after" : "inside", at->name());
  } else {
    text = fmt::format("rank {} on {} is gone, its connection broke while this rank was in step {}", line.rank, peer.host,
                       ProgressRing::instance().view().step);
  }
  text += "; look for its own last words and for the kernel's out-of-memory killer, then run again";
  print_failure(rank_, text);
  pass_on(text, static_cast<int>(ExitCode::kHang));
  end_stopped();
  _exit(static_cast<int>(ExitCode::kHang));
}

// --- the watchdog's thread ---------------------------------------------------------------------------------------------------------

double RankWatch::limit() const {
  if (fixed_limit_) return *fixed_limit_;
  const double median = ProgressRing::instance().view().step_seconds;
  return median > 0 ? std::max(kLeastLimit, kMedianSteps * median) : kFirstStepLimit;
}

void RankWatch::watch() {
  for (int round = 1; !stop_; ++round) {
    std::this_thread::sleep_for(milliseconds(100));
    if (round % 10 != 0 || stop_) continue;
    ProgressRing::instance().beat();
    if (hooks_.device_error) {
      if (const std::string error = hooks_.device_error(); !error.empty()) fail(error, static_cast<int>(ExitCode::kHang));
    }
    const double waited = std::max(ProgressRing::instance().longest_wait(), hooks_.device_wait ? hooks_.device_wait() : 0.0);
    const double now = steady_seconds();
    if (waited < limit() || now < next_check_) continue;
    if (!hung(waited)) next_check_ = now + std::max(1.0, limit() / 10);
  }
}

bool RankWatch::hung(double waited) {
  const auto all = views();
  const HangReport report = analyse(all);
  if (report.excused) {
    if (!excused_said_) log_warn(fmt::format("waiting for {:.0f} s: {}; it is given more time", waited, report.sentence));
    excused_said_ = true;
    return false;
  }
  // One report for all: from the lowest rank that waits. The others give it time, then speak themselves.
  int first = rank_;
  for (const RankView& view : all)
    if (view.answered && !view.stopped && !view.dead && view.silent_for < 3 &&
        std::find(report.culprits.begin(), report.culprits.end(), view.rank) == report.culprits.end())
      first = std::min(first, view.rank);
  if (first < rank_)
    for (int i = 0; i < 40 && !stop_; ++i) std::this_thread::sleep_for(milliseconds(100));
  if (stop_) return true;
  claim_end();
  const RankView own = ProgressRing::instance().view();
  const std::string sentence =
      fmt::format("no progress for {:.0f} s in step {}: {}; run again, or give slow machines a longer TRIREME_HANG_SECONDS (now {:g})", waited,
                  own.step, report.sentence, limit());
  print_failure(rank_, fmt::format("no progress for {:.0f} s, where the ranks stand:\n{}rank {} on {}: {}", waited, report.positions, rank_,
                                   host_name(), sentence));
  pass_on(fmt::format("rank {} found {}", rank_, sentence), static_cast<int>(ExitCode::kHang));
  end_stopped();
  _exit(static_cast<int>(ExitCode::kHang));
}

std::vector<RankView> RankWatch::views() {
  std::vector<RankView> all(static_cast<size_t>(size_));
  std::map<std::string, std::vector<int>> remote;
  const double now = steady_seconds();
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    RankView& view = all[static_cast<size_t>(rank)];
    if (peer.record != nullptr) view = view_of(*peer.record, now);
    else if (rank == rank_) view = ProgressRing::instance().view();
    else remote[peer.host].push_back(rank);
    view.rank = rank;
    view.host = peer.host;
  }
  std::vector<std::future<std::string>> answers;
  for (const auto& [host, ranks] : remote) answers.push_back(std::async(std::launch::async, [this, &ranks = ranks] { return query(ranks); }));
  for (auto& answer : answers) {
    std::istringstream in(answer.get());
    for (std::string line; std::getline(in, line);) {
      RankView view;
      if (decode(line, view) && view.rank >= 0 && view.rank < size_) all[static_cast<size_t>(view.rank)] = view;
    }
  }
  return all;
}

/// Any rank of a host answers for all of them.
std::string RankWatch::query(const std::vector<int>& ranks_of_host) const {
  constexpr size_t kTried = 3, kMaxAnswer = 4 << 20;
  for (size_t i = 0; i < std::min(kTried, ranks_of_host.size()); ++i) {
    const int fd = connect_to(ranks_of_host[i], kQuerySeconds);
    if (fd < 0) continue;
    set_timeouts(fd, kQuerySeconds);
    const Greeting greeting{token_, rank_, kQuery};
    std::string text;
    bool whole = send_all(fd, &greeting, sizeof greeting);
    for (char buffer[4096]; whole && text.size() < kMaxAnswer;) {
      const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
      if (got == 0) break;
      if (got < 0) whole = false;
      else text.append(buffer, static_cast<size_t>(got));
    }
    close(fd);
    if (whole && !text.empty()) return text;
  }
  return "";
}

// --- the end -----------------------------------------------------------------------------------------------------------------------

void RankWatch::claim_end() {
  if (!ending_.exchange(true)) return;
  // Another thread is ending the process.
  for (;;) pause();
}

void RankWatch::pass_on(const std::string& reason, int exit_code) {
  std::string body = fmt::format("{}\n{}", exit_code, reason).substr(0, kMaxReason);
  std::string message(1, kFailure);
  const auto length = static_cast<uint32_t>(body.size());
  message.append(reinterpret_cast<const char*>(&length), sizeof length);
  message += body;
  const std::lock_guard lock(lines_mutex_);
  for (const Line& line : lines_)
    if (line.fd >= 0) (void)send_all(line.fd, message.data(), message.size());
}

/// A stopped process hears nothing. Continued by those who share its host, it finds the failure on its lifelines and ends with the same
/// exit code; one that does not is killed.
void RankWatch::end_stopped() {
  const auto left = [&](int signal) {
    bool any = false;
    for (int rank = 0; rank < size_; ++rank) {
      const Peer& peer = peers_[static_cast<size_t>(rank)];
      if (rank == rank_ || peer.record == nullptr || !view_of(*peer.record, steady_seconds()).stopped) continue;
      (void)kill(peer.pid, signal);
      any = true;
    }
    return any;
  };
  if (!left(SIGCONT)) return;
  std::this_thread::sleep_for(kNewsTravels);
  (void)left(SIGKILL);
}

void RankWatch::tell(const std::string& reason, int exit_code) {
  std::this_thread::sleep_for(kNewsTravels);
  claim_end();
  print_failure(rank_, reason);
  pass_on(fmt::format("rank {} on {}: {}", rank_, host_name(), reason), exit_code);
  end_stopped();
}

void RankWatch::fail(const std::string& reason, int exit_code) {
  tell(reason, exit_code);
  _exit(exit_code);
}

void RankWatch::leave() {
  stop_ = true;
  (void)eventfd_write(wake_, 1);
  if (server_.joinable()) server_.join();
  if (watchdog_.joinable()) watchdog_.join();
  const char bye = kBye;
  for (Line& line : lines_) {
    if (line.fd >= 0) (void)send_all(line.fd, &bye, 1);
  }
}

}  // namespace trireme
