#pragma once
// Private to comm/: rank 0's side of the key store, in one thread without blocking calls. The time of a request is
// proportional to its own bytes and keys, independent of the number of ranks.

#include "trireme/comm/greeting_queue.h"

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme {

class KeyServer {
 public:
  /// Listens only on the address of `host`, or of TRIREME_LISTEN. If `host` is a name of the loopback address on this
  /// machine, as a host's own name can be, it listens on both this address and the address of the default route. `port`
  /// 0: any. std::runtime_error with reason and remedy when it cannot.
  KeyServer(const std::string& host, int port, std::string identity);
  /// Sends the remaining bytes, and waits a few seconds until the clients have closed their connections.
  ~KeyServer();
  KeyServer(const KeyServer&) = delete;
  KeyServer& operator=(const KeyServer&) = delete;

  int port() const { return port_; }
  /// The numeric address under which this process reaches the server.
  const std::string& address() const { return address_; }
  /// All numeric addresses of the server, separated by commas, loopback addresses last.
  std::string addresses() const;
  size_t keys() const { return keys_; }

 private:
  using Value = std::shared_ptr<const std::string>;
  struct Client {
    int fd = -1;
    std::string in;         // received, not yet handled
    std::deque<Value> out;  // to be sent
    size_t out_at = 0;      // bytes of out.front() that are sent
    bool waits_to_send = false;
    int rank = -1;             // of this job; -1: another one
    double refused_until = 0;  // steady seconds; a rank of another job that still reads its answer. 0: of this job
    struct Get {
      std::vector<std::string> keys;
      std::vector<Value> values;  // of the first keys
      double deadline = 0;        // steady seconds; 0: none
    };
    std::optional<Get> get;  // waits for keys[values.size()]
  };

  void listen(const std::string& host, int port);
  void serve();
  void welcome(GreetingQueue::Caller caller);
  void receive(Client& client);
  /// False: the connection is to be closed.
  bool handle(Client& client, const char* request, size_t size);
  void advance(Client& client);
  void set(const std::string& key, Value value);
  void answer(Client& client, Value bytes);
  void send_some(Client& client);
  void forget_wait(Client& client);
  void close_client(int fd);
  /// Answers the gets whose time is up, and closes refused connections that stay open.
  void end_late();
  void drain();
  int timeout() const;

  std::string identity_, address_;
  std::vector<std::string> listening_at_;  // "": every address
  std::vector<int> listeners_;
  int epoll_ = -1, wake_ = -1, port_ = 0;
  std::unique_ptr<GreetingQueue> queue_;
  std::unordered_map<int, Client> clients_;  // by fd
  std::unordered_map<std::string, Value> values_;
  std::unordered_map<std::string, std::vector<int>> waiting_;  // fds by the key that they wait for
  std::set<std::pair<double, int>> deadlines_;
  std::vector<int> broken_;  // to be closed when the current event is handled
  std::atomic<bool> stop_ = false;
  std::atomic<size_t> keys_ = 0;
  std::thread thread_;
};

}  // namespace trireme
