#include "progress_ring.h"

#include "trireme/base/time.h"

#include <algorithm>
#include <cstdio>

namespace trireme {

namespace {

constexpr size_t kStepTimesKept = 32;

template <size_t N>
void put(char (&target)[N], const char* text) {
  std::snprintf(target, N, "%s", text);
}

}  // namespace

class ProgressRing::Writing {
 public:
  explicit Writing(ProgressRing& ring) : lock_(ring.mutex_), version_(ring.shared_.record().version) {
    version_.fetch_add(1, std::memory_order_acq_rel);
  }
  ~Writing() { version_.fetch_add(1, std::memory_order_release); }

 private:
  std::lock_guard<std::mutex> lock_;
  std::atomic<uint32_t>& version_;
};

ProgressRing& ProgressRing::instance() {
  static auto* ring = new ProgressRing;  // never destroyed: other threads use it until the process ends
  return *ring;
}

ProgressRing::ProgressRing() = default;

CollectiveEntry* ProgressRing::find(uint64_t sequence) {
  CollectiveEntry& entry = shared_.record().entries[sequence % kEntries];
  return entry.sequence == sequence ? &entry : nullptr;
}

uint64_t ProgressRing::begin(const char* kind, int64_t elements, const char* group) {
  const Writing writing(*this);
  RankRecord& record = shared_.record();
  CollectiveEntry& entry = record.entries[record.next % kEntries];
  entry = {};
  entry.sequence = record.next;
  entry.elements = elements;
  entry.began = steady_seconds();
  put(entry.kind, kind);
  put(entry.group, group);
  return record.next++;
}

void ProgressRing::wait(uint64_t sequence) {
  const Writing writing(*this);
  if (CollectiveEntry* entry = find(sequence)) entry->waited = steady_seconds();
}

void ProgressRing::resume(uint64_t sequence) {
  const Writing writing(*this);
  CollectiveEntry* entry = find(sequence);
  if (entry == nullptr || entry->ended > 0 || entry->waited == 0) return;
  blocked_ += steady_seconds() - entry->waited;
  entry->waited = 0;
}

void ProgressRing::end(uint64_t sequence) {
  const Writing writing(*this);
  CollectiveEntry* entry = find(sequence);
  if (entry == nullptr || entry->ended > 0) return;
  entry->ended = steady_seconds();
  if (entry->waited > 0) blocked_ += entry->ended - entry->waited;
}

double ProgressRing::longest_wait() {
  const std::lock_guard lock(mutex_);
  double longest = 0;
  const double now = steady_seconds();
  for (const CollectiveEntry& entry : shared_.record().entries)
    if (entry.waited > 0 && entry.ended == 0) longest = std::max(longest, now - entry.waited);
  return longest;
}

RankView ProgressRing::view() {
  const std::lock_guard lock(mutex_);
  return view_of(shared_.record(), steady_seconds());
}

void ProgressRing::set_rank(int rank) {
  const Writing writing(*this);
  shared_.record().rank = rank;
}

void ProgressRing::begin_step(int64_t step) {
  const Writing writing(*this);
  RankRecord& record = shared_.record();
  const double now = steady_seconds();
  if (record.step > 0 && step == record.step + 1) {
    step_times_.push_back(now - step_began_);
    if (step_times_.size() > kStepTimesKept) step_times_.pop_front();
    std::vector<double> sorted(step_times_.begin(), step_times_.end());
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<long>(sorted.size() / 2), sorted.end());
    record.step_seconds = sorted[sorted.size() / 2];
  }
  record.step = step;
  step_began_ = now;
}

void ProgressRing::set_section(const char* name, double began, double allowance) {
  const Writing writing(*this);
  RankRecord& record = shared_.record();
  section_ = {name, began, allowance};
  put(record.section, name);
  record.section_began = began;
  record.section_allowance = allowance;
}

ProgressRing::Section ProgressRing::section() {
  const std::lock_guard lock(mutex_);
  return section_;
}

void ProgressRing::beat() {
  const Writing writing(*this);
  shared_.record().heartbeat = steady_seconds();
}

void ProgressRing::set_overdue(bool overdue) { shared_.record().overdue = overdue ? steady_seconds() : 0; }

void ProgressRing::add_section_time(const char* name, double seconds) {
  const std::lock_guard lock(mutex_);
  section_times_[name] += seconds;
}

std::vector<SectionTime> ProgressRing::take_section_times() {
  const std::lock_guard lock(mutex_);
  std::vector<SectionTime> times;
  for (const auto& [name, seconds] : section_times_) times.push_back({name, seconds});
  section_times_.clear();
  return times;
}

double ProgressRing::blocked_seconds() {
  const std::lock_guard lock(mutex_);
  return blocked_;
}

// --- called by the training thread ---------------------------------------------------------------

void begin_progress_step(int64_t step) { ProgressRing::instance().begin_step(step); }

ProgressSection::ProgressSection(SectionName name, double allowance_seconds) {
  ProgressRing& ring = ProgressRing::instance();
  const auto outer = ring.section();
  previous_ = outer.name;
  previous_began_ = outer.began;
  previous_allowance_ = outer.allowance;
  began_ = steady_seconds();
  blocked_ = ring.blocked_seconds();
  ring.set_section(name.text, began_, allowance_seconds);
}

ProgressSection::~ProgressSection() {
  ProgressRing& ring = ProgressRing::instance();
  ring.add_section_time(ring.section().name, steady_seconds() - began_ - (ring.blocked_seconds() - blocked_));
  ring.set_section(previous_, previous_began_, previous_allowance_);
}

std::vector<SectionTime> take_section_times() { return ProgressRing::instance().take_section_times(); }

}  // namespace trireme
