#include "rank_watch.h"

#include "progress_ring.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/stack.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/listener.h"
#include "wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

namespace trireme {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using namespace wire;

constexpr double kConnectSeconds = 5;
constexpr int kBeat = 1000;  // milliseconds

}  // namespace

RankWatch::RankWatch(int rank, int size, const AllGather& all_gather, Hooks hooks)
    : rank_(rank), size_(size), hooks_(std::move(hooks)) {
  if (std::getenv("TRIREME_HANG_SECONDS") != nullptr) fixed_limit_ = positive_seconds("TRIREME_HANG_SECONDS", 0);
  ProgressRing::instance().set_rank(rank);
  ProgressRing::instance().beat();
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const std::vector<std::string> places = all_gather(place());
  listen(places);
  read_introductions(all_gather(introduction()), places);
  queue_ = std::make_unique<GreetingQueue>(listeners_, GreetingQueue::Limits{.bytes = sizeof(Greeting), .most = 64},
                                           [this](const char* greeting) {
                                             Greeting read{};
                                             std::memcpy(&read, greeting, sizeof read);
                                             return read.token == token_;
                                           });
  server_ = std::thread([this] { serve(); });
  const Peer& next = peers_[static_cast<size_t>((rank_ + 1) % size_)];
  if (!connect_next()) {
    std::vector<std::string> tried;
    for (const Endpoint& endpoint : next.endpoints)
      tried.push_back(fmt::format("port {} of {}", endpoint.port, endpoint.address));
    log_warn(
        fmt::format("rank {} cannot reach rank {} on {} ({}): a dead rank will be noticed late; if the hosts have "
                    "several networks, "
                    "TRIREME_LISTEN names the interface of this job",
                    rank_, (rank_ + 1) % size_, next.host, join(tried, ", ")));
  }
  (void)eventfd_write(wake_, 1);
  watchdog_ = std::thread([this] { watch(); });
}

RankWatch::~RankWatch() {
  stop_ = true;
  (void)eventfd_write(wake_, 1);
  if (server_.joinable()) server_.join();
  if (watchdog_.joinable()) watchdog_.join();
  for (const Neighbour& neighbour : neighbours_)
    if (neighbour.fd >= 0) close(neighbour.fd);
  for (const int listener : listeners_) close(listener);
  if (wake_ >= 0) close(wake_);
}

// --- start ---------------------------------------------------------------------------------------

/// One word for the network that this process sees, equal for processes that share its loopback interface, and the
/// addresses under which other hosts may reach it, the best first.
std::string RankWatch::place() const {
  char space[64] = "";
  (void)readlink("/proc/self/ns/net", space, sizeof space - 1);
  std::string text = host_identity();
  std::replace(text.begin(), text.end(), ' ', '_');
  text += space;
  if (!hooks_.address.empty() && !is_loopback_address(hooks_.address)) text += " " + hooks_.address;
  for (const std::string& address : own_addresses())
    if (address != hooks_.address) text += " " + address;
  return text;
}

void RankWatch::listen(const std::vector<std::string>& places) {
  const auto words_of = [](const std::string& text) { return split(text, ' '); };
  const std::vector<std::string> own = words_of(places[static_cast<size_t>(rank_)]);
  std::vector<std::string> addresses = {"127.0.0.1"};
  if (const auto chosen = listen_override()) {
    if (chosen->address != addresses[0]) addresses.push_back(chosen->address);
  } else {
    const auto elsewhere = std::find_if(places.begin(), places.end(),
                                        [&](const std::string& text) { return words_of(text)[0] != own[0]; });
    if (elsewhere != places.end() && !hooks_.address.empty() && !is_loopback_address(hooks_.address)) {
      addresses.push_back(hooks_.address);
    } else if (elsewhere != places.end()) {
      // The address from which this host reaches another one of the job. Both may have an equal address of a network
      // that does not connect them (a bridge of containers): it is none of theirs.
      for (const std::string& theirs : words_of(*elsewhere)) {
        const std::string towards =
            std::find(own.begin(), own.end(), theirs) == own.end() ? address_towards(theirs) : "";
        if (towards.empty() || is_loopback_address(towards)) continue;
        addresses.push_back(towards);
        break;
      }
    }
  }
  for (const std::string& address : addresses) {
    try {
      const Listener listener = listen_at(address, 0, 256);
      listeners_.push_back(listener.fd);
      endpoints_.push_back({address, listener.port});
    } catch (const std::runtime_error& error) {
      throw ConfigError(fmt::format("rank {} on {} cannot listen on any port of {}: {}", rank_, host_name(),
                                    address.empty() ? "its addresses" : address, error.what()));
    }
  }
}

