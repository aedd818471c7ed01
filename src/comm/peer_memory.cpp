#include "trireme/comm/peer_memory.h"

namespace trireme {

double& peer_close_seconds() {
  static double seconds = 30;
  return seconds;
}

#ifndef TRIREME_WITH_CUDA
std::unique_ptr<PeerMemory> PeerMemory::create(Communicator&, int64_t, at::Device, std::string& why_not) {
  why_not = "this build has no CUDA";
  return nullptr;
}
#endif

}  // namespace trireme
