// Once the same tensors come in every step, the engine allocates nothing.
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "check.h"
#include "engine_fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool counts = false;  // their operator new is another one
#else
constexpr bool counts = true;
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

using namespace autotune;

TEST(a_step_that_comes_back_allocates_nothing) {
  constexpr int tensors = 161, warm_up = 300, steps = 200;
  for (int size : {1, 2, 3}) {
    EngineOptions options;
    options.params.fusion_threshold_bytes = 100'000;  // several responses a step
    Job job(size, options);
    std::atomic<int> arrived{0};
    run_ranks(size, [&](int rank) {
      auto meet = [&, round = 0]() mutable {
        ++arrived;
        for (++round; arrived < size * round;) std::this_thread::yield();
      };
      auto engine = job.start(rank);
      std::vector<std::vector<int32_t>> data(tensors, std::vector<int32_t>(1000, 0));
      std::vector<SharedRequest> requests;
      for (int i = 0; i < tensors; ++i) {
        requests.push_back(allreduce("t" + std::to_string(i), data[size_t(i)]).request);
      }
      std::vector<TensorEntry> entries(tensors);
      const auto step = [&] {
        for (size_t i = 0; i < tensors; ++i) {
          entries[i].request = requests[i];
          entries[i].input = entries[i].output = data[i].data();
        }
        const int64_t first = engine->enqueue_all(entries.data(), entries.size());
        while (!engine->wait_all(first, tensors, std::chrono::milliseconds(100))) {
        }
        CHECK_EQUAL(engine->settle(first, tensors, 0), "");
      };
      for (int i = 0; i < warm_up; ++i) step();
      meet();
      if (rank == 0) allocations = 0, counting = true;
      meet();
      for (int i = 0; i < steps; ++i) step();
      meet();
      counting = false;
      meet();
      // Records of steps are kept until the tuner takes them: that memory grows now and then.
      if (counts) CHECK(allocations < steps / 20);
      engine->shutdown(std::chrono::seconds(10));
    });
  }
}
