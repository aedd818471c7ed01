#pragma once
// TCP sockets between ranks: where this machine listens, connections with time limits, whole messages. Addresses are
// numeric texts, IPv4 or IPv6.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct Listener {
  int fd = -1;  // non-blocking; the caller closes it
  int port = 0;
};
/// Listens only on `address`; "" is every address of both families. `port` 0: any. std::runtime_error with the reason
/// of the system.
Listener listen_at(const std::string& address, int port, int backlog);

/// Connects to `address` within `seconds`, which are also the limit of every later send and receive. -1: no connection,
/// for the reason in `why`.
int connect_to_address(const std::string& address, int port, double seconds, std::string* why = nullptr);
/// Time limit in seconds of every later send, receive and connect; 0: none.
void set_timeouts(int fd, double seconds);
/// Undoes SOCK_NONBLOCK.
void make_blocking(int fd);
/// Messages are sent without delay, and a host that vanishes without closing the connection is noticed after a minute.
void keep_alive(int fd);
/// Whether the whole message was sent or received. On failure errno is set; it is 0 if the other end has closed the
/// connection.
bool send_all(int fd, const void* data, size_t size);
bool receive_all(int fd, void* data, size_t size);

/// The addresses to which this machine resolves the name of a host; on failure empty, with the reason in `why`.
std::vector<std::string> addresses_of(const std::string& host, std::string* why = nullptr);
bool is_numeric_address(const std::string& text);
bool is_loopback_address(const std::string& address);
/// The address of this end of a connection.
std::string local_address(int fd);

struct InterfaceAddress {
  std::string interface, address;
  bool loopback = false;
};
/// Of interfaces that are up, without link-local addresses; IPv4 first.
std::vector<InterfaceAddress> interface_addresses();
/// Addresses under which other hosts may reach this host: those without loopback.
std::vector<std::string> own_addresses();
/// The address from which the kernel's routes let this host reach `other`; "" when there is no route. Sends nothing.
std::string address_towards(const std::string& other);

/// TRIREME_LISTEN: where the sockets of this process listen instead of the job's interface; "" for `all`.
/// ConfigError when its value is neither `all` nor an address or interface of this machine.
std::optional<std::string> listen_override();

}  // namespace trireme
