// Damaged streams of bytes: proofs, frames on sockets, rings in shared memory, chunks of the TCP
// transport. What is read is right, or refused with an error that names the peer; no byte outside
// of what was posted is touched (the sanitizers see to that). See fuzz.h for how many.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "comm/shm/segment.h"
#include "comm/tcp/tcp_point_to_point.h"
#include "comm/tcp/tcp_stream.h"
#include "common/errors.h"
#include "common/proof.h"
#include "control/control.h"
#include "control/ring.h"
#include "fuzz.h"

using namespace autotune;

namespace {

struct SocketPair {
  int ends[2];

  SocketPair() {
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  }
};

// What one end of a connection writes, in pieces, and then closes.
class Writer {
 public:
  Writer(int fd, std::string bytes) : fd_(fd), bytes_(std::move(bytes)) {}
  ~Writer() {
    if (fd_ >= 0) ::close(fd_);
  }
  Writer(Writer&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), bytes_(std::move(other.bytes_)), sent_(other.sent_) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  Writer& operator=(Writer&&) = delete;

  // True while there is more.
  bool write_some(Random& random) {
    const size_t left = bytes_.size() - sent_;
    const size_t count =
        random.one_in(3) ? left : std::min(left, static_cast<size_t>(random.pick(1, 40)));
    if (count > 0) CHECK(::send(fd_, bytes_.data() + sent_, count, MSG_NOSIGNAL) > 0);
    sent_ += count;
    return sent_ < bytes_.size();
  }

 private:
  int fd_;
  std::string bytes_;
  size_t sent_ = 0;
};

std::string header_of(FrameType type, size_t payload_bytes) {
  std::string header(5, static_cast<char>(type));
  const auto length = static_cast<uint32_t>(payload_bytes);
  std::memcpy(header.data(), &length, sizeof length);
  return header;
}

std::string bytes_of(const Frame& frame) {
  return header_of(frame.type, frame.payload.size()) + frame.payload;
}

std::string random_frames(Random& random) {
  std::string bytes;
  for (int64_t count = random.pick(1, 5); count > 0; --count) {
    const std::string payload = random.bytes(random.one_in(4) ? 300 : 20);
    const auto type = static_cast<FrameType>(random.pick(0, static_cast<int>(FrameType::last)));
    bytes += header_of(type, payload.size()) + payload;
  }
  return bytes;
}

// The memory of a pair of rings, seen from outside.
class RingMemory {
 public:
  RingMemory() : fd_(RingPair::create()) {
    CHECK(fd_ >= 0);
    void* const memory =
        ::mmap(nullptr, 2 * sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    CHECK(memory != MAP_FAILED);
    rings_ = static_cast<Ring*>(memory);
  }
  ~RingMemory() {
    ::munmap(rings_, 2 * sizeof(Ring));
    ::close(fd_);
  }
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  std::unique_ptr<RingPair> end(bool is_first) const { return RingPair::map(fd_, is_first); }

  void damage(Random& random) {
    Ring& ring = rings_[random.pick(0, 1)];
    const auto number = static_cast<uint64_t>(random.odd_number());
    const int64_t what = random.pick(0, 5);
    if (what == 0) ring.written = number;
    if (what == 1) ring.consumed = number;
    if (what == 2) ring.written += static_cast<uint64_t>(random.pick(-9, 9));
    if (what == 3) ring.consumed += static_cast<uint64_t>(random.pick(-9, 9));
    if (what == 4) ring.sleepers = static_cast<uint32_t>(number);
    if (what == 5) ring.blocked = static_cast<uint32_t>(number);
  }

 private:
  int fd_;
  Ring* rings_;
};

// Messages to rank 0 that rank 1 has cut into chunks, as bytes of each stream.
struct Messages {
  std::vector<std::string> sent;
  std::vector<std::string> streams;

  explicit Messages(Random& random) : streams(static_cast<size_t>(random.pick(1, 3))) {
    for (int64_t count = random.pick(1, 4); count > 0; --count) {
      const std::string message = random.one_in(5) ? "" : random.bytes(200);
      size_t at = 0;
      do {
        const size_t left = message.size() - at;
        const size_t bytes =
            left == 0 ? 0 : static_cast<size_t>(random.pick(1, static_cast<int64_t>(left)));
        ChunkHeader header;
        header.bytes = static_cast<uint32_t>(bytes);
        header.offset = static_cast<uint32_t>(at);
        header.total = static_cast<uint32_t>(message.size());
        header.message = sent.size();
        std::string& stream =
            streams[static_cast<size_t>(random.pick(0, static_cast<int64_t>(streams.size()) - 1))];
        stream.append(reinterpret_cast<const char*>(&header), sizeof header);
        stream.append(message, at, bytes);
        at += bytes;
      } while (at < message.size());
      sent.push_back(message);
    }
  }
};

// Rank 0 hears what rank 1 says on some streams. True when all messages are whole.
bool receive_all(Random& random, const std::vector<std::string>& streams,
                 std::vector<std::vector<char>>& memory) {
  std::vector<StreamSockets> sockets(2);
  std::vector<Writer> writers;
  for (const std::string& bytes : streams) {
    const SocketPair pair;
    sockets[1].push_back(pair.ends[0]);
    writers.emplace_back(pair.ends[1], bytes);
  }
  const auto transport = make_tcp_point_to_point(0, std::move(sockets));
  for (std::vector<char>& each : memory) {
    transport->receive(1, each.data(), static_cast<int64_t>(each.size()));
  }
  bool is_more = true;
  while (is_more) {
    is_more = false;
    for (Writer& writer : writers) is_more |= writer.write_some(random);
    if (transport->test_all()) return true;
  }
  bool is_done = false;
  for (int turn = 0; turn < 8 && !is_done; ++turn) is_done = transport->test_all();
  transport->give_up();
  return is_done;
}

}  // namespace

TEST(damaged_proofs_prove_nothing) {
  const std::string key(key_bytes, 'k');
  fuzz(20'000, [&](Random& random) {
    const int size = static_cast<int>(random.pick(2, 9));
    const int rank = static_cast<int>(random.pick(1, size - 1));
    const std::string challenge = make_challenge();
    const std::string claim = make_claim(key, challenge, rank);
    const std::string answer = make_answer(key, challenge, claim);
    CHECK(rank_that_claims(key, challenge, claim, size) == rank);
    CHECK(is_answer(key, challenge, claim, answer));
    const std::string other_claim = damage(random, claim, answer);
    CHECK(rank_that_claims(key, challenge, other_claim, size).has_value() ==
          (other_claim == claim));
    const std::string other_answer = damage(random, answer, claim);
    CHECK(is_answer(key, challenge, claim, other_answer) == (other_answer == answer));
    const std::string other_challenge = damage(random, challenge, claim);
    static_cast<void>(is_challenge(other_challenge));
    const bool is_same = other_challenge == challenge;
    CHECK(rank_that_claims(key, other_challenge, claim, size).has_value() == is_same);
  });
}

