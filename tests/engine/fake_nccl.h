// What a test asks of fake_nccl.cc, which it loads as the engine loads NCCL.
#pragma once

#include <cstddef>

constexpr int fake_algorithms = 7;
constexpr int fake_protocols = 3;
// Of tree and ring, by protocol; of the others nothing can be had. The lowest is NCCL's own choice.
constexpr float fake_costs[2][fake_protocols] = {{40, 30, 20}, {35, -1, 10}};

// NCCL's numbers; 0 channels: as many as NCCL likes.
struct FakeChoice {
  int algorithm;
  int protocol;
  int channels;
  size_t bytes;
};

struct FakeId {
  char bytes[128];
};

extern "C" {
// Before the first communicator: as NCCL_TUNER_PLUGIN; nullptr: none.
void fake_nccl_load(const char* path);
// What was chosen since the last call.
int fake_nccl_take(FakeChoice* choices, int most);
}
