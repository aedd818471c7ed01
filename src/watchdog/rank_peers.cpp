#include "rank_peers.h"

#include "progress_ring.h"
#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/stack.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/sockets.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>

namespace trireme {

namespace wire {

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

}  // namespace wire

namespace {

using std::chrono::milliseconds;
using namespace wire;

/// Time limit of the first question to a rank; a host that has not answered after all its ranks is asked with twice the
/// patience.
constexpr double kQuerySeconds = 2;
/// After this time without any answer a host is lost. On a busy machine an answer takes seconds.
constexpr double kHostSeconds = 12;
constexpr size_t kAskedAtOnce = 32;

}  // namespace

std::string network_place(const std::string& known) {
  char space[64] = "";
  if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = '\0';
  std::string text = host_identity();
  std::replace(text.begin(), text.end(), ' ', '_');
  text += space;
  if (!known.empty() && !is_loopback_address(known)) text += " " + known;
  for (const std::string& address : own_addresses())
    if (address != known) text += " " + address;
  return text;
}

std::string RankPeers::introduction(const std::vector<Endpoint>& endpoints) {
  ProgressRing& ring = ProgressRing::instance();
  std::string text =
      fmt::format("{} {} {} {} {}", host_name(), getpid(), ring.record_fd(), ring.record_token(), endpoints[0].port);
  for (size_t i = 1; i < endpoints.size(); ++i) {
    const Endpoint& endpoint = endpoints[i];
    const std::vector<std::string> reached = endpoint.address.empty() ? own_addresses() : std::vector{endpoint.address};
    for (const std::string& address : reached) text += fmt::format(" {} {}", address, endpoint.port);
  }
  return text;
}

RankPeers::RankPeers(int rank, const std::vector<std::string>& introductions, const std::vector<std::string>& places,
                     const std::atomic<bool>& stop)
    : rank_(rank), size_(static_cast<int>(introductions.size())), stop_(stop) {
  const auto network_of = [&](int of) { return split(places[static_cast<size_t>(of)], ' ')[0]; };
  const std::string own_host = split(introductions[static_cast<size_t>(rank_)], ' ')[0],
                    own_network = network_of(rank_);
  std::map<std::string, size_t> groups;  // hosts may share a name: networks have the boot id as well
  for (int other = 0; other < size_; ++other) {
    Peer peer;
    int fd = -1, port = 0;
    uint64_t token = 0;
    std::istringstream in(introductions[static_cast<size_t>(other)]);
    in >> peer.host >> peer.pid >> fd >> token >> port;
    TRIREME_CHECK(static_cast<bool>(in), "rank ", other, " introduced itself as '",
                  introductions[static_cast<size_t>(other)], "'");
    if (other == 0) token_ = token;
    const auto [group, fresh] = groups.emplace(network_of(other), hosts_.size());
    if (fresh) hosts_.emplace_back();
    peer.group = group->second;
    hosts_[peer.group].push_back(other);
    if (network_of(other) == own_network) peer.endpoints.push_back({"127.0.0.1", port});
    for (Endpoint endpoint; in >> endpoint.address >> endpoint.port;) peer.endpoints.push_back(endpoint);
    if (peer.host == own_host) peer.record = map_record(peer.pid, fd, token);
    peers_.push_back(std::move(peer));
  }
}

int RankPeers::connect(int rank, double seconds) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  for (const Endpoint& endpoint : peer.endpoints) {
    const int fd = connect_to_address(endpoint.address, endpoint.port, seconds);
    if (fd >= 0) return fd;
  }
  return -1;
}

std::optional<std::string> RankPeers::ask(int rank, Request request, double seconds) const {
  constexpr size_t kMaxAnswer = 4 << 20;
  const int fd = connect(rank, seconds);
  if (fd < 0) return std::nullopt;
  set_timeouts(fd, seconds);
  const Greeting greeting{token_, rank_, request};
  std::string text;
  bool whole = send_all(fd, &greeting, sizeof greeting);
  for (char buffer[4096]; whole && text.size() < kMaxAnswer;) {
    const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got == 0) break;
    if (got < 0)
      whole = false;
    else
      text.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return whole ? std::optional(text) : std::nullopt;
}

std::vector<RankView> RankPeers::query(const std::vector<int>& ranks_of_host) const {
  std::map<int, RankView> views;
  const double end = steady_seconds() + kHostSeconds;
  // A rank that is stopped or has ended does not answer, and one whose queue is full hangs up: another one of its host
  // is asked, then all of them again.
  for (double patience = kQuerySeconds; patience <= 2 * kQuerySeconds; patience += kQuerySeconds) {
    for (const int rank : ranks_of_host) {
      if (steady_seconds() >= end || stop_) break;
      if (views.contains(rank)) continue;
      std::istringstream in(ask(rank, kQuery, patience).value_or(""));
      for (std::string line; std::getline(in, line);) {
        RankView view;
        if (decode(line, view) && view.rank >= 0 && view.rank < size_) views[view.rank] = view;
      }
      ProgressRing::instance().set_overdue(true);
    }
    if (!views.empty()) break;
    std::this_thread::sleep_for(milliseconds(200));
  }
  std::vector<RankView> found;
  for (auto& [rank, view] : views) found.push_back(std::move(view));
  return found;
}

std::vector<RankView> RankPeers::views(std::optional<size_t> lost) const {
  std::vector<RankView> all(static_cast<size_t>(size_));
  std::vector<size_t> remote;  // hosts
  const double now = steady_seconds();
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    RankView& view = all[static_cast<size_t>(rank)];
    if (peer.record != nullptr)
      view = view_of(*peer.record, now);
    else if (rank == rank_)
      view = ProgressRing::instance().view();
    else if (peer.group != lost && (remote.empty() || remote.back() != peer.group))
      remote.push_back(peer.group);
    view.rank = rank;
    view.host = peer.host;
  }
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::vector<std::future<void>> threads;
  for (size_t i = 0; i < std::min(remote.size(), kAskedAtOnce); ++i)
    threads.push_back(std::async(std::launch::async, [&] {
      for (size_t at = next++; at < remote.size(); at = next++) {
        const std::vector<RankView> answer = query(hosts_[remote[at]]);
        const std::lock_guard lock(mutex);
        for (const RankView& view : answer) all[static_cast<size_t>(view.rank)] = view;
      }
    }));
  for (auto& thread : threads)
    while (thread.wait_for(milliseconds(500)) != std::future_status::ready) ProgressRing::instance().set_overdue(true);
  return all;
}

std::string RankPeers::views_of_this_host() const {
  std::string text;
  const double now = steady_seconds();
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = (*this)[rank];
    if (peer.record == nullptr && rank != rank_) continue;
    RankView view = rank == rank_ ? ProgressRing::instance().view() : view_of(*peer.record, now);
    view.host = peer.host;
    text += encode(view) + "\n";
  }
  return text;
}

std::string RankPeers::stack_of(const RankView& view) const {
  if (!view.answered || view.stopped || view.dead) return "";
  const std::string stack =
      view.rank == rank_ ? training_stack(kStackSeconds) : ask(view.rank, kStack, kQuerySeconds).value_or("");
  return stack.empty() ? "" : fmt::format("the training thread of rank {} on {}:\n{}", view.rank, view.host, stack);
}

std::vector<const RankPeers::Peer*> RankPeers::continue_stopped() const {
  std::vector<const Peer*> continued;
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == rank_ || peer.record == nullptr || !view_of(*peer.record, steady_seconds()).stopped) continue;
    (void)kill(peer.pid, SIGCONT);
    continued.push_back(&peer);
  }
  return continued;
}

}  // namespace trireme
