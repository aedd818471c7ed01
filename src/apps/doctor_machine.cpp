// Versions, processor, memory, limits, disks.
#include "doctor_checks.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/ops/device.h"
#include "trireme/version.h"

#include <c10/core/DeviceType.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace trireme {

namespace {

using State = DoctorCheck::State;
constexpr double kGibibyte = 1 << 30;

std::string limit_text(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? format_bytes(limit) : format_count(limit);
}

/// A file of whole blocks, removed at the end.
class ProbeFile {
 public:
  explicit ProbeFile(const std::filesystem::path& folder) : path_((folder / ".trireme-doctor-XXXXXX").string()) {
    fd_ = mkstemp(path_.data());
    if (fd_ < 0) problem_ = std::strerror(errno);
    // Beyond a limit of the file's size (ulimit -f) write() then fails, and the signal does not end this process.
    (void)std::signal(SIGXFSZ, SIG_IGN);
  }
  ~ProbeFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(path_.c_str());
  }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  /// Why nothing could be written or read; empty where that works.
  const std::string& problem() const { return problem_; }
  /// Why writing ended early, after written() bytes: a full disk, a quota, a limit. Empty where it did not.
  const std::string& end() const { return end_; }
  double written() const { return static_cast<double>(synced_) * kBlock; }

  /// Bytes a second of writing blocks to the disk, and of reading them from it; 0 where that fails. At most about
  /// `seconds` each.
  double write(double seconds) {
    const double begin = steady_seconds();
    int count = 0;
    for (bool last = false; !last;) {
      int reason = 0;
      if (transfer([&](size_t done) { return ::write(fd_, block_.get() + done, kBlock - done); }))
        ++count;
      else
        reason = errno;
      last = reason != 0 || count == kMostBlocks || steady_seconds() - begin >= seconds;
      if (last || count % 8 == 0) {
        // File systems that allocate late report a full disk or a quota here.
        if (fdatasync(fd_) == 0)
          synced_ = count;
        else
          reason = errno;
      }
      if (reason == 0) continue;
      const bool full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
      (full && synced_ > 0 ? end_ : problem_) = std::strerror(reason);
      last = true;
    }
    return problem_.empty() ? written() / std::max(1e-9, steady_seconds() - begin) : 0;
  }
  double read(double seconds) {
    // Pages that are on the disk already leave the page cache, so that reading goes to the disk.
    (void)posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    const double begin = steady_seconds();
    int count = 0;
    bool works = lseek(fd_, 0, SEEK_SET) == 0;
    while (works && count < synced_ && (count == 0 || steady_seconds() - begin < seconds)) {
      works = transfer([&](size_t done) { return ::read(fd_, block_.get() + done, kBlock - done); });
      ++count;
    }
    if (!works) problem_ = std::strerror(errno);
    return works ? static_cast<double>(count) * kBlock / std::max(1e-9, steady_seconds() - begin) : 0;
  }

 private:
  static constexpr size_t kBlock = 1 << 20;
  static constexpr int kMostBlocks = 256;

  /// Calls `part` until a block is done; false with errno where it fails. A part may end in the block's middle: the
  /// next call reports the reason.
  template <typename Part>
  static bool transfer(Part part) {
    for (size_t done = 0; done < kBlock;) {
      errno = 0;
      const ssize_t bytes = part(done);
      if (bytes > 0)
        done += static_cast<size_t>(bytes);
      else if (errno != EINTR) {
        if (errno == 0) errno = EIO;  // the file ends early
        return false;
      }
    }
    return true;
  }

  std::string path_, problem_, end_;
  int fd_ = -1, synced_ = 0;
  const std::unique_ptr<char[]> block_ = std::make_unique<char[]>(kBlock);
};

