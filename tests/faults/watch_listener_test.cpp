// Which addresses the watch listens on.
#include "rank_watch.h"
#include "trireme/comm/sockets.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace trireme {
namespace {

// A watch in this process would leave its record to the processes of later tests: these two run in one of their own.
[[noreturn]] void end_with_failures() { _exit(testing::Test::HasFailure() ? 1 : 0); }

void expect_loopback_alone() {
  int port = 0;
  const auto alone = [&port](const std::string& text) {
    std::istringstream in(text);
    std::string host;
    int pid = 0, fd = 0;
    uint64_t token = 0;
    if (in >> host >> pid >> fd >> token) in >> port;
    return std::vector<std::string>{text};
  };
  RankWatch watch(0, 1, alone, {});
  const auto reachable = [&port](const std::string& address) {
    const int fd = connect_to_address(address, port, 2);
    if (fd >= 0) close(fd);
    return fd >= 0;
  };
  EXPECT_TRUE(reachable("127.0.0.1"));
  EXPECT_FALSE(reachable("127.0.0.2"));
  for (const std::string& address : own_addresses()) EXPECT_FALSE(reachable(address)) << address;
  watch.leave();
}

void expect_address_towards_others() {
  const std::vector<std::string> own = own_addresses();
  std::string introduction;
  const auto with_another = [&introduction](const std::string& text) {
    introduction = text;
    const bool place = std::count(text.begin(), text.end(), ' ') < 4 || text.find("net:[") != std::string::npos;
    return std::vector<std::string>{text, place ? "another_host 198.51.100.1" : "another-host 1 -1 0 9"};
  };
  const RankWatch watch(0, 2, with_another, {});
  EXPECT_FALSE(watch.connected());
  // Host, process, descriptor and token; the port of the loopback address; then the other address with its port.
  std::istringstream in(introduction);
  std::string word, address;
  int loopback_port = 0, port = 0;
  for (int i = 0; i < 4; ++i) in >> word;
  in >> loopback_port >> address >> port;
  EXPECT_EQ(address, address_towards("198.51.100.1"));
  for (const std::string& other : own) {
    const int fd = connect_to_address(other, port, 2);
    EXPECT_EQ(fd >= 0, other == address) << other;
    if (fd >= 0) close(fd);
  }
}

TEST(RankWatch, ListensForItsHostAtTheLoopbackAddressAlone) {
  EXPECT_EXIT(
      {
        expect_loopback_alone();
        end_with_failures();
      },
      testing::ExitedWithCode(0), "");
}

TEST(RankWatch, ListensForOtherHostsAtTheAddressTowardsThem) {
  if (address_towards("198.51.100.1").empty()) GTEST_SKIP() << "this machine has no network";
  EXPECT_EXIT(
      {
        expect_address_towards_others();
        end_with_failures();
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace trireme