TEST(damaged_frames_are_read_as_they_are_or_refused_by_name) {
  fuzz(50'000, [](Random& random) {
    const int rank = static_cast<int>(random.pick(0, 9));
    std::string bytes = random_frames(random);
    if (!random.one_in(8)) bytes = damage(random, bytes, random_frames(random));
    const SocketPair pair;
    Connection connection(pair.ends[0]);
    Writer writer(pair.ends[1], bytes);
    std::string read;
    FrameQueue frames;
    try {
      bool is_more = true;
      if (random.one_in(3)) {  // as the hello is read
        is_more = writer.write_some(random);
        if (const auto frame = connection.receive_one(rank)) read += bytes_of(*frame);
      }
      while (is_more) {
        is_more = writer.write_some(random);
        connection.receive(rank, frames);
      }
      connection.receive(rank, frames);
    } catch (const EngineError& error) {
      CHECK(contains(error.what(), "rank " + std::to_string(rank)));
    }
    for (const Frame& frame : frames) read += bytes_of(frame);
    CHECK(bytes.compare(0, read.size(), read) == 0);
  });
}

TEST(damaged_rings_give_what_was_written_or_are_refused) {
  fuzz(4'000, [](Random& random) {
    RingMemory memory;
    const std::unique_ptr<RingPair> ends[] = {memory.end(true), memory.end(false)};
    CHECK(ends[0] && ends[1]);
    std::string written[2], read[2];  // by the end that wrote
    bool is_damaged = false;
    try {
      for (int64_t turn = random.pick(5, 30); turn > 0; --turn) {
        const auto from = static_cast<size_t>(random.pick(0, 1));
        const std::string bytes = random.bytes(random.one_in(8) ? 70'000 : 60);
        const size_t count = ends[from]->write(bytes.data(), bytes.size());
        CHECK(count <= bytes.size());
        written[from].append(bytes, 0, count);
        if (random.one_in(10)) {
          memory.damage(random);
          is_damaged = true;
        }
        static_cast<void>(ends[from]->peer_sleeps());
        const auto to = static_cast<size_t>(random.pick(0, 1));
        const size_t before = read[1 - to].size();
        static_cast<void>(ends[to]->read(read[1 - to]));
        CHECK(read[1 - to].size() - before <= Ring::capacity);
        if (!is_damaged) CHECK(written[1 - to].compare(0, read[1 - to].size(), read[1 - to]) == 0);
      }
    } catch (const EngineError& error) {
      CHECK(is_damaged && contains(error.what(), "control connection: a ring of"));
    }
  });
}

TEST(damaged_chunks_of_messages_are_read_within_them_or_refused_by_name) {
  fuzz(20'000, [](Random& random) {
    const Messages messages(random);
    std::vector<std::string> streams = messages.streams;
    const bool is_damaged = !random.one_in(6);
    if (is_damaged) {
      std::string& stream =
          streams[static_cast<size_t>(random.pick(0, static_cast<int64_t>(streams.size()) - 1))];
      stream = damage(random, stream, streams[0]);
    }
    std::vector<std::vector<char>> memory;
    for (const std::string& each : messages.sent) memory.emplace_back(each.size());
    try {
      const bool is_whole = receive_all(random, streams, memory);
      if (is_damaged) return;
      CHECK(is_whole);
      for (size_t i = 0; i < memory.size(); ++i) {
        CHECK(std::string(memory[i].begin(), memory[i].end()) == messages.sent[i]);
      }
    } catch (const EngineError& error) {
      CHECK(is_damaged && contains(error.what(), "rank 1"));
    }
  });
}

// As ranks tell each other where the memory that they share is.
TEST(damaged_places_of_shared_memory_are_refused_by_name_or_are_the_same) {
  constexpr int64_t bytes = 1 << 16;
  const auto segment = Segment::create(bytes);
  const Segment::Place place = segment->place();
  std::string text(sizeof place, '\0');
  std::memcpy(text.data(), &place, sizeof place);
  fuzz(5'000, [&](Random& random) {
    std::string other = damage(random, text, text);
    other.resize(sizeof place);
    Segment::Place found;
    std::memcpy(&found, other.data(), sizeof found);
    try {
      Segment::attach(found, bytes)->data()[0] = 'x';
      CHECK(other == text);
    } catch (const EngineError& error) {
      CHECK(contains(error.what(), "shared memory of another rank"));
    }
  });
}
