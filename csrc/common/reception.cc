#include "common/reception.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "common/log.h"
#include "common/proof.h"
#include "common/sockets.h"

namespace autotune {

namespace {

using Clock = std::chrono::steady_clock;

bool is_temporary(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

bool is_closed(int fd) {
  pollfd looked{fd, POLLRDHUP, 0};
  return ::poll(&looked, 1, 0) == 1 && looked.revents != 0;
}

// Appends what has come, up to `count` bytes in all. False: the other end is gone.
bool read_up_to(int fd, size_t count, std::string& bytes) {
  char chunk[256];
  while (bytes.size() < count) {
    const size_t most = std::min(sizeof chunk, count - bytes.size());
    const ssize_t n = ::recv(fd, chunk, most, MSG_DONTWAIT);
    if (n > 0) {
      bytes.append(chunk, static_cast<size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      return n < 0 && is_temporary(errno);
    }
  }
  return true;
}

// Exactly `count` bytes; fewer where the peer ends or takes longer than until `deadline`.
std::string read_exactly(int fd, size_t count, Clock::time_point deadline) {
  std::string bytes;
  while (bytes.size() < count && Clock::now() < deadline) {
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, 100) == 1 && !read_up_to(fd, count, bytes)) break;
  }
  return bytes;
}

// One address at which the other end may be.
class Candidate {
 public:
  enum class State { connecting, challenged, claimed, proven, hopeless };

  explicit Candidate(int fd) : fd_(fd) {}
  ~Candidate() {
    if (fd_ >= 0) ::close(fd_);
  }
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  State state() const { return state_; }
  int take_fd() { return std::exchange(fd_, -1); }
  // A challenge has come: a claim may be made.
  bool is_ready() const { return state_ == State::challenged && bytes_.size() == challenge_bytes; }
  pollfd to_watch() const {
    const bool is_connecting = state_ == State::connecting;
    return {is_ready() ? -1 : fd_, static_cast<short>(is_connecting ? POLLOUT : POLLIN), 0};
  }

