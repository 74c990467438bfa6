#include "control/bell.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "common/errors.h"
#include "common/fork.h"

namespace autotune {

Bell::Bell() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw EngineError(std::string("eventfd failed: ") + std::strerror(errno));
  drop_in_children(fd_);
}

Bell::~Bell() { close_dropped(fd_); }

void Bell::ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(fd_, &one, sizeof one);
}

BellListener::BellListener(int bell) : fd_(epoll_create1(EPOLL_CLOEXEC)) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  drop_in_children(fd_);
  if (fd_ >= 0 && epoll_ctl(fd_, EPOLL_CTL_ADD, bell, &event) == 0) return;
  const std::string reason = std::strerror(errno);
  close_dropped(fd_);
  throw EngineError("epoll failed: " + reason);
}

BellListener::~BellListener() { close_dropped(fd_); }

bool BellListener::has_rung() {
  epoll_event event;
  return epoll_wait(fd_, &event, 1, 0) == 1;
}

}  // namespace autotune
