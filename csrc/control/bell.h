// Wakes all sleeping ranks of a host with one system call, where a nudge for each would take ranks
// x 2 us.
//
// The bell is an eventfd of the coordinator that nobody ever reads: every rank hears it through an
// epoll instance of its own, edge by edge, so that one that is slow to listen takes nothing from
// the others. A rank that was awake hears it, too, when it looks next: once more than needed.
#pragma once

namespace autotune {

class Bell {
 public:
  Bell();  // it throws EngineError
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int fd() const { return fd_; }  // the other processes' BellListener takes it
  void ring();

 private:
  int fd_;
};

class BellListener {
 public:
  // `bell`: another process's Bell; not kept. Throws EngineError.
  explicit BellListener(int bell);
  ~BellListener();
  BellListener(const BellListener&) = delete;
  BellListener& operator=(const BellListener&) = delete;

  int fd() const { return fd_; }  // it is readable when the bell has rung
  // True when the bell has rung since the last call.
  bool has_rung();

 private:
  int fd_;
};

}  // namespace autotune
