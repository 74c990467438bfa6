#include "comm/mpi/mpi_point_to_point.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/message_memory.h"

namespace autotune {

namespace {

// How long messages that nobody waits for any more may take: where the other ranks live they give
// up, too, and this is a matter of milliseconds.
constexpr auto patience = std::chrono::milliseconds(250);

// A part of a message that is cut: with the library's header it fits what Open MPI sends at once.
constexpr int64_t part_bytes = 60 << 10;
// Longer messages travel whole: what is sent at once has to be kept by a receiver that is late.
constexpr int64_t most_cut_bytes = int64_t{1} << 20;

// `Handle` is that of the library's MPI_Comm, MPI_Datatype and MPI_Request.
template <typename Handle>
class MpiPointToPoint final : public PointToPoint {
 public:
  MpiPointToPoint(const MpiInterface& mpi, std::uintptr_t comm, int rank, int size,
                  std::vector<bool> far)
      : issend_(reinterpret_cast<Issend*>(mpi.issend)),
        irecv_(reinterpret_cast<Irecv*>(mpi.irecv)),
        testall_(reinterpret_cast<Testall*>(mpi.testall)),
        iprobe_(reinterpret_cast<Iprobe*>(mpi.iprobe)),
        cancel_(reinterpret_cast<Cancel*>(mpi.cancel)),
        error_string_(reinterpret_cast<ErrorString*>(mpi.error_string)),
        finalized_(reinterpret_cast<Finalized*>(mpi.finalized)),
        error_text_bytes_(mpi.error_text_bytes),
        status_bytes_(mpi.status_bytes),
        byte_((Handle)mpi.byte),  // a C-style cast covers ints and pointers
        no_request_((Handle)mpi.no_request),
        comm_((Handle)comm),
        rank_(rank),
        size_(size),
        far_(std::move(far)) {
    far_.resize(static_cast<size_t>(size));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int peer, const void* data, int64_t bytes) override {
    for_each_part(peer, bytes, [&](int64_t at, int length) {
      requests_.push_back(no_request_);
      post(issend_(static_cast<const char*>(data) + at, length, byte_, peer, tag, comm_,
                   &requests_.back()),
           "MPI_Issend");
    });
  }

  void receive(int peer, void* data, int64_t bytes) override {
    for_each_part(peer, bytes, [&](int64_t at, int length) {
      receives_.push_back(requests_.size());
      requests_.push_back(no_request_);
      post(
          irecv_(static_cast<char*>(data) + at, length, byte_, peer, tag, comm_, &requests_.back()),
          "MPI_Irecv");
    });
  }

  bool test_all() override {
    int done = 0;
    check(testall_(static_cast<int>(requests_.size()), requests_.data(), &done,
                   statuses(requests_.size())),
          "MPI_Testall");
    if (done) clear();
    return done != 0;
  }

  uint64_t posted() const override { return posted_; }

  // Nothing ever comes with that tag: the library looks for what else there is to do.
  void progress() override {
    int flag = 0;
    finalized_(&flag);
    if (flag) return;  // the script has ended MPI
    check(iprobe_(rank_, no_tag, comm_, &flag, statuses(1)), "MPI_Iprobe");
  }

  // Only receives that no message has come for yet can be taken back.
  void give_up() override {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    bool done = false;
    try {
      for (const size_t place : receives_) {
        if (requests_[place] == no_request_) continue;
        check(cancel_(&requests_[place]), "MPI_Cancel");
      }
      while (!(done = test_all()) && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const EngineError&) {  // of a connection that is gone
    }
    if (!done) messages_were_left_behind = true;
    clear();
  }

 private:
  using Issend = int(const void*, int, Handle type, int peer, int tag, Handle comm,
                     Handle* request);
  using Irecv = int(void*, int, Handle type, int peer, int tag, Handle comm, Handle* request);
  using Testall = int(int, Handle* requests, int* done, void* statuses);
  using Iprobe = int(int peer, int tag, Handle comm, int* flag, void* status);
  using Cancel = int(Handle* request);
  using ErrorString = int(int code, char* text, int* length);
  using Finalized = int(int* flag);

  // act(offset, bytes) of what travels by itself.
  template <typename Act>
  void for_each_part(int peer, int64_t bytes, Act&& act) {
    const bool is_cut = far_[static_cast<size_t>(peer)] && bytes <= most_cut_bytes;
    const int64_t most = is_cut ? part_bytes : max_message_bytes;
    int64_t at = 0;
    do {
      const int64_t length = std::min(most, bytes - at);
      ++posted_;
      act(at, static_cast<int>(length));
      at += length;
    } while (at < bytes);
  }

  void check(int code, const char* call) {
    if (code == success) return;
    std::vector<char> text(static_cast<size_t>(error_text_bytes_) + 1);
    int length = 0;
    error_string_(code, text.data(), &length);
    throw EngineError(std::string(call) + " failed: " + text.data());
  }

  // As `check`; what was posted before is given up.
  void post(int code, const char* call) {
    if (code != success) give_up();
    check(code, call);
  }

  // MPI_STATUSES_IGNORE would do, but mpi4py does not tell it.
  void* statuses(size_t count) {
    const size_t bytes = count * static_cast<size_t>(status_bytes_);
    statuses_.resize(bytes / sizeof(std::max_align_t) + 1);
    return statuses_.data();
  }

  void clear() {
    requests_.clear();
    receives_.clear();
  }

  static constexpr int success = 0;  // it is MPI_SUCCESS, by the standard
  static constexpr int tag = 0;
  static constexpr int no_tag = 1;
  Issend* issend_;
  Irecv* irecv_;
  Testall* testall_;
  Iprobe* iprobe_;
  Cancel* cancel_;
  ErrorString* error_string_;
  Finalized* finalized_;
  int error_text_bytes_;
  int status_bytes_;
  Handle byte_;
  Handle no_request_;
  Handle comm_;
  int rank_;
  int size_;
  std::vector<bool> far_;
  std::vector<Handle> requests_;
  std::vector<size_t> receives_;  // these of them receive
  std::vector<std::max_align_t> statuses_;
  uint64_t posted_ = 0;
};

}  // namespace

std::unique_ptr<PointToPoint> make_mpi_point_to_point(const MpiInterface& mpi, std::uintptr_t comm,
                                                      int rank, int size, std::vector<bool> far) {
  if (mpi.handle_bytes == sizeof(int)) {
    return std::make_unique<MpiPointToPoint<int>>(mpi, comm, rank, size, std::move(far));
  }
  if (mpi.handle_bytes == sizeof(void*)) {
    return std::make_unique<MpiPointToPoint<void*>>(mpi, comm, rank, size, std::move(far));
  }
  throw EngineError("MPI: expected handles of " + std::to_string(sizeof(int)) + " or " +
                    std::to_string(sizeof(void*)) + " bytes, got " +
                    std::to_string(mpi.handle_bytes));
}

}  // namespace autotune
