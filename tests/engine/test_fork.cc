#include "common/fork.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "check.h"
#include "control/control.h"
#include "thread_ranks.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

// A forked child that lives as long as this: as a data loader's worker, it runs no other program.
class SleepingChild {
 public:
  SleepingChild() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) ::pause();
  }
  ~SleepingChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  SleepingChild(const SleepingChild&) = delete;
  SleepingChild& operator=(const SleepingChild&) = delete;

 private:
  pid_t pid_;
};

// What a forked child finds at `fd`.
std::string name_in_child(int fd) {
  int ends[2];
  CHECK_EQUAL(::pipe(ends), 0);
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const pid_t child = ::fork();
  if (child == 0) {
    char name[256] = {};
    const ssize_t length = ::readlink(path.c_str(), name, sizeof name - 1);
    ::_exit(::write(ends[1], name, length < 0 ? 0 : static_cast<size_t>(length)) < 0);
  }
  ::close(ends[1]);
  char name[256] = {};
  CHECK(::read(ends[0], name, sizeof name - 1) >= 0);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return name;
}

}  // namespace

TEST(a_rank_that_ends_is_seen_though_children_that_it_forked_live) {
  Rendezvous rendezvous(test_key());
  std::optional<SleepingChild> child;
  std::atomic<bool> ended{false};
  run_ranks(2, [&](int rank) {
    auto plane = join(rendezvous, rank, 2);
    if (rank == 1) {
      child.emplace();
      ended = true;  // before: the other may look as soon as the connection is closed
      plane.reset();
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    FrameQueue frames;
    std::vector<int> closed;
    while (closed.empty() && std::chrono::steady_clock::now() - start < 20s) {
      plane->sleep(100ms);
      plane->pump(frames);
      closed = plane->take_closed_ranks();
    }
    CHECK(closed == std::vector<int>{1});
    CHECK(ended);
  });
}

TEST(a_number_that_a_child_lets_go_of_stays_taken_there_and_reaches_nothing) {
  int ends[2];
  CHECK_EQUAL(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  drop_in_children(ends[0]);
  CHECK_EQUAL(name_in_child(ends[0]), "/dev/null");
  CHECK_EQUAL(name_in_child(ends[1]).substr(0, 7), "socket:");
  CHECK_EQUAL(::send(ends[0], "x", 1, 0), 1);  // here it is what it was
  const int reused = ends[0];
  close_dropped(ends[0]);
  CHECK_EQUAL(::dup2(ends[1], reused), reused);  // another's by now
  CHECK_EQUAL(name_in_child(reused).substr(0, 7), "socket:");
  ::close(reused);
  ::close(ends[1]);
}

TEST(a_childs_own_files_stay_open_in_its_children) {
  int ends[2], said[2];
  CHECK_EQUAL(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  CHECK_EQUAL(::pipe(said), 0);
  drop_in_children(ends[0]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(said[1], ends[0]);  // its own now
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(::write(ends[0], "here", 4) != 4);
    ::waitpid(grandchild, nullptr, 0);
    ::_exit(0);
  }
  ::close(said[1]);
  char text[8] = {};
  CHECK(::read(said[0], text, sizeof text - 1) >= 0);
  ::waitpid(child, nullptr, 0);
  CHECK_EQUAL(std::string(text), "here");
  ::close(said[0]);
  ::close(ends[1]);
  close_dropped(ends[0]);
}

TEST(forks_and_new_connections_of_several_threads_do_not_meet) {
  run_ranks(3, [&](int thread) {
    for (int i = 0; i < 100; ++i) {
      if (thread == 0) {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(0);
        ::waitpid(child, nullptr, 0);
        continue;
      }
      int ends[2];
      CHECK_EQUAL(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      const Connection here(ends[0]), there(ends[1]);
    }
  });
}
