#include "comm/nccl/nccl_library.h"

#include "common/errors.h"
#include "common/library.h"

namespace autotune {

NcclLibrary::NcclLibrary(const std::string& path) {
  const Library library("the NCCL library (libnccl.so.2)", {path, "libnccl.so.2"});
  library.find("ncclGetVersion", version);
  library.find("ncclGetUniqueId", make_id);
  library.find("ncclCommInitRank", init);
  library.find("ncclCommAbort", abort);
  library.find("ncclCommDestroy", destroy);
  library.find("ncclCommGetAsyncError", async_error);
  library.find("ncclGroupStart", group_start);
  library.find("ncclGroupEnd", group_end);
  library.find("ncclAllReduce", allreduce);
  library.find("ncclReduceScatter", reduce_scatter);
  library.find("ncclAllGather", allgather);
  library.find("ncclBroadcast", broadcast);
  library.find("ncclSend", send);
  library.find("ncclRecv", receive);
  library.find("ncclGetErrorString", error_text);
  library.find("ncclGetLastError", last_error);
}

void NcclLibrary::check(int result, const char* what) const {
  if (result == success) return;
  const char* more = last_error(nullptr);
  throw EngineError(std::string("NCCL: ") + what + " failed: " + error_text(result) +
                    (more != nullptr && *more != '\0' ? std::string(" (") + more + ")" : "") +
                    "; NCCL_DEBUG=INFO tells more");
}

}  // namespace autotune