std::string RankWatch::introduction() {
  ProgressRing& ring = ProgressRing::instance();
  std::string text =
      fmt::format("{} {} {} {} {}", host_name(), getpid(), ring.record_fd(), ring.record_token(), endpoints_[0].port);
  for (size_t i = 1; i < endpoints_.size(); ++i) {
    const Endpoint& endpoint = endpoints_[i];
    const std::vector<std::string> reached = endpoint.address.empty() ? own_addresses() : std::vector{endpoint.address};
    for (const std::string& address : reached) text += fmt::format(" {} {}", address, endpoint.port);
  }
  return text;
}

void RankWatch::read_introductions(const std::vector<std::string>& introductions,
                                   const std::vector<std::string>& places) {
  const auto network_of = [&](int rank) { return split(places[static_cast<size_t>(rank)], ' ')[0]; };
  const std::string own_host = split(introductions[static_cast<size_t>(rank_)], ' ')[0],
                    own_network = network_of(rank_);
  std::map<std::string, size_t> groups;  // hosts may share a name: networks have the boot id as well
  for (int rank = 0; rank < size_; ++rank) {
    Peer peer;
    int fd = -1, port = 0;
    uint64_t token = 0;
    std::istringstream in(introductions[static_cast<size_t>(rank)]);
    in >> peer.host >> peer.pid >> fd >> token >> port;
    TRIREME_CHECK(static_cast<bool>(in), "rank ", rank, " introduced itself as '",
                  introductions[static_cast<size_t>(rank)], "'");
    if (rank == 0) token_ = token;
    const auto [group, fresh] = groups.emplace(network_of(rank), hosts_.size());
    if (fresh) hosts_.emplace_back();
    peer.group = group->second;
    hosts_[peer.group].push_back(rank);
    if (network_of(rank) == own_network) peer.endpoints.push_back({"127.0.0.1", port});
    for (Endpoint endpoint; in >> endpoint.address >> endpoint.port;) peer.endpoints.push_back(endpoint);
    if (peer.host == own_host) peer.record = map_record(peer.pid, fd, token);
    peers_.push_back(std::move(peer));
  }
}

int RankWatch::connect_to(int rank, double seconds) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  for (const Endpoint& endpoint : peer.endpoints) {
    const int fd = connect_to_address(endpoint.address, endpoint.port, seconds);
    if (fd >= 0) return fd;
  }
  return -1;
}

/// The next rank accepts the connection in its server's thread and echoes the request.
bool RankWatch::connect_next() {
  const int next = (rank_ + 1) % size_;
  const int fd = connect_to(next, kConnectSeconds);
  if (fd < 0) return false;
  const Greeting greeting{token_, rank_, kNeighbour};
  char answer = 0;
  if (!send_all(fd, &greeting, sizeof greeting) || !receive_all(fd, &answer, 1) || answer != kNeighbour) {
    close(fd);
    return false;
  }
  keep_alive(fd);
  const std::lock_guard lock(neighbours_mutex_);
  neighbours_[kNext].fd = fd;
  neighbours_[kNext].rank = next;
  return true;
}

// --- the server's thread -------------------------------------------------------------------------

