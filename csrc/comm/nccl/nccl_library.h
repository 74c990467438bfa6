// The part of NCCL's interface that the engine uses. Signatures: NCCL API reference.
#pragma once

#include <cstddef>
#include <string>

namespace autotune {

struct NcclId {
  char bytes[128];
};

struct NcclLibrary {
  // `path` may be empty. Throws EngineError.
  explicit NcclLibrary(const std::string& path);

  // Throws EngineError naming `what` was tried, unless `result` is success.
  void check(int result, const char* what) const;

  static constexpr int success = 0;

  int (*version)(int* version);
  int (*make_id)(NcclId* id);
  int (*init)(void** communicator, int size, NcclId id, int rank);
  int (*abort)(void* communicator);
  int (*destroy)(void* communicator);
  int (*async_error)(void* communicator, int* result);
  int (*group_start)();
  int (*group_end)();
  int (*allreduce)(const void* send, void* receive, size_t count, int type, int op,
                   void* communicator, void* stream);
  int (*reduce_scatter)(const void* send, void* receive, size_t count, int type, int op,
                        void* communicator, void* stream);
  int (*allgather)(const void* send, void* receive, size_t count, int type, void* communicator,
                   void* stream);
  int (*broadcast)(const void* send, void* receive, size_t count, int type, int root,
                   void* communicator, void* stream);
  int (*send)(const void* data, size_t count, int type, int peer, void* communicator, void* stream);
  int (*receive)(void* data, size_t count, int type, int peer, void* communicator, void* stream);
  const char* (*error_text)(int result);
  const char* (*last_error)(void* communicator);
};

}  // namespace autotune
