// Who connects and is no rank, in the ways of port scanners, web clients and people with time.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "check.h"
#include "common/errors.h"
#include "common/proof.h"
#include "common/reception.h"
#include "common/sealed_memory.h"
#include "control/control.h"
#include "fuzz.h"
#include "thread_ranks.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

struct Places {
  std::string name;
  int port = 0;
};

Places places_of(const Rendezvous& rendezvous) {
  Places places;
  std::istringstream(rendezvous.address()) >> places.name >> places.port;
  return places;
}

// A socket that `call` (connect or bind) has given the abstract Unix address `name`.
template <typename Call>
int unix_socket(const std::string& name, Call call) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  CHECK_EQUAL(call(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  return fd;
}

int connect_unix(const std::string& name) { return unix_socket(name, ::connect); }

int listen_unix(const std::string& name) {
  const int fd = unix_socket(name, ::bind);
  CHECK_EQUAL(::listen(fd, 16), 0);
  return fd;
}

int connect_tcp(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK_EQUAL(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

void say(int fd, const std::string& bytes) {
  [[maybe_unused]] const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

std::string hear(int fd, size_t count) {
  std::string bytes(count, '\0');
  const ssize_t n = ::recv(fd, bytes.data(), count, MSG_WAITALL);
  bytes.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return bytes;
}

// Connected sockets, closed at the end.
struct Sockets {
  std::vector<int> fds;
  ~Sockets() {
    for (const int fd : fds) ::close(fd);
  }
};

// Every rank hears every other one by way of the coordinator.
void talk(ControlPlane& plane) {
  FrameQueue frames;
  const size_t peers = plane.rank() == 0 ? static_cast<size_t>(plane.size()) - 1 : 1;
  if (plane.rank() != 0) plane.send_all(FrameType::requests, "from a rank");
  while (frames.size() < peers) {
    plane.pump(frames);
    if (frames.size() < peers) plane.sleep(100ms);
  }
  const bool is_right = frames.front().payload == (plane.rank() == 0 ? "from a rank" : "to all");
  CHECK(is_right);
  if (plane.rank() == 0) plane.send_all(FrameType::responses, "to all");
}

// The job connects and talks as if the strangers that are there already were not.
void check_that_ranks_connect(Rendezvous& rendezvous, int size = 3) {
  const auto start = std::chrono::steady_clock::now();
  run_ranks(size, [&](int rank) {
    const auto plane = join(rendezvous, rank, size);
    talk(*plane);
    plane->close(2s);
  });
  CHECK(std::chrono::steady_clock::now() - start < proof_timeout);
}

std::vector<std::string> garbage() {
  const std::string frame_of_a_gibibyte("\xff\xff\xff\x3f\x00", 5);
  const std::string frame_of_four("\xff\xff\xff\xff\x00", 5);
  return {
      "",
      "x",
      frame_of_a_gibibyte,
      frame_of_four,
      "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n",
      "SSH-2.0-OpenSSH_9.2\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),  // TLS
      std::string(claim_bytes, '\0'),
      std::string(100'000, '\xff'),
      make_claim(std::string(key_bytes, 'x'), make_challenge(), 1),
      make_challenge(),
  };
}

// Runs `body` as the user nobody; false where that is not for us to do. Credentials are a thread's
// for the kernel, and a process's for the C library only.
template <typename Body>
bool run_as_nobody(Body&& body) {
  if (::geteuid() != 0) {
    std::puts("not root: nobody to connect as");
    return false;
  }
  std::exception_ptr failure;
  std::thread other([&] {
    try {
      constexpr int nobody = 65534;
      CHECK(::syscall(SYS_setresuid, nobody, nobody, nobody) == 0);
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  other.join();
  if (failure) std::rethrow_exception(failure);
  return true;
}

std::string frame_of(FrameType type, const std::string& payload) {
  std::string header(5, static_cast<char>(type));
  const auto length = static_cast<uint32_t>(payload.size());
  std::memcpy(header.data(), &length, sizeof length);
  return header + payload;
}

// The claim to be rank 1 on a new connection; true where it was accepted.
bool claim_rank_1(int fd) {
  const std::string challenge = hear(fd, challenge_bytes);
  const std::string claim = make_claim(test_key(), challenge, 1);
  say(fd, claim);
  return is_answer(test_key(), challenge, claim, hear(fd, answer_bytes));
}

}  // namespace

TEST(what_strangers_say_changes_nothing) {
  Rendezvous rendezvous(test_key());
  const Places places = places_of(rendezvous);
  Sockets strangers;
  for (const std::string& bytes : garbage()) {
    strangers.fds.push_back(connect_tcp(places.port));
    say(strangers.fds.back(), bytes);
    strangers.fds.push_back(connect_unix(places.name));
    say(strangers.fds.back(), bytes);
  }
  check_that_ranks_connect(rendezvous);
}

TEST(strangers_who_connect_and_go_change_nothing) {
  std::optional<Rendezvous> rendezvous(std::in_place, test_key());
  const Places places = places_of(*rendezvous);
  std::atomic<bool> over{false};
  std::thread scanner([&] {
    for (int i = 0; !over; ++i) {
      int fd = -1;
      try {
        fd = i % 2 == 0 ? connect_tcp(places.port) : connect_unix(places.name);
      } catch (const check::Failure&) {  // nobody listens any more
        continue;
      }
      if (i % 3 == 0) say(fd, "hello?");
      if (i % 5 == 0) {  // gone at once, with a reset
        const linger at_once{1, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      }
      ::close(fd);
    }
  });
  std::this_thread::sleep_for(20ms);
  check_that_ranks_connect(*rendezvous, 4);
  over = true;
  rendezvous.reset();  // whoever still waits in the queue of a place, which nobody serves, goes
  scanner.join();
}

TEST(strangers_who_say_nothing_hold_up_nobody_however_many_they_are) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  Rendezvous rendezvous(test_key());
  const Places places = places_of(rendezvous);
  Sockets silent;
  std::thread ranks([&] {
    std::this_thread::sleep_for(50ms);
    check_that_ranks_connect(rendezvous);
  });
  for (size_t i = 0; i < most_applicants + 100; ++i) {
    silent.fds.push_back(connect_tcp(places.port));
  }
  ranks.join();
}

TEST(nobody_is_sent_anything_that_was_made_with_the_key_before_he_has_shown_it) {
  Rendezvous rendezvous(test_key());
  const Places places = places_of(rendezvous);
  std::thread coordinator(
      [&] { CHECK_THROWS(EngineError, "none from rank 1", rendezvous.accept_all(2, 2s)); });
  for (const int fd : {connect_tcp(places.port), connect_unix(places.name)}) {
    const std::string challenge = hear(fd, challenge_bytes);
    CHECK(is_challenge(challenge));
    say(fd, make_claim(std::string(key_bytes, 'x'), challenge, 1));
    CHECK_EQUAL(hear(fd, 1), "");  // the end
    ::close(fd);
  }
  coordinator.join();
}

TEST(the_key_is_neither_in_the_address_nor_in_the_name_of_a_socket) {
  const std::string key = "0123456789abcdef0123456789abcdef";
  const Rendezvous rendezvous(key);
  CHECK(rendezvous.address().find(key) == std::string::npos);
  std::ifstream sockets("/proc/net/unix");
  std::stringstream all;
  all << sockets.rdbuf();
  CHECK(all.str().find(key) == std::string::npos);
  const Places places = places_of(rendezvous);
  CHECK(all.str().find(places.name) != std::string::npos);  // no secret: only a name
}

// What every user of the host can read lets nobody in.
TEST(who_knows_the_address_alone_is_no_rank) {
  Rendezvous rendezvous(test_key());
  const std::string address = rendezvous.address();
  std::thread stranger([&] {
    CHECK_THROWS(EngineError, "no answer", connect_to(address, std::string(key_bytes, 'x'), 1, 1s));
  });
  CHECK_THROWS(EngineError, "none from rank 1", rendezvous.accept_all(2, 2s));
  stranger.join();
  CHECK_THROWS(EngineError, "expected a key of 32 bytes", Rendezvous(""));
  CHECK_THROWS(EngineError, "expected a key of 32 bytes", connect_to(address, "short", 1, 1s));
}

TEST(a_coordinator_without_the_key_is_none) {
  Rendezvous impostor(std::string(key_bytes, 'x'));
  std::thread other([&] { CHECK_THROWS(EngineError, "none from", impostor.accept_all(2, 2s)); });
  CHECK_THROWS(EngineError, "no answer", connect_to(impostor.address(), test_key(), 1, 1s));
  other.join();
}

TEST(another_service_at_one_address_is_passed_by_for_the_next) {
  Rendezvous rendezvous(test_key());
  const std::string name = "hvd-autotune-test-" + std::to_string(::getpid());
  Sockets listener{{listen_unix(name)}};
  std::atomic<bool> over{false};
  std::thread service([&] {
    while (!over) {
      pollfd waiting{listener.fds[0], POLLIN, 0};
      if (::poll(&waiting, 1, 20) != 1) continue;
      const int fd = ::accept(listener.fds[0], nullptr, nullptr);
      say(fd, std::string(300, 'x'));
      ::close(fd);
    }
  });
  const std::string elsewhere =
      name + " " + std::to_string(places_of(rendezvous).port) + " 127.0.0.1";
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      CHECK_EQUAL(rendezvous.accept_all(2, 20s).size(), size_t{1});
    } else {
      CHECK(connect_to(elsewhere, test_key(), 1, 20s) != nullptr);
    }
  });
  over = true;
  service.join();
}

TEST(a_second_claim_to_be_a_connected_rank_is_refused) {
  Rendezvous rendezvous(test_key());
  const Places places = places_of(rendezvous);
  std::atomic<bool> is_first_in{false}, is_second_out{false};
  run_ranks(3, [&](int rank) {
    if (rank == 0) {
      CHECK_EQUAL(join(rendezvous, 0, 3)->take_closed_ranks().size(), size_t{0});
      return;
    }
    if (rank == 1) {
      const int first = connect_unix(places.name);
      CHECK(claim_rank_1(first));
      Sockets later{{connect_unix(places.name), connect_tcp(places.port)}};
      for (const int fd : later.fds) CHECK(!claim_rank_1(fd));
      is_second_out = true;
      Connection connection(first);  // still rank 1
      connection.send(FrameType::hello, "");
      std::optional<Frame> welcome;
      while (!(welcome = connection.receive_one(0)) && !connection.closed()) {
        std::this_thread::sleep_for(1ms);
      }
      CHECK(welcome.has_value());
      return;
    }
    while (!is_second_out) std::this_thread::sleep_for(1ms);
    join(rendezvous, 2, 3);
  });
}

TEST(a_rank_whose_connection_broke_may_come_again) {
  Rendezvous rendezvous(test_key());
  const Places places = places_of(rendezvous);
  run_ranks(3, [&](int rank) {
    if (rank == 1) {
      const int broken = connect_tcp(places.port);
      const std::string challenge = hear(broken, challenge_bytes);
      say(broken, make_claim(test_key(), challenge, 1));
      CHECK_EQUAL(hear(broken, answer_bytes).size(), answer_bytes);
      ::close(broken);
    }
    if (rank == 2) std::this_thread::sleep_for(100ms);
    const auto plane = join(rendezvous, rank, 3);
    talk(*plane);
    plane->close(2s);
  });
}

TEST(descriptors_that_strangers_send_are_not_kept) {
  Rendezvous rendezvous(test_key());
  const Places places = places_of(rendezvous);
  const auto open_files = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  Sockets strangers;
  const auto before = open_files();
  for (int i = 0; i < 20; ++i) {
    strangers.fds.push_back(connect_unix(places.name));
    char byte = 'x';
    iovec bytes{&byte, 1};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    const int sent[2] = {0, 1};
    std::memcpy(CMSG_DATA(header), sent, sizeof sent);
    CHECK_EQUAL(::sendmsg(strangers.fds.back(), &message, 0), 1);
  }
  check_that_ranks_connect(rendezvous);
  CHECK_EQUAL(open_files(), before + 20);
}

TEST(memory_that_a_peer_could_cut_is_not_taken_for_a_ring) {
  const int64_t bytes = 2 * sizeof(Ring);
  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK_EQUAL(::ftruncate(unsealed, bytes), 0);
  CHECK(RingPair::map(unsealed, false) == nullptr);
  ::close(unsealed);
  const int short_one = create_sealed_memory("short", bytes - 4096);
  CHECK(RingPair::map(short_one, false) == nullptr);
  ::close(short_one);
  const int ours = RingPair::create();
  CHECK(::ftruncate(ours, 0) != 0);
  CHECK(RingPair::map(ours, false) != nullptr);
  ::close(ours);
}

TEST(what_a_peer_writes_into_a_ring_beside_frames_is_an_error_and_not_believed) {
  const int64_t bytes = 2 * sizeof(Ring);
  const int memory = RingPair::create();
  const auto pair = RingPair::map(memory, true);
  auto* rings = static_cast<Ring*>(
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
  ::close(memory);
  std::string text;
  for (const uint64_t count : {uint64_t{Ring::capacity} + 1, uint64_t{1} << 40, ~uint64_t{0}}) {
    rings[1].written = count;  // the one that we read
    CHECK_THROWS(EngineError, "is said to hold", pair->read(text));
    CHECK_EQUAL(text, "");
  }
  rings[1].written = 7;
  rings[1].consumed = ~uint64_t{0} - 100'000;  // ours, but in their memory, too
  CHECK_THROWS(EngineError, "is said to hold", pair->read(text));
  for (const uint64_t count : {uint64_t{1}, ~uint64_t{0} - Ring::capacity - 1}) {
    rings[0].consumed = count;  // more than was written
    CHECK_THROWS(EngineError, "is said to hold", pair->write("x", 1));
  }
  ::munmap(rings, static_cast<size_t>(bytes));
}

TEST(a_frame_that_is_none_is_an_error_that_names_its_rank) {
  for (const std::string& bytes :
       {std::string("\x00\x00\x00\x40\x01", 5) + "x", std::string("\x00\x00\x00\x80\x01", 5),
        std::string("\x00\x00\x00\x00\x7f", 5)}) {
    int ends[2];
    CHECK_EQUAL(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    Connection connection(ends[0]);
    say(ends[1], bytes);
    FrameQueue frames;
    if (bytes.size() == 6) {  // a gibibyte is allowed, but not of a first frame
      connection.receive(3, frames);
      CHECK(frames.empty());
      CHECK_THROWS(EngineError, "from rank 3 is no frame", connection.receive_one(3));
    } else {
      CHECK_THROWS(EngineError, "from rank 3 is no frame", connection.receive(3, frames));
    }
    ::close(ends[1]);
  }
}

TEST(another_user_is_no_rank_though_he_has_the_key) {
  Rendezvous rendezvous(test_key());
  const Places places = places_of(rendezvous);
  std::thread coordinator(
      [&] { CHECK_THROWS(EngineError, "none from rank 1", rendezvous.accept_all(2, 2s)); });
  std::string heard;
  run_as_nobody([&] {
    Sockets own{{connect_unix(places.name)}};
    heard = hear(own.fds[0], 1);
  });
  coordinator.join();
  CHECK_EQUAL(heard, "");
}

TEST(another_user_is_no_coordinator_though_he_has_the_key) {
  const std::string name = "hvd-autotune-test-nobody-" + std::to_string(::getpid());
  Sockets listener;
  if (!run_as_nobody([&] { listener.fds.push_back(listen_unix(name)); })) return;
  std::string claims;
  std::atomic<bool> over{false};
  std::thread impostor([&] {
    while (!over) {
      pollfd waiting{listener.fds[0], POLLIN, 0};
      if (::poll(&waiting, 1, 20) != 1) continue;
      Sockets accepted{{::accept(listener.fds[0], nullptr, nullptr)}};
      say(accepted.fds[0], make_challenge());
      claims += hear(accepted.fds[0], claim_bytes);
    }
  });
  CHECK_THROWS(EngineError, "no answer", connect_to(name + " 1", test_key(), 1, 1s));
  over = true;
  impostor.join();
  CHECK_EQUAL(claims, "");
}

TEST(a_damaged_hello_is_refused_by_name_or_the_connection_works) {
  fuzz(30, [](Random& random) {
    Rendezvous rendezvous(test_key());
    std::thread rank([&] {
      const int fd = connect_unix(places_of(rendezvous).name);
      CHECK(claim_rank_1(fd));
      const std::string hello = frame_of(FrameType::hello, "");
      say(fd, damage(random, hello, frame_of(FrameType::requests, "x")));
      ::shutdown(fd, SHUT_WR);
      hear(fd, 100);  // to the end of the other side
      ::close(fd);
    });
    std::string error = "rank 1";
    try {
      rendezvous.accept_all(2, 10s);
    } catch (const EngineError& failure) {
      error = failure.what();
    }
    rank.join();
    CHECK(contains(error, "rank 1"));
  });
}

// The coordinator's answer: what is damaged is no answer, and the rank comes again.
TEST(a_damaged_welcome_is_no_answer) {
  const std::string welcome = frame_of(FrameType::hello, "welcome: frames by this socket");
  fuzz(30, [&](Random& random) {
    const std::string name = "hvd-autotune-test-welcome-" + std::to_string(::getpid());
    Sockets listener{{listen_unix(name)}};
    const std::string damaged = damage(random, welcome, welcome);
    std::atomic<int> times{0};
    std::atomic<bool> over{false};
    std::thread coordinator([&] {
      while (!over) {
        pollfd waiting{listener.fds[0], POLLIN, 0};
        if (::poll(&waiting, 1, 20) != 1) continue;
        Sockets rank{{::accept(listener.fds[0], nullptr, nullptr)}};
        const std::string challenge = make_challenge();
        say(rank.fds[0], challenge);
        say(rank.fds[0], make_answer(test_key(), challenge, hear(rank.fds[0], claim_bytes)));
        say(rank.fds[0], times++ == 0 ? damaged : welcome);
        ::shutdown(rank.fds[0], SHUT_WR);
        hear(rank.fds[0], 100);
      }
    });
    std::string error;
    bool is_connected = false;
    try {
      is_connected = connect_to(name + " 1", test_key(), 1, 10s) != nullptr;
    } catch (const EngineError& failure) {
      error = failure.what();
    }
    over = true;
    coordinator.join();
    CHECK(is_connected || contains(error, "rank 0 is no frame"));
    const bool is_right = damaged.compare(0, welcome.size(), welcome) == 0;
    if (is_connected) CHECK_EQUAL(times.load(), is_right ? 1 : 2);
  });
}
