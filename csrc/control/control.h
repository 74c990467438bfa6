// The control plane: small frames between the coordinator (rank 0) and every other rank.
//
// MPI moves data; sockets wake ranks. A rank that has nothing to say sleeps in poll(2) and costs
// nothing, and the end of a process is seen at once as the end of its connection. Ranks of one host
// use an abstract Unix socket, others TCP.
//
// Between ranks of one host frames go through shared memory (ring.h); the socket is then only there
// to wake a sleeping rank and to show its end, and is looked at now and then, not at every turn.
//
// Who is there. A process that has ended is seen as the end of its connection. A host that is gone
// says nothing: its kernel then leaves what was sent unacknowledged (`take_lost_ranks`). A process
// that is stopped, or whose machine is overloaded, is no dead one: its kernel acknowledges, but it
// does not answer a *ping* (`ask`), which only those send who have waited long.
//
// Ranks are a tree (tree.h), mostly a star: a rank is connected with its parent and its children. A
// *frame* is a type and bytes. Sending never blocks: what is not taken at once is kept and written
// by a later `pump`. Responses go down from rank 0 and an abort from anywhere to all ranks: who
// hears them passes them on at once, whatever else it is doing. What goes up is the relay's
// (engine/negotiation/relay.h). A rank hears the end and the silence of its neighbours only, and
// tells the others: an end by an abort that names the rank, silence with every pong, which says all
// that is known on this side of it. Of ranks behind a silent one nothing is known, so that nobody
// blames them.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/bell.h"
#include "control/ring.h"
#include "control/tree.h"

namespace autotune {

enum class FrameType : uint8_t {
  hello = 0,
  requests = 1,
  responses = 2,
  abort = 3,    // it tells a fatal error, in words
  goodbye = 4,  // all is said: the end of the connection is no error from now on
  // It is answered at once, and never seen outside the control plane; nor is a pong.
  ping = 5,
  pong = 6,     // it says which ranks do not answer, as far as its sender knows
  relayed = 7,  // requests of several ranks, from one that speaks for them
  last = relayed,
};

struct Frame {
  int rank = 0;  // it is the sender's
  FrameType type = FrameType::hello;
  std::string payload;
};

// Frames that have come, first in, first out. The memory of payloads is kept and used again.
class FrameQueue {
 public:
  bool empty() const { return begin_ == end_; }
  size_t size() const { return end_ - begin_; }
  const Frame& front() const { return frames_[begin_]; }
  Frame& operator[](size_t place) { return frames_[begin_ + place]; }
  const Frame* begin() const { return frames_.data() + begin_; }
  const Frame* end() const { return frames_.data() + end_; }

  // At the end; to be filled.
  Frame& add();
  void pop_front();
  void drop_last();
  // Exchange the first frame for a used one, and drop that.
  void take_front(Frame& frame);
  void clear() { begin_ = end_ = 0; }

 private:
  std::vector<Frame> frames_;  // those outside [begin_, end_) are used ones
  size_t begin_ = 0;
  size_t end_ = 0;
};

// A connected, non-blocking stream socket with its unsent and unparsed bytes.
class Connection {
 public:
  explicit Connection(int fd);
  // From now on frames travel through `ring`; nothing is unsent or unparsed. One end has the `bell`
  // by which it may wake the other, which listens.
  void use(std::unique_ptr<RingPair> ring, std::shared_ptr<Bell> bell);
  void use(std::unique_ptr<RingPair> ring, std::unique_ptr<BellListener> listener);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd() const { return fd_; }
  bool closed() const { return closed_; }
  bool has_unsent() const { return sent_ < out_.size(); }
  bool has_unsent_on_socket() const { return has_unsent() && !ring_; }

  void send(FrameType type, const std::string& payload);
  // The same, but returns the bell that the caller has to ring then; nullptr: none.
  Bell* send_without_nudge(FrameType type, const std::string& payload);
  // Offer a file descriptor to the peer, with the next bytes that are sent.
  void offer(int fd);
  void flush();
  // Say that nothing more will be sent; the peer can still read what was.
  void finish_sending();
  // Read what is there; append whole frames to `frames` as sent by `rank`. Where frames do not come
  // by the socket, it is only looked at if `look_at_socket`.
  void receive(int rank, FrameQueue& frames, bool look_at_socket = true);
  // The same for one short frame only, of the first ones; what follows it stays for a later call.
  std::optional<Frame> receive_one(int rank);
  // A file descriptor that the peer has offered, now the caller's; -1: none.
  int take_offered();

