#include "comm/hierarchical/hierarchical_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/element_sequence.h"
#include "common/copy.h"
#include "common/reduce.h"

namespace autotune {

HierarchicalCommunicator::HierarchicalCommunicator(HostMap map, int rank,
                                                   std::unique_ptr<Communicator> local,
                                                   std::unique_ptr<Communicator> cross)
    : map_(std::move(map)),
      rank_(rank),
      size_(0),
      local_(std::move(local)),
      cross_(std::move(cross)) {
  for (int host = 0; host < map_.hosts(); ++host) {
    size_ += static_cast<int>(map_.ranks_of(host).size());
  }
}

void HierarchicalCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op,
                                         double prescale, double postscale) {
  const int lanes = map_.lanes();
  // An average is a sum here; the division comes once, at the end of the cross step.
  const bool is_average = op == ReduceOp::average;
  const ReduceOp step_op = is_average ? ReduceOp::sum : op;
  double between = 1.0;  // factor after the local step
  if (is_average && is_half(type)) {
    between = 1.0 / map_.most_ranks();
    postscale *= prescale * map_.most_ranks();
    prescale = 1.0;
  }
  {
    Activity activity(observer_, activity_name(local_->backend(), Operation::reducescatter));
    local_->reduce_scatter(spans, type, step_op, prescale, between, lanes);
  }
  if (cross_) reduce_between_hosts(spans, type, step_op, postscale, is_average ? size_ : 1);
  Activity activity(observer_, activity_name(local_->backend(), Operation::allgather));
  local_->allgather_slices(spans, type, lanes);
}

void HierarchicalCommunicator::reduce_between_hosts(const std::vector<Span>& spans, DataType type,
                                                    ReduceOp op, double postscale, int divisor) {
  Activity activity(observer_, activity_name(cross_->backend(), Operation::allreduce));
  const ElementSequence elements(spans, type);
  const int lane = map_.local_rank(rank_);
  const auto [begin, end] = slice_of(elements.count(), lane, map_.lanes());
  const int64_t count = end - begin;
  // One contiguous piece: the cost between hosts is per message.
  slice_.resize(std::max(slice_.size(), static_cast<size_t>(count * elements.item())));
  elements.read_outputs(begin, end, slice_.data());
  const std::vector<Span> slice{{slice_.data(), slice_.data(), count, true}};
  if (is_half(type)) {
    cross_->allreduce(slice, type, op, 1.0, postscale / divisor);
  } else {
    cross_->allreduce(slice, type, op, 1.0, 1.0);
    scale(slice_.data(), count, type, postscale, divisor);
  }
  elements.write(begin, end, slice_.data());
}

void HierarchicalCommunicator::allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) {
  // Blocks in the order of hosts, so that what a host has is contiguous.
  std::vector<int64_t> offset_of_rank(static_cast<size_t>(size_)), host_bytes, host_offset;
  int64_t total = 0;
  for (int host = 0; host < map_.hosts(); ++host) {
    host_offset.push_back(total);
    for (int rank : map_.ranks_of(host)) {
      offset_of_rank[static_cast<size_t>(rank)] = total;
      total += bytes_per_rank[static_cast<size_t>(rank)];
    }
    host_bytes.push_back(total - host_offset.back());
  }
  by_host_.resize(std::max(by_host_.size(), static_cast<size_t>(total)));
  std::vector<int64_t> own_host_bytes;
  for (int rank : map_.ranks_of(map_.host_of(rank_))) {
    own_host_bytes.push_back(bytes_per_rank[static_cast<size_t>(rank)]);
  }
  const auto for_each_rank = [&](auto&& act) {
    auto* block = static_cast<char*>(blocks);
    for (size_t rank = 0; rank < bytes_per_rank.size(); block += bytes_per_rank[rank], ++rank) {
      act(static_cast<int>(rank), block, by_host_.data() + offset_of_rank[rank],
          bytes_per_rank[rank]);
    }
  };
  for_each_rank([&](int rank, char* block, char* place, int64_t bytes) {
    if (rank == rank_) copy_bytes(place, block, bytes);
  });
  const auto own_host = static_cast<size_t>(map_.host_of(rank_));
  char* const own = by_host_.data() + host_offset[own_host];
  {
    Activity activity(observer_, activity_name(local_->backend(), Operation::allgather));
    local_->allgather(own, own_host_bytes);
  }
  if (map_.local_rank(rank_) == 0) {
    Activity activity(observer_, "MPI_CROSS_ALLGATHER");
    cross_->allgather(by_host_.data(), host_bytes);
  }
  Activity activity(observer_, activity_name(local_->backend(), Operation::broadcast));
  local_->broadcast(by_host_.data(), host_offset[own_host], 0);
  const int64_t after = host_offset[own_host] + host_bytes[own_host];
  local_->broadcast(by_host_.data() + after, total - after, 0);
  for_each_rank([&](int rank, char* block, const char* place, int64_t bytes) {
    if (rank != rank_) copy_bytes(block, place, bytes);
  });
}

void HierarchicalCommunicator::broadcast(void* data, int64_t bytes, int root_rank) {
  const int root_local = map_.local_rank(root_rank);
  const int root_host = map_.host_of(root_rank);
  // Within the root's host, between the lanes 0, within the other hosts.
  if (map_.host_of(rank_) == root_host) local_->broadcast(data, bytes, root_local);
  if (map_.local_rank(rank_) == 0) cross_->broadcast(data, bytes, root_host);
  if (map_.host_of(rank_) != root_host) local_->broadcast(data, bytes, 0);
}

}  // namespace autotune
