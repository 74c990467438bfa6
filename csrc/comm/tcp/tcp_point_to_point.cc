#include "comm/tcp/tcp_point_to_point.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "comm/tcp/tcp_stream.h"
#include "common/errors.h"
#include "common/fork.h"
#include "common/sockets.h"

namespace autotune {

namespace {

using Clock = std::chrono::steady_clock;
using Outcome = TcpStream::Outcome;

// Of a longer message each stream gets a part, cut so that none has much more to do than others.
constexpr int64_t least_chunk_bytes = 64 << 10;
constexpr int64_t most_chunk_bytes = 256 << 10;
// Chunks per stream and call: the caller has to look elsewhere now and then.
constexpr int most_rounds = 64;
// After the end of a connection or the last word of a host: the control plane knows better who is
// gone, and says so first.
constexpr auto patience = std::chrono::seconds(5);
constexpr auto look_interval = std::chrono::seconds(1);

struct Send {
  const char* data;
  int64_t bytes;
  int64_t begun = 0;  // so many bytes were given to streams
};

struct Receive {
  char* data;
  int64_t bytes;
  int64_t begun = 0;      // the headers of so many bytes have come
  int64_t come = 0;       // so many bytes have come
  bool has_come = false;  // an empty message is one empty chunk

  bool is_whole() const { return has_come && come == bytes; }
};

// Of the chunks of a message that has `bytes`.
int64_t chunk_bytes(int64_t bytes, size_t streams) {
  const auto share = (bytes + static_cast<int64_t>(streams) - 1) / static_cast<int64_t>(streams);
  return std::clamp(share, least_chunk_bytes, most_chunk_bytes);
}

// One rank as another one sees it.
class Peer {
 public:
  Peer(int own_rank, int rank) : own_rank_(own_rank), rank_(rank) {}

  int rank() const { return rank_; }
  std::vector<TcpStream>& streams() { return streams_; }
  void add_stream(int fd) {
    if (streams_.empty() || !is_paced(fd)) ++out_streams_;
    streams_.emplace_back(fd);
  }

  void send(const void* data, int64_t bytes) {
    sends_.push_back({static_cast<const char*>(data), bytes});
  }
  void receive(void* data, int64_t bytes) {
    receives_.push_back({static_cast<char*>(data), bytes});
  }
  bool is_idle() const { return sends_.empty() && receives_.empty() && writing_ == 0; }

  // One chunk, or a part of it, on each stream that is ready. True when anything has moved.
  bool move() {
    bool has_moved = false;
    for (size_t i = 0; i < streams_.size(); ++i) {
      TcpStream& stream = streams_[i];
      const bool is_for_out = i < out_streams_ && stream.may_write;
      if (is_for_out && (stream.is_writing() || begin_chunk(stream))) {
        has_moved |= write(stream);
      }
      if (stream.may_read && !receives_.empty()) has_moved |= read(stream);
    }
    return has_moved;
  }

  void forget() {
    sends_.clear();
    receives_.clear();
    writing_ = 0;
  }

  // From now on it is waited for.
  void begin_to_watch(Clock::time_point now) { reached_ = now; }
  // Throws EngineError when this one, who is waited for, is gone. What had come before its end is
  // read in any case.
  void check(Clock::time_point now, bool is_time_to_look) {
    if (has_ended_ && now - ended_ > patience) {
      throw EngineError(whom() + " has ended its process or its connections" +
                        (error_ == 0 ? "" : std::string(" (") + std::strerror(error_) + ")") +
                        " while messages were on their way; look for its error message");
    }
    if (has_ended_ || !is_time_to_look) return;
    if (is_everywhere_reached()) {
      reached_ = now;
    } else if (now - reached_ > patience) {
      throw EngineError("no sign of life from the host of " + whom() + " for " +
                        std::to_string(lost_after.count()) +
                        " s; is it down, or the network between?");
    }
  }

 private:
  bool is_everywhere_reached() const {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const TcpStream& stream) { return is_reached(stream.fd()); });
  }

