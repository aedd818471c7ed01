// The port of a rank's watch: foreign connections, and connections with the job's token, beside the connections of the
// ring. A watch that takes a stranger's bytes for a failure ends this process, which is a finding.
#include "fuzz_connections.h"
#include "trireme/comm/sockets.h"
#include "watchdog/rank_peers.h"
#include "watchdog/rank_watch.h"

#include <future>
#include <sstream>

namespace {

using namespace trireme;

/// Rank 1 of two, on another host: takes the connection of rank 0's watch and opens the other one of the ring.
struct Ring {
  int port = 0;
  uint64_t token = 0;
  std::unique_ptr<RankWatch> watch;
  std::unique_ptr<fuzz::Connection> to_watch;
  int from_watch = -1;

  std::string greeting(int32_t rank, char request) const {
    wire::Greeting greeting;
    std::memset(&greeting, 0, sizeof greeting);
    greeting.token = token;
    greeting.rank = rank;
    greeting.request = request;
    return {reinterpret_cast<const char*>(&greeting), sizeof greeting};
  }

  Ring() {
    fuzz::log_nothing();
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    fuzz::require(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                      listen(listener, 4) == 0 &&
                      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0,
                  "a port for rank 1");
    auto accepted = std::async(std::launch::async, [listener] {
      const int fd = accept(listener, nullptr, nullptr);
      wire::Greeting greeting;
      const char answer = wire::kNeighbour;
      fuzz::require(receive_all(fd, &greeting, sizeof greeting) && send_all(fd, &answer, 1), "rank 0 calls");
      return fd;
    });
    const auto all_gather = [&](const std::string& own) {
      std::istringstream in(own);
      std::string host;
      int pid = 0, fd = 0;
      const bool introduction = static_cast<bool>(in >> host >> pid >> fd >> token >> port);
      // Rank 1 is in the same network: the watch listens on 127.0.0.1 alone.
      return std::vector<std::string>{
          own, introduction ? fmt::format("another-host 1 -1 0 {}", ntohs(address.sin_port)) : own};
    };
    watch = std::make_unique<RankWatch>(0, 2, all_gather, Watchdog::Hooks{});
    from_watch = accepted.get();
    close(listener);
    to_watch = std::make_unique<fuzz::Connection>(port);
    to_watch->send(greeting(1, wire::kNeighbour));
    to_watch->receive(1);
    (void)to_watch->take();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Ring& ring = *new Ring;  // its threads run until the process ends
  const auto ask = [] {
    // Connections are handled in the order of their arrival, 64 at a time.
    fuzz::Connection question(ring.port);
    question.send(ring.greeting(1, wire::kQuery));
    question.receive_end();
    RankView view;
    const std::string& text = question.received();
    fuzz::require(decode(text.substr(0, text.find('\n')), view) && view.rank == 0, "the watch gives its rank's state");
  };
  const std::string token(reinterpret_cast<const char*>(&ring.token), sizeof ring.token);
  const fuzz::Wire wire{
      .port = ring.port,
      .greeting = token,  // what follows is the input's: any rank, any request
      .false_greeting = ring.greeting(1, wire::kQuery).replace(0, 1, 1, static_cast<char>(~token[0])),
      .settle =
          [&] {
            ask();
            ask();
          },
      .judge =
          [&](const fuzz::Connection& connection) {
            if (connection.sent().size() < sizeof(wire::Greeting) || !connection.sent().starts_with(token))
              fuzz::require(connection.received().empty(), "a stranger hears nothing");
          }};
  fuzz::run_connections(wire, fuzz::as_text(data, size));
  ring.to_watch->receive();
  fuzz::require(!ring.to_watch->ended() && ring.to_watch->received().empty(), "the ring's connections stay");
  char byte = 0;
  fuzz::require(recv(ring.from_watch, &byte, 1, MSG_DONTWAIT) < 0, "no message around the ring");
  return 0;
}
