// The key store's server: hostile connections beside a rank that works and one that waits.
#include "comm/key_server.h"
#include "comm/key_store.h"
#include "fuzz_connections.h"
#include "trireme/base/hash.h"

namespace {

using namespace trireme;

const std::string kIdentity = "4 ranks, run fuzz";

std::string greeting_of(const std::string& identity, int rank) {
  const stored::Greeting greeting{.identity = xxh3_64(identity.data(), identity.size()), .rank = rank, .size = 4};
  return {reinterpret_cast<const char*>(&greeting), sizeof greeting};
}

std::string answer_of(bool accepted) {
  const stored::GreetingAnswer answer{.accepted = accepted, .length = static_cast<uint32_t>(kIdentity.size())};
  return std::string(reinterpret_cast<const char*>(&answer), sizeof answer) + kIdentity;
}

void judge(const fuzz::Connection& connection) {
  const std::string &sent = connection.sent(), &received = connection.received();
  stored::Greeting greeting;
  if (sent.size() >= sizeof greeting) std::memcpy(&greeting, sent.data(), sizeof greeting);
  if (sent.size() < sizeof greeting || greeting.magic != stored::kMagic) {
    fuzz::require(received.empty(), "a stranger hears nothing");
    return;
  }
  const bool member = greeting.identity == xxh3_64(kIdentity.data(), kIdentity.size());
  const std::string first = answer_of(member);
  fuzz::require(first.starts_with(received) || (member && received.starts_with(first)),
                "a rank of another job hears who is served, and nothing else");
}

/// Requests of the rank that waits: it must not notice the others.
std::string get_request(const std::string& key) {
  const double seconds = -1;
  const auto size = static_cast<uint32_t>(key.size());
  std::string request(1, stored::kGet);
  request.append(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  request.append(reinterpret_cast<const char*>(&size), sizeof size);
  request += key;
  const auto length = static_cast<uint32_t>(request.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + request;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::log_nothing();
  static uint64_t runs = 0;
  ++runs;
  // Members may write any key: an input must not know those of the ranks that are not its own.
  const std::string secret = fmt::format("{:016x}", xxh3_64(&runs, sizeof runs));
  KeyServer server("127.0.0.1", 0, kIdentity);
  {
    const auto worker = connect_key_store("127.0.0.1", server.port(), kIdentity, 0, 4, 30);
    worker->set(secret, secret);
    fuzz::Connection waiter(server.port());
    waiter.send(greeting_of(kIdentity, 1) + get_request("later " + secret));
    waiter.receive(answer_of(true).size());
    int64_t count = 0;
    const fuzz::Wire wire{.port = server.port(),
                          .greeting = greeting_of(kIdentity, 2),
                          .false_greeting = greeting_of("5 ranks, run other", 2),
                          .settle =
                              [&] {
                                // The server handles what has arrived on all connections between two requests of one.
                                for (int i = 0; i < 3; ++i)
                                  fuzz::require(worker->add("count " + secret, 1) == ++count, "the worker's counter");
                              },
                          .judge = judge};
    fuzz::run_connections(wire, fuzz::as_text(data, size));
    const auto own = worker->get({secret}, 0);
    fuzz::require(own && (*own)[0] == secret, "the worker's value");
    worker->set("later " + secret, "for the waiter");
    const uint64_t length = 14;
    const std::string expected =
        answer_of(true) + '\1' + std::string(reinterpret_cast<const char*>(&length), sizeof length) + "for the waiter";
    waiter.receive(expected.size());
    fuzz::require(waiter.received() == expected, "the waiter's answer");
  }
  fuzz::require(server.keys() <= size + 8, "no more keys than bytes");
  return 0;
}
