#include "comm/nccl/nccl_tuner.h"

#include "common/errors.h"
#include "common/library.h"
#include "common/log.h"

namespace autotune {

NcclTuner::NcclTuner(const std::string& path) {
  if (path.empty()) return;
  try {
    const Library library("NCCL's tuner of this package", {path});
    library.find("autotune_nccl_end", end_);
    library.find("autotune_nccl_follow", follow_);
    library.find("autotune_nccl_group", group_);
    library.find("autotune_nccl_choose", choose_);
    library.find("autotune_nccl_begin", begin_);
  } catch (const EngineError& error) {
    begin_ = nullptr;
    end_ = nullptr;
    log(LogLevel::warning, error.what());
  }
}

void NcclTuner::follow(uint64_t number) const {
  if (number != 0) follow_(number, 1);
}

void NcclTuner::announce(uint64_t number, int operations) const {
  if (number != 0) group_(number, operations);
}

void NcclTuner::choose(const Params& params) {
  if (begin_ == nullptr) return;
  const AutotuneNcclChoice choice{static_cast<int32_t>(params.nccl_algorithm),
                                  static_cast<int32_t>(params.nccl_protocol),
                                  static_cast<int32_t>(params.nccl_channels), 0, least_bytes};
  choose_(&choice);
  current_ =
      static_cast<uint64_t>((choice.algorithm * 256 + choice.protocol) * 256 + choice.channels);
}

}  // namespace autotune
