#include "comm/tcp/tcp_listener.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <utility>

#include "comm/tcp/tcp_point_to_point.h"
#include "common/errors.h"
#include "common/fork.h"
#include "common/proof.h"
#include "common/reception.h"
#include "common/sha256.h"
#include "common/sockets.h"

namespace autotune {

namespace {

using Clock = std::chrono::steady_clock;

// The version of what ranks say on these connections is a part of every proof.
constexpr const char* protocol = "tcp transport 1 of rank ";

// Connections of a rank; common limits of open files are 1,024 and more.
constexpr int most_connections = 512;

std::string key_of(const std::string& key, int rank) {
  return hmac_sha256(key, protocol + std::to_string(rank));
}

struct Place {
  int port = 0;
  std::vector<std::string> hosts;
};

Place parse(const std::string& address) {
  Place place;
  std::istringstream words(address);
  words >> place.port;
  for (std::string host; words >> host;) place.hosts.push_back(host);
  return place;
}

// Sockets until a transport takes them.
struct Sockets {
  std::vector<StreamSockets> of_rank;
  explicit Sockets(size_t ranks) : of_rank(ranks) {}
  ~Sockets() {
    for (const StreamSockets& streams : of_rank) {
      for (const int fd : streams) {
        if (fd >= 0) ::close(fd);
      }
    }
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
};

// A claim says rank and stream in one number.
int number_of(int rank, int stream, int size) { return stream * size + rank; }

int connect_stream(const Place& place, const std::string& key, int number,
                   Clock::time_point deadline) {
  while (Clock::now() < deadline) {
    const auto limit = std::min(deadline, Clock::now() + proof_timeout);
    const int fd = connect_proven(place.hosts, place.port, key, number, limit);
    if (fd >= 0) return fd;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return -1;
}

}  // namespace

int streams_between(int one, int other, const std::vector<int>& hosts) {
  if (hosts[static_cast<size_t>(one)] == hosts[static_cast<size_t>(other)]) return 1;
  const auto peers = static_cast<int>(hosts.size()) - 1;
  return std::clamp(most_connections / peers, 1, TcpListener::most_streams);
}

TcpListener::TcpListener(int rank, std::string key, const std::string& interfaces)
    : rank_(rank), key_(std::move(key)) {
  const std::vector<std::string> hosts = own_addresses(interfaces);
  int port = 0;
  fd_ = listen_tcp(port);
  drop_in_children(fd_);
  address_ = std::to_string(port);
  for (const std::string& host : hosts) address_ += " " + host;
}

TcpListener::~TcpListener() { close_dropped(fd_); }

std::unique_ptr<PointToPoint> TcpListener::connect(const std::vector<std::string>& addresses,
                                                   const std::vector<int>& hosts,
                                                   std::chrono::seconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto size = static_cast<int>(addresses.size());
  Sockets sockets(addresses.size());
  std::vector<int> expected;
  for (int peer = rank_ + 1; peer < size; ++peer) {
    for (int i = 0; i < streams_between(rank_, peer, hosts); ++i) {
      expected.push_back(number_of(peer, i, size));
    }
  }
  // Others are let in while this rank looks for its own: nobody waits for anybody in turn.
  Reception reception(key_of(key_, rank_), expected, size, -1, fd_);
  std::string not_found;
  std::thread connecting([&] {
    for (int peer = 0; peer < rank_; ++peer) {
      const Place place = parse(addresses[static_cast<size_t>(peer)]);
      const std::string key = key_of(key_, peer);
      for (int i = 0; i < streams_between(rank_, peer, hosts); ++i) {
        const int fd = connect_stream(place, key, number_of(rank_, i, size), deadline);
        sockets.of_rank[static_cast<size_t>(peer)].push_back(fd);
        if (fd < 0)
          not_found = std::to_string(peer) + " (" + addresses[static_cast<size_t>(peer)] + ")";
        if (fd < 0) return;
      }
    }
  });
  while (!reception.missing().empty() && Clock::now() < deadline) reception.turn();
  connecting.join();
  const std::string missing = reception.missing();
  if (!missing.empty() || !not_found.empty()) {
    throw EngineError("messages over TCP: rank " + std::to_string(rank_) +
                      " expected connections with all ranks within " +
                      std::to_string(timeout.count()) + " s, got none " +
                      (missing.empty() ? "with rank " + not_found : "from rank " + missing) +
                      "; is a firewall between the hosts, or another network interface the right "
                      "one (--network-interface)?");
  }
  const std::vector<int> accepted = reception.take();
  for (size_t i = 0; i < accepted.size(); ++i) {
    sockets.of_rank[static_cast<size_t>(expected[i] % size)].push_back(accepted[i]);
  }
  auto streams = std::exchange(sockets.of_rank, {});
  return make_tcp_point_to_point(rank_, std::move(streams));
}

}  // namespace autotune
