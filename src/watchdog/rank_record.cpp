#include "rank_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <random>
#include <sstream>

namespace trireme {

namespace {

std::string text_in(const char* begin, size_t size) { return {begin, strnlen(begin, size)}; }

/// One state letter of /proc/<pid>/stat: R, S, D, T (stopped), Z (dead, not yet collected); 0 when there is no such
/// process, '?' when this process cannot know.
char process_state(int pid) {
  errno = 0;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return errno == ENOENT || errno == ESRCH ? 0 : '?';
  const size_t close = line.rfind(')');
  return close == std::string::npos || close + 2 >= line.size() ? '?' : line[close + 2];
}

}  // namespace

std::string RankView::Collective::name() const {
  return fmt::format("#{} {}[{}] on {}", sequence, kind, elements, group);
}

const RankView::Collective* RankView::position() const {
  for (const Collective& entry : history)
    if (entry.ended_ago < 0 && entry.waiting_for >= 0) return &entry;
  if (const Collective* open = unfinished()) return open;
  return history.empty() ? nullptr : &history.back();
}

const RankView::Collective* RankView::unfinished() const {
  for (const Collective& entry : history)
    if (entry.ended_ago < 0) return &entry;
  return nullptr;
}

RankView view_of(const RankRecord& shared, double now) {
  // A seqlock: the copy is consistent when the version is even and did not change meanwhile. A writer that was stopped
  // while writing leaves an odd version; after some attempts its unfinished state is taken.
  auto copy = std::make_unique<RankRecord>();
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint32_t before = shared.version.load(std::memory_order_acquire);
    std::memcpy(static_cast<void*>(copy.get()), static_cast<const void*>(&shared), sizeof(RankRecord));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && shared.version.load(std::memory_order_relaxed) == before) break;
    usleep(100);
  }
  RankView view;
  view.rank = copy->rank;
  view.answered = true;
  view.pid = copy->pid;
  const char state = process_state(copy->pid);
  view.stopped = state == 'T' || state == 't';
  view.dead = state == 0 || state == 'Z' || state == 'X';
  view.step = copy->step;
  view.step_seconds = copy->step_seconds;
  view.silent_for = copy->heartbeat > 0 ? now - copy->heartbeat : 0;
  if (const double overdue = copy->overdue; overdue > 0) view.overdue_ago = now - overdue;
  view.section = text_in(copy->section, sizeof copy->section);
  view.section_for = copy->section_began > 0 ? now - copy->section_began : 0;
  view.section_allowance = copy->section_allowance;
  constexpr uint64_t kEntries = RankRecord::kEntries;
  for (uint64_t sequence = copy->next > kEntries ? copy->next - kEntries : 1; sequence < copy->next; ++sequence) {
    const CollectiveEntry& entry = copy->entries[sequence % kEntries];
    if (entry.sequence != sequence) continue;
    RankView::Collective collective;
    collective.sequence = sequence;
    collective.elements = entry.elements;
    collective.kind = text_in(entry.kind, sizeof entry.kind);
    collective.group = text_in(entry.group, sizeof entry.group);
    collective.began_ago = now - entry.began;
    if (entry.waited > 0) collective.waiting_for = now - entry.waited;
    if (entry.ended > 0) collective.ended_ago = now - entry.ended;
    view.history.push_back(std::move(collective));
  }
  return view;
}

std::string encode(const RankView& view) {
  const auto word = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", view.rank, word(view.host), view.pid, view.stopped ? 1 : 0,
                  view.dead ? 1 : 0, view.step, view.step_seconds, view.silent_for, view.overdue_ago,
                  word(view.section), view.section_for, view.section_allowance, view.history.size());
  for (const auto& entry : view.history)
    text += fmt::format(" {} {} {} {} {} {} {}", entry.sequence, entry.elements, word(entry.kind), word(entry.group),
                        entry.began_ago, entry.waiting_for, entry.ended_ago);
  return text;
}

bool decode(const std::string& text, RankView& view) {
  std::istringstream in(text);
  size_t entries = 0;
  in >> view.rank >> view.host >> view.pid >> view.stopped >> view.dead >> view.step >> view.step_seconds >>
      view.silent_for >> view.overdue_ago >> view.section >> view.section_for >> view.section_allowance >> entries;
  if (!in || entries > RankRecord::kEntries) return false;
  view.history.clear();
  for (size_t i = 0; i < entries; ++i) {
    RankView::Collective entry;
    in >> entry.sequence >> entry.elements >> entry.kind >> entry.group >> entry.began_ago >> entry.waiting_for >>
        entry.ended_ago;
    if (!in) return false;
    view.history.push_back(std::move(entry));
  }
  if (view.section == "-") view.section.clear();
  view.answered = true;
  return true;
}

SharedRecord::SharedRecord() {
  void* memory = MAP_FAILED;
  fd_ = memfd_create("trireme-rank", MFD_CLOEXEC);
  if (fd_ >= 0 && ftruncate(fd_, sizeof(RankRecord)) == 0)
    memory = mmap(nullptr, sizeof(RankRecord), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) {
    // Without shared memory the record still serves this process and ranks that ask over the network.
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    record_ = new RankRecord;
  } else {
    record_ = new (memory) RankRecord;
  }
  std::random_device random;
  record_->token = (uint64_t{random()} << 32) ^ random();
  record_->pid = static_cast<int32_t>(getpid());
}

const RankRecord* map_record(int pid, int fd, uint64_t token) {
  if (fd < 0) return nullptr;
  const int own = open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_RDONLY | O_CLOEXEC);
  if (own < 0) return nullptr;
  const bool whole = lseek(own, 0, SEEK_END) == static_cast<off_t>(sizeof(RankRecord));
  void* memory = whole ? mmap(nullptr, sizeof(RankRecord), PROT_READ, MAP_SHARED, own, 0) : MAP_FAILED;
  close(own);
  if (memory == MAP_FAILED) return nullptr;
  const auto* record = static_cast<const RankRecord*>(memory);
  if (record->token == token) return record;
  munmap(memory, sizeof(RankRecord));
  return nullptr;
}

}  // namespace trireme
