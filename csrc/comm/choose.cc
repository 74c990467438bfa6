#include "comm/choose.h"

#include <string>
#include <utility>

#include "comm/p2p/p2p_communicator.h"
#include "comm/self/self_communicator.h"
#include "comm/shm/shared_communicator.h"
#include "common/log.h"

namespace autotune {

std::unique_ptr<Communicator> choose_communicator(std::unique_ptr<PointToPoint> transport,
                                                  bool one_host, const Progress& progress) {
  if (!transport) return std::make_unique<SelfCommunicator>();
  auto messages = std::make_unique<P2pCommunicator>(std::move(transport), progress);
  if (!one_host) return messages;
  std::string why_not;
  auto shared = make_shared_communicator(*messages, progress, why_not);
  if (shared) return shared;
  if (messages->rank() == 0) {
    log(LogLevel::warning, "no shared memory, ranks of this host exchange messages: " + why_not);
  }
  return messages;
}

}  // namespace autotune
