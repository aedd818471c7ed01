// Where the sockets of a job listen: on the job's interface, on no other address of the machine.
#include "trireme/comm/sockets.h"

#include "../base/base_testing.h"
#include "key_server.h"
#include "key_store.h"
#include "trireme/base/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace trireme {
namespace {

bool reachable(const std::string& address, int port) {
  const int fd = connect_to_address(address, port, 2);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

class ListenerTest : public testing::Test {
 protected:
  void SetUp() override { unsetenv("TRIREME_LISTEN"); }
  void TearDown() override { unsetenv("TRIREME_LISTEN"); }
  /// Without IPv6 in the kernel there is no ::1.
  static bool has_six() { return reachable_six_; }
  static inline const bool reachable_six_ = [] {
    try {
      close(listen_at("::1", 0, 1).fd);
      return true;
    } catch (const std::runtime_error&) {
      return false;
    }
  }();
};

TEST_F(ListenerTest, OneAddressIsNotAnother) {
  const Listener listener = listen_at("127.0.0.1", 0, 4);
  EXPECT_TRUE(reachable("127.0.0.1", listener.port));
  EXPECT_FALSE(reachable("127.0.0.2", listener.port));
  for (const std::string& address : own_addresses()) EXPECT_FALSE(reachable(address, listener.port)) << address;
  close(listener.fd);
}

TEST_F(ListenerTest, TheRendezvousListensAtItsAddressAlone) {
  const KeyServer server("127.0.0.2", 0, "test");
  EXPECT_EQ(server.address(), "127.0.0.2");
  EXPECT_TRUE(reachable("127.0.0.2", server.port()));
  EXPECT_FALSE(reachable("127.0.0.1", server.port()));
  for (const std::string& address : own_addresses()) EXPECT_FALSE(reachable(address, server.port())) << address;
}

TEST_F(ListenerTest, TheRendezvousListensOnEachInterfaceOfThisMachine) {
  for (const std::string& address : own_addresses()) {
    const KeyServer server(address, 0, "test");
    EXPECT_TRUE(reachable(address, server.port())) << address;
    EXPECT_FALSE(reachable("127.0.0.1", server.port())) << address;
    const auto store = connect_key_store(address, server.port(), "test", 0, 1, 10);
    EXPECT_EQ(store->local_address(), address);
  }
}

TEST_F(ListenerTest, AnIPv6AddressServesIPv6Alone) {
  if (!has_six()) GTEST_SKIP() << "this machine has no ::1";
  const KeyServer server("::1", 0, "test");
  EXPECT_TRUE(reachable("::1", server.port()));
  EXPECT_FALSE(reachable("127.0.0.1", server.port()));
  const auto store = connect_key_store("::1", server.port(), "test", 0, 1, 10);
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->local_address(), "::1");
}

/// Debian's installer writes the host's own name to /etc/hosts as 127.0.1.1; other hosts resolve it to another address.
TEST_F(ListenerTest, ANameOfTheLoopbackAddressServesBothSides) {
  const std::vector<std::string> own = own_addresses();
  std::unique_ptr<KeyServer> server;
  try {
    server = std::make_unique<KeyServer>(host_name(), 0, "test");
  } catch (const std::runtime_error& error) {
    GTEST_SKIP() << host_name() << " does not resolve to an address of this machine: " << error.what();
  }
  if (!is_loopback_address(server->address()) || own.empty())
    GTEST_SKIP() << "the name of this machine is not one of its loopback address";
  EXPECT_TRUE(reachable(server->address(), server->port()));
  EXPECT_EQ(std::count_if(own.begin(), own.end(), [&](const auto& at) { return reachable(at, server->port()); }), 1);
  EXPECT_FALSE(reachable("127.0.0.2", server->port()));
}

TEST_F(ListenerTest, AnAddressOfAnotherMachineIsRefused) {
  const std::string text = message_of<std::runtime_error>([] { const KeyServer server("198.51.100.7", 0, "test"); });
  EXPECT_TRUE(contains(text, "198.51.100.7 is no address of " + host_name()));
  EXPECT_TRUE(contains(text, "TRIREME_LISTEN=all"));
}

TEST_F(ListenerTest, TheOverrideChoosesTheInterface) {
  setenv("TRIREME_LISTEN", "all", 1);
  {
    const KeyServer server("198.51.100.7", 0, "test");
    for (const char* address : {"127.0.0.1", "127.0.0.2"}) EXPECT_TRUE(reachable(address, server.port())) << address;
    for (const std::string& address : own_addresses()) EXPECT_TRUE(reachable(address, server.port())) << address;
    if (has_six()) {
      EXPECT_TRUE(reachable("::1", server.port()));
    }
  }
  setenv("TRIREME_LISTEN", "lo", 1);
  {
    const KeyServer server("198.51.100.7", 0, "test");
    EXPECT_EQ(server.address(), "127.0.0.1");
    EXPECT_FALSE(reachable("127.0.0.2", server.port()));
  }
  setenv("TRIREME_LISTEN", "ib7", 1);
  const std::string text = message_of<ConfigError>(listen_override);
  EXPECT_TRUE(contains(text, "TRIREME_LISTEN='ib7' is no interface or address of"));
  EXPECT_TRUE(contains(text, "lo (127.0.0.1)"));
}

TEST_F(ListenerTest, ATakenPortIsNamed) {
  const Listener listener = listen_at("127.0.0.1", 0, 4);
  EXPECT_THROW(listen_at("127.0.0.1", listener.port, 4), std::runtime_error);
  EXPECT_THROW(KeyServer("127.0.0.1", listener.port, "test"), std::runtime_error);
  close(listener.fd);
}

TEST_F(ListenerTest, RoutesNameTheOwnAddress) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(address_towards("node1"), "");
  for (const std::string& address : own_addresses()) EXPECT_EQ(address_towards(address), address);
}

}  // namespace
}  // namespace trireme
