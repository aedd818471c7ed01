#include "trireme/comm/sockets.h"

#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace trireme {

namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;  // 0: the text is no address

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

SocketAddress parse_address(const std::string& text, int port) {
  SocketAddress address;
  sockaddr_in four{};
  sockaddr_in6 six{};
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&address.storage, &four, address.size = sizeof four);
  } else if (inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&address.storage, &six, address.size = sizeof six);
  }
  return address;
}

/// "" for other families. An IPv4 address of a socket of both families is written as IPv4.
std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    sockaddr_in four;
    std::memcpy(&four, address, sizeof four);
    return inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
  }
  if (address->sa_family != AF_INET6) return "";
  sockaddr_in6 six;
  std::memcpy(&six, address, sizeof six);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr))
    return inet_ntop(AF_INET, &six.sin6_addr.s6_addr[12], text.data(), text.size());
  return inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family || (at->ifa_flags & IFF_UP) == 0) continue;
      sockaddr_in6 six{};
      if (family == AF_INET6) std::memcpy(&six, at->ifa_addr, sizeof six);
      // A link-local address means nothing without the interface's number on the host that connects.
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr)) continue;
      found.push_back({at->ifa_name, address_text(at->ifa_addr), (at->ifa_flags & IFF_LOOPBACK) != 0});
    }
  freeifaddrs(list);
  return found;
}

namespace {

int bound_socket(SocketAddress address, bool both_families) {
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1, only_six = both_families ? 0 : 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_six, sizeof only_six);
  if (bind(fd, address.get(), address.size) == 0) return fd;
  const int reason = errno;
  close(fd);
  errno = reason;
  return -1;
}

std::string local_name(int fd, int* port) {
  SocketAddress own;
  own.size = sizeof own.storage;
  if (getsockname(fd, own.get(), &own.size) != 0) return "";
  if (port != nullptr)
    *port = ntohs(own.family() == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own.storage)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&own.storage)->sin_port);
  return address_text(own.get());
}

}  // namespace

Listener listen_at(const std::string& address, int port, int backlog) {
  Listener listener;
  listener.fd = bound_socket(parse_address(address.empty() ? "::" : address, port), address.empty());
  // A kernel without IPv6.
  if (listener.fd < 0 && address.empty() && errno != EADDRINUSE)
    listener.fd = bound_socket(parse_address("0.0.0.0", port), false);
  if (listener.fd < 0) throw std::runtime_error(std::strerror(errno));
  // Two sockets can share an address until one of them listens.
  if (listen(listener.fd, backlog) != 0) {
    const int reason = errno;
    close(listener.fd);
    throw std::runtime_error(std::strerror(reason));
  }
  (void)local_name(listener.fd, &listener.port);
  return listener;
}

void set_timeouts(int fd, double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  const timeval time{whole, static_cast<suseconds_t>((seconds - static_cast<double>(whole)) * 1e6)};
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);  // Linux applies it to connect() as well
}

int connect_to_address(const std::string& address, int port, double seconds, std::string* why) {
  SocketAddress to = parse_address(address, port);
  errno = EADDRNOTAVAIL;
  const int fd = to.size == 0 ? -1 : socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    set_timeouts(fd, std::max(seconds, 0.001));  // 0 would be no limit
    if (connect(fd, to.get(), to.size) == 0) return fd;
  }
  if (why != nullptr) *why = errno == EINPROGRESS ? "no answer to the connection" : std::strerror(errno);
  if (fd >= 0) close(fd);
  return -1;
}

void make_blocking(int fd) { (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

void keep_alive(int fd) {
  const int on = 1, idle = 10, interval = 5, count = 10, user_timeout = 60000;
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool send_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = recv(fd, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

std::vector<std::string> addresses_of(const std::string& host, std::string* why) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  std::vector<std::string> addresses;
  if (const int status = getaddrinfo(host.c_str(), nullptr, &hints, &found); status != 0) {
    if (why != nullptr) *why = fmt::format("{} cannot be resolved: {}", host, gai_strerror(status));
    return addresses;
  }
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    std::array<char, NI_MAXHOST> name{};
    if (getnameinfo(at->ai_addr, at->ai_addrlen, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) == 0 &&
        std::find(addresses.begin(), addresses.end(), name.data()) == addresses.end())
      addresses.emplace_back(name.data());
  }
  freeaddrinfo(found);
  return addresses;
}

bool is_numeric_address(const std::string& text) { return parse_address(text, 0).size > 0; }

bool is_loopback_address(const std::string& address) {
  in6_addr six{};
  return address.starts_with("127.") || (inet_pton(AF_INET6, address.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six));
}

std::string local_address(int fd) { return local_name(fd, nullptr); }

std::vector<std::string> own_addresses() {
  std::vector<std::string> own;
  for (const InterfaceAddress& at : interface_addresses())
    if (!at.loopback) own.push_back(at.address);
  return own;
}

std::string address_towards(const std::string& other) {
  SocketAddress to = parse_address(other, 9);
  const int fd = to.size == 0 ? -1 : socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  const std::string own = connect(fd, to.get(), to.size) == 0 ? local_name(fd, nullptr) : "";
  close(fd);
  return own;
}

std::optional<std::string> listen_override() {
  const std::string text = environment("TRIREME_LISTEN");
  if (text.empty()) return std::nullopt;
  if (text == "all") return "";
  std::vector<std::string> known = {"all"};
  for (const InterfaceAddress& at : interface_addresses()) {
    if (at.interface == text || at.address == text) return at.address;
    known.push_back(fmt::format("{} ({})", at.interface, at.address));
  }
  throw ConfigError(fmt::format("TRIREME_LISTEN='{}' is no interface or address of {}: it may be one of {}", text,
                                host_name(), join(known, ", ")));
}

}  // namespace trireme
