// The watchdog's thread of RankWatch: finds the rank that hangs, and ends all ranks.
#include "hang_report.h"
#include "progress_ring.h"
#include "rank_watch.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/stack.h"
#include "trireme/base/time.h"
#include "wire.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <map>
#include <sstream>

namespace trireme {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using namespace wire;

constexpr double kFirstStepLimit = 300, kLeastLimit = 60, kMedianSteps = 10;
/// Of the first question to a rank; a host that has not answered after all its ranks is asked with twice the patience.
constexpr double kQuerySeconds = 2;
/// After this time without any answer a host is lost. On a busy machine an answer takes seconds.
constexpr double kHostSeconds = 12;
/// A rank whose watchdog has found it waiting this long ago still looks for the hanging one.
constexpr double kAsking = 5;
constexpr size_t kAskedAtOnce = 32;
/// From the limit until a rank asks: by then the others have found, too, that they wait, and few ask.
constexpr double kSettle = 1.5;
/// A continued process reads the failure from its neighbour and ends; on a busy machine it may have to wait for a core.
constexpr milliseconds kContinuedEnds{5000};
/// The reporting rank has printed by then; watchdogs look once a second, not at the same time.
constexpr double kReporterFirst = 1.5;

}  // namespace

// --- the watchdog's thread -----------------------------------------------------------------------

double RankWatch::limit() const {
  if (fixed_limit_) return *fixed_limit_;
  const double median = ProgressRing::instance().view().step_seconds;
  return median > 0 ? std::max(kLeastLimit, kMedianSteps * median) : kFirstStepLimit;
}

void RankWatch::watch() {
  for (int round = 1; !stop_; ++round) {
    std::this_thread::sleep_for(milliseconds(100));
    if (round % 10 != 0 || stop_) continue;
    if (hooks_.device_error) {
      if (const std::string error = hooks_.device_error(); !error.empty())
        fail(error, static_cast<int>(ExitCode::kHang));
    }
    const double waited =
        std::max(ProgressRing::instance().longest_wait(), hooks_.device_wait ? hooks_.device_wait() : 0.0);
    const double now = steady_seconds();
    ProgressRing::instance().set_overdue(waited >= limit());
    if (waited < limit() + kSettle || now < next_check_) continue;
    const double next = handle_hang(waited);
    next_check_ = steady_seconds() + next;
  }
}

bool RankWatch::pause(double seconds) const {
  for (const double end = steady_seconds() + seconds; !stop_ && steady_seconds() < end;) {
    ProgressRing::instance().set_overdue(true);
    std::this_thread::sleep_for(milliseconds(100));
  }
  return !stop_;
}

bool RankWatch::another_asks(std::optional<size_t>& lost) const {
  const size_t host = peers_[static_cast<size_t>(rank_)].group;
  for (const int rank : hosts_[host]) {
    const RankRecord* record = peers_[static_cast<size_t>(rank)].record;
    if (rank < rank_ && record != nullptr && record->overdue > steady_seconds() - kAsking) return true;
  }
  // Along the hosts there is always one that asks: the first, or one after a host where no rank waits.
  if (host == 0) return false;
  const std::vector<RankView> before = query(hosts_[host - 1]);
  if (before.empty()) lost = host - 1;
  for (const RankView& view : before)
    if (view.overdue_ago >= 0 && view.overdue_ago < kAsking && !view.stopped && !view.dead) return true;
  return false;
}

double RankWatch::handle_hang(double waited) {
  // If ranks die inside MPI_Finalize, OpenMPI's mpirun can wait at a PMIx fence forever. All files are written by then,
  // so stopped ranks are continued once instead of killed, on every host by a rank of it.
  const RankView own = ProgressRing::instance().view();
  const bool finalizing = !continued_ && own.position() != nullptr && own.position()->kind == kMpiFinalize;
  std::optional<size_t> lost;
  if (another_asks(lost)) {
    if (!finalizing) return 1;
    continued_ = true;
    (void)pause(kReporterFirst);
    (void)continue_stopped_ranks();
    return limit();
  }
  const auto all = views(lost);
  const HangReport report = analyse(all);
  if (report.excused) {
    if (!excuse_logged_)
      log_warn(fmt::format("waiting for {:.0f} s: {}; it is given more time", waited, report.sentence));
    excuse_logged_ = true;
    return std::max(1.0, limit() / 10);
  }
  // The lowest waiting rank that is not stopped reports for all. The others that ask wait for it, and report themselves
  // if it does not.
  int first = rank_;
  for (const RankView& view : all)
    if (view.answered && !view.stopped && !view.dead && view.overdue_ago >= 0 && view.overdue_ago < kAsking)
      first = std::min(first, view.rank);
  if (finalizing) {
    continued_ = true;
    if (first == rank_)
      log_warn(fmt::format("no progress for {:.0f} s in MPI_Finalize: {}; the stopped ranks are continued", waited,
                           report.sentence));
    else
      (void)pause(kReporterFirst);
    (void)continue_stopped_ranks();
    return limit();
  }
  if (!pause(first < rank_ ? 4 : 0)) return 0;
  const std::string stack =
      stack_of(all[static_cast<size_t>(report.responsible.empty() ? rank_ : report.responsible[0])]);
  claim_exit();
  const std::string sentence = fmt::format(
      "no progress for {:.0f} s in step {}: {}; run again, or give slow machines a longer TRIREME_HANG_SECONDS (now "
      "{:g})",
      waited, own.step, report.sentence, limit());
  print_failure(rank_, fmt::format("no progress for {:.0f} s; positions of the ranks:\n{}{}rank {} on {}: {}", waited,
                                   report.positions, stack, rank_, host_name(), sentence));
  forward(fmt::format("rank {} found {}", rank_, sentence), static_cast<int>(ExitCode::kHang));
  end_stopped_ranks();
  _exit(static_cast<int>(ExitCode::kHang));
}

