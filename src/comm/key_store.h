#pragma once
// Private to comm/: named values that the ranks of a job share over TCP. Rank 0 serves them; every rank, rank 0 too,
// holds one connection.
//
// Protocol, in the byte order of the hosts, which is equal in a job. A client sends a Greeting and receives a
// GreetingAnswer followed by the server's identity. Then it sends requests: a uint32 length and that many bytes; the
// first byte is the Request. add is answered by an int64; get by a byte (1: all values follow, each with its uint64
// length; 0: the time is up). set and remove have no answer.
//
// c10d::TCPStore is not this store, although torchrun's agent is reached through it (store_world.cpp). Its server does
// not tell the ranks that one of them has ended, so a rank lost between rendezvous and watchdog would be noticed only
// after minutes; it answers a rank of another job, or any other program, as one of its own; it asks the name server for
// every connection, which hundreds of ranks wait for; and its errors are several lines without the rank and the remedy.

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme {

class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The values of `keys`, when all of them exist. nullopt if a value is still missing after `seconds`; without limit
  /// when that is negative.
  virtual std::optional<std::vector<std::string>> get(const std::vector<std::string>& keys, double seconds = -1) = 0;
  /// Adds to a counter, which starts at 0, and returns the sum.
  virtual int64_t add(const std::string& key, int64_t number) = 0;
  virtual void remove(const std::vector<std::string>& keys) = 0;
  /// The numeric address of this end of the connection to rank 0.
  virtual std::string local_address() const { return ""; }
};

namespace stored {

inline constexpr uint64_t kMagic = 0x31594B454D495254;  // "TRIMEKY1"
struct Greeting {
  uint64_t magic = kMagic, identity = 0;  // of the job, hashed
  int32_t rank = 0, size = 0;
};
struct GreetingAnswer {
  uint64_t magic = kMagic;
  uint32_t accepted = 0, length = 0;  // bytes of the server's identity
};
/// Set by a rank that no longer needs the store; see kLost.
inline std::string left_key(int rank) { return "left/" + std::to_string(rank); }
/// Set by the server when the connection of a rank ends before the rank has left, and by a rank whose peers do not
/// answer. "rank 3 has ended".
inline const std::string kLost = "lost";
enum Request : char { kSet = 'S', kGet = 'G', kAdd = 'A', kRemove = 'R' };
/// Longest request in bytes. The connection of a client that announces a longer request is closed.
constexpr uint32_t kMaxRequest = uint32_t{1} << 30;

}  // namespace stored

/// Why a client has no store.
struct NoKeyStore : std::runtime_error {
  enum Why {
    kUnreachable,  // no answer in time; what() says how the last attempt failed
    kAlien,        // the answer is not that of Trireme's store
    kOtherJob,     // what() is the identity of the served job
  } why;
  NoKeyStore(Why reason, const std::string& text) : std::runtime_error(text), why(reason) {}
};

/// Connects to rank 0's store, and tries again until `seconds` are over. `host`: a name or an address, or several
/// separated by commas. `identity`: equal on all ranks of the job.
std::unique_ptr<KeyStore> connect_key_store(const std::string& host, int port, const std::string& identity, int rank,
                                            int size, double seconds);

}  // namespace trireme
