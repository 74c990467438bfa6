// Engines of all ranks under test, and what tests do with them.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "thread_ranks.h"

namespace autotune {

inline TensorEntry allreduce(const std::string& name, std::vector<int32_t>& data) {
  TensorEntry entry;
  entry.request.edit().name = name;
  entry.request.edit().dtype = DataType::int32;
  entry.request.edit().shape = {static_cast<int64_t>(data.size())};
  entry.input = entry.output = data.data();
  return entry;
}

inline int64_t enqueue_group(Engine& engine, std::vector<TensorEntry> entries) {
  return engine.enqueue_group(entries.data(), entries.size());
}

inline void wait(Engine& engine, int64_t handle) {
  while (!engine.wait(handle, std::chrono::milliseconds(100))) {
  }
  engine.release(handle);
}

// Start an engine per rank, run `body`, shut down together.
inline void run_job(Job& job, int size, const std::function<void(Engine&)>& body) {
  Meeting end(size);
  run_ranks(size, [&](int rank) {
    std::unique_ptr<Engine> engine;
    end.after([&] {
      engine = job.start(rank);
      body(*engine);
    });
    engine->shutdown(std::chrono::seconds(10));
    CHECK(!engine->failed());
  });
}

// The same on one host, with a host for every rank, on two hosts in two levels, and on one host
// where every rank but the last one speaks for the next one.
inline void with_engines(int size, EngineOptions options,
                         const std::function<void(Engine&)>& body) {
  std::vector<int> one(static_cast<size_t>(size), 0), each(one), two(one);
  for (size_t rank = 0; rank < one.size(); ++rank) {
    each[rank] = static_cast<int>(rank);
    two[rank] = rank == 1 ? 1 : 0;
  }
  for (const std::vector<int>& hosts : {one, each, two}) {
    options.params.hierarchical_allreduce = options.params.hierarchical_allgather = hosts == two;
    Job job(size, options, hosts);
    run_job(job, size, body);
  }
  if (size < 3) return;
  options.params.hierarchical_allreduce = options.params.hierarchical_allgather = false;
  Job job(Tree::of_hosts(one, 1), options);
  run_job(job, size, body);
}

// The error of an operation that has to fail.
inline std::string error_of(Engine& engine, int64_t handle) {
  std::string text;
  try {
    while (!engine.wait(handle, std::chrono::milliseconds(100))) {
    }
  } catch (const EngineError& error) {
    text = error.what();
  }
  engine.release(handle);
  return text;
}

// An allreduce of one number that works: the engine goes on.
inline void check_goes_on(Engine& engine, const std::string& name = "goes on") {
  std::vector<int32_t> data(1, 1);
  wait(engine, engine.enqueue(allreduce(name, data)));
  CHECK_EQUAL(data[0], engine.size());
}

// The rows that an operation has given this rank.
template <typename T>
std::vector<T> take_result(Engine& engine, int64_t handle) {
  while (!engine.wait(handle, std::chrono::milliseconds(100))) {
  }
  const auto state = engine.complete_handle(handle);
  const auto* data = reinterpret_cast<const T*>(state.result.get());
  std::vector<T> result(data, data + state.result_bytes / int64_t{sizeof(T)});
  engine.release(handle);
  return result;
}

// Make a process set; returns its id.
inline int32_t add_set(Engine& engine, const std::vector<int>& ranks) {
  const int64_t handle = engine.add_process_set(ranks);
  while (!engine.wait(handle, std::chrono::milliseconds(100))) {
  }
  const int32_t id = engine.complete_handle(handle).value;
  engine.release(handle);
  return id;
}

}  // namespace autotune
