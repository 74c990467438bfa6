// A stream of bytes between two processes of one host: rings in memory that both have mapped.
//
// A socket costs each side a system call per message and the reader a wake-up; a ring costs a
// few cache misses. What it cannot do is to wake a reader that sleeps in poll(2), or to tell that
// the other process is gone: the socket beside it does (a *nudge* is one byte there).
//
// Each ring has one writer and one reader. A RingPair is one end of a connection: the ring that it
// writes and the ring that it reads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace autotune {

// Shared by both processes. What one side writes often is alone on its cache lines.
struct Ring {
  static constexpr size_t capacity = 64 << 10;  // it is a power of two

  alignas(128) std::atomic<uint64_t> written;  // the writer has added so many bytes since the start
  alignas(128) std::atomic<uint64_t> consumed;  // the reader has taken so many of them
  // So many threads of the reader sleep or are about to.
  alignas(128) std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> nudged;   // a nudge is under way to the reader; it clears this on arrival
  std::atomic<uint32_t> blocked;  // the writer waits for room
  alignas(128) char bytes[capacity];
};

class RingPair {
 public:
  // The memory of a new pair, as a file descriptor that another process can map; -1: there is none.
  static int create();
  // Map it. `is_first`: the end that created it. nullptr: it cannot be mapped, or is not such
  // memory, sealed. Does not keep `fd`.
  static std::unique_ptr<RingPair> map(int fd, bool is_first);
  ~RingPair();
  RingPair(const RingPair&) = delete;
  RingPair& operator=(const RingPair&) = delete;

  // Both throw EngineError where the peer's counts cannot be.
  // Write what there is room for; return how much.
  size_t write(const char* bytes, size_t count);
  // Append all that has come to `to`; true when the peer has waited for the room (nudge it).
  bool read(std::string& to);
  bool has_unread() const;

  // True when the peer has to be nudged to see what was written.
  bool peer_sleeps();
  // True when no nudge is under way to the peer; the caller then sends one.
  bool begin_nudge() { return out_->nudged.exchange(1) == 0; }
  // A nudge has arrived here.
  void nudge_arrived() { in_->nudged.store(0); }

  // Around every sleep of this side; it must look for unread bytes after `begin_sleep`.
  void begin_sleep() { in_->sleepers.fetch_add(1); }
  void end_sleep() { in_->sleepers.fetch_sub(1); }

 private:
  RingPair(Ring* rings, bool is_first)
      : rings_(rings), out_(rings + (is_first ? 0 : 1)), in_(rings + (is_first ? 1 : 0)) {}

  Ring* rings_;
  Ring* out_;
  Ring* in_;
};

}  // namespace autotune
