#include "control/control.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/errors.h"
#include "common/fork.h"
#include "common/sockets.h"

namespace autotune {

namespace {

constexpr size_t header_bytes = 5;  // a uint32 is the payload's length, a uint8 the type
// Larger than any honest frame (a request is some 100 bytes); a longer one means a broken stream.
constexpr uint32_t max_payload_bytes = 1u << 30;
constexpr uint32_t max_hello_bytes = 256;
// A turn without a system call takes some 50 ns; a socket is looked at every few microseconds.
constexpr uint32_t pumps_per_look_at_sockets = 32;
// Who does not answer for so long is called silent: an engine answers within milliseconds, but a
// machine that swaps or has too many processes may take a second.
constexpr auto silent_after = std::chrono::seconds(3);

EngineError broken_frame(int rank) {
  return EngineError("control connection: what comes from rank " + std::to_string(rank) +
                     " is no frame");
}

// What a pong says: those who do not answer, as far as its sender knows.
std::string text_of(const std::vector<Silent>& silent) {
  std::string text;
  for (const Silent& each : silent) {
    text += std::to_string(each.rank) + " " + std::to_string(each.seconds) + " ";
  }
  return text;
}

// The same read; anything else than others of `size` ranks in their order is refused.
std::vector<Silent> read_silent(const std::string& text, int size, int sender) {
  std::vector<Silent> silent;
  std::istringstream words(text);
  int last = -1;
  for (Silent each{}; words >> each.rank >> each.seconds; last = each.rank) {
    const bool is_known = each.rank > last && each.rank < size && each.rank != sender;
    if (!is_known || each.seconds < 0) throw broken_frame(sender);
    silent.push_back(each);
  }
  if (text_of(silent) != text) throw broken_frame(sender);
  return silent;
}

}  // namespace

Frame& FrameQueue::add() {
  if (end_ == frames_.size()) frames_.emplace_back();
  return frames_[end_++];
}

void FrameQueue::pop_front() {
  if (++begin_ == end_) clear();
}

void FrameQueue::drop_last() {
  if (--end_ == begin_) clear();
}

void FrameQueue::take_front(Frame& frame) {
  std::swap(frames_[begin_], frame);
  pop_front();
}

Connection::Connection(int fd) : fd_(fd) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL, 0) | O_NONBLOCK);
  fcntl(fd_, F_SETFD, FD_CLOEXEC);
  drop_in_children(fd_);
}

Connection::~Connection() {
  close_dropped(fd_);
  if (offered_ >= 0) ::close(offered_);
}

void Connection::use(std::unique_ptr<RingPair> ring, std::shared_ptr<Bell> bell) {
  bell_ = std::move(bell);
  use(std::move(ring), std::unique_ptr<BellListener>());
}

void Connection::use(std::unique_ptr<RingPair> ring, std::unique_ptr<BellListener> listener) {
  ring_ = std::move(ring);
  listener_ = std::move(listener);
  in_.clear();  // nudges that came with the last frame: the ring is looked at anyway
  parsed_ = 0;
  ring_->nudge_arrived();
}

void Connection::offer(int fd) { to_offer_ = fd; }

int Connection::take_offered() { return std::exchange(offered_, -1); }

void Connection::send(FrameType type, const std::string& payload) {
  append(type, payload);
  flush();
}

Bell* Connection::send_without_nudge(FrameType type, const std::string& payload) {
  append(type, payload);
  if (ring_ && bell_) return flush_ring() && ring_->begin_nudge() ? bell_.get() : nullptr;
  flush();
  return nullptr;
}

void Connection::append(FrameType type, const std::string& payload) {
  const auto length = static_cast<uint32_t>(payload.size());
  char header[header_bytes];
  std::memcpy(header, &length, sizeof length);
  header[4] = static_cast<char>(type);
  out_.append(header, header_bytes);
  out_.append(payload);
}

void Connection::flush() {
  if (!ring_) return flush_socket();
  if (flush_ring()) nudge();
}

// True when the peer has to be nudged.
bool Connection::flush_ring() {
  if (!has_unsent()) return false;
  sent_ += ring_->write(out_.data() + sent_, out_.size() - sent_);
  if (!has_unsent() || closed_) {
    out_.clear();
    sent_ = 0;
  }
  return ring_->peer_sleeps();
}

// One byte that is not taken means that the peer has not heard earlier ones yet: it will.
void Connection::nudge() {
  if (ring_->begin_nudge()) ::send(fd_, "", 1, MSG_NOSIGNAL);
}

