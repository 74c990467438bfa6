#include "common/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace autotune {

namespace {

struct Dropped {
  // A thread that forks holds it, from before the fork until after it.
  std::mutex mutex;
  std::vector<int> fds;
};

Dropped& dropped();

// Between fork and exec only what is safe in a signal handler: no memory is taken or given back.
void drop_all() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : dropped().fds) {
    if (null < 0 || ::dup3(null, fd, O_CLOEXEC) < 0) ::close(fd);
  }
  if (null >= 0) ::close(null);
  dropped().fds.clear();  // the numbers are the child's own now
  dropped().mutex.unlock();
}

// Never destroyed: a process may fork while it ends.
Dropped& dropped() {
  static Dropped* const all = [] {
    ::pthread_atfork([] { dropped().mutex.lock(); }, [] { dropped().mutex.unlock(); }, drop_all);
    return new Dropped;
  }();
  return *all;
}

}  // namespace

void drop_in_children(int fd) {
  if (fd < 0) return;
  const std::lock_guard lock(dropped().mutex);
  dropped().fds.push_back(fd);
}

void close_dropped(int fd) {
  if (fd < 0) return;
  const std::lock_guard lock(dropped().mutex);
  auto& fds = dropped().fds;
  fds.erase(std::remove(fds.begin(), fds.end(), fd), fds.end());
  ::close(fd);
}

}  // namespace autotune
