// mpirun -n N allreduce_bench LIBMPI [bytes...]: an allreduce by messages over MPI, by stages and
// by the size of pieces, in turns with bare MPI_Allreduce. One rank of an Open MPI job; rank 0
// prints medians in ms of the slowest rank, the fastest of each row last. Default: 102 MB and 0.9
// MB.
//
// "copied": as a script's memory over MPI, whole pieces come into a box and are copied; "direct":
// as over TCP, or where the memory is the engine's own.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_point_to_point.h"
#include "comm/p2p/staged_allreduce.h"
#include "comm/p2p/stages.h"
#include "common/reduce.h"
#include "open_mpi.h"

using namespace autotune;
using open_mpi::find;

namespace {

constexpr int samples = 7;
constexpr int64_t KiB = 1 << 10, small_bytes = 16 * KiB;
const std::vector<int64_t> pieces{64 * KiB,   128 * KiB,  256 * KiB,   512 * KiB,
                                  1024 * KiB, 4096 * KiB, 16384 * KiB, int64_t{1} << 40};

// The library's functions and constants that are needed here.
struct Mpi {
  void* library;
  void* world = find(library, "ompi_mpi_comm_world");
  void* type_float = find(library, "ompi_mpi_float");
  void* type_double = find(library, "ompi_mpi_double");
  void* sum = find(library, "ompi_mpi_op_sum");
  void* max = find(library, "ompi_mpi_op_max");
  int (*allreduce)(const void*, void*, int, void*, void*, void*) =
      find<int(const void*, void*, int, void*, void*, void*)>(library, "MPI_Allreduce");
  int (*barrier)(void*) = find<int(void*)>(library, "MPI_Barrier");

