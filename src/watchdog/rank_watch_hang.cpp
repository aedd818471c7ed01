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
constexpr double kQuerySeconds = 2;
/// A continued process reads the failure from its neighbour and ends; on a busy machine it may have to wait for a core.
constexpr milliseconds kContinuedEnds{5000};
/// The reporting rank has printed by then; watchdogs look once a second, not at the same time.
constexpr milliseconds kReporterFirst{1500};

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
    ProgressRing::instance().beat();
    if (hooks_.device_error) {
      if (const std::string error = hooks_.device_error(); !error.empty())
        fail(error, static_cast<int>(ExitCode::kHang));
    }
    const double waited =
        std::max(ProgressRing::instance().longest_wait(), hooks_.device_wait ? hooks_.device_wait() : 0.0);
    const double now = steady_seconds();
    if (waited < limit() || now < next_check_) continue;
    next_check_ = now + handle_hang(waited);
  }
}

double RankWatch::handle_hang(double waited) {
  const auto all = views();
  const HangReport report = analyse(all);
  if (report.excused) {
    if (!excuse_logged_)
      log_warn(fmt::format("waiting for {:.0f} s: {}; it is given more time", waited, report.sentence));
    excuse_logged_ = true;
    return std::max(1.0, limit() / 10);
  }
  // The lowest waiting rank that is not stopped reports for all. The others wait for it, and report themselves if it
  // does not.
  int first = rank_;
  for (const RankView& view : all)
    if (view.answered && !view.stopped && !view.dead && view.silent_for < 3 &&
        std::find(report.responsible.begin(), report.responsible.end(), view.rank) == report.responsible.end())
      first = std::min(first, view.rank);
  // If ranks die inside MPI_Finalize, OpenMPI's mpirun can wait at a PMIx fence forever. All files are written by then,
  // so stopped ranks are continued once instead of killed.
  const RankView::Collective* const at = all[static_cast<size_t>(rank_)].position();
  if (!continued_ && at != nullptr && at->kind == kMpiFinalize) {
    continued_ = true;
    if (first == rank_)
      log_warn(fmt::format("no progress for {:.0f} s in MPI_Finalize: {}; the stopped ranks are continued", waited,
                           report.sentence));
    else
      std::this_thread::sleep_for(kReporterFirst);
    (void)continue_stopped_ranks();
    return limit();
  }
  if (first < rank_)
    for (int i = 0; i < 40 && !stop_; ++i) std::this_thread::sleep_for(milliseconds(100));
  if (stop_) return 0;
  const std::string stack =
      stack_of(all[static_cast<size_t>(report.responsible.empty() ? rank_ : report.responsible[0])]);
  claim_exit();
  const RankView own = ProgressRing::instance().view();
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

std::vector<RankView> RankWatch::views() {
  std::vector<RankView> all(static_cast<size_t>(size_));
  std::map<std::string, std::vector<int>> remote;
  const double now = steady_seconds();
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    RankView& view = all[static_cast<size_t>(rank)];
    if (peer.record != nullptr)
      view = view_of(*peer.record, now);
    else if (rank == rank_)
      view = ProgressRing::instance().view();
    else
      remote[peer.host].push_back(rank);
    view.rank = rank;
    view.host = peer.host;
  }
  std::vector<std::future<std::string>> answers;
  for (const auto& [host, ranks] : remote)
    answers.push_back(std::async(std::launch::async, [this, &ranks = ranks] { return query(ranks); }));
  for (auto& answer : answers) {
    std::istringstream in(answer.get());
    for (std::string line; std::getline(in, line);) {
      RankView view;
      if (decode(line, view) && view.rank >= 0 && view.rank < size_) all[static_cast<size_t>(view.rank)] = view;
    }
  }
  return all;
}

std::string RankWatch::query(const std::vector<int>& ranks_of_host) const {
  constexpr size_t kTried = 3;
  for (size_t i = 0; i < std::min(kTried, ranks_of_host.size()); ++i)
    if (const auto text = ask(ranks_of_host[i], kQuery); text && !text->empty()) return *text;
  return "";
}

std::optional<std::string> RankWatch::ask(int rank, char request) const {
  constexpr size_t kMaxAnswer = 4 << 20;
  const int fd = connect_to(rank, kQuerySeconds);
  if (fd < 0) return std::nullopt;
  set_timeouts(fd, kQuerySeconds);
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
  const std::string stack = view.rank == rank_ ? training_stack(kStackSeconds) : ask(view.rank, kStack).value_or("");
  return stack.empty() ? "" : fmt::format("the training thread of rank {} on {}:\n{}", view.rank, view.host, stack);
}

// --- the end -------------------------------------------------------------------------------------

void RankWatch::claim_exit() {
  if (!exiting_.exchange(true)) return;
  for (;;) pause();
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
