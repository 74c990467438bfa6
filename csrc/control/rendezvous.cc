// Connection set-up of the control plane: addresses, proofs, the offer of a ring.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>

#include "common/errors.h"
#include "common/fork.h"
#include "common/proof.h"
#include "common/reception.h"
#include "common/sha256.h"
#include "common/sockets.h"
#include "control/control.h"

namespace autotune {

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const char* call) {
  throw EngineError(std::string("control plane: ") + call + " failed: " + std::strerror(errno));
}

// An abstract Unix address ('\0' + name): no file to clean up, one name space per network name
// space.
socklen_t unix_address(const std::string& name, sockaddr_un& address) {
  std::memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

int listen_unix(const std::string& name) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) fail("socket");
  sockaddr_un address;
  const socklen_t length = unix_address(name, address);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) fail("bind");
  if (::listen(fd, SOMAXCONN) != 0) fail("listen");
  return fd;
}

// -1 when nobody answers there.
int try_connect_unix(const std::string& name) {
  sockaddr_un address;
  if (name.size() >= sizeof address.sun_path) return -1;
  const socklen_t length = unix_address(name, address);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
  ::close(fd);
  return -1;
}

// The proofs of the listener of rank `rank`.
std::string key_of(const std::string& key, int rank) {
  if (rank == 0) return key;
  return hmac_sha256(key, "control plane of rank " + std::to_string(rank));
}

constexpr char by_ring[] = "welcome: frames by shared memory";
constexpr char by_socket[] = "welcome: frames by this socket";

// The next short frame; nothing: the connection ended, or it takes longer than until `deadline`.
std::optional<Frame> wait_for_frame(Connection& connection, int rank, Clock::time_point deadline) {
  std::optional<Frame> frame;
  while (!(frame = connection.receive_one(rank)) && !connection.closed()) {
    if (Clock::now() > deadline) break;
    pollfd waiting{connection.fd(), POLLIN, 0};
    ::poll(&waiting, 1, 100);
  }
  return frame;
}

// Answer the hello of a rank: with the ring that it offered, if it can be mapped, and the bell.
void welcome(Connection& connection, int rank, const std::shared_ptr<Bell>& bell) {
  const auto deadline = Clock::now() + proof_timeout;
  const std::optional<Frame> hello = wait_for_frame(connection, rank, deadline);
  if (!hello || hello->type != FrameType::hello) {
    throw EngineError("control plane: rank " + std::to_string(rank) +
                      " connected, but ended or said nothing more; see its own error");
  }
  const int offered = connection.take_offered();
  auto ring = offered >= 0 ? RingPair::map(offered, false) : nullptr;
  if (offered >= 0) ::close(offered);
  if (ring) connection.offer(bell->fd());
  connection.send(FrameType::hello, ring ? by_ring : by_socket);
  if (ring) connection.use(std::move(ring), bell);
}

// Wait for the parent's answer: it comes when all its children are connected.
bool welcomed(Connection& connection, std::unique_ptr<RingPair> ring, int parent,
              Clock::time_point deadline) {
  const std::optional<Frame> answer = wait_for_frame(connection, parent, deadline);
  if (!answer || answer->type != FrameType::hello) return false;
  if (answer->payload == by_socket) return true;
  if (answer->payload != by_ring) return false;
  const int bell = connection.take_offered();
  if (!ring || bell < 0) return false;
  auto listener = std::make_unique<BellListener>(bell);
  ::close(bell);
  connection.use(std::move(ring), std::move(listener));
  return true;
}

// Say hello; on a Unix socket with the offer of a ring. True when the parent has answered.
bool introduce(Connection& connection, bool is_same_host, int parent, Clock::time_point deadline) {
  const int memory = is_same_host ? RingPair::create() : -1;
  auto ring = memory >= 0 ? RingPair::map(memory, true) : nullptr;
  if (ring) connection.offer(memory);
  connection.send(FrameType::hello, "");
  if (memory >= 0) ::close(memory);
  return welcomed(connection, std::move(ring), parent, deadline);
}

// A proven connection to one of the parent's addresses, -1: none.
int reach(const std::string& name, const std::vector<std::string>& hosts, int port,
          const std::string& key, int rank, bool& is_same_host, Clock::time_point deadline) {
  // Who has this name is the parent, which may be late; at an address of a host may be another
  // one, as in its containers.
  const int fd = try_connect_unix(name);
  is_same_host = fd >= 0 && is_same_user(fd) && prove(fd, key, rank, deadline);
  if (is_same_host) return fd;
  if (fd >= 0) ::close(fd);
  return connect_proven(hosts, port, key, rank, std::min(deadline, Clock::now() + proof_timeout));
}

