// How the ranks of a job find each other for their messages: each listens, tells the others where
// (the front end carries the text), then all connect at once, the higher of two ranks to the lower.
//
// Connections are proven (common/proof.h) by a key of each listener's own, made of the job's: an
// address may be of several hosts (those of containers' bridges are) and a port of several ranks,
// and who answers there may be another rank of this job.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/point_to_point.h"

namespace autotune {

class TcpListener {
 public:
  // `key`: of the job, equal on all ranks. `interfaces`: see own_addresses. Throws EngineError.
  TcpListener(int rank, std::string key, const std::string& interfaces);
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  // "port host host ...": for the other ranks; no secret.
  const std::string& address() const { return address_; }

  // Collective: all ranks connect. `addresses`: of all ranks, by rank; `hosts`: number of each
  // rank's host. Throws EngineError naming the ranks that are not there in time.
  std::unique_ptr<PointToPoint> connect(const std::vector<std::string>& addresses,
                                        const std::vector<int>& hosts,
                                        std::chrono::seconds timeout);

  // Two ranks on different hosts have so many connections at most: a network may give each of them
  // only a part of what it has, and one core reads more from several.
  static constexpr int most_streams = 4;

 private:
  int rank_;
  std::string key_;
  int fd_ = -1;
  std::string address_;
};

// Streams of every pair of ranks, the same on all ranks: all that many ranks can have open.
int streams_between(int one, int other, const std::vector<int>& hosts);

}  // namespace autotune