  // False once the peer's kernel has left bytes unacknowledged for `lost_after`; always true where
  // the peer is on this host.
  bool is_reached() const;
  // Sends a ping. `since_last`: how long the last one has been waited for, if it was not answered.
  void ask(std::chrono::nanoseconds since_last);
  // How long the peer has not answered; 0 when it has.
  std::chrono::nanoseconds silence() const { return silence_; }
  void answered() { is_asked_ = false, silence_ = std::chrono::nanoseconds(0); }

  // Around a sleep on `fd()` and, where there is one, `listener_fd()`. True when there is already
  // something to read.
  bool begin_sleep();
  void end_sleep();
  int listener_fd() const { return listener_ ? listener_->fd() : -1; }
  bool is_on_this_host() const { return ring_ != nullptr; }

 private:
  void append(FrameType type, const std::string& payload);
  void flush_socket();
  bool flush_ring();
  void nudge();
  void read_socket();
  void hear_nudges();
  ssize_t receive_bytes(char* bytes, size_t count);
  size_t next_frame_bytes(int rank, uint32_t most) const;
  void parse(int rank, Frame& frame);

  int fd_;
  std::unique_ptr<RingPair> ring_;
  std::shared_ptr<Bell> bell_;
  std::unique_ptr<BellListener> listener_;
  int to_offer_ = -1;
  int offered_ = -1;
  bool closed_ = false;
  std::string out_;
  size_t sent_ = 0;
  std::string in_;
  size_t parsed_ = 0;
  bool is_asked_ = false;
  std::chrono::nanoseconds silence_{0};
};

// Where a rank that has children listens before they connect. `address` travels to them by MPI or
// by way of their meeting point; it is no secret. `key` is: all ranks have it, and prove it
// (proof.h). Every listener's proofs are its own: an address may be of several hosts, a port of
// several ranks.
class Rendezvous {
 public:
  // `interfaces`: see own_addresses. `rank`: who listens. EngineError where `key` has not
  // `key_bytes` bytes.
  explicit Rendezvous(std::string key, const std::string& interfaces = "", int rank = 0);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const std::string& address() const { return address_; }

  // Accept one connection for each of `ranks`, in their order. Throws EngineError naming the
  // ranks that did not connect in time. Who does not prove the key soon is turned away, and so is a
  // second one that is a connected rank; nobody who says nothing, or too much, holds up others.
  std::vector<std::unique_ptr<Connection>> accept(const std::vector<int>& ranks,
                                                  std::chrono::seconds timeout);
  // The same for ranks 1..size-1.
  std::vector<std::unique_ptr<Connection>> accept_all(int size, std::chrono::seconds timeout);

 private:
  std::string key_;
  std::string name_;  // it is the abstract Unix socket's
  int unix_fd_ = -1;
  int tcp_fd_ = -1;
  std::string address_;
};

// Connect rank `rank` to rank `parent` at `address`, which has to prove the same `key`.
std::unique_ptr<Connection> connect_to(const std::string& address, const std::string& key, int rank,
                                       std::chrono::seconds timeout, int parent = 0);

// Collective: the connections of rank `rank` of `tree`, as ControlPlane wants them. `rendezvous`:
// of a rank that has children; `address`: of its parent's.
std::vector<std::unique_ptr<Connection>> connect_in_tree(const Tree& tree, int rank,
                                                         Rendezvous* rendezvous,
                                                         const std::string& address,
                                                         const std::string& key,
                                                         std::chrono::seconds timeout);

// A rank that does not answer.
struct Silent {
  int rank;
  int seconds;
};

// All connections of this rank plus a wake-up for its own threads.
class ControlPlane {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `connections`: with the parent, but on rank 0, then with the children in ascending order.
  ControlPlane(int rank, Tree tree, std::vector<std::unique_ptr<Connection>> connections);
  // The same in a star.
  ControlPlane(int rank, int size, std::vector<std::unique_ptr<Connection>> connections)
      : ControlPlane(rank, Tree::star(size), std::move(connections)) {}
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  int rank() const { return rank_; }
  int size() const { return tree_.size(); }
  const Tree& tree() const { return tree_; }