void RankWatch::serve() {
  while (!stop_) {
    pollfd polled[4] = {{wake_, POLLIN, 0}, {queue_->fd(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
    {
      const std::lock_guard lock(neighbours_mutex_);
      polled[2].fd = neighbours_[kNext].fd;
      polled[3].fd = neighbours_[kPrevious].fd;
    }
    int timeout = queue_->timeout();
    if (previous_lost_) {
      const auto left = std::chrono::ceil<milliseconds>(*previous_lost_ + kReportDelay - Clock::now()).count();
      const int until_report = static_cast<int>(std::max<int64_t>(0, left));
      timeout = timeout < 0 ? until_report : std::min(timeout, until_report);
    }
    (void)poll(polled, 4, timeout < 0 ? kBeat : std::min(timeout, kBeat));
    if (stop_) return;
    ProgressRing::instance().beat();
    if ((polled[0].revents & POLLIN) != 0) {
      eventfd_t value = 0;
      (void)eventfd_read(wake_, &value);
    }
    for (const GreetingQueue::Caller& caller : queue_->serve()) answer(caller);
    if (strangers_ == 0 && queue_->dropped() > 0) log_warn(fmt::format("rank {}: {}", rank_, queue_->report()));
    strangers_ = queue_->dropped();
    if (polled[2].revents != 0 && polled[2].fd == neighbours_[kNext].fd) read_from(neighbours_[kNext]);
    if (polled[3].revents != 0 && polled[3].fd == neighbours_[kPrevious].fd) read_from(neighbours_[kPrevious]);
    if (previous_lost_ && Clock::now() >= *previous_lost_ + kReportDelay) handle_lost(neighbours_[kPrevious]);
  }
}

void RankWatch::answer(const GreetingQueue::Caller& caller) {
  const int fd = caller.fd;
  make_blocking(fd);
  set_timeouts(fd, 1);
  Greeting greeting{};
  std::memcpy(&greeting, caller.greeting.data(), sizeof greeting);
  if (greeting.request == kNeighbour && greeting.rank == (rank_ + size_ - 1) % size_ &&
      neighbours_[kPrevious].rank < 0) {
    const char answer = kNeighbour;
    if (send_all(fd, &answer, 1)) {
      keep_alive(fd);
      const std::lock_guard lock(neighbours_mutex_);
      neighbours_[kPrevious].fd = fd;
      neighbours_[kPrevious].rank = greeting.rank;
      return;
    }
  } else if (greeting.request == kQuery) {
    std::string text;
    const double now = steady_seconds();
    for (size_t rank = 0; rank < peers_.size(); ++rank) {
      const Peer& peer = peers_[rank];
      const bool self = static_cast<int>(rank) == rank_;
      if (peer.record == nullptr && !self) continue;
      RankView view = self ? ProgressRing::instance().view() : view_of(*peer.record, now);
      view.host = peer.host;
      text += encode(view) + "\n";
    }
    (void)send_all(fd, text.data(), text.size());
  } else if (greeting.request == kStack) {
    const std::string text = training_stack(kStackSeconds);
    (void)send_all(fd, text.data(), text.size());
  }
  close(fd);
}

void RankWatch::read_from(Neighbour& neighbour) {
  char buffer[4096];
  const ssize_t got = recv(neighbour.fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    const std::lock_guard lock(neighbours_mutex_);
    close(neighbour.fd);
    neighbour.fd = -1;
    if (read_message(neighbour.received).what == Received::kOrderlyEnd || stop_) return;
    // Both neighbours of a dead rank see the connection break. The rank before it reports; the other waits kReportDelay
    // for that report.
    if (&neighbour == &neighbours_[kPrevious] && size_ > 2)
      previous_lost_ = Clock::now();
    else
      previous_lost_.reset();
  } else {
    neighbour.received.append(buffer, static_cast<size_t>(got));
    const Received message = read_message(neighbour.received);
    if (message.what == Received::kFailed) {
      claim_exit();
      if (rank_ == 0) print_failure(rank_, "ending because " + message.reason);
      forward(message.reason, message.exit_code);
      end_stopped_ranks();
      _exit(message.exit_code);
    }
    // Damaged bytes: the end of this connection tells what follows.
    if (message.what == Received::kJunk) neighbour.received.resize(1);
    return;
  }
  if (!previous_lost_) handle_lost(neighbour);
}

void RankWatch::handle_lost(const Neighbour& neighbour) {
  claim_exit();
  const Peer& peer = peers_[static_cast<size_t>(neighbour.rank)];
  std::string text;
  if (peer.record != nullptr) {
    RankView view = view_of(*peer.record, steady_seconds());
    const auto* at = view.position();
    text = fmt::format("rank {} on {} (process {}) died in step {}", neighbour.rank, peer.host, peer.pid, view.step);
    if (!view.section.empty()) text += ", section " + view.section;
    if (at != nullptr) text += fmt::format(", {} {}", at->ended_ago >= 0 ? "after" : "inside", at->name());
  } else {
    text = fmt::format("rank {} on {} is gone, its connection broke while this rank was in step {}", neighbour.rank,
                       peer.host, ProgressRing::instance().view().step);
  }
  text += "; read its own last message and the kernel's log (out-of-memory killer), then run again";
  print_failure(rank_, text);
  forward(text, static_cast<int>(ExitCode::kHang));
  end_stopped_ranks();
  _exit(static_cast<int>(ExitCode::kHang));
}

}  // namespace trireme
