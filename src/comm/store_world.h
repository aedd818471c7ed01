#pragma once
// Private to comm/: rendezvous without MPI, through c10d's TCPStore. Rank 0 listens at the launch's master address; the others connect.

#include "host_exchange.h"
#include "trireme/comm/launch.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

class StoreWorld {
 public:
  virtual ~StoreWorld() = default;
  virtual std::unique_ptr<HostExchange> exchange() = 0;

  // Any thread. Each throws when rank 0, which holds the store, is gone.
  /// The first reason that a rank publishes before it goes down stays.
  virtual void publish_failure(const std::string& reason) = 0;
  /// Empty while nobody has failed.
  virtual std::string failure() = 0;
  /// True for the first rank that finds the job stuck: it reports for all.
  virtual bool claim_hang_report() = 0;
  virtual bool hang_reported() = 0;
  /// Where this rank stands, for the report: its last sequence number and a sentence.
  virtual void publish_position(uint64_t sequence, const std::string& text) = 0;
  /// One line per rank that has published, those furthest behind first, then the ranks that have not answered.
  virtual std::string describe_positions() = 0;

  /// Rank 0 waits until every rank has called it, so that the store outlives the last reader. Ends the use of the store.
  virtual void leave() = 0;
};

/// ConfigError when rank 0's port is taken, cannot be reached, belongs to another job, or when ranks are absent after
/// TRIREME_RENDEZVOUS_SECONDS (300): these are named.
std::unique_ptr<StoreWorld> join_store(const Launch& launch);

}  // namespace trireme
