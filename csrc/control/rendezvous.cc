// Connection set-up of the control plane: addresses, secret, hello.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "common/errors.h"
#include "control/control.h"

namespace autotune {

namespace {

using Clock = std::chrono::steady_clock;

std::string random_hex(size_t bytes) {
  std::string raw(bytes, '\0');
  if (getrandom(raw.data(), raw.size(), 0) != static_cast<ssize_t>(raw.size())) {
    throw EngineError("getrandom failed");
  }
  static constexpr char digits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned char byte : raw) {
    hex += digits[byte >> 4];
    hex += digits[byte & 15];
  }
  return hex;
}

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
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  sockaddr_un address;
  const socklen_t length = unix_address(name, address);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) fail("bind");
  if (::listen(fd, SOMAXCONN) != 0) fail("listen");
  return fd;
}

int listen_tcp(int& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (::listen(fd, SOMAXCONN) != 0) fail("listen");
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  port = ntohs(address.sin_port);
  return fd;
}

// IPv4 addresses of this host, loopback last (it is right only for ranks in another name space of
// it).
std::vector<std::string> own_addresses() {
  std::vector<std::string> outside, loopback;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail("getifaddrs");
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET) continue;
    if (!(entry->ifa_flags & IFF_UP)) continue;
    char text[INET_ADDRSTRLEN];
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    (entry->ifa_flags & IFF_LOOPBACK ? loopback : outside).push_back(text);
  }
  freeifaddrs(list);
  outside.insert(outside.end(), loopback.begin(), loopback.end());
  return outside;
}

// Probes an idle connection; who looks at what comes of it is Connection::is_reached.
// TCP_USER_TIMEOUT would also end connections to stopped processes whose windows are full.
void configure_tcp(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int idle_s = 6, interval_s = 3, probes = 6;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

// Connect within `timeout`; -1 when nobody answers there.
int try_connect(int family, const sockaddr* address, socklen_t length, int timeout_ms) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int error = ::connect(fd, address, length) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd waiting{fd, POLLOUT, 0};
    socklen_t size = sizeof error;
    if (::poll(&waiting, 1, timeout_ms) != 1) {
      error = ETIMEDOUT;
    } else {
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error == 0) return fd;
  ::close(fd);
  return -1;
}

int try_connect_unix(const std::string& name) {
  sockaddr_un address;
  const socklen_t length = unix_address(name, address);
  return try_connect(AF_UNIX, reinterpret_cast<sockaddr*>(&address), length, 1000);
}

int try_connect_tcp(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return -1;
  const int fd = try_connect(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof address, 3000);
  if (fd >= 0) configure_tcp(fd);
  return fd;
}

// The rank in a hello ("secret rank"), or -1 for a stranger.
int rank_in_hello(const Frame& frame, const std::string& secret, int size) {
  std::istringstream words(frame.payload);
  std::string word;
  int rank = -1;
  words >> word >> rank;
  const bool welcome = frame.type == FrameType::hello && word == secret && rank > 0 && rank < size;
  return welcome ? rank : -1;
}

constexpr char by_ring[] = "welcome: frames by shared memory";
constexpr char by_socket[] = "welcome: frames by this socket";

// Answer the hello of a rank: with the ring that it offered, if it can be mapped, and the bell.
void welcome(Connection& connection, const std::shared_ptr<Bell>& bell) {
  const int offered = connection.take_offered();
  auto ring = offered >= 0 ? RingPair::map(offered, false) : nullptr;
  if (offered >= 0) ::close(offered);
  if (ring) connection.offer(bell->fd());
  connection.send(FrameType::hello, ring ? by_ring : by_socket);
  if (ring) connection.use(std::move(ring), bell);
}

// Wait for the coordinator's answer: it comes when all ranks are connected, so that nothing is sent
// before everybody listens.
bool welcomed(Connection& connection, std::unique_ptr<RingPair> ring, Clock::time_point deadline) {
  std::optional<Frame> answer;
  while (!answer && !connection.closed() && Clock::now() < deadline) {
    pollfd waiting{connection.fd(), POLLIN, 0};
    ::poll(&waiting, 1, 100);
    answer = connection.receive_one(0);
  }
  if (!answer || answer->type != FrameType::hello) return false;
  if (answer->payload != by_ring) return true;
  const int bell = connection.take_offered();
  auto listener = std::make_unique<BellListener>(bell);
  ::close(bell);
  connection.use(std::move(ring), std::move(listener));
  return true;
}

