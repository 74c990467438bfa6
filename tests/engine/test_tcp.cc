// Messages over TCP: the contract of a transport, the collectives on it, and what goes wrong.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <thread>

#include "check.h"
#include "comm/p2p/backoff.h"
#include "comm/p2p/p2p_communicator.h"
#include "comm/p2p/subset.h"
#include "comm/tcp/tcp_stream.h"
#include "common/errors.h"
#include "common/message_memory.h"
#include "common/proof.h"
#include "common/reception.h"
#include "common/sockets.h"
#include "point_to_point_contract.h"
#include "tcp_ranks.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

const WaitHook no_wait_hook = [] {};

int port_of(const std::string& address) { return std::stoi(address); }

int connect_to_port(int port) {
  const int fd = begin_connect("127.0.0.1", port);
  pollfd waiting{fd, POLLOUT, 0};
  CHECK_EQUAL(::poll(&waiting, 1, 5000), 1);
  return fd;
}

void say(int fd, const void* bytes, size_t count) {
  CHECK_EQUAL(::send(fd, bytes, count, MSG_NOSIGNAL), static_cast<ssize_t>(count));
}

void say(int fd, const ChunkHeader& header) { say(fd, &header, sizeof header); }

// Until the transport says something else than "not yet".
void wait_for_error(PointToPoint& transport, const std::string& part) {
  CHECK_THROWS(EngineError, part, {
    for (int i = 0; i < 1000; ++i) {
      if (transport.test_all()) return;
      std::this_thread::sleep_for(1ms);
    }
  });
}

}  // namespace

TEST(tcp_keeps_what_a_transport_promises) {
  for (const bool apart : {true, false}) {
    for (const int size : {2, 3, 5}) {
      with_tcp(hosts_for(size, apart), [](const std::shared_ptr<PointToPoint>& transport) {
        for (const auto& [name, check] : contract::checks()) check(*transport);
      });
    }
  }
}

TEST(several_streams_keep_what_a_transport_promises) {
  with_streams(3, 4, [](const std::shared_ptr<PointToPoint>& transport) {
    for (const auto& [name, check] : contract::checks()) check(*transport);
  });
}

// Several paced ones side by side left a seventh of a cable of 200 Mbit/s unused.
TEST(a_message_goes_to_the_first_stream_alone_where_the_kernel_paces_streams) {
  for (const std::string way : {"bbr", "cubic", "reno"}) {
    std::vector<StreamSockets> sockets(2);
    std::vector<int> ends;
    int port = 0;
    const int listener = listen_tcp(port);
    for (int i = 0; i < 3; ++i) {
      const int fd = connect_to_port(port);
      pollfd waiting{listener, POLLIN, 0};
      CHECK_EQUAL(::poll(&waiting, 1, 5000), 1);
      ends.push_back(::accept(listener, nullptr, nullptr));
      CHECK(ends.back() >= 0);
      sockets[1].push_back(fd);
    }
    bool is_there = true;
    for (const int fd : sockets[1]) {
      is_there &= ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, way.data(),
                               static_cast<socklen_t>(way.size())) == 0;
      CHECK(!is_there || is_paced(fd) == (way == "bbr"));
    }
    auto transport = make_tcp_point_to_point(0, std::move(sockets));
    const std::vector<char> text(3'000'000);
    transport->send(1, text.data(), static_cast<int64_t>(text.size()));
    for (int i = 0; i < 100; ++i) transport->test_all();
    std::this_thread::sleep_for(20ms);
    int used = 0;
    for (const int fd : ends) {
      int bytes = 0;
      CHECK_EQUAL(::ioctl(fd, FIONREAD, &bytes), 0);
      used += bytes > 0;
      ::close(fd);
    }
    if (is_there) CHECK_EQUAL(used, way == "bbr" ? 1 : 3);
    ::close(listener);
  }
}

TEST(mail_between_threads_keeps_what_a_transport_promises) {
  const auto mail = std::make_shared<Mail>(3);
  run_ranks(3, [&](int rank) {
    ThreadPointToPoint transport(mail, rank);
    for (const auto& [name, check] : contract::checks()) check(transport);
  });
}