  std::string whom() const {
    return "rank " + std::to_string(rank_) + " (seen by rank " + std::to_string(own_rank_) + ")";
  }

  // The next chunk for a stream that has none; false: there is none to begin.
  bool begin_chunk(TcpStream& stream) {
    if (sends_.empty()) return false;
    Send& next = sends_.front();
    ChunkHeader header;
    const int64_t bytes = std::min(chunk_bytes(next.bytes, out_streams_), next.bytes - next.begun);
    header.bytes = static_cast<uint32_t>(bytes);
    header.offset = static_cast<uint32_t>(next.begun);
    header.total = static_cast<uint32_t>(next.bytes);
    header.message = sent_;
    stream.begin_write(header, next.data + next.begun);
    ++writing_;
    next.begun += bytes;
    if (next.begun == next.bytes) {
      sends_.pop_front();
      ++sent_;
    }
    return true;
  }

  bool write(TcpStream& stream) {
    const Outcome outcome = stream.write();
    if (outcome == Outcome::gone) {
      stream.may_write = false;
      end(stream.error());
    }
    if (!stream.is_writing()) --writing_;
    return outcome == Outcome::moved;
  }

  bool read(TcpStream& stream) {
    Outcome outcome = Outcome::moved;
    if (!stream.has_header()) outcome = stream.read_header();
    if (stream.has_header() && !stream.is_reading() && !begin_reading(stream)) return false;
    if (outcome == Outcome::moved && stream.is_reading()) {
      const ChunkHeader header = stream.header();
      outcome = stream.read();
      if (!stream.is_reading()) finish_chunk(header);
    }
    if (outcome == Outcome::gone) {
      stream.may_read = false;
      end(stream.error());
    }
    return outcome == Outcome::moved;
  }

  // False while the message was not posted.
  bool begin_reading(TcpStream& stream) {
    const ChunkHeader& header = stream.header();
    if (header.mark != ChunkHeader::right_mark || header.message < received_) {
      throw EngineError("what comes from " + whom() + " is no message");
    }
    if (header.message - received_ >= receives_.size()) return false;
    Receive& receive = receives_[static_cast<size_t>(header.message - received_)];
    if (header.total != receive.bytes) {
      throw EngineError("expected a message of " + std::to_string(receive.bytes) +
                        " bytes, got one of " + std::to_string(header.total) + " bytes from " +
                        whom());
    }
    if (int64_t{header.offset} + header.bytes > receive.bytes ||
        receive.begun + header.bytes > receive.bytes ||
        (header.bytes == 0 && (receive.bytes > 0 || receive.has_come))) {
      throw EngineError("what comes from " + whom() + " is no message");
    }
    receive.begun += header.bytes;
    stream.begin_read(receive.data + header.offset);
    return true;
  }

  void finish_chunk(const ChunkHeader& header) {
    Receive& receive = receives_[static_cast<size_t>(header.message - received_)];
    receive.come += header.bytes;
    receive.has_come = true;
    while (!receives_.empty() && receives_.front().is_whole()) {
      receives_.pop_front();
      ++received_;
    }
  }

  void end(int error) {
    if (has_ended_) return;
    has_ended_ = true;
    error_ = error;
    ended_ = Clock::now();
  }

  int own_rank_;
  int rank_;
  std::vector<TcpStream> streams_;
  size_t out_streams_ = 0;        // the first so many are written to, all are read
  std::deque<Send> sends_;        // not all of it was given to streams
  std::deque<Receive> receives_;  // not all of it has come
  uint64_t sent_ = 0;             // so many messages were before the first of `sends_`
  uint64_t received_ = 0;         // so many messages were before the first of `receives_`
  int writing_ = 0;               // so many streams have a chunk to write
  bool has_ended_ = false;
  int error_ = 0;
  Clock::time_point ended_{};
  // It still was then, as far as this one has looked.
  Clock::time_point reached_{};
};