void Connection::flush_socket() {
  while (has_unsent() && !closed_) {
    iovec bytes{out_.data() + sent_, out_.size() - sent_};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (to_offer_ >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &to_offer_, sizeof(int));
    }
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (n > 0) {
      sent_ += static_cast<size_t>(n);
      to_offer_ = -1;
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

// As recv(2), and keeps a file descriptor that comes along.
ssize_t Connection::receive_bytes(char* bytes, size_t count) {
  iovec part{bytes, count};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  if (n <= 0) return n;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    // There may be room for more than one: the last one is kept, none is forgotten.
    for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      if (offered_ >= 0) ::close(offered_);
      std::memcpy(&offered_, CMSG_DATA(header) + at, sizeof(int));
    }
  }
  return n;
}

void Connection::read_socket() {
  std::array<char, 16384> chunk;
  while (!closed_) {
    const ssize_t n = receive_bytes(chunk.data(), chunk.size());
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

void Connection::hear_nudges() {
  if (listener_ && listener_->has_rung()) ring_->nudge_arrived();
  std::array<char, 64> nudges;
  while (!closed_) {
    const ssize_t n = ::recv(fd_, nudges.data(), nudges.size(), 0);
    if (n > 0) {
      ring_->nudge_arrived();
      if (static_cast<size_t>(n) < nudges.size()) return;
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
      closed_ = true;
    } else if (errno != EINTR) {
      return;
    }
  }
}

// Of the whole frame that is there; 0: none. Throws where its header can be no frame's.
size_t Connection::next_frame_bytes(int rank, uint32_t most) const {
  const size_t available = in_.size() - parsed_;
  if (available < header_bytes) return 0;
  uint32_t length;
  std::memcpy(&length, in_.data() + parsed_, sizeof length);
  const auto type = static_cast<uint8_t>(in_[parsed_ + 4]);
  if (length > most || type > static_cast<uint8_t>(FrameType::last)) throw broken_frame(rank);
  return available < header_bytes + length ? 0 : header_bytes + length;
}

// The whole frame that is there.
void Connection::parse(int rank, Frame& frame) {
  const size_t bytes = next_frame_bytes(rank, max_payload_bytes);
  frame.rank = rank;
  frame.type = static_cast<FrameType>(in_[parsed_ + 4]);
  frame.payload.assign(in_, parsed_ + header_bytes, bytes - header_bytes);
  parsed_ += bytes;
  if (parsed_ < in_.size()) return;
  in_.clear();
  parsed_ = 0;
}

void Connection::receive(int rank, FrameQueue& frames, bool look_at_socket) {
  if (ring_) {
    // The socket first: what was written before the peer's end is then read in any case.
    if (look_at_socket) hear_nudges();
    // A nudge may have told of room for what is unsent. From now on the peer sends another one, so
    // that whoever sleeps with unsent bytes has found the ring full after the last one.
    if (look_at_socket) flush();
    if (ring_->read(in_)) nudge();
  } else {
    read_socket();
  }
  while (next_frame_bytes(rank, max_payload_bytes) > 0) parse(rank, frames.add());
}

std::optional<Frame> Connection::receive_one(int rank) {
  read_socket();
  if (next_frame_bytes(rank, max_hello_bytes) == 0) return std::nullopt;
  Frame frame;
  parse(rank, frame);
  return frame;
}

bool Connection::is_reached() const { return ring_ || closed_ || autotune::is_reached(fd_); }

void Connection::ask(std::chrono::nanoseconds since_last) {
  if (is_asked_) {
    silence_ += since_last;
  } else if (!closed_) {
    is_asked_ = true;
    send(FrameType::ping, "");
  }
}

bool Connection::begin_sleep() {
  if (!ring_) return false;
  ring_->begin_sleep();
  return ring_->has_unread();
}

void Connection::end_sleep() {
  if (ring_) ring_->end_sleep();
}

ControlPlane::ControlPlane(int rank, Tree tree,
                           std::vector<std::unique_ptr<Connection>> connections)
    : rank_(rank),
      tree_(std::move(tree)),
      peers_(tree_.children(rank)),
      connections_(std::move(connections)),
      reported_closed_(connections_.size(), false),
      reported_lost_(connections_.size(), false),
      asked_(connections_.size()),
      said_silent_(connections_.size()),
      user_wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (user_wake_fd_ < 0 || thread_wake_fd_ < 0) {
    throw EngineError(std::string("eventfd failed: ") + std::strerror(errno));
  }
  for (const int fd : {user_wake_fd_, thread_wake_fd_}) drop_in_children(fd);
  if (rank_ != 0) peers_.insert(peers_.begin(), tree_.parent(rank_));
  if (peers_.size() != connections_.size()) {
    throw std::logic_error("expected " + std::to_string(peers_.size()) + " connections of rank " +
                           std::to_string(rank_) + ", got " + std::to_string(connections_.size()));
  }
  has_other_hosts_ = std::any_of(connections_.begin(), connections_.end(),
                                 [](const auto& each) { return !each->is_on_this_host(); });
}

ControlPlane::~ControlPlane() {
  close_dropped(user_wake_fd_);
  close_dropped(thread_wake_fd_);
}

void ControlPlane::send_up(FrameType type, const std::string& payload) {
  if (rank_ != 0) connections_[0]->send(type, payload);
}

void ControlPlane::send_all(FrameType type, const std::string& payload) {
  send_up(type, payload);
  send_down(type, payload);
}

// By the connections from number `first` on, those with children.
void ControlPlane::send(FrameType type, const std::string& payload, size_t first) {
  Bell* bell = nullptr;  // one for all
  for (size_t i = first; i < connections_.size(); ++i) {
    if (Bell* own = connections_[i]->send_without_nudge(type, payload)) bell = own;
  }
  if (bell != nullptr) bell->ring();
}

void ControlPlane::pump(FrameQueue& frames) {
  const bool look_at_sockets =
      socket_is_ready_.exchange(false) || ++pumps_ % pumps_per_look_at_sockets == 0;
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i]->has_unsent()) connections_[i]->flush();
    const size_t before = frames.size();
    connections_[i]->receive(peer_rank(i), frames, look_at_sockets);
    if (frames.size() != before) hear(i, frames, before);
  }
}

