// Some ranks of a transport as a transport of their own, numbered from 0. One thread at a time uses
// a transport and all its subsets, and completes what it has posted before it uses another.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "comm/point_to_point.h"

namespace autotune {

class SubsetPointToPoint final : public PointToPoint {
 public:
  // `members`: ranks of `base`, this one included, in the order of their new numbers.
  SubsetPointToPoint(std::shared_ptr<PointToPoint> base, std::vector<int> members)
      : base_(std::move(base)), members_(std::move(members)) {
    while (members_[static_cast<size_t>(rank_)] != base_->rank()) ++rank_;
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Backend backend() const override { return base_->backend(); }
  bool leaves_behind() const override { return base_->leaves_behind(); }
  void send(int peer, const void* data, int64_t bytes) override {
    base_->send(members_[static_cast<size_t>(peer)], data, bytes);
  }
  void receive(int peer, void* data, int64_t bytes) override {
    base_->receive(members_[static_cast<size_t>(peer)], data, bytes);
  }
  bool test_all() override { return base_->test_all(); }
  uint64_t posted() const override { return base_->posted(); }
  void progress() override { base_->progress(); }
  void give_up() override { base_->give_up(); }

 private:
  std::shared_ptr<PointToPoint> base_;
  std::vector<int> members_;
  int rank_ = 0;
};

}  // namespace autotune