  static void* in_place() { return reinterpret_cast<void*>(1); }
};

std::vector<ExchangeStage> stages_of(int rank, const std::vector<int>& sizes) {
  std::vector<ExchangeStage> stages;
  int stride = 1;
  for (const int size : sizes) {
    ExchangeStage stage;
    stage.place = rank / stride % size;
    for (int place = 0; place < size; ++place) {
      stage.ranks.push_back(rank + (place - stage.place) * stride);
    }
    stages.push_back(std::move(stage));
    stride *= size;
  }
  return stages;
}

// One stage; those of the table; as many as there are.
std::vector<std::vector<int>> factorings(int size) {
  std::vector<int> most;
  for (int left = size, factor = 2; left > 1; ++factor) {
    for (; left % factor == 0; left /= factor) most.push_back(factor);
  }
  std::vector<std::vector<int>> all{{size}, stage_sizes(size), most};
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

class Bench {
 public:
  Bench(Mpi mpi, PointToPoint& transport, int64_t bytes)
      : mpi_(mpi), transport_(transport), data_(static_cast<size_t>(bytes / 4)) {}

  void run() {
    if (transport_.rank() == 0) {
      std::printf("\n%d ranks, %.1f MB, pieces of KiB:%12s", transport_.size(),
                  double(data_.size()) * 4e-6, "");
      for (int64_t piece : sizes()) std::printf(" %8lld", static_cast<long long>(piece / KiB));
      std::printf("\n");
    }
    row("MPI_Allreduce", [&](int64_t piece) { bare(piece); });
    for (const bool is_direct : {false, true}) {
      for (const std::vector<int>& sizes : factorings(transport_.size())) {
        StagedAllreduce staged(transport_, on_wait_, stages_of(transport_.rank(), sizes));
        std::string name = is_direct ? "direct" : "copied";
        for (const int size : sizes) name += "x" + std::to_string(size);
        name[6] = ' ';
        row(name, [&](int64_t piece) { ours(staged, piece, is_direct); });
      }
    }
  }

 private:
  int64_t bytes() const { return static_cast<int64_t>(data_.size()) * 4; }

  // The largest one is all.
  std::vector<int64_t> sizes() const {
    std::vector<int64_t> all;
    for (int64_t piece : pieces) {
      if (piece < bytes()) all.push_back(piece);
    }
    all.push_back(bytes());
    return all;
  }

  template <typename Body>
  void row(const std::string& name, Body&& body) {
    std::vector<double> medians;
    for (int64_t piece : sizes()) {
      std::vector<double> times;
      for (int i = 0; i <= samples; ++i) {
        const double ms = measure([&] { body(piece); });
        if (i > 0) times.push_back(ms);
      }
      std::sort(times.begin(), times.end());
      medians.push_back(times[samples / 2]);
    }
    if (transport_.rank() != 0) return;
    std::printf("%-44s", name.c_str());
    for (double ms : medians) std::printf(" %8.2f", ms);
    std::printf("   %8.2f\n", *std::min_element(medians.begin(), medians.end()));
    std::fflush(stdout);
  }

  template <typename Body>
  double measure(Body&& body) {
    std::fill(data_.begin(), data_.end(), float(transport_.rank() + 1));
    mpi_.barrier(mpi_.world);
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::milli> own = std::chrono::steady_clock::now() - start;
    const auto sum = float(transport_.size() * (transport_.size() + 1) / 2);
    for (float x : data_) {
      if (x != sum) throw std::runtime_error("a sum is wrong");
    }
    double ms = own.count();
    mpi_.allreduce(Mpi::in_place(), &ms, 1, mpi_.type_double, mpi_.max, mpi_.world);
    return ms;
  }

  void bare(int64_t piece) {
    const auto most = static_cast<size_t>(piece / 4);
    for (size_t begin = 0; begin < data_.size(); begin += most) {
      const size_t count = std::min(most, data_.size() - begin);
      mpi_.allreduce(Mpi::in_place(), data_.data() + begin, static_cast<int>(count),
                     mpi_.type_float, mpi_.sum, mpi_.world);
    }
  }

  void ours(StagedAllreduce& staged, int64_t piece, bool is_direct) {
    const RankReduction how(DataType::float32, ReduceOp::sum, 1.0, 1.0, transport_.size());
    staged.begin(how, bytes() >= long_call_bytes);
    for (int64_t begin = 0; begin < bytes(); begin += piece) {
      char* const data = reinterpret_cast<char*>(data_.data()) + begin;
      const int64_t length = std::min(piece, bytes() - begin);
      if (length > small_bytes) {
        staged.add_long(data, length / 4, is_direct);
      } else {
        staged.add_short(data, length / 4);
      }
    }
    staged.finish();
  }

  Mpi mpi_;
  PointToPoint& transport_;
  const WaitHook on_wait_ = [] {};
  std::vector<float> data_;
};

void run(int argc, char** argv) {
  void* library = open_mpi::load(argv[1]);
  find<int(int*, char***)>(library, "MPI_Init")(nullptr, nullptr);
  const Mpi mpi{library};
  int rank = 0, size = 1;
  find<int(void*, int*)>(library, "MPI_Comm_rank")(mpi.world, &rank);
  find<int(void*, int*)>(library, "MPI_Comm_size")(mpi.world, &size);
  try {
    const auto transport = make_mpi_point_to_point(
        open_mpi::interface_of(library), reinterpret_cast<std::uintptr_t>(mpi.world), rank, size);
    std::vector<int64_t> sizes{102'228'128, 862'000};
    if (argc > 2) sizes.clear();
    for (int i = 2; i < argc; ++i) sizes.push_back(std::atoll(argv[i]) / 4 * 4);
    for (int64_t bytes : sizes) Bench(mpi, *transport, bytes).run();
  } catch (const std::exception& error) {
    std::printf("FAILED on rank %d of %d: %s\n", rank, size, error.what());
    std::fflush(stdout);
    find<int(void*, int)>(library, "MPI_Abort")(mpi.world, 1);
  }
  find<int()>(library, "MPI_Finalize")();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("allreduce_bench LIBMPI [bytes...]\n");
    return 2;
  }
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
