#include "trireme/base/stack.h"

#include "trireme/base/file.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>

namespace trireme {

namespace {

constexpr int kMaxFrames = 64;
constexpr int kFatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

char g_speaker[101] = "this process";
pthread_t g_training_thread;
bool g_installed = false;

// Written by the training thread's handler, read by training_stack(). Atomic: the late answer to an earlier request may
// come while a stack is read, and mixes the two.
std::atomic<void*> g_frames[kMaxFrames];
std::atomic<int> g_num_frames{0};
sem_t g_answered;

/// A signal that MPI, NCCL, CUDA and profilers do not use.
int ask_signal() { return SIGRTMIN + 7; }

// --- async-signal-safe: nothing here allocates or locks --------------------------------------------

void say(const char* text) {
  for (size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = write(STDERR_FILENO, text, left);
    if (written <= 0) return;
    text += written;
    left -= static_cast<size_t>(written);
  }
}

void say_hexadecimal(uintptr_t value) {
  char text[2 + 2 * sizeof value + 1];
  char* at = text + sizeof text - 1;
  *at = '\0';
  do *--at = "0123456789abcdef"[value % 16];
  while ((value /= 16) != 0);
  *--at = 'x';
  *--at = '0';
  say(at);
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGILL: return "SIGILL";
    case SIGFPE: return "SIGFPE";
    case SIGABRT: return "SIGABRT";
    default: return "a signal";
  }
}

void on_fatal_signal(int signal, siginfo_t* info, void*) {
  // SA_RESETHAND has restored the default action: a second fault, here or in another thread, ends the process at once.
  const MappedPlace file = signal == SIGBUS && info->si_code > 0 ? mapped_place(info->si_addr) : MappedPlace();
  if (file.path != nullptr) {
    say(g_speaker);
    say(": cannot read ");
    say(file.path);
    say(" any more: it became shorter, or its storage fails. Put it back, and run again\n");
    _exit(file.exit_code);
  }
  say(g_speaker);
  say(": ended by ");
  say(signal_name(signal));
  if (signal != SIGABRT && info->si_code > 0) {
    say(" at address ");
    say_hexadecimal(reinterpret_cast<uintptr_t>(info->si_addr));
  }
  say("; a bug: report it with the stack that follows (c++filt reads it)\n");
  void* frames[kMaxFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kMaxFrames), STDERR_FILENO);
  (void)raise(signal);  // delivered when this handler returns
}

void on_asked(int) {
  const int saved = errno;
  void* frames[kMaxFrames];
  const int count = backtrace(frames, kMaxFrames);
  std::copy_n(frames, count, g_frames);
  g_num_frames = count;
  (void)sem_post(&g_answered);
  errno = saved;
}

// ------------------------------------------------------------------------------------------------

std::string frame_text(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return fmt::format("{}", address);
  const char* slash = info.dli_fname == nullptr ? nullptr : std::strrchr(info.dli_fname, '/');
  const std::string file = slash != nullptr ? slash + 1 : info.dli_fname != nullptr ? info.dli_fname : "?";
  const auto offset = [&](void* from) { return static_cast<char*>(address) - static_cast<char*>(from); };
  if (info.dli_sname == nullptr) return fmt::format("{} + {:#x}", file, offset(info.dli_fbase));
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status),
                                                        std::free);
  return fmt::format("{} + {:#x} ({})", status == 0 ? readable.get() : info.dli_sname, offset(info.dli_saddr), file);
}

}  // namespace

void install_stack_handlers() {
  g_training_thread = pthread_self();
  if (g_installed) return;
  g_installed = true;
  (void)sem_init(&g_answered, 0, 0);
  // The first call of backtrace() loads the unwinder's library, which is not allowed in a handler.
  void* frame = nullptr;
  (void)backtrace(&frame, 1);

  // After a stack overflow the handler needs a separate stack.
  static char room[64 << 10];
  stack_t alternative{};
  alternative.ss_sp = room;
  alternative.ss_size = sizeof room;
  (void)sigaltstack(&alternative, nullptr);

  for (const int signal : kFatal) {
    struct sigaction before{};
    if (sigaction(signal, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL)
      continue;
    struct sigaction action{};
    action.sa_sigaction = on_fatal_signal;
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND);
    (void)sigaction(signal, &action, nullptr);
  }
  struct sigaction action{};
  action.sa_handler = on_asked;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  (void)sigaction(ask_signal(), &action, nullptr);
}

void set_stack_speaker(const std::string& speaker) {
  const size_t size = std::min(speaker.size(), sizeof g_speaker - 1);
  std::memcpy(g_speaker, speaker.data(), size);
  g_speaker[size] = '\0';
}

std::string training_stack(double seconds) {
  if (!g_installed || pthread_equal(pthread_self(), g_training_thread) != 0) return "";
  while (sem_trywait(&g_answered) == 0) continue;  // the late answer to an earlier request
  if (pthread_kill(g_training_thread, ask_signal()) != 0) return "";
  timespec until{};
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  const auto nanoseconds = until.tv_nsec + static_cast<int64_t>(seconds * 1e9);
  until.tv_sec += nanoseconds / 1'000'000'000;
  until.tv_nsec = nanoseconds % 1'000'000'000;
  while (sem_clockwait(&g_answered, CLOCK_MONOTONIC, &until) != 0)
    if (errno != EINTR) return "";
  std::string text;
  // Skips the handler and the frame that calls it.
  for (int i = 2; i < g_num_frames; ++i) text += fmt::format("  #{} {}\n", i - 2, frame_text(g_frames[i]));
  return text;
}

}  // namespace trireme
