#include "data/prepare/parallel.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecords = ".done";

}  // namespace

void parallel_for(size_t count, unsigned threads, const std::function<void(size_t)>& work) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  size_t failed_index = count;
  std::exception_ptr error;
  const auto run = [&] {
    while (!failed) {
      const size_t i = next++;
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        failed = true;
        if (i < failed_index) {
          failed_index = i;
          error = std::current_exception();
        }
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) workers.emplace_back(run);
    run();
  }
  if (error) std::rethrow_exception(error);
}

PartRecords::PartRecords(const fs::path& directory) : directory_(directory) {
  make_directories(directory / kRecords);
  remove_dead_temporaries(directory);
  remove_dead_temporaries(directory / kRecords);
}

PartRecords::~PartRecords() {
  remove_dead_temporaries(directory_);
  remove_dead_temporaries(directory_ / kRecords);
}

bool PartRecords::is_done(const std::string& name, uint64_t fingerprint) const {
  std::ifstream file(directory_ / kRecords / name);
  std::string recorded;
  uintmax_t size = 0;
  std::error_code error;
  return file >> recorded >> size && recorded == hex64(fingerprint) &&
         fs::file_size(directory_ / name, error) == size && !error;
}

void PartRecords::done(const std::string& name, uint64_t fingerprint, const std::string& note) const {
  write_file_atomic(directory_ / kRecords / name,
                    fmt::format("{} {}\n{}", hex64(fingerprint), fs::file_size(directory_ / name), note));
}

std::string PartRecords::note(const std::string& name) const {
  std::ifstream file(directory_ / kRecords / name);
  std::string line;
  std::getline(file, line);
  std::ostringstream rest;
  rest << file.rdbuf();
  return rest.str();
}

}  // namespace trireme