TEST(a_subset_over_tcp_keeps_what_a_transport_promises) {
  with_tcp(hosts_for(4, true), [](const std::shared_ptr<PointToPoint>& transport) {
    const bool is_even = transport->rank() % 2 == 0;
    const std::vector<int> members = is_even ? std::vector<int>{2, 0} : std::vector<int>{1, 3};
    SubsetPointToPoint subset(transport, members);
    CHECK(subset.backend() == Backend::tcp);
    for (const auto& [name, check] : contract::checks()) check(subset);
  });
}

TEST(collectives_over_tcp_are_exact) {
  with_tcp({0, 0, 1, 1, 2}, [](const std::shared_ptr<PointToPoint>& transport) {
    P2pCommunicator comm(transport, no_wait_hook);
    CHECK(comm.backend() == Backend::tcp);
    for (const int64_t count : {0, 1, 1000, 70'000, 3'000'001}) {
      std::vector<int64_t> data(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = i * (comm.rank() + 1);
      comm.allreduce({{data.data(), data.data(), count}}, DataType::int64, ReduceOp::sum, 1.0, 1.0);
      for (int64_t i = 0; i < count; ++i) CHECK_EQUAL(data[static_cast<size_t>(i)], i * 15);
      comm.broadcast(data.data(), count * 8, 3);
    }
  });
}

TEST(pairs_on_different_hosts_have_several_streams_as_long_as_descriptors_allow) {
  CHECK_EQUAL(streams_between(0, 1, {0, 0, 1}), 1);
  CHECK_EQUAL(streams_between(0, 2, {0, 0, 1}), TcpListener::most_streams);
  std::vector<int> many(300);
  std::iota(many.begin(), many.end(), 0);
  CHECK_EQUAL(streams_between(0, 299, many), 1);
  CHECK_EQUAL(streams_between(299, 0, many), 1);
}

// ---------------------------------------------------------------- who connects

TEST(strangers_at_the_port_of_messages_change_nothing) {
  TcpJob job({0, 1, 2});
  std::atomic<bool> is_over{false};
  std::vector<std::thread> strangers;
  for (int rank = 0; rank < job.size(); ++rank) {
    strangers.emplace_back([&, port = port_of(job.addresses()[static_cast<size_t>(rank)])] {
      std::vector<int> silent;
      for (int i = 0; !is_over; ++i) {
        const int fd = begin_connect("127.0.0.1", port);
        pollfd waiting{fd, POLLOUT, 0};
        ::poll(&waiting, 1, 100);  // whom the full queue of the port keeps out is a stranger, too
        const std::string http = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        const std::string noise(claim_bytes, '\xff');
        if (i % 3 == 0) ::send(fd, http.data(), http.size(), MSG_NOSIGNAL);
        if (i % 3 == 1) ::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
        if (i < 20) {
          silent.push_back(fd);  // stays, and says nothing more
        } else {
          ::close(fd);
        }
        std::this_thread::sleep_for(1ms);
      }
      for (const int fd : silent) ::close(fd);
    });
  }
  std::this_thread::sleep_for(20ms);
  run_ranks(3, [&](int rank) {
    const auto transport = job.connect(rank);
    for (const auto& [name, check] : contract::checks()) check(*transport);
  });
  is_over = true;
  for (std::thread& each : strangers) each.join();
}

// A rank of another job knows a key, too.
TEST(who_has_another_key_is_no_rank) {
  TcpListener zero(0, test_key(), ""), stranger(1, std::string(key_bytes, 'x'), "");
  const std::vector<std::string> addresses{zero.address(), stranger.address()};
  std::thread other([&] {
    CHECK_THROWS(EngineError, "got none with rank 0", stranger.connect(addresses, {0, 0}, 1s));
  });
  CHECK_THROWS(EngineError, "got none from rank 1", zero.connect(addresses, {0, 0}, 1s));
  other.join();
}

// As where every host has a bridge with the same address: somebody answers, but another rank.
TEST(another_rank_at_an_address_is_passed_by_for_the_right_one) {
  TcpJob job({0, 1, 2});
  const auto port = [&](size_t rank) { return port_of(job.addresses()[rank]); };
  // Rank 1 is said to be at three addresses of this host; at its port, so all are right; and
  // rank 0's address has one more host, at which nobody listens.
  job.addresses()[0] = std::to_string(port(0)) + " 127.0.0.2 127.0.0.1 ::1";
  job.addresses()[1] = std::to_string(port(1)) + " 127.0.0.1 127.0.0.1 127.0.0.1";
  run_ranks(3, [&](int rank) {
    const auto transport = job.connect(rank);
    contract::messages_of_any_length_arrive_whole(*transport);
  });
  TcpJob other({0, 1});
  // Rank 1 looks for rank 0 where it is itself.
  other.addresses()[0] = other.addresses()[1];
  run_ranks(2, [&](int rank) {
    CHECK_THROWS(EngineError, rank == 0 ? "none from rank 1" : "none with rank 0",
                 other.connect(rank, 2s));
  });
}

TEST(ranks_that_are_not_there_in_time_are_named) {
  TcpJob job({0, 0, 1, 1});
  CHECK_THROWS(EngineError, "got none from rank 2, 3", run_ranks(2, [&](int rank) {
                 if (rank == 0) return;
                 job.connect(rank, 1s);
               }));
  CHECK_THROWS(EngineError, "expected one that is up and has an address, got eth77, eth78",
               TcpListener(0, test_key(), "eth77, eth78"));
  const TcpListener inner(0, test_key(), " eth77, lo ,eth78");
  CHECK(contains(inner.address(), " 127.0.0.1"));
}

TEST(ranks_meet_by_ipv6_alone) {
  const std::vector<std::string> all = own_addresses("");
  if (std::find(all.begin(), all.end(), "::1") == all.end()) return;  // a host without it
  TcpJob job({0, 1});
  for (std::string& address : job.addresses()) address = std::to_string(port_of(address)) + " ::1";
  run_ranks(2,
            [&](int rank) { contract::messages_of_any_length_arrive_whole(*job.connect(rank)); });
}

// ---------------------------------------------------------------- what goes wrong

TEST(a_peer_that_says_what_is_no_message_is_an_error_that_names_it) {
  const auto wrong = [](auto&& change, const std::string& part) {
    HalfJob job(2);
    std::vector<char> memory(1000 + 64, 'm');
    job.transport->receive(1, memory.data(), 1000);
    ChunkHeader header;
    header.bytes = header.total = 1000;
    change(header);
    say(job.ends[0], header);
    const std::string text(2000, 'x');
    say(job.ends[0], text.data(), text.size());
    wait_for_error(*job.transport, part);
    CHECK_EQUAL(std::string(memory.data() + 1000, 64), std::string(64, 'm'));
  };
  wrong([](ChunkHeader& h) { h.mark = 0x48545450; }, "from rank 1 (seen by rank 0) is no message");
  wrong([](ChunkHeader& h) { h.offset = 1; }, "is no message");
  wrong([](ChunkHeader& h) { h.offset = ~0u; }, "is no message");
  wrong([](ChunkHeader& h) { h.bytes = 1001; }, "is no message");
  wrong([](ChunkHeader& h) { h.bytes = 0; }, "is no message");
  wrong([](ChunkHeader& h) { h.total = 999; }, "expected a message of 1000 bytes, got one of 999");
}

TEST(a_chunk_that_comes_twice_is_an_error) {
  HalfJob job(2);
  std::vector<char> memory(1000);
  job.transport->receive(1, memory.data(), 1000);
  ChunkHeader header;
  header.bytes = 600;
  header.total = 1000;
  const std::string text(600, 'x');
  for (const int end : job.ends) {
    say(end, header);
    say(end, text.data(), text.size());
  }
  wait_for_error(*job.transport, "is no message");
}

TEST(a_message_that_has_gone_by_is_an_error) {
  HalfJob job;
  char byte = 0;
  ChunkHeader header;
  header.bytes = header.total = 1;
  for (int i = 0; i < 2; ++i) {  // the same number twice
    say(job.ends[0], header);
    say(job.ends[0], "x", 1);
  }
  job.transport->receive(1, &byte, 1);
  contract::finish(*job.transport);
  job.transport->receive(1, &byte, 1);
  wait_for_error(*job.transport, "is no message");
}

// The control plane knows who has ended and says so: the transport waits for that.
TEST(the_end_of_a_peer_is_an_error_only_when_nobody_else_has_said_so) {
  HalfJob job;
  char byte = 0;
  job.transport->receive(1, &byte, 1);
  ::shutdown(job.ends[0], SHUT_RDWR);
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS(EngineError, "the control plane's",
               complete(*job.transport, [] { throw EngineError("the control plane's"); }));
  HalfJob other;
  other.transport->receive(1, &byte, 1);
  ::shutdown(other.ends[0], SHUT_RDWR);
  CHECK_THROWS(EngineError, "rank 1 (seen by rank 0) has ended",
               complete(*other.transport, no_wait_hook));
  CHECK(std::chrono::steady_clock::now() - start < 10s);
}

TEST(what_a_peer_has_sent_before_its_end_arrives) {
  TcpJob job({0, 1});
  const int64_t bytes = 200'000;  // not more than the kernel keeps
  std::atomic<bool> has_ended{false};
  run_ranks(2, [&](int rank) {
    auto transport = job.connect(rank);
    if (rank == 1) {
      const auto text = contract::letter(1, 0, 0, bytes);
      transport->send(0, text.data(), bytes);
      contract::finish(*transport);
      transport.reset();
      has_ended = true;
      return;
    }
    while (!has_ended) std::this_thread::sleep_for(1ms);
    std::vector<uint8_t> text(static_cast<size_t>(bytes));
    transport->receive(1, text.data(), bytes);
    contract::finish(*transport);
    CHECK(text == contract::letter(1, 0, 0, bytes));
  });
}

TEST(after_an_error_nothing_that_was_posted_is_written_or_kept) {
  with_tcp({0, 1}, [](const std::shared_ptr<PointToPoint>& transport) {
    const int64_t bytes = 40'000'000;  // more than the kernel keeps
    if (transport->rank() == 1) {      // sends what nobody takes any more
      const auto text = contract::letter(1, 0, 0, bytes);
      transport->send(0, text.data(), bytes);
      int tries = 0;
      CHECK_THROWS(EngineError, "enough", complete(*transport, [&] {
                     if (++tries > 100) throw EngineError("enough");
                   }));
      return;
    }
    std::vector<uint8_t> memory(static_cast<size_t>(bytes), uint8_t{0xee});
    transport->receive(1, memory.data(), bytes / 2);  // the other half will be missing
    transport->receive(1, memory.data() + bytes / 2, bytes / 2);
    transport->give_up();
    const std::vector<uint8_t> before = memory;
    for (int i = 0; i < 50; ++i) {
      CHECK(transport->test_all());
      std::this_thread::sleep_for(1ms);
    }
    CHECK(memory == before);
    CHECK_THROWS(EngineError, "given up after an error", transport->send(1, memory.data(), 1));
    CHECK_THROWS(EngineError, "given up after an error", transport->receive(1, memory.data(), 1));
  });
  CHECK(!messages_were_left_behind);
}

TEST(a_forked_child_holds_no_connection) {
  TcpJob job({0, 1});
  std::atomic<int> forked{0};
  std::atomic<bool> has_ended{false};
  run_ranks(2, [&](int rank) {
    auto transport = job.connect(rank);
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::pause();
        ::_exit(0);
      }
      forked = child;
      transport.reset();  // the child has a copy of all
      has_ended = true;
      return;
    }
    while (!has_ended) std::this_thread::sleep_for(1ms);
    char byte = 0;
    transport->receive(1, &byte, 1);
    CHECK_THROWS(EngineError, "has ended its process", complete(*transport, no_wait_hook));
    ::kill(forked, SIGKILL);
    ::waitpid(forked, nullptr, 0);
  });
}

TEST(sockets_are_closed_with_the_transport_and_by_exec) {
  const auto open_files = [] {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  };
  const std::vector<int> before = open_files();
  {
    TcpJob job({0, 1, 1});
    std::vector<std::unique_ptr<PointToPoint>> transports(3);
    run_ranks(3, [&](int rank) { transports[static_cast<size_t>(rank)] = job.connect(rank); });
    CHECK(open_files().size() > before.size() + 6);
    for (const int fd : open_files()) {
      const int flags = ::fcntl(fd, F_GETFD);
      const bool is_new = std::find(before.begin(), before.end(), fd) == before.end();
      if (is_new && flags >= 0) CHECK((flags & FD_CLOEXEC) != 0);
    }
  }
  CHECK_EQUAL(open_files().size(), before.size());
}