  // To the parent; to the children; to both.
  void send_up(FrameType type, const std::string& payload);
  void send_down(FrameType type, const std::string& payload) { send(type, payload, first_child()); }
  void send_all(FrameType type, const std::string& payload);

  // Write what is unsent and read what has arrived, without waiting. Frames go to `frames`.
  void pump(FrameQueue& frames);

  // Sleep until a frame may have arrived, `wake` was called, or `timeout` is over (negative: no
  // limit). One thread at a time.
  void sleep(std::chrono::nanoseconds timeout);

  // The same in two parts, for one more thread, which may sleep while another uses the connections:
  // what to look at (all connections, or only `wake`), then the sleep itself, which touches nothing
  // else. Every `watch` must be followed by its `sleep`.
  struct Watch {
    std::vector<pollfd> fds;  // the first one is what `wake` writes to
    bool ready = false;       // a frame is there already
  };
  // Both fill an earlier one, whose memory is used again.
  void watch(Watch& watched) { watch(watched, thread_wake_fd_); }
  void watch_for_wake(Watch& watched) const;
  void sleep(Watch& watched, std::chrono::nanoseconds timeout);

  // From any thread: end the current or the next sleep of both threads. Each has a wake-up of its
  // own: what one of them hears would be lost for the other.
  void wake();

  // End all connections so that nothing sent is lost: a socket closed with unread bytes may take
  // back what it sent. Waits for the end of all ranks, which is said up the tree and then down, at
  // most `timeout`, and calls `meanwhile` every few milliseconds.
  void close(std::chrono::nanoseconds timeout, const std::function<void()>& meanwhile = [] {});

  // Ranks whose process closed its connection. Each is returned once.
  std::vector<int> take_closed_ranks();
  // Ranks whose host cannot be reached. Looks at most once in `interval`, and returns each once.
  std::vector<int> take_lost_ranks(TimePoint now);
  bool has_other_hosts() const { return has_other_hosts_; }

  // To be called again and again while this rank waits for others: asks them for a sign of life.
  void ask(TimePoint now);
  // Those that `ask` has not heard of for some seconds, as far as this rank knows: its neighbours,
  // and those that its neighbours have named last. Time counts only while this rank looks: one that
  // was stopped itself blames nobody.
  std::vector<Silent> silent() const { return silent(connections_.size()); }
  // Ranks that are to blame where nothing is heard of `ranks`: a silent one speaks for those below.
  std::vector<int> to_blame(const std::vector<int>& ranks) const;

  static constexpr std::chrono::seconds interval{1};

 private:
  void watch(Watch& watched, int wake_fd);
  void send(FrameType type, const std::string& payload, size_t first);
  void hear(size_t index, FrameQueue& frames, size_t first);
  void pass_on(size_t index, const Frame& frame);
  void heard_ping(size_t index);
  void ask(TimePoint now, size_t but);
  std::vector<Silent> silent(size_t but) const;
  size_t first_child() const { return rank_ == 0 ? 0 : 1; }
  int peer_rank(size_t index) const { return peers_[index]; }

  int rank_;
  Tree tree_;
  std::vector<int> peers_;  // of each connection
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<bool> reported_closed_;
  std::vector<bool> reported_lost_;
  bool has_other_hosts_ = false;
  TimePoint reach_checked_{};
  std::vector<TimePoint> asked_;                  // each connection has one
  std::vector<std::vector<Silent>> said_silent_;  // each peer has said it
  int user_wake_fd_;
  int thread_wake_fd_;
  uint32_t pumps_ = 0;
  Watch watched_;                            // only the thread that runs cycles uses it
  std::atomic<bool> socket_is_ready_{true};  // the last sleep has seen it so
};

}  // namespace autotune
