// The watchdog's side of RankWatch: who hangs, and how all ranks end.
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
constexpr milliseconds kContinuedEnds{5000};
constexpr milliseconds kFirstSpeaks{1500};  // before the others change what it reports; a watchdog looks every second

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
    next_check_ = now + hung(waited);
  }
}

double RankWatch::hung(double waited) {
  const auto all = views();
  const HangReport report = analyse(all);
  if (report.excused) {
    if (!excused_said_)
      log_warn(fmt::format("waiting for {:.0f} s: {}; it is given more time", waited, report.sentence));
    excused_said_ = true;
    return std::max(1.0, limit() / 10);
  }
  // One report for all: from the lowest rank that waits. The others give it time, then speak themselves.
  int first = rank_;
  for (const RankView& view : all)
    if (view.answered && !view.stopped && !view.dead && view.silent_for < 3 &&
        std::find(report.culprits.begin(), report.culprits.end(), view.rank) == report.culprits.end())
      first = std::min(first, view.rank);
  // MPI's end is not broken off at once: of ranks that die inside of it OpenMPI's launcher may keep an open fence and
  // never end itself. Everything is written by then, so who was stopped may as well go on.
  const RankView::Collective* const at = all[static_cast<size_t>(rank_)].position();
  if (!resumed_ && at != nullptr && at->kind == kMpiFinalize) {
    resumed_ = true;
    if (first == rank_)
      log_warn(fmt::format("no progress for {:.0f} s when all was done: {}; ranks that were stopped are continued",
                           waited, report.sentence));
    else
      std::this_thread::sleep_for(kFirstSpeaks);
    (void)continue_stopped();
    return limit();
  }
  if (first < rank_)
    for (int i = 0; i < 40 && !stop_; ++i) std::this_thread::sleep_for(milliseconds(100));
  if (stop_) return 0;
  const std::string stack = stack_of(all[static_cast<size_t>(report.culprits.empty() ? rank_ : report.culprits[0])]);
  claim_end();
  const RankView own = ProgressRing::instance().view();
  const std::string sentence = fmt::format(
      "no progress for {:.0f} s in step {}: {}; run again, or give slow machines a longer TRIREME_HANG_SECONDS (now "
      "{:g})",
      waited, own.step, report.sentence, limit());
  print_failure(rank_, fmt::format("no progress for {:.0f} s, where the ranks stand:\n{}{}rank {} on {}: {}", waited,
                                   report.positions, stack, rank_, host_name(), sentence));
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

/// Any rank of a host answers for all of them.
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

/// Where the training thread of this rank is, as far as it can tell: a stopped or vanished process cannot.
std::string RankWatch::stack_of(const RankView& view) const {
  if (!view.answered || view.stopped || view.dead) return "";
  const std::string stack = view.rank == rank_ ? training_stack(kStackSeconds) : ask(view.rank, kStack).value_or("");
  return stack.empty() ? "" : fmt::format("the training thread of rank {} on {}:\n{}", view.rank, view.host, stack);
}

// --- the end -------------------------------------------------------------------------------------

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

/// A stopped process hears nothing. Continued by those who share its host, it finds the failure on its lifelines and
/// ends with the same exit code; one that does not in time is killed.
void RankWatch::end_stopped() {
  std::vector<const Peer*> continued = continue_stopped();
  // On a busy machine the process may have to wait for its turn.
  for (auto until = Clock::now() + kContinuedEnds; !continued.empty() && Clock::now() < until;) {
    std::erase_if(continued, [](const Peer* peer) { return view_of(*peer->record, steady_seconds()).dead; });
    std::this_thread::sleep_for(milliseconds(20));
  }
  for (const Peer* peer : continued) (void)kill(peer->pid, SIGKILL);
}

std::vector<const RankWatch::Peer*> RankWatch::continue_stopped() const {
  std::vector<const Peer*> continued;
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == rank_ || peer.record == nullptr || !view_of(*peer.record, steady_seconds()).stopped) continue;
    (void)kill(peer.pid, SIGCONT);
    continued.push_back(&peer);
  }
  return continued;
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