// Takes the control plane's own frames out of those that have come from peer `index`.
void ControlPlane::hear(size_t index, FrameQueue& frames, size_t first) {
  size_t kept = first;
  for (size_t i = first; i < frames.size(); ++i) {
    Frame& frame = frames[i];
    // A leaf knows of nobody else.
    const bool is_list = frame.type == FrameType::pong && !tree_.is_leaf(frame.rank);
    const bool is_sign = frame.type == FrameType::ping || frame.type == FrameType::pong;
    if (is_sign && !is_list && !frame.payload.empty()) throw broken_frame(frame.rank);
    if (frame.type == FrameType::ping) {
      heard_ping(index);
    } else if (frame.type == FrameType::pong) {
      connections_[index]->answered();
      if (is_list) said_silent_[index] = read_silent(frame.payload, size(), frame.rank);
    } else {
      pass_on(index, frame);
      if (kept++ != i) std::swap(frames[kept - 1], frame);
    }
  }
  while (frames.size() > kept) frames.drop_last();
}

// What all ranks have to know goes on from neighbour to neighbour, away from where it came from.
void ControlPlane::pass_on(size_t index, const Frame& frame) {
  const bool is_from_above = rank_ != 0 && index == 0;
  if (frame.type == FrameType::responses && is_from_above) send_down(frame.type, frame.payload);
  if (frame.type != FrameType::abort) return;
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (i != index) connections_[i]->send(frame.type, frame.payload);
  }
}

// Who is asked asks all on its other side, and tells whom it has not heard.
void ControlPlane::heard_ping(size_t index) {
  ask(std::chrono::steady_clock::now(), index);
  connections_[index]->send(FrameType::pong, text_of(silent(index)));
}

void ControlPlane::ask(TimePoint now) { ask(now, connections_.size()); }

// All neighbours but one.
void ControlPlane::ask(TimePoint now, size_t but) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (i == but || now - asked_[i] < interval) continue;
    if (now - asked_[i] > 2 * interval) said_silent_[i].clear();  // in an earlier wait
    connections_[i]->ask(std::min<std::chrono::nanoseconds>(now - asked_[i], 2 * interval));
    asked_[i] = now;
  }
}

// As far as this rank knows, but for what one neighbour has said.
std::vector<Silent> ControlPlane::silent(size_t but) const {
  std::vector<Silent> found;
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (i == but) continue;
    const auto silence = connections_[i]->silence();
    if (silence >= silent_after) {
      const auto whole = std::chrono::duration_cast<std::chrono::seconds>(silence);
      found.push_back({peer_rank(i), static_cast<int>(whole.count())});
      continue;
    }
    for (const Silent& each : said_silent_[i]) {
      if (each.rank != rank_) found.push_back(each);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Silent& one, const Silent& other) { return one.rank < other.rank; });
  return found;
}

