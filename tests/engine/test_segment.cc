#include "comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "check.h"
#include "comm/p2p/p2p_communicator.h"
#include "comm/shm/shared_communicator.h"
#include "common/sealed_memory.h"
#include "thread_ranks.h"

using namespace autotune;

namespace {

constexpr int64_t bytes = 1 << 20;
const auto no_wait_hook = [] {};

std::unique_ptr<Communicator> share(const std::shared_ptr<Mail>& mail, int rank,
                                    std::string& why_not) {
  P2pCommunicator messages(std::make_shared<ThreadPointToPoint>(mail, rank), no_wait_hook);
  return make_shared_communicator(messages, no_wait_hook, why_not);
}

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// Lines of this process's maps that hold `name`.
int mapped(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find(name) != std::string::npos;
  return found;
}

}  // namespace

TEST(what_one_rank_writes_into_a_segment_another_reads) {
  const auto first = Segment::create(bytes);
  const auto second = Segment::attach(first->place(), bytes);
  CHECK_EQUAL(static_cast<int>(second->data()[bytes - 1]), 0);
  std::strcpy(first->data() + 1000, "hello");
  CHECK_EQUAL(std::string(second->data() + 1000), "hello");
  first->close();
  second->close();
  std::strcpy(second->data() + 2000, "still there");
  CHECK_EQUAL(std::string(first->data() + 2000), "still there");
}

TEST(shared_memory_has_no_name_that_is_left_behind_or_taken) {
  const size_t before = entries("/dev/shm");
  const auto mail = std::make_shared<Mail>(3);
  run_ranks(3, [&](int rank) {
    std::string why_not;
    const auto shared = share(mail, rank, why_not);
    CHECK(shared != nullptr);
    CHECK_EQUAL(entries("/dev/shm"), before);
    CHECK(mapped("/memfd:hvd-autotune") > 0);
    int32_t value = 1;  // nobody ends before all have looked
    shared->allreduce({{&value, &value, 1}}, DataType::int32, ReduceOp::sum, 1.0, 1.0);
    CHECK_EQUAL(value, 3);
  });
  CHECK_EQUAL(entries("/dev/shm"), before);
}

// As in a container whose /dev/shm is full, or after another user has taken the names.
TEST(shared_memory_does_not_need_names_in_dev_shm) {
  std::vector<std::string> taken;
  for (int i = 0; i < 20; ++i) {
    const std::string name =
        "/hvd-autotune-" + std::to_string(::getpid()) + "-" + std::to_string(i);
    const int fd = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0) continue;
    ::close(fd);
    taken.push_back(name);
  }
  const auto mail = std::make_shared<Mail>(2);
  std::vector<bool> works(2, false);
  run_ranks(2, [&](int rank) {
    std::string why_not;
    const auto shared = share(mail, rank, why_not);
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    works[static_cast<size_t>(rank)] = shared != nullptr && why_not.empty();
  });
  for (const std::string& name : taken) ::shm_unlink(name.c_str());
  CHECK(works[0] && works[1]);
}

TEST(memory_that_is_shared_cannot_be_cut) {
  const int fd = create_sealed_memory("test", bytes);
  CHECK(is_sealed_memory(fd, bytes));
  CHECK(!is_sealed_memory(fd, bytes + 1));
  for (const int64_t other : {int64_t{0}, bytes - 1, bytes + 1}) CHECK(::ftruncate(fd, other) != 0);
  CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  ::close(fd);
}

TEST(what_is_not_the_segment_of_that_rank_is_not_attached) {
  const auto segment = Segment::create(bytes);
  const Segment::Place place = segment->place();
  const auto attach = [](Segment::Place wrong) { Segment::attach(wrong, bytes); };
  Segment::Place wrong = place;
  wrong.inode += 1;
  CHECK_THROWS(EngineError, "is something else", attach(wrong));
  wrong = place;
  wrong.fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK_THROWS(EngineError, "is something else", attach(wrong));
  ::close(static_cast<int>(wrong.fd));
  CHECK_THROWS(EngineError, "No such file", attach(wrong));
  wrong = place;
  wrong.process = 1 << 30;
  CHECK_THROWS(EngineError, "see each other's processes", attach(wrong));
  // Memory of the right size that its owner can still cut.
  wrong = place;
  wrong.fd = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK_EQUAL(::ftruncate(static_cast<int>(wrong.fd), bytes), 0);
  struct stat status{};
  ::fstat(static_cast<int>(wrong.fd), &status);
  wrong.inode = status.st_ino;
  CHECK_THROWS(EngineError, "is something else", attach(wrong));
  ::close(static_cast<int>(wrong.fd));
}

