#include "trireme/base/stack.h"

#include "base_testing.h"
#include "trireme/base/file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

namespace trireme {
namespace {

// Handlers belong to a process: every case runs in a child.
class StackDeathTest : public testing::Test {
 protected:
  StackDeathTest() { GTEST_FLAG_SET(death_test_style, "fast"); }
};

[[gnu::noinline]] void write_where_nothing_is() {
  auto* page = static_cast<volatile int*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  *page = 1;
}

[[gnu::noinline]] int run_over(int depth) {
  volatile char room[4096];
  room[depth % 4096] = 1;
  return depth > 1 << 30 ? 0 : run_over(depth + 1) + room[depth % 4096];
}

TEST_F(StackDeathTest, AFaultEndsTheProcessBySignalWithSentenceAndStack) {
  EXPECT_EXIT(
      {
        install_stack_handlers();
        set_stack_speaker("rank 3 on node7");
        write_where_nothing_is();
      },
      testing::KilledBySignal(SIGSEGV),
      "rank 3 on node7: ended by SIGSEGV at address 0x[0-9a-f]+; a bug.*\n.*\\[0x[0-9a-f]+\\]");
  EXPECT_EXIT(
      {
        install_stack_handlers();
        std::abort();
      },
      testing::KilledBySignal(SIGABRT), "this process: ended by SIGABRT; a bug");
}

TEST_F(StackDeathTest, AMappedFileThatBecameShorterIsNamed) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.write("becomes_shorter", std::string(1 << 20, 'x'));
  EXPECT_EXIT(
      {
        install_stack_handlers();
        set_stack_speaker("rank 3 on node7");
        const MappedFile other(path, ExitCode::kModel);
        MappedFile first(path, ExitCode::kData);
        const MappedFile file = std::move(first);
        std::filesystem::resize_file(path, 100);
        std::exit(std::to_integer<int>(file.bytes()[1 << 19]));
      },
      testing::ExitedWithCode(3), "rank 3 on node7: cannot read .*becomes_shorter any more: it became shorter");
}

TEST_F(StackDeathTest, AStackThatRanOverIsToldOf) {
  EXPECT_EXIT(
      {
        install_stack_handlers();
        std::exit(run_over(0));
      },
      testing::KilledBySignal(SIGSEGV), "ended by SIGSEGV at address");
}

TEST_F(StackDeathTest, AnotherHandlerStays) {
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, [](int) { _exit(7); });
        install_stack_handlers();
        (void)raise(SIGSEGV);
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(StackDeathTest, TheTrainingThreadShowsWhereItIsAndGoesOn) {
  EXPECT_EXIT(
      {
        install_stack_handlers();
        std::atomic<int> state{0};
        std::string first;
        std::string second;
        std::thread asks([&] {
          while (state == 0) std::this_thread::yield();
          first = training_stack(5);
          second = training_stack(5);
          state = 2;
        });
        state = 1;
        while (state != 2) std::this_thread::yield();
        asks.join();
        // The stack contains libc's sched_yield or the test's own frames. Asked twice; the thread continues in between.
        const bool good =
            first.find("  #0 ") == 0 && second.find("  #0 ") == 0 && first.find("main") != std::string::npos;
        std::exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(StackDeathTest, AThreadThatCannotAnswerIsNotWaitedFor) {
  EXPECT_EXIT(
      {
        install_stack_handlers();
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        std::string stack = "none asked";
        std::thread([&] { stack = training_stack(0.1); }).join();
        std::exit(stack.empty() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace trireme
