#include "comm/control/control.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/errors.h"

namespace autotune {

namespace {

constexpr size_t header_bytes = 5;  // uint32 payload length, uint8 type
// Larger than any honest frame (a request is some 100 bytes); a longer one means a broken stream.
constexpr uint32_t max_payload_bytes = 1u << 30;

}  // namespace

Connection::Connection(int fd) : fd_(fd) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL, 0) | O_NONBLOCK);
  fcntl(fd_, F_SETFD, FD_CLOEXEC);
}

Connection::~Connection() { ::close(fd_); }

void Connection::send(FrameType type, const std::string& payload) {
  const auto length = static_cast<uint32_t>(payload.size());
  char header[header_bytes];
  std::memcpy(header, &length, sizeof length);
  header[4] = static_cast<char>(type);
  out_.append(header, header_bytes);
  out_.append(payload);
  flush();
}

void Connection::flush() {
  while (has_unsent() && !closed_) {
    const ssize_t n = ::send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (n > 0) {
      sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      break;  // the peer is gone; what it said before is still to be read, and ends with its end
    }
  }
  out_.clear();
  sent_ = 0;
}

void Connection::finish_sending() {
  flush();
  ::shutdown(fd_, SHUT_WR);
}

void Connection::read() {
  std::array<char, 16384> chunk;
  while (!closed_) {
    const ssize_t n = ::recv(fd_, chunk.data(), chunk.size(), 0);
    if (n > 0) {
      in_.append(chunk.data(), static_cast<size_t>(n));
      if (static_cast<size_t>(n) < chunk.size()) return;
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      closed_ = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      return;
    }
  }
}

std::optional<Frame> Connection::parse(int rank) {
  const size_t available = in_.size() - parsed_;
  if (available < header_bytes) return std::nullopt;
  uint32_t length;
  std::memcpy(&length, in_.data() + parsed_, sizeof length);
  if (length > max_payload_bytes) throw EngineError("control connection: broken frame");
  if (available < header_bytes + length) return std::nullopt;
  const auto type = static_cast<FrameType>(in_[parsed_ + 4]);
  Frame frame{rank, type, in_.substr(parsed_ + header_bytes, length)};
  parsed_ += header_bytes + length;
  if (parsed_ == in_.size()) {
    in_.clear();
    parsed_ = 0;
  }
  return frame;
}

void Connection::receive(int rank, std::deque<Frame>& frames) {
  read();
  while (auto frame = parse(rank)) frames.push_back(std::move(*frame));
}

std::optional<Frame> Connection::receive_one(int rank) {
  read();
  return parse(rank);
}

ControlPlane::ControlPlane(int rank, int size, std::vector<std::unique_ptr<Connection>> connections)
    : rank_(rank),
      size_(size),
      connections_(std::move(connections)),
      reported_closed_(connections_.size(), false),
      wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (wake_fd_ < 0) throw EngineError(std::string("eventfd failed: ") + std::strerror(errno));
}

ControlPlane::~ControlPlane() { ::close(wake_fd_); }

void ControlPlane::send_all(FrameType type, const std::string& payload) {
  for (auto& connection : connections_) connection->send(type, payload);
}

void ControlPlane::pump(std::deque<Frame>& frames) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i]->has_unsent()) connections_[i]->flush();
    connections_[i]->receive(peer_rank(i), frames);
  }
}

std::vector<pollfd> ControlPlane::watch() const {
  std::vector<pollfd> watched = watch_for_wake();
  for (const auto& connection : connections_) {
    if (connection->closed()) continue;
    const short events = connection->has_unsent() ? POLLIN | POLLOUT : POLLIN;
    watched.push_back({connection->fd(), events, 0});
  }
  return watched;
}

void ControlPlane::sleep(std::vector<pollfd> watched, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{seconds.count(), (timeout - seconds).count()};
  const int ready =
      ::ppoll(watched.data(), watched.size(), timeout.count() < 0 ? nullptr : &limit, nullptr);
  if (ready > 0 && (watched[0].revents & POLLIN)) {
    uint64_t count;
    [[maybe_unused]] const ssize_t n = ::read(wake_fd_, &count, sizeof count);
  }
}

void ControlPlane::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_fd_, &one, sizeof one);
}

void ControlPlane::close(std::chrono::nanoseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (auto& connection : connections_) connection->finish_sending();
  std::deque<Frame> ignored;
  const auto is_open = [](const auto& connection) { return !connection->closed(); };
  while (std::any_of(connections_.begin(), connections_.end(), is_open)) {
    pump(ignored);
    ignored.clear();
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return;
    sleep(std::min<std::chrono::nanoseconds>(left, std::chrono::milliseconds(10)));
  }
}

std::vector<int> ControlPlane::take_closed_ranks() {
  std::vector<int> ranks;
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (!connections_[i]->closed() || reported_closed_[i]) continue;
    reported_closed_[i] = true;
    ranks.push_back(peer_rank(i));
  }
  return ranks;
}

}  // namespace autotune