std::vector<int> ControlPlane::to_blame(const std::vector<int>& ranks) const {
  const std::vector<Silent> known = silent();
  std::vector<int> found;
  for (const int rank : ranks) {
    const auto speaker = std::find_if(known.begin(), known.end(), [&](const Silent& each) {
      return tree_.is_in_branch(rank, each.rank);
    });
    const int blamed = speaker == known.end() ? rank : speaker->rank;
    if (std::find(found.begin(), found.end(), blamed) == found.end()) found.push_back(blamed);
  }
  return found;
}

void ControlPlane::sleep(std::chrono::nanoseconds timeout) {
  watch(watched_, user_wake_fd_);
  sleep(watched_, timeout);
}

void ControlPlane::watch_for_wake(Watch& watched) const {
  watched.ready = false;
  watched.fds.assign(1, {thread_wake_fd_, POLLIN, 0});
}

void ControlPlane::watch(Watch& watched, int wake_fd) {
  watched.ready = false;
  watched.fds.assign(1, {wake_fd, POLLIN, 0});
  for (const auto& connection : connections_) {
    watched.ready |= connection->begin_sleep();
    const short events = connection->has_unsent_on_socket() ? POLLIN | POLLOUT : POLLIN;
    watched.fds.push_back({connection->closed() ? -1 : connection->fd(), events, 0});
    if (connection->listener_fd() >= 0) {
      watched.fds.push_back({connection->listener_fd(), POLLIN, 0});
    }
  }
}

void ControlPlane::sleep(Watch& watched, std::chrono::nanoseconds timeout) {
  if (watched.ready) timeout = std::chrono::nanoseconds(0);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{seconds.count(), (timeout - seconds).count()};
  const int ready = ::ppoll(watched.fds.data(), watched.fds.size(),
                            timeout.count() < 0 ? nullptr : &limit, nullptr);
  if (watched.fds.size() > 1) {
    for (const auto& connection : connections_) connection->end_sleep();
  }
  if (ready <= 0) return;
  if (!(watched.fds[0].revents & POLLIN)) {
    socket_is_ready_ = true;
    return;
  }
  if (ready > 1) socket_is_ready_ = true;
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(watched.fds[0].fd, &count, sizeof count);
}

void ControlPlane::wake() {
  const uint64_t one = 1;
  for (const int fd : {user_wake_fd_, thread_wake_fd_}) {
    [[maybe_unused]] const ssize_t n = ::write(fd, &one, sizeof one);
  }
}

void ControlPlane::close(std::chrono::nanoseconds timeout, const std::function<void()>& meanwhile) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  FrameQueue ignored;
  // Hear nothing any more while `is_missing` holds for one of [first, end); false after `timeout`.
  const auto wait_while = [&](size_t first, size_t end, auto&& is_missing, auto nap) {
    const auto begin = connections_.begin();
    const auto at = [&](size_t place) { return begin + static_cast<std::ptrdiff_t>(place); };
    while (std::any_of(at(first), at(end), is_missing)) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left.count() <= 0) return false;
      sleep(std::min<std::chrono::nanoseconds>(left, nap));
      try {
        pump(ignored);
      } catch (const EngineError&) {  // a broken frame is no news any more
      }
      ignored.clear();
      meanwhile();
    }
    return true;
  };
  const auto is_unsent = [](const auto& connection) {
    return connection->has_unsent() && !connection->closed();
  };
  const auto is_open = [](const auto& connection) { return !connection->closed(); };
  const size_t children = first_child(), all = connections_.size();
  wait_while(0, all, is_unsent, std::chrono::milliseconds(1));
  const bool are_all_here = wait_while(children, all, is_open, std::chrono::milliseconds(10));
  for (size_t i = 0; i < children; ++i) connections_[i]->finish_sending();
  if (are_all_here) wait_while(0, children, is_open, std::chrono::milliseconds(10));
  for (size_t i = children; i < all; ++i) connections_[i]->finish_sending();
}

std::vector<int> ControlPlane::take_lost_ranks(TimePoint now) {
  std::vector<int> ranks;
  if (!has_other_hosts_ || now - reach_checked_ < interval) return ranks;
  reach_checked_ = now;
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (reported_lost_[i] || connections_[i]->is_reached()) continue;
    reported_lost_[i] = true;
    ranks.push_back(peer_rank(i));
  }
  return ranks;
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