DoctorCheck speed_check(const std::filesystem::path& folder) {
  constexpr double kSlow = 100e6, kSeconds = 0.25;
  std::error_code ignored;  // the working directory was removed
  const auto absolute = std::filesystem::absolute(folder, ignored).lexically_normal();
  const std::string where = absolute.empty() ? folder.string() : absolute.string();
  ProbeFile file(folder);
  const double written = file.problem().empty() ? file.write(kSeconds) : 0;
  const double read = file.problem().empty() ? file.read(kSeconds) : 0;
  if (!file.problem().empty())
    return {State::kMissing, "disk", fmt::format("{} cannot be written ({})", where, file.problem()),
            "choose another output.dir, or --folder to look at another one", static_cast<int>(ExitCode::kCannotWrite)};
  DoctorCheck check{State::kOk, "disk",
                    fmt::format("{}: writes {}/s, reads {}/s (one process, {} each)", where, format_bytes(written),
                                format_bytes(read), "a quarter of a second"),
                    "", 0};
  if (!file.end().empty()) {
    check.state = State::kWarning;
    check.value += fmt::format("; {} after {}", file.end(), format_bytes(file.written()));
    check.advice =
        "nothing larger can be saved here: free some space, raise the quota or limit, or choose another folder";
    return check;
  }
  if (written >= kSlow && read >= kSlow) return check;
  check.state = State::kWarning;
  check.advice = "checkpoints and weights take long: a checkpoint of 7 billion parameters has 75 GiB";
  return check;
}

DoctorCheck space_check(const char* name, const std::filesystem::path& folder, double least, const char* advice) {
  struct statvfs disk{};
  if (statvfs(folder.c_str(), &disk) != 0)
    return {State::kMissing, name, fmt::format("{}: {}", folder.string(), std::strerror(errno)), advice, 0};
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  const double size = static_cast<double>(disk.f_blocks) * static_cast<double>(disk.f_frsize);
  const bool enough = free >= least;
  return {enough ? State::kOk : State::kWarning, name,
          fmt::format("{} free of {}", format_bytes(free), format_bytes(size)), enough ? "" : advice, 0};
}

DoctorCheck limit_check(const char* name, int resource, rlim_t least, bool bytes, const char* advice) {
  rlimit limit{};
  (void)getrlimit(resource, &limit);
  const bool enough = limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= least;
  return {enough ? State::kOk : State::kWarning, name,
          fmt::format("{} (up to {})", limit_text(limit.rlim_cur, bytes), limit_text(limit.rlim_max, bytes)),
          enough ? "" : advice, 0};
}

}  // namespace

std::vector<DoctorCheck> machine_checks() {
  constexpr rlim_t kOpenFiles = 4096;
  constexpr double kLeastMemory = 2 * kGibibyte;
  const UsableCores cores = usable_cores();
  std::string processor =
      fmt::format("{}, {}", describe_device(at::kCPU, at::kFloat, 1).name, counted(cores.online, "core"));
  if (cores.bound < cores.online) processor += fmt::format(", {} of them for this process", cores.bound);
  if (std::isfinite(cores.quota)) processor += fmt::format(", the container's quota is {:.1f}", cores.quota);
  const HostMemory memory = host_memory();
  const auto available = static_cast<double>(memory.available);
  const bool enough = available >= kLeastMemory;
  return {{State::kOk, "Trireme", fmt::format("{} ({})", kVersion, kCommit), "", 0},
          {State::kOk, "LibTorch", TORCH_VERSION, "", 0},
          {State::kOk, "processor", processor, "", 0},
          {enough ? State::kOk : State::kWarning, "memory",
           fmt::format("{} free of {}", format_bytes(available), format_bytes(memory.total)),
           enough ? "" : "only tiny models fit: end other programs, or take a larger machine", 0},
          limit_check("open files", RLIMIT_NOFILE, kOpenFiles, false,
                      "many ranks and shards need more: ulimit -n 65536, or LimitNOFILE of the service"),
          limit_check("locked memory", RLIMIT_MEMLOCK, rlim_t{1} << 30, true,
                      "InfiniBand and EFA register memory: ulimit -l unlimited, or LimitMEMLOCK=infinity of slurmd")};
}

std::vector<DoctorCheck> disk_checks(const std::filesystem::path& folder) {
  return {
      speed_check(folder),
      space_check("free disk", folder, 20 * kGibibyte, "checkpoints need 12 bytes a trained parameter, and the model"),
      space_check("shared memory", "/dev/shm", 0.5 * kGibibyte,
                  "NCCL and MPI of one host use /dev/shm: --shm-size=8g or --ipc=host for a container")};
}

}  // namespace trireme
