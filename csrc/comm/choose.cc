#include "comm/choose.h"

#include <algorithm>
#include <string>
#include <utility>

#include "comm/hierarchical/hierarchical_communicator.h"
#include "comm/host_map.h"
#include "comm/p2p/p2p_communicator.h"
#include "comm/p2p/subset.h"
#include "comm/self/self_communicator.h"
#include "comm/shm/shared_communicator.h"
#include "common/log.h"

namespace autotune {

namespace {

// Over the ranks of one host, in any case.
std::unique_ptr<Communicator> choose_local(std::shared_ptr<PointToPoint> transport,
                                           const WaitHook& on_wait) {
  if (transport->size() == 1) return std::make_unique<SelfCommunicator>();
  auto messages = std::make_unique<P2pCommunicator>(std::move(transport), on_wait);
  std::string why_not;
  auto shared = make_shared_communicator(*messages, on_wait, why_not);
  if (shared) return shared;
  if (!why_not.empty()) {
    log(LogLevel::warning, "no shared memory, ranks of this host exchange messages: " + why_not);
  }
  return messages;
}

}  // namespace

Communicators choose_communicators(std::shared_ptr<PointToPoint> transport,
                                   const std::vector<int>& host_of_rank, const WaitHook& on_wait) {
  if (!transport) return {std::make_unique<SelfCommunicator>(), nullptr};
  const int rank = transport->rank();
  const HostMap map(host_of_rank);
  Communicators chosen{nullptr, nullptr, std::make_unique<P2pCommunicator>(transport, on_wait),
                       host_of_rank, transport};
  if (map.hosts() == 1) {
    chosen.flat = choose_local(std::move(transport), on_wait);
    return chosen;
  }
  chosen.flat = std::make_unique<P2pCommunicator>(transport, on_wait, host_of_rank);
  if (map.hosts() == transport->size()) return chosen;
  const auto subset = [&](std::vector<int> ranks) {
    return std::make_shared<SubsetPointToPoint>(transport, std::move(ranks));
  };
  auto local = choose_local(subset(map.ranks_of(map.host_of(rank))), on_wait);
  std::unique_ptr<Communicator> cross;
  const int lane = map.local_rank(rank);
  if (lane < map.lanes()) {
    cross = std::make_unique<P2pCommunicator>(subset(map.ranks_of_lane(lane)), on_wait);
  }
  chosen.hierarchical =
      std::make_unique<HierarchicalCommunicator>(map, rank, std::move(local), std::move(cross));
  return chosen;
}

CommunicatorFactory communicator_factory(std::shared_ptr<PointToPoint> transport,
                                         std::vector<int> host_of_rank) {
  return [transport = std::move(transport), host_of_rank = std::move(host_of_rank)](
             const std::vector<int>& ranks, const WaitHook& on_wait) {
    if (ranks.size() == 1) return choose_communicators(nullptr, {}, on_wait);
    // Hosts are counted anew, in the order of the ranks.
    std::vector<int> hosts, known;
    for (int rank : ranks) {
      const int host = host_of_rank[static_cast<size_t>(rank)];
      auto place = std::find(known.begin(), known.end(), host);
      if (place == known.end()) place = known.insert(known.end(), host);
      hosts.push_back(static_cast<int>(place - known.begin()));
    }
    auto members = transport;
    if (static_cast<int>(ranks.size()) < transport->size()) {
      members = std::make_shared<SubsetPointToPoint>(transport, ranks);
    }
    return choose_communicators(std::move(members), hosts, on_wait);
  };
}

}  // namespace autotune
