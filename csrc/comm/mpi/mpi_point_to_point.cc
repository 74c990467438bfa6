#include "comm/mpi/mpi_point_to_point.h"

#include <dlfcn.h>
#include <mpi.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "common/errors.h"
#include "common/message_memory.h"

namespace autotune {

namespace {

// How long messages that nobody waits for any more may take: where the other ranks live they give
// up, too, and this is a matter of milliseconds.
constexpr auto patience = std::chrono::milliseconds(250);

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw EngineError(std::string(call) + " failed: " + std::string(text.data(), size_t(length)));
}

class MpiPointToPoint final : public PointToPoint {
 public:
  explicit MpiPointToPoint(MPI_Comm comm) : comm_(comm) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int peer, const void* data, int64_t bytes) override {
    requests_.push_back(MPI_REQUEST_NULL);
    post(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &requests_.back()),
         "MPI_Isend");
  }

  void receive(int peer, void* data, int64_t bytes) override {
    receives_.push_back(requests_.size());
    requests_.push_back(MPI_REQUEST_NULL);
    post(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &requests_.back()),
         "MPI_Irecv");
  }

  bool test_all() override {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
    if (done) clear();
    return done != 0;
  }

  // Only receives that no message has come for yet can be taken back.
  void give_up() override {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    bool done = false;
    try {
      for (const size_t place : receives_) {
        if (requests_[place] == MPI_REQUEST_NULL) continue;
        check(MPI_Cancel(&requests_[place]), "MPI_Cancel");
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
  // As `check`; what was posted before is given up.
  void post(int code, const char* call) {
    if (code != MPI_SUCCESS) give_up();
    check(code, call);
  }

  void clear() {
    requests_.clear();
    receives_.clear();
  }

  static constexpr int tag = 0;
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<MPI_Request> requests_;
  std::vector<size_t> receives_;  // those of them that receive
};

}  // namespace

std::unique_ptr<PointToPoint> make_mpi_point_to_point(std::uintptr_t handle) {
  // MPI_Comm is a pointer in Open MPI and an int in MPICH; a C-style cast covers both.
  return std::make_unique<MpiPointToPoint>((MPI_Comm)handle);
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  return std::string(text.data());
}

std::string mpi_library_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&MPI_Get_library_version), &info) == 0) return "";
  return info.dli_fname ? info.dli_fname : "";
}

}  // namespace autotune
