// The part of NCCL that the engine calls, for one rank without a GPU: it loads a tuner as NCCL
// does, asks it about every operation of a group, and remembers what would have been chosen.

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "fake_nccl.h"
#include "nccl_tuner/nccl_abi.h"

using namespace autotune;

namespace {

const NcclTunerV5* tuner = nullptr;
int depth = 0;
std::vector<size_t> waiting;
void* context_of_waiting = nullptr;
std::vector<FakeChoice> choices;

void decide(void* context, size_t bytes, size_t together) {
  float costs[fake_algorithms][fake_protocols];
  for (int a = 0; a < fake_algorithms; ++a) {
    for (int p = 0; p < fake_protocols; ++p) costs[a][p] = a < 2 ? fake_costs[a][p] : -1;
  }
  FakeChoice choice{0, 0, 0, bytes};
  if (tuner != nullptr) {
    tuner->get_coll_info(context, 4, bytes, static_cast<int>(together),
                         reinterpret_cast<float**>(costs), fake_algorithms, fake_protocols, 0,
                         &choice.channels);
  }
  float least = 1e30F;
  for (int a = 0; a < fake_algorithms; ++a) {
    for (int p = 0; p < fake_protocols; ++p) {
      if (costs[a][p] < 0 || costs[a][p] >= least) continue;
      least = costs[a][p];
      choice.algorithm = a;
      choice.protocol = p;
    }
  }
  choices.push_back(choice);
}

int take(void* communicator, size_t count, int type) {
  waiting.push_back(count * (type == 7 ? 4 : 1));
  context_of_waiting = communicator;
  if (depth > 0) return 0;
  for (const size_t bytes : waiting) decide(context_of_waiting, bytes, 1);
  waiting.clear();
  return 0;
}

}  // namespace

extern "C" {

void fake_nccl_load(const char* path) {
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  tuner = library == nullptr
              ? nullptr
              : static_cast<const NcclTunerV5*>(dlsym(library, "ncclTunerPlugin_v5"));
}

int fake_nccl_take(FakeChoice* out, int most) {
  int count = 0;
  for (const FakeChoice& choice : choices) {
    if (count < most) out[count++] = choice;
  }
  choices.clear();
  return count;
}

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
int ncclGetUniqueId(void* id) {
  std::memset(id, 0, 128);
  return 0;
}
int ncclCommInitRank(void** communicator, int size, FakeId, int) {
  *communicator = nullptr;
  if (tuner == nullptr) return 0;
  return tuner->init(communicator, 1, static_cast<size_t>(size), 1, nullptr, nullptr, nullptr);
}
int ncclCommAbort(void* communicator) {
  return tuner == nullptr ? 0 : tuner->finalize(communicator);
}
int ncclCommDestroy(void* communicator) { return ncclCommAbort(communicator); }
int ncclCommGetAsyncError(void*, int* result) {
  *result = 0;
  return 0;
}
int ncclGroupStart() {
  ++depth;
  return 0;
}
int ncclGroupEnd() {
  if (--depth > 0) return 0;
  for (const size_t bytes : waiting) decide(context_of_waiting, bytes, 1);
  waiting.clear();
  return 0;
}
int ncclAllReduce(const void*, void*, size_t count, int type, int, void* communicator, void*) {
  return take(communicator, count, type);
}
int ncclReduceScatter(const void*, void*, size_t count, int type, int, void* communicator, void*) {
  return take(communicator, count, type);
}
int ncclAllGather(const void*, void*, size_t count, int type, void* communicator, void*) {
  return take(communicator, count, type);
}
int ncclBroadcast(const void*, void*, size_t count, int type, int, void* communicator, void*) {
  return take(communicator, count, type);
}
int ncclSend(const void*, size_t, int, int, void*, void*) { return 0; }
int ncclRecv(void*, size_t, int, int, void*, void*) { return 0; }
const char* ncclGetErrorString(int) { return "an error"; }
const char* ncclGetLastError(void*) { return ""; }
}