void check_key(const std::string& key) {
  if (key.size() == key_bytes) return;
  throw EngineError("control plane: expected a key of " + std::to_string(key_bytes) +
                    " bytes, got " + std::to_string(key.size()));
}

}  // namespace

// Address: "name port host host ...".
Rendezvous::Rendezvous(std::string key, const std::string& interfaces, int rank)
    : name_(to_hex(random_bytes(16))) {
  check_key(key);
  key_ = key_of(key, rank);
  const std::vector<std::string> hosts = own_addresses(interfaces);
  unix_fd_ = listen_unix(name_);
  drop_in_children(unix_fd_);
  int port = 0;
  tcp_fd_ = listen_tcp(port);
  drop_in_children(tcp_fd_);
  address_ = name_ + " " + std::to_string(port);
  for (const std::string& host : hosts) address_ += " " + host;
}

Rendezvous::~Rendezvous() {
  close_dropped(unix_fd_);
  close_dropped(tcp_fd_);
}

std::vector<std::unique_ptr<Connection>> Rendezvous::accept_all(int size,
                                                                std::chrono::seconds timeout) {
  std::vector<int> ranks(static_cast<size_t>(size) - 1);
  std::iota(ranks.begin(), ranks.end(), 1);
  return accept(ranks, timeout);
}

std::vector<std::unique_ptr<Connection>> Rendezvous::accept(const std::vector<int>& ranks,
                                                            std::chrono::seconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const int bound = ranks.empty() ? 1 : *std::max_element(ranks.begin(), ranks.end()) + 1;
  Reception reception(key_, ranks, bound, unix_fd_, tcp_fd_);
  for (std::string missing; !(missing = reception.missing()).empty(); reception.turn()) {
    if (Clock::now() > deadline) {
      throw EngineError("control plane: expected a connection from every rank within " +
                        std::to_string(timeout.count()) + " s, got none from rank " + missing +
                        "; are they running, and can they reach this host (" +
                        address_.substr(name_.size() + 1) + ")?");
    }
  }
  std::vector<std::unique_ptr<Connection>> accepted;
  for (const int fd : reception.take()) accepted.push_back(std::make_unique<Connection>(fd));
  const auto bell = std::make_shared<Bell>();
  for (size_t i = 0; i < accepted.size(); ++i) {
    welcome(*accepted[i], ranks[i], bell);
  }
  return accepted;
}

std::unique_ptr<Connection> connect_to(const std::string& address, const std::string& job_key,
                                       int rank, std::chrono::seconds timeout, int parent) {
  check_key(job_key);
  const std::string key = key_of(job_key, parent);
  std::istringstream words(address);
  std::string name, host;
  int port = 0;
  words >> name >> port;
  std::vector<std::string> hosts;
  while (words >> host) hosts.push_back(host);
  const auto deadline = Clock::now() + timeout;
  do {
    bool is_same_host = false;
    const int fd = reach(name, hosts, port, key, rank, is_same_host, deadline);
    if (fd >= 0) {
      auto connection = std::make_unique<Connection>(fd);
      if (introduce(*connection, is_same_host, parent, deadline)) return connection;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < deadline);
  throw EngineError(
      "control plane: rank " + std::to_string(rank) + " expected " +
      (parent == 0 ? "the coordinator (rank 0)"
                   : "rank " + std::to_string(parent) + ", by way of which it hears of rank 0,") +
      " at one of " + address.substr(std::min(address.size(), name.size() + 1)) +
      ", got no answer within " + std::to_string(timeout.count()) +
      " s; is a firewall between the hosts?");
}

// From the leaves up. The time that ranks have grows with the levels below them, so that who lacks
// a rank says so before it is missed itself.
std::vector<std::unique_ptr<Connection>> connect_in_tree(const Tree& tree, int rank,
                                                         Rendezvous* rendezvous,
                                                         const std::string& address,
                                                         const std::string& key,
                                                         std::chrono::seconds timeout) {
  constexpr std::chrono::seconds each_level{2};
  std::vector<std::unique_ptr<Connection>> connections;
  const int height = tree.height(rank);
  if (height > 0) {
    connections = rendezvous->accept(tree.children(rank), timeout + (height - 1) * each_level);
  }
  if (rank == 0) return connections;
  const int parent = tree.parent(rank);
  const int above = tree.height(0) - 1;
  connections.insert(connections.begin(),
                     connect_to(address, key, rank, timeout + above * each_level, parent));
  return connections;
}

}  // namespace autotune
