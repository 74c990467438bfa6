// Connection set-up of the control plane: addresses, proofs, the offer of a ring.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <sstream>
#include <thread>
#include <utility>

#include "common/errors.h"
#include "common/fork.h"
#include "common/log.h"
#include "common/sha256.h"
#include "control/control.h"
#include "control/proof.h"

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

int listen_tcp(int& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
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
  if (name.size() >= sizeof address.sun_path) return -1;
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

// Both ends of a Unix socket are the same user's. Over TCP nothing is known of the other end.
bool is_same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid();
}

bool is_closed(int fd) {
  pollfd looked{fd, POLLRDHUP, 0};
  return ::poll(&looked, 1, 0) == 1 && looked.revents != 0;
}

// Somebody who has connected and has not proven yet to be a rank: has been sent a challenge. Takes
// no byte more than a claim has, and no file descriptor.
class Applicant {
 public:
  explicit Applicant(int fd)
      : fd_(fd), challenge_(make_challenge()), until_(Clock::now() + Rendezvous::proof_timeout) {
    ::send(fd, challenge_.data(), challenge_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ~Applicant() {
    if (fd_ >= 0) ::close(fd_);
  }
  Applicant(const Applicant&) = delete;
  Applicant& operator=(const Applicant&) = delete;

  int fd() const { return fd_; }
  int take_fd() { return std::exchange(fd_, -1); }

  // What has been claimed; empty: not all of it has come.
  std::string_view read_claim() {
    char bytes[claim_bytes];
    const ssize_t n = ::recv(fd_, bytes, claim_bytes - claim_.size(), MSG_DONTWAIT);
    if (n > 0) claim_.append(bytes, static_cast<size_t>(n));
    is_gone_ = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    return claim_.size() == claim_bytes ? std::string_view(claim_) : std::string_view();
  }
  // Will never prove anything.
  bool is_hopeless() const { return is_gone_ || Clock::now() > until_; }

  // What this one has proven to be.
  std::optional<int> rank(const std::string& key, int size) const {
    return rank_that_claims(key, challenge_, claim_, size);
  }
  // Prove to it that we are its coordinator.
  void answer(const std::string& key) {
    const std::string answer = make_answer(key, challenge_, claim_);
    ::send(fd_, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  int fd_;
  std::string challenge_;
  std::string claim_;
  Clock::time_point until_;
  bool is_gone_ = false;
};

// All who connect while rank 0 waits for its ranks.
class Reception {
 public:
  Reception(const std::string& key, int size, int unix_fd, int tcp_fd)
      : key_(key), size_(size), listeners_{unix_fd, tcp_fd}, is_tcp_{false, true} {
    accepted_.resize(static_cast<size_t>(size) - 1);
  }

  // Waits a little for somebody to connect or to say something, and hears it.
  void turn() {
    std::vector<pollfd> fds;
    for (const int listener : listeners_) fds.push_back({listener, POLLIN, 0});
    for (const auto& each : applicants_) fds.push_back({each->fd(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), 100);
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (fds[i].revents & POLLIN) take_all(listeners_[i], is_tcp_[i]);
    }
    for (auto& each : applicants_) hear(each);
    applicants_.erase(std::remove(applicants_.begin(), applicants_.end(), nullptr),
                      applicants_.end());
  }

  // Of the ranks that are not connected.
  std::string missing() const {
    std::string text;
    for (size_t i = 0; i < accepted_.size(); ++i) {
      if (!accepted_[i]) text += (text.empty() ? "" : ", ") + std::to_string(i + 1);
    }
    return text;
  }

  std::vector<std::unique_ptr<Connection>> take() { return std::move(accepted_); }

 private:
  void take_all(int listener, bool is_tcp) {
    constexpr int most_at_once = 64;  // who floods us does not hold up those who are here
    for (int i = 0; i < most_at_once; ++i) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (fd < 0) {
        const bool is_all = errno == EAGAIN || errno == EWOULDBLOCK;
        // No descriptors or no memory: the caller would look again at once.
        if (!is_all) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return;
      }
      if (is_tcp) configure_tcp(fd);
      if (!is_tcp && !is_same_user(fd)) {
        ::close(fd);
        continue;
      }
      applicants_.push_back(std::make_unique<Applicant>(fd));
      const size_t most = Rendezvous::most_applicants + static_cast<size_t>(size_);
      if (applicants_.size() > most) applicants_.pop_front();
    }
  }

  void hear(std::unique_ptr<Applicant>& applicant) {
    if (applicant->read_claim().empty()) {
      if (applicant->is_hopeless()) applicant.reset();
      return;
    }
    const std::optional<int> rank = applicant->rank(key_, size_);
    if (rank) admit(*applicant, *rank);
    applicant.reset();
  }

  void admit(Applicant& applicant, int rank) {
    auto& place = accepted_[static_cast<size_t>(rank) - 1];
    // One that has closed its connection, because no answer came in time, may come again.
    if (place && !is_closed(place->fd())) {
      log(LogLevel::warning, "a second connection claims to be rank " + std::to_string(rank) +
                                 "; it is refused, the first one stays");
      return;
    }
    applicant.answer(key_);
    place = std::make_unique<Connection>(applicant.take_fd());
  }

  const std::string& key_;
  int size_;
  std::array<int, 2> listeners_;
  std::array<bool, 2> is_tcp_;
  std::deque<std::unique_ptr<Applicant>> applicants_;
  std::vector<std::unique_ptr<Connection>> accepted_;
};

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
  const auto deadline = Clock::now() + Rendezvous::proof_timeout;
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

// Wait for the coordinator's answer: it comes when all ranks are connected, so that nothing is sent
// before everybody listens.
bool welcomed(Connection& connection, std::unique_ptr<RingPair> ring, Clock::time_point deadline) {
  const std::optional<Frame> answer = wait_for_frame(connection, 0, deadline);
  if (!answer || answer->type != FrameType::hello) return false;
  if (answer->payload != by_ring) return true;
  const int bell = connection.take_offered();
  if (!ring || bell < 0) return false;
  auto listener = std::make_unique<BellListener>(bell);
  ::close(bell);
  connection.use(std::move(ring), std::move(listener));
  return true;
}

// Say hello; on a Unix socket with the offer of a ring. True when the coordinator has answered.
bool introduce(Connection& connection, bool is_same_host, Clock::time_point deadline) {
  const int memory = is_same_host ? RingPair::create() : -1;
  auto ring = memory >= 0 ? RingPair::map(memory, true) : nullptr;
  if (ring) connection.offer(memory);
  connection.send(FrameType::hello, "");
  if (memory >= 0) ::close(memory);
  return welcomed(connection, std::move(ring), deadline);
}

// Exactly `count` bytes; fewer where the peer ends or takes longer than until `deadline`.
std::string read_exactly(int fd, size_t count, Clock::time_point deadline) {
  std::string bytes(count, '\0');
  size_t done = 0;
  while (done < count && Clock::now() < deadline) {
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, 100) != 1) continue;
    const ssize_t n = ::recv(fd, bytes.data() + done, count - done, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) break;
    if (n > 0) done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

// True when the other end has the key, and knows that we have it.
bool prove(int fd, const std::string& key, int rank, Clock::time_point deadline) {
  const std::string challenge = read_exactly(fd, challenge_bytes, deadline);
  if (!is_challenge(challenge)) return false;
  const std::string claim = make_claim(key, challenge, rank);
  if (::send(fd, claim.data(), claim.size(), MSG_NOSIGNAL) != ssize_t{claim_bytes}) return false;
  return is_answer(key, challenge, claim, read_exactly(fd, answer_bytes, deadline));
}

// A proven connection to one of the coordinator's addresses, -1: none. What else has answered there
// is left alone.
int reach(const std::string& name, const std::vector<std::string>& hosts, int port,
          const std::string& key, int rank, bool& is_same_host, Clock::time_point deadline) {
  const auto close_unless = [](bool keep, int fd) {
    if (!keep && fd >= 0) ::close(fd);
    return keep ? fd : -1;
  };
  // Who has this name is the coordinator, which may be late; at an address of a host may be another
  // one, as in its containers.
  int fd = try_connect_unix(name);
  fd = close_unless(fd >= 0 && is_same_user(fd) && prove(fd, key, rank, deadline), fd);
  is_same_host = fd >= 0;
  for (size_t i = 0; fd < 0 && i < hosts.size() && Clock::now() < deadline; ++i) {
    fd = try_connect_tcp(hosts[i], port);
    const auto limit = std::min(deadline, Clock::now() + Rendezvous::proof_timeout);
    fd = close_unless(fd >= 0 && prove(fd, key, rank, limit), fd);
  }
  return fd;
}

void check_key(const std::string& key) {
  if (key.size() == key_bytes) return;
  throw EngineError("control plane: expected a key of " + std::to_string(key_bytes) +
                    " bytes, got " + std::to_string(key.size()));
}

}  // namespace

// Address: "name port host host ...".
Rendezvous::Rendezvous(std::string key) : key_(std::move(key)), name_(to_hex(random_bytes(16))) {
  check_key(key_);
  unix_fd_ = listen_unix(name_);
  drop_in_children(unix_fd_);
  int port = 0;
  tcp_fd_ = listen_tcp(port);
  drop_in_children(tcp_fd_);
  address_ = name_ + " " + std::to_string(port);
  for (const std::string& host : own_addresses()) address_ += " " + host;
}

Rendezvous::~Rendezvous() {
  close_dropped(unix_fd_);
  close_dropped(tcp_fd_);
}

std::vector<std::unique_ptr<Connection>> Rendezvous::accept_all(int size,
                                                                std::chrono::seconds timeout) {
  const auto deadline = Clock::now() + timeout;
  Reception reception(key_, size, unix_fd_, tcp_fd_);
  for (std::string missing; !(missing = reception.missing()).empty(); reception.turn()) {
    if (Clock::now() > deadline) {
      throw EngineError("control plane: expected a connection from every rank within " +
                        std::to_string(timeout.count()) + " s, got none from rank " + missing +
                        "; are they running, and can they reach this host (" +
                        address_.substr(name_.size() + 1) + ")?");
    }
  }
  auto accepted = reception.take();
  const auto bell = std::make_shared<Bell>();
  for (size_t i = 0; i < accepted.size(); ++i) {
    welcome(*accepted[i], static_cast<int>(i) + 1, bell);
  }
  return accepted;
}

std::unique_ptr<Connection> connect_to(const std::string& address, const std::string& key, int rank,
                                       std::chrono::seconds timeout) {
  check_key(key);
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
      if (introduce(*connection, is_same_host, deadline)) return connection;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < deadline);
  throw EngineError("control plane: rank " + std::to_string(rank) +
                    " expected the coordinator (rank 0) at one of " +
                    address.substr(std::min(address.size(), name.size() + 1)) +
                    ", got no answer within " + std::to_string(timeout.count()) +
                    " s; is a firewall between the hosts?");
}

}  // namespace autotune
