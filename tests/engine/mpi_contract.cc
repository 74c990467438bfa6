// mpi_contract LIBMPI: the contract of a transport over MPI, one rank of an Open MPI job.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_point_to_point.h"
#include "open_mpi.h"
#include "point_to_point_contract.h"

using namespace autotune;
using open_mpi::find;

namespace {

// Else bytes that the library still holds would never leave: nobody calls it between operations.
void a_message_is_under_way_until_it_is_taken(void* library, void* world, PointToPoint& transport) {
  const auto barrier = find<int(void*)>(library, "MPI_Barrier");
  char byte = 1;
  if (transport.rank() == 0) transport.send(1, &byte, 1);
  for (int i = 0; i < 200 && transport.rank() == 0; ++i) {
    if (transport.test_all()) throw std::runtime_error("complete, and nobody has received it");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  barrier(world);
  if (transport.rank() == 1) transport.receive(0, &byte, 1);
  while (!transport.test_all()) {
  }
}

// What is posted gets on by `progress` alone, as what the library holds after an operation has to.
// A byte shows it: to ask for the message would let the library go on, too.
void an_idle_rank_lets_messages_go_on(PointToPoint& transport) {
  std::vector<char> text(4'000'001, char(transport.rank() == 0));
  const volatile char& last = text.back();
  const auto bytes = static_cast<int64_t>(text.size());
  if (transport.rank() == 0) transport.send(1, text.data(), bytes);
  if (transport.rank() == 1) {
    const uint64_t posted = transport.posted();
    transport.receive(0, text.data(), bytes);
    if (transport.posted() == posted) throw std::runtime_error("nothing was posted");
    for (int i = 0; last == 0; ++i) {
      if (i == 5000) throw std::runtime_error("calls of an idle rank let nothing go on");
      transport.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  while (!transport.test_all()) {
  }
}

int run(const char* path) {
  void* library = open_mpi::load(path);
  find<int(int*, char***)>(library, "MPI_Init")(nullptr, nullptr);
  void* world = find(library, "ompi_mpi_comm_world");
  int rank = 0, size = 1;
  find<int(void*, int*)>(library, "MPI_Comm_rank")(world, &rank);
  find<int(void*, int*)>(library, "MPI_Comm_size")(world, &size);
  std::unique_ptr<PointToPoint> transport;
  bool is_cut = false;
  const auto checked = [&](const char* name, const auto& check) {
    try {
      check(*transport);
    } catch (const std::exception& error) {
      std::printf("FAILED on rank %d of %d%s: %s: %s\n", rank, size, is_cut ? ", messages cut" : "",
                  name, error.what());
      std::fflush(stdout);
      find<int(void*, int)>(library, "MPI_Abort")(world, 1);
    }
  };
  // Messages whole, messages to the last rank cut, all of them cut.
  const auto ranks = static_cast<size_t>(size);
  std::vector<bool> last(ranks, rank == size - 1);
  last.back() = true;
  for (const std::vector<bool>& far : {std::vector<bool>(), last, std::vector<bool>(ranks, true)}) {
    is_cut = !far.empty();
    transport = make_mpi_point_to_point(open_mpi::interface_of(library),
                                        reinterpret_cast<std::uintptr_t>(world), rank, size, far);
    for (const auto& [name, check] : contract::checks()) checked(name, check);
    checked("a message is under way until it is taken", [&](PointToPoint& one) {
      a_message_is_under_way_until_it_is_taken(library, world, one);
    });
    checked("an idle rank lets messages go on", an_idle_rank_lets_messages_go_on);
  }
  find<int()>(library, "MPI_Finalize")();
  transport->progress();  // a script may end MPI before the engine
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("mpi_contract LIBMPI");
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
