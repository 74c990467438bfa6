// How connections are made by both ends' proofs (proof.h): who waits for others lets in those who
// have the key, who connects finds the right one among several addresses.
//
// Port scanners, web clients, ranks of other jobs and those who say nothing change nothing: each is
// given at most as many bytes, seconds and places as a rank needs.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace autotune {

// A connection has so long from its begin to its proof: a machine that swaps may need seconds.
constexpr std::chrono::seconds proof_timeout{10};
// So many connections may be without a proof at one time, besides one per expected one; with more,
// the oldest is dropped.
constexpr size_t most_applicants = 256;

class Applicant;

// All who connect while some are expected.
class Reception {
 public:
  // Expects those whom `numbers` are of, each at least 1; number n is of rank n modulo `size`. Of
  // the listeners `unix_fd` may be -1; both stay the caller's, and never block.
  Reception(std::string key, std::vector<int> numbers, int size, int unix_fd, int tcp_fd);
  ~Reception();
  Reception(const Reception&) = delete;
  Reception& operator=(const Reception&) = delete;

  // Waits a little for somebody to connect or to say something, and hears it.
  void turn();
  // Ranks that are not connected, as text; "": all are.
  std::string missing() const;
  // The proven connections, in the order of `numbers`; now the caller's. They never block.
  std::vector<int> take();

 private:
  void take_all(int listener, bool is_tcp);
  void hear(std::unique_ptr<Applicant>& applicant);
  void admit(Applicant& applicant, size_t place, int number);

  const std::string key_;
  const std::vector<int> numbers_;
  const int size_;
  const int unix_fd_;
  const int tcp_fd_;
  std::vector<int> accepted_;  // -1 stands for one that is not there yet
  std::deque<std::unique_ptr<Applicant>> applicants_;
};

// True when the other end of the socket `fd`, which never blocks, has the key, and knows that we
// have it and are `number`.
bool prove(int fd, const std::string& key, int number,
           std::chrono::steady_clock::time_point deadline);

// A proven connection to whoever has `key` at one of the addresses `hosts`, -1: none by `deadline`.
// All addresses are tried at once, proofs are made one after the other; what else answers there is
// left alone. It never blocks.
int connect_proven(const std::vector<std::string>& hosts, int port, const std::string& key,
                   int number, std::chrono::steady_clock::time_point deadline);

}  // namespace autotune