class TcpPointToPoint final : public PointToPoint {
 public:
  TcpPointToPoint(int rank, std::vector<StreamSockets> streams)
      : rank_(rank), epoll_fd_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (size_t peer = 0; peer < streams.size(); ++peer) {
      peers_.push_back(std::make_unique<Peer>(rank, static_cast<int>(peer)));
      for (const int fd : streams[peer]) peers_[peer]->add_stream(fd);
    }
    drop_in_children(epoll_fd_);
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      for (size_t i = 0; i < streams[peer].size(); ++i) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | EPOLLET;
        event.data.u64 = (uint64_t{peer} << 32) | i;
        if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, streams[peer][i], &event) != 0) fail();
      }
    }
  }
  ~TcpPointToPoint() override { close_dropped(epoll_fd_); }
  TcpPointToPoint(const TcpPointToPoint&) = delete;
  TcpPointToPoint& operator=(const TcpPointToPoint&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Backend backend() const override { return Backend::tcp; }
  bool leaves_behind() const override { return false; }

  void send(int peer, const void* data, int64_t bytes) override { to_post(peer).send(data, bytes); }
  void receive(int peer, void* data, int64_t bytes) override { to_post(peer).receive(data, bytes); }

  bool test_all() override {
    if (busy_.empty()) return true;
    if (move_all()) return true;
    if (learn_of_sockets() && move_all()) return true;
    check_peers();
    return false;
  }

  void give_up() override {
    for (Peer* peer : busy_) peer->forget();
    busy_.clear();
    is_given_up_ = true;
  }

 private:
  [[noreturn]] static void fail() {
    throw EngineError(std::string("epoll failed: ") + std::strerror(errno));
  }

  Peer& to_post(int rank) {
    if (is_given_up_) {
      throw EngineError(
          "messages were given up after an error: the transport cannot be used again");
    }
    Peer& peer = *peers_[static_cast<size_t>(rank)];
    if (peer.is_idle()) {
      if (busy_.empty()) looked_ = Clock::now();
      peer.begin_to_watch(looked_);
      busy_.push_back(&peer);
    }
    return peer;
  }

  // True when all is done.
  bool move_all() {
    bool has_moved = true;
    for (int round = 0; round < most_rounds && has_moved; ++round) {
      has_moved = false;
      for (Peer* peer : busy_) has_moved |= peer->move();
    }
    busy_.erase(std::remove_if(busy_.begin(), busy_.end(),
                               [](const Peer* peer) { return peer->is_idle(); }),
                busy_.end());
    return busy_.empty();
  }

  // True when a socket has become ready.
  bool learn_of_sockets() {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
    if (count < 0 && errno != EINTR) fail();
    constexpr uint32_t ends = EPOLLERR | EPOLLHUP;  // seen by who tries
    for (int i = 0; i < count; ++i) {
      const uint64_t place = events[static_cast<size_t>(i)].data.u64;
      const uint32_t what = events[static_cast<size_t>(i)].events;
      TcpStream& stream = peers_[place >> 32]->streams()[place & 0xffffffff];
      if (what & (EPOLLIN | ends)) stream.may_read = true;
      if (what & (EPOLLOUT | ends)) stream.may_write = true;
    }
    return count > 0;
  }

  void check_peers() {
    const auto now = Clock::now();
    const bool is_time_to_look = now - looked_ >= look_interval;
    if (is_time_to_look) looked_ = now;
    for (Peer* peer : busy_) peer->check(now, is_time_to_look);
  }

  const int rank_;
  const int epoll_fd_;
  std::vector<std::unique_ptr<Peer>> peers_;  // each rank has one
  std::vector<Peer*> busy_;                   // they have something posted
  bool is_given_up_ = false;
  Clock::time_point looked_{};
};

}  // namespace

std::unique_ptr<PointToPoint> make_tcp_point_to_point(int rank,
                                                      std::vector<StreamSockets> streams) {
  return std::make_unique<TcpPointToPoint>(rank, std::move(streams));
}

}  // namespace autotune