  void claim(const std::string& key, int number) {
    challenge_ = std::exchange(bytes_, "");
    claim_ = make_claim(key, challenge_, number);
    const ssize_t n = ::send(fd_, claim_.data(), claim_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    state_ = n == ssize_t{claim_bytes} ? State::claimed : State::hopeless;
  }

  // Something has happened on the socket.
  void hear(const std::string& key) {
    if (state_ == State::connecting) return end_connecting();
    const bool is_there =
        read_up_to(fd_, state_ == State::challenged ? challenge_bytes : answer_bytes, bytes_);
    if (state_ == State::claimed && bytes_.size() == answer_bytes) {
      const bool is_right = is_answer(key, challenge_, claim_, bytes_);
      state_ = is_right ? State::proven : State::hopeless;
    } else if (!is_there || (is_ready() && !is_challenge(bytes_))) {
      state_ = State::hopeless;
    }
  }

 private:
  void end_connecting() {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    state_ = error == 0 ? State::challenged : State::hopeless;
  }

  int fd_;
  State state_ = State::connecting;
  std::string bytes_;  // they are of what is awaited
  std::string challenge_, claim_;
};

}  // namespace

// Somebody who has connected and has not proven yet to be expected: has been sent a challenge.
// Takes no byte more than a claim has, and no file descriptor.
class Applicant {
 public:
  explicit Applicant(int fd)
      : fd_(fd), challenge_(make_challenge()), until_(Clock::now() + proof_timeout) {
    ::send(fd, challenge_.data(), challenge_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ~Applicant() {
    if (fd_ >= 0) ::close(fd_);
  }
  Applicant(const Applicant&) = delete;
  Applicant& operator=(const Applicant&) = delete;

  int fd() const { return fd_; }
  int take_fd() { return std::exchange(fd_, -1); }

  // True when a whole claim has come.
  bool read_claim() {
    is_gone_ = !read_up_to(fd_, claim_bytes, claim_);
    return claim_.size() == claim_bytes;
  }
  // Will never prove anything.
  bool is_hopeless() const { return is_gone_ || Clock::now() > until_; }

  // What this one has proven to be.
  std::optional<int> number(const std::string& key, int size) const {
    return rank_that_claims(key, challenge_, claim_, size);
  }
  // Prove to it that it has found the right one.
  void answer(const std::string& key) {
    const std::string answer = make_answer(key, challenge_, claim_);
    ::send(fd_, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  int fd_;
  std::string challenge_;
  std::string claim_;
  Clock::time_point until_;
  bool is_gone_ = false;
};

Reception::Reception(std::string key, std::vector<int> numbers, int size, int unix_fd, int tcp_fd)
    : key_(std::move(key)),
      numbers_(std::move(numbers)),
      size_(size),
      unix_fd_(unix_fd),
      tcp_fd_(tcp_fd),
      accepted_(numbers_.size(), -1) {}

Reception::~Reception() {
  for (const int fd : accepted_) {
    if (fd >= 0) ::close(fd);
  }
}

void Reception::turn() {
  std::vector<pollfd> fds{{unix_fd_, POLLIN, 0}, {tcp_fd_, POLLIN, 0}};
  for (const auto& each : applicants_) fds.push_back({each->fd(), POLLIN, 0});
  ::poll(fds.data(), fds.size(), 100);
  if (fds[0].revents & POLLIN) take_all(unix_fd_, false);
  if (fds[1].revents & POLLIN) take_all(tcp_fd_, true);
  for (auto& each : applicants_) hear(each);
  applicants_.erase(std::remove(applicants_.begin(), applicants_.end(), nullptr),
                    applicants_.end());
}

std::string Reception::missing() const {
  std::set<int> ranks;
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if (accepted_[i] < 0) ranks.insert(numbers_[i] % size_);
  }
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::vector<int> Reception::take() {
  return std::exchange(accepted_, std::vector<int>(numbers_.size(), -1));
}

void Reception::take_all(int listener, bool is_tcp) {
  constexpr int most_at_once = 64;  // who floods us does not hold up those who are here
  for (int i = 0; i < most_at_once; ++i) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) {
      const bool is_all = errno == EAGAIN || errno == EWOULDBLOCK;
      // No descriptors or no memory: the caller would look again at once.
      if (!is_all) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    if (is_tcp) configure_tcp(fd);
    if (!is_tcp && !is_same_user(fd)) {
      ::close(fd);
      continue;
    }
    applicants_.push_back(std::make_unique<Applicant>(fd));
    if (applicants_.size() > most_applicants + numbers_.size()) applicants_.pop_front();
  }
}

void Reception::hear(std::unique_ptr<Applicant>& applicant) {
  if (!applicant->read_claim()) {
    if (applicant->is_hopeless()) applicant.reset();
    return;
  }
  const int bound = numbers_.empty() ? 0 : *std::max_element(numbers_.begin(), numbers_.end()) + 1;
  if (const std::optional<int> number = applicant->number(key_, bound)) {
    const auto place = std::find(numbers_.begin(), numbers_.end(), *number);
    if (place != numbers_.end()) {
      admit(*applicant, static_cast<size_t>(place - numbers_.begin()), *number);
    }
  }
  applicant.reset();
}

void Reception::admit(Applicant& applicant, size_t place, int number) {
  int& fd = accepted_[place];
  // One that has closed its connection, because no answer came in time, may come again.
  if (fd >= 0 && !is_closed(fd)) {
    log(LogLevel::warning, "a second connection claims to be rank " +
                               std::to_string(number % size_) +
                               "; it is refused, the first one stays");
    return;
  }
  applicant.answer(key_);
  if (fd >= 0) ::close(fd);
  fd = applicant.take_fd();
}

bool prove(int fd, const std::string& key, int number, Clock::time_point deadline) {
  const std::string challenge = read_exactly(fd, challenge_bytes, deadline);
  if (!is_challenge(challenge)) return false;
  const std::string claim = make_claim(key, challenge, number);
  if (::send(fd, claim.data(), claim.size(), MSG_NOSIGNAL) != ssize_t{claim_bytes}) return false;
  return is_answer(key, challenge, claim, read_exactly(fd, answer_bytes, deadline));
}

int connect_proven(const std::vector<std::string>& hosts, int port, const std::string& key,
                   int number, Clock::time_point deadline) {
  constexpr auto most_for_answer = std::chrono::seconds(3);  // while others wait for their turn
  std::vector<std::unique_ptr<Candidate>> candidates;
  for (const std::string& host : hosts) {
    const int fd = begin_connect(host, port);
    if (fd >= 0) candidates.push_back(std::make_unique<Candidate>(fd));
  }
  Clock::time_point claimed{};
  while (!candidates.empty() && Clock::now() < deadline) {
    const auto is_claimed = [](const auto& each) {
      return each->state() == Candidate::State::claimed;
    };
    const bool is_over_due = Clock::now() > claimed + most_for_answer;
    // A second claim would be refused where two addresses are of one host.
    if (is_over_due || std::none_of(candidates.begin(), candidates.end(), is_claimed)) {
      const auto next = std::find_if(candidates.begin(), candidates.end(),
                                     [](const auto& each) { return each->is_ready(); });
      if (next != candidates.end()) {
        (*next)->claim(key, number);
        claimed = Clock::now();
      }
    }
    std::vector<pollfd> fds;
    for (const auto& each : candidates) fds.push_back(each->to_watch());
    ::poll(fds.data(), fds.size(), 100);
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (fds[i].revents != 0) candidates[i]->hear(key);
      if (candidates[i]->state() == Candidate::State::proven) return candidates[i]->take_fd();
    }
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                    [](const auto& each) {
                                      return each->state() == Candidate::State::hopeless;
                                    }),
                     candidates.end());
  }
  return -1;
}

}  // namespace autotune
