// Ranks as threads with a TCP transport between them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/tcp/tcp_listener.h"
#include "comm/tcp/tcp_point_to_point.h"
#include "thread_ranks.h"

namespace autotune {

// The listeners of a job whose ranks are on `hosts`.
class TcpJob {
 public:
  explicit TcpJob(std::vector<int> hosts) : hosts_(std::move(hosts)) {
    for (int rank = 0; rank < size(); ++rank) {
      listeners_.push_back(std::make_unique<TcpListener>(rank, test_key(), ""));
      addresses_.push_back(listeners_.back()->address());
    }
  }

  int size() const { return static_cast<int>(hosts_.size()); }
  std::vector<std::string>& addresses() { return addresses_; }
  // Collective.
  std::unique_ptr<PointToPoint> connect(int rank,
                                        std::chrono::seconds patience = std::chrono::seconds(20)) {
    return listeners_[static_cast<size_t>(rank)]->connect(addresses_, hosts_, patience);
  }

 private:
  std::vector<int> hosts_;
  std::vector<std::unique_ptr<TcpListener>> listeners_;
  std::vector<std::string> addresses_;
};

// Every rank on a host of its own, where pairs have several streams; or all on one.
inline std::vector<int> hosts_for(int size, bool apart) {
  std::vector<int> hosts(static_cast<size_t>(size), 0);
  for (int rank = 0; rank < size && apart; ++rank) hosts[static_cast<size_t>(rank)] = rank;
  return hosts;
}

// Run `body` on all ranks of a TCP job.
inline void with_tcp(std::vector<int> hosts,
                     const std::function<void(std::shared_ptr<PointToPoint>)>& body) {
  TcpJob job(std::move(hosts));
  run_ranks(job.size(), [&](int rank) { body(job.connect(rank)); });
}

// The same with `streams` local sockets between each two ranks, which no kernel paces.
inline void with_streams(int size, int streams,
                         const std::function<void(std::shared_ptr<PointToPoint>)>& body) {
  const auto n = static_cast<size_t>(size);
  std::vector<std::vector<StreamSockets>> sockets(n, std::vector<StreamSockets>(n));
  for (size_t one = 0; one < n; ++one) {
    for (size_t other = 0; other < one; ++other) {
      for (int i = 0; i < streams; ++i) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
          abort();
        }
        sockets[one][other].push_back(pair[0]);
        sockets[other][one].push_back(pair[1]);
      }
    }
  }
  run_ranks(size, [&](int rank) {
    body(make_tcp_point_to_point(rank, std::move(sockets[static_cast<size_t>(rank)])));
  });
}

// Rank 0 of two, with a test at the other ends of its `streams` connections, which never block.
struct HalfJob {
  std::unique_ptr<PointToPoint> transport;
  std::vector<int> ends;

  explicit HalfJob(int streams = 1) {
    std::vector<StreamSockets> sockets(2);
    for (int i = 0; i < streams; ++i) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) abort();
      sockets[1].push_back(pair[0]);
      ends.push_back(pair[1]);
    }
    transport = make_tcp_point_to_point(0, std::move(sockets));
  }
  ~HalfJob() {
    for (const int fd : ends) ::close(fd);
  }
};

}  // namespace autotune
