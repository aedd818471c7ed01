#include "trireme/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

namespace trireme {

namespace {

bool lies_under(const std::filesystem::path& path, const std::filesystem::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

/// One file that is mapped. `begin` is set last and cleared first: a signal's handler reads the table.
struct MappedSlot {
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<bool> taken{false};
  size_t size = 0;
  int exit_code = 0;
  char path[512] = "";
};
MappedSlot g_mapped[1024];

int take_slot(const std::byte* begin, size_t size, const std::string& path, ExitCode code) {
  for (MappedSlot& slot : g_mapped) {
    if (slot.taken.exchange(true)) continue;
    slot.size = size;
    slot.exit_code = static_cast<int>(code);
    slot.path[path.copy(slot.path, sizeof slot.path - 1)] = '\0';
    slot.begin = begin;
    return static_cast<int>(&slot - g_mapped);
  }
  return -1;
}

}  // namespace

bool is_storage_failure(int error) {
  constexpr int kNoSuchFile[] = {0, ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG, EINVAL, ENXIO, ENODEV, ENOTSUP};
  return std::ranges::find(kNoSuchFile, error) == std::end(kNoSuchFile);
}

void read_failed(ExitCode code, const char* what, const std::filesystem::path& path, int error) {
  const std::string text = fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error));
  if (is_storage_failure(error)) throw StorageError(code, text);
  throw Error(code, text);
}

MappedPlace mapped_place(const void* address) {
  for (const MappedSlot& slot : g_mapped) {
    const std::byte* begin = slot.begin;
    if (begin != nullptr && address >= begin && address < begin + slot.size) return {slot.path, slot.exit_code};
  }
  return {};
}

MappedFile::MappedFile(const std::filesystem::path& path, ExitCode code) : path_(path) {
  // O_NONBLOCK: open() of a FIFO would block the run otherwise.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) read_failed(code, "open", path, errno);
  struct stat info{};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    read_failed(code, "read", path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    const std::string why = S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file";
    close(fd);
    throw Error(code, fmt::format("cannot read {}: {}", path.string(), why));
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    const int error = errno;
    close(fd);
    if (mapped == MAP_FAILED) read_failed(code, "map", path, error);
    data_ = static_cast<const std::byte*>(mapped);
    if (std::string_view(static_cast<const char*>(mapped), std::min<size_t>(size_, 64))
            .starts_with("version https://git-lfs")) {
      munmap(mapped, size_);
      throw Error(
          code, fmt::format("{} is a Git LFS pointer, not the file itself: fetch it with git lfs pull", path.string()));
    }
    slot_ = take_slot(data_, size_, path.string(), code);
  } else {
    close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  if (slot_ >= 0) {
    g_mapped[slot_].begin = nullptr;
    g_mapped[slot_].taken = false;
  }
  munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      slot_(std::exchange(other.slot_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(slot_, other.slot_);
  return *this;
}

std::string read_text_file(const std::filesystem::path& path, ExitCode code, size_t max_bytes) {
  const MappedFile file(path, code);
  const std::string_view text = file.text();
  if (text.size() > max_bytes)
    throw Error(code, fmt::format("{} has {} bytes, more than the {} that such a file may have", path.string(),
                                  text.size(), max_bytes));
  return std::string(text);
}

std::string file_head(const std::filesystem::path& path, size_t most) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";
  std::string head(most, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), static_cast<std::streamsize>(most));
  head.resize(static_cast<size_t>(file.gcount()));
  return head;
}

void AtomicFile::write(const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = pwrite(file_.descriptor(), bytes, size, static_cast<off_t>(size_));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) write_failed("write to", file_.target());
    bytes += written;
    size -= static_cast<size_t>(written);
    size_ += static_cast<uint64_t>(written);
  }
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void make_directories(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path))
    throw WriteError(fmt::format("cannot create directory {}: {}", path.string(),
                                 error ? error.message() : "a file of this name exists"));
}

std::vector<std::filesystem::path> files_of(const std::vector<std::filesystem::path>& inputs, std::string_view prefix,
                                            std::string_view suffix, const std::string& expected) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& input : inputs) {
    std::error_code error;
    if (!std::filesystem::is_directory(input, error)) {
      files.push_back(input);
      continue;
    }
    const size_t before = files.size();
    std::filesystem::directory_iterator entry(input, error);
    for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with(prefix) && name.ends_with(suffix) && name.find(".tmp-") == std::string::npos &&
          !std::filesystem::is_directory(entry->path()))
        files.push_back(entry->path());
    }
    if (error) throw DataError(fmt::format("{} cannot be listed: {}", input.string(), error.message()));
    if (files.size() == before)
      throw DataError(fmt::format("{} holds no files named {}*{}{}", input.string(), prefix, suffix, expected));
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return std::pair(a.filename(), a) < std::pair(b.filename(), b); });
  return files;
}

std::filesystem::path tidy_path(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path normal = path.lexically_normal();
  const bool same =
      std::filesystem::weakly_canonical(path, error) == std::filesystem::weakly_canonical(normal, error) && !error;
  return same ? normal : path;
}

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto whole = [](std::filesystem::path path) {
    constexpr int kMostLinks = 40;
    std::error_code error;
    if (path.empty()) return path;
    // Absolute first: of a relative path whose first part is not there, weakly_canonical() makes none. It does not
    // follow a link to a file that is not there yet.
    path = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
    for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i)
      path = std::filesystem::weakly_canonical(path.parent_path() / std::filesystem::read_symlink(path, error), error);
    return path;
  };
  const std::filesystem::path one = whole(a);
  return !one.empty() && one == whole(b);
}

std::filesystem::path safe_join(const std::filesystem::path& root, std::string_view relative, ExitCode code) {
  constexpr size_t kMaxPath = 4096;
  const auto refuse = [&](const char* why) {
    const std::string shown(relative.substr(0, 100));
    throw Error(code, fmt::format("file name '{}' inside {} is refused: {}", shown.c_str(), root.string(), why));
  };
  if (relative.empty()) refuse("it is empty");
  if (relative.size() > kMaxPath) refuse("it is longer than 4096 bytes");
  if (relative.find('\0') != std::string_view::npos) refuse("it holds a NUL byte");
  const std::filesystem::path name(relative);
  if (name.is_absolute()) refuse("it is an absolute path");
  std::error_code error;
  const std::filesystem::path real_root = std::filesystem::weakly_canonical(root, error);
  const std::filesystem::path real_target = std::filesystem::weakly_canonical(root / name, error);
  if (error) refuse("its links cannot be followed");
  if (lies_under(real_target, real_root)) return tidy_path(root / name);
  // Hugging Face's cache: models--X/snapshots/<revision>/name links to models--X/blobs/<hash>.
  const std::filesystem::path snapshots = real_root.parent_path();
  const bool hugging_face_cache =
      snapshots.filename() == "snapshots" && lies_under(real_target, snapshots.parent_path() / "blobs");
  if (!hugging_face_cache) {
    const std::filesystem::path normal = name.lexically_normal();
    refuse(normal.begin() != normal.end() && *normal.begin() == ".." ? "it leads out of the directory"
                                                                     : "a symbolic link leads out of the directory");
  }
  return tidy_path(root / name);
}

}  // namespace trireme