// Say hello; on a Unix socket with the offer of a ring. True when the coordinator has answered.
bool introduce(Connection& connection, bool is_same_host, const std::string& hello,
               Clock::time_point deadline) {
  const int memory = is_same_host ? RingPair::create() : -1;
  auto ring = memory >= 0 ? RingPair::map(memory, true) : nullptr;
  if (ring) connection.offer(memory);
  connection.send(FrameType::hello, hello);
  if (memory >= 0) ::close(memory);
  return welcomed(connection, std::move(ring), deadline);
}

std::string missing_ranks(const std::vector<std::unique_ptr<Connection>>& connections) {
  std::string text;
  for (size_t i = 0; i < connections.size(); ++i) {
    if (!connections[i]) text += (text.empty() ? "" : ", ") + std::to_string(i + 1);
  }
  return text;
}

}  // namespace

// Address: "secret port host host ...".
Rendezvous::Rendezvous() : secret_(random_hex(16)) {
  unix_fd_ = listen_unix(secret_);
  int port = 0;
  tcp_fd_ = listen_tcp(port);
  address_ = secret_ + " " + std::to_string(port);
  for (const std::string& host : own_addresses()) address_ += " " + host;
}

Rendezvous::~Rendezvous() {
  ::close(unix_fd_);
  ::close(tcp_fd_);
}

std::vector<std::unique_ptr<Connection>> Rendezvous::accept_all(int size,
                                                                std::chrono::seconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::vector<std::unique_ptr<Connection>> accepted(static_cast<size_t>(size) - 1);
  std::vector<std::unique_ptr<Connection>> strangers;  // connected, hello not read yet
  std::string missing;
  while (!(missing = missing_ranks(accepted)).empty()) {
    if (Clock::now() > deadline) {
      throw EngineError("control plane: expected a connection from every rank within " +
                        std::to_string(timeout.count()) + " s, got none from rank " + missing +
                        "; are they running, and can they reach this host (" + address_.substr(33) +
                        ")?");
    }
    std::vector<pollfd> fds{{unix_fd_, POLLIN, 0}, {tcp_fd_, POLLIN, 0}};
    for (const auto& stranger : strangers) fds.push_back({stranger->fd(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), 100);
    for (const int listener : {unix_fd_, tcp_fd_}) {
      if (!(fds[listener == unix_fd_ ? 0 : 1].revents & POLLIN)) continue;
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      if (listener == tcp_fd_) configure_tcp(fd);
      strangers.push_back(std::make_unique<Connection>(fd));
    }
    for (auto& stranger : strangers) {
      const std::optional<Frame> hello = stranger->receive_one(-1);
      if (!hello && !stranger->closed()) continue;
      const int rank = hello ? rank_in_hello(*hello, secret_, size) : -1;
      if (rank > 0) accepted[static_cast<size_t>(rank) - 1] = std::move(stranger);
      stranger.reset();
    }
    strangers.erase(std::remove(strangers.begin(), strangers.end(), nullptr), strangers.end());
  }
  const auto bell = std::make_shared<Bell>();
  for (auto& connection : accepted) welcome(*connection, bell);
  return accepted;
}

std::unique_ptr<Connection> connect_to(const std::string& address, int rank,
                                       std::chrono::seconds timeout) {
  std::istringstream words(address);
  std::string secret, host;
  int port = 0;
  words >> secret >> port;
  std::vector<std::string> hosts;
  while (words >> host) hosts.push_back(host);
  const auto deadline = Clock::now() + timeout;
  do {
    int fd = try_connect_unix(secret);
    const bool is_same_host = fd >= 0;
    for (size_t i = 0; fd < 0 && i < hosts.size(); ++i) fd = try_connect_tcp(hosts[i], port);
    if (fd >= 0) {
      auto connection = std::make_unique<Connection>(fd);
      const std::string hello = secret + " " + std::to_string(rank);
      if (introduce(*connection, is_same_host, hello, deadline)) return connection;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < deadline);
  throw EngineError("control plane: rank " + std::to_string(rank) +
                    " expected the coordinator (rank 0) at one of " + address.substr(33) +
                    ", got no answer within " + std::to_string(timeout.count()) +
                    " s; is a firewall between the hosts?");
}

}  // namespace autotune