std::vector<RankView> RankWatch::views(std::optional<size_t> lost) {
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

std::vector<RankView> RankWatch::query(const std::vector<int>& ranks_of_host) const {
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

std::optional<std::string> RankWatch::ask(int rank, char request, double seconds) const {
  constexpr size_t kMaxAnswer = 4 << 20;
  const int fd = connect_to(rank, seconds);
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

/// The stack of the rank's training thread; empty for a process that is stopped, dead or out of reach.
std::string RankWatch::stack_of(const RankView& view) const {
  if (!view.answered || view.stopped || view.dead) return "";
  const std::string stack =
      view.rank == rank_ ? training_stack(kStackSeconds) : ask(view.rank, kStack, kQuerySeconds).value_or("");
  return stack.empty() ? "" : fmt::format("the training thread of rank {} on {}:\n{}", view.rank, view.host, stack);
}

// --- the end -------------------------------------------------------------------------------------

void RankWatch::claim_exit() {
  if (!exiting_.exchange(true)) return;
  for (;;) ::pause();
}

void RankWatch::forward(const std::string& reason, int exit_code) {
  std::string body = fmt::format("{}\n{}", exit_code, reason).substr(0, kMaxReason);
  std::string message(1, kFailure);
  const auto length = static_cast<uint32_t>(body.size());
  message.append(reinterpret_cast<const char*>(&length), sizeof length);
  message += body;
  const std::lock_guard lock(neighbours_mutex_);
  for (const Neighbour& neighbour : neighbours_)
    if (neighbour.fd >= 0) (void)send_all(neighbour.fd, message.data(), message.size());
}

/// A stopped process reads nothing. The ranks of its host continue it, it reads the failure from its neighbours and
/// ends with the same exit code. A process that does not end in time is killed.
void RankWatch::end_stopped_ranks() {
  std::vector<const Peer*> continued = continue_stopped_ranks();
  for (auto until = Clock::now() + kContinuedEnds; !continued.empty() && Clock::now() < until;) {
    std::erase_if(continued, [](const Peer* peer) { return view_of(*peer->record, steady_seconds()).dead; });
    std::this_thread::sleep_for(milliseconds(20));
  }
  for (const Peer* peer : continued) (void)kill(peer->pid, SIGKILL);
}

std::vector<const RankWatch::Peer*> RankWatch::continue_stopped_ranks() const {
  std::vector<const Peer*> continued;
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == rank_ || peer.record == nullptr || !view_of(*peer.record, steady_seconds()).stopped) continue;
    (void)kill(peer.pid, SIGCONT);
    continued.push_back(&peer);
  }
  return continued;
}

void RankWatch::announce(const std::string& reason, int exit_code) {
  std::this_thread::sleep_for(kReportDelay);
  claim_exit();
  print_failure(rank_, reason);
  forward(fmt::format("rank {} on {}: {}", rank_, host_name(), reason), exit_code);
  end_stopped_ranks();
}

void RankWatch::fail(const std::string& reason, int exit_code) {
  announce(reason, exit_code);
  _exit(exit_code);
}

void RankWatch::leave() {
  stop_ = true;
  (void)eventfd_write(wake_, 1);
  if (server_.joinable()) server_.join();
  if (watchdog_.joinable()) watchdog_.join();
  if (strangers_ > 0) log_warn(fmt::format("rank {}: {}", rank_, queue_->report()));
  const char bye = kBye;
  for (const Neighbour& neighbour : neighbours_)
    if (neighbour.fd >= 0) (void)send_all(neighbour.fd, &bye, 1);
}

}  // namespace trireme