TEST(every_page_is_taken_by_the_rank_that_writes_it) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  for (const int size : {2, 3, 7, 64, 300}) {
    const int64_t all = SharedCommunicator::segment_bytes(size);
    int64_t end = 0;
    for (int rank = 0; rank < size; ++rank) {
      const auto part = SharedCommunicator::part_of_rank(rank, size);
      CHECK_EQUAL(part.first, end);  // no gap and nothing twice
      CHECK_EQUAL(part.first % page, 0);
      end = part.second;
    }
    CHECK_EQUAL(end, all);
    if (size > 7) continue;
    // Nothing is taken before its rank does it.
    const auto first = Segment::create(all);
    CHECK_EQUAL(first->reserved_bytes(), 0);
    int64_t taken = 0;
    for (int rank = 0; rank < size; ++rank) {
      const auto other = Segment::attach(first->place(), all);
      const auto [begin, until] = SharedCommunicator::part_of_rank(rank, size);
      other->reserve(begin, until);
      taken += until - begin;
      CHECK_EQUAL(first->reserved_bytes(), taken);
    }
  }
}

namespace {

// Bytes that are taken of the newest memory of this process that ranks share.
int64_t taken_bytes() {
  int64_t taken = -1;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string name = std::filesystem::read_symlink(each, gone).string();
    struct stat status{};
    if (name.find("/memfd:hvd-autotune") == 0 && ::stat(each.path().c_str(), &status) == 0) {
      taken = std::max(taken, static_cast<int64_t>(status.st_blocks) * 512);
    }
  }
  return taken;
}

// The ranks come out of the first allgather one after the other, each when the one before has come
// to the second; `taken` there is what was taken until then.
class OneByOne final : public Communicator {
 public:
  OneByOne(std::shared_ptr<Mail> mail, int rank, std::atomic<int>& next)
      : base_(std::make_shared<ThreadPointToPoint>(std::move(mail), rank), no_wait_hook),
        next_(next) {}
  int64_t taken = 0;

  int rank() const override { return base_.rank(); }
  int size() const override { return base_.size(); }
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                 double postscale) override {
    base_.allreduce(spans, type, op, prescale, postscale);
  }
  void broadcast(void* data, int64_t bytes, int root_rank) override {
    base_.broadcast(data, bytes, root_rank);
  }
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override {
    if (++calls_ == 2) {
      taken = taken_bytes();
      ++next_;
    }
    base_.allgather(blocks, bytes_per_rank);
    while (calls_ == 1 && next_ != rank()) std::this_thread::yield();
  }

 private:
  P2pCommunicator base_;
  std::atomic<int>& next_;
  int calls_ = 0;
};

}  // namespace

TEST(ranks_that_come_to_share_memory_have_each_taken_their_own_part_of_it) {
  for (const int size : {2, 3, 5}) {
    const auto mail = std::make_shared<Mail>(size);
    std::atomic<int> next{0};
    run_ranks(size, [&](int rank) {
      OneByOne messages(mail, rank, next);
      std::string why_not;
      const auto shared = make_shared_communicator(messages, no_wait_hook, why_not);
      CHECK(shared != nullptr);
      CHECK_EQUAL(messages.taken, SharedCommunicator::part_of_rank(rank, size).second);
    });
  }
}

// Limits are the process's: all ranks of this test have the same.
TEST(memory_that_cannot_be_had_is_named_and_leaves_the_ranks_with_messages) {
  rlimit limit{};
  CHECK_EQUAL(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  const auto mail = std::make_shared<Mail>(3);
  std::vector<std::string> why_not(3);
  CHECK_EQUAL(::setrlimit(RLIMIT_NOFILE, &none), 0);
  run_ranks(3, [&](int rank) {
    CHECK(share(mail, rank, why_not[static_cast<size_t>(rank)]) == nullptr);
  });
  CHECK_EQUAL(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK(why_not[0].find("memfd_create of") != std::string::npos);
  CHECK(why_not[0].find("Too many open files") != std::string::npos);
  CHECK_EQUAL(why_not[1], "");
}
