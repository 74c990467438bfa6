// What the thread that performs operations is doing right now, for the timeline.
#pragma once

#include "common/types.h"

namespace autotune {

enum class Backend { self, shm, mpi, tcp, nccl, several };

// Name of the activity, as Horovod spells it; nullptr for `several`, which tells its own.
const char* activity_name(Backend backend, Operation operation);

class ActivityObserver {
 public:
  virtual ~ActivityObserver() = default;
  // `name` is a literal: it is used after the call.
  virtual void activity_begins(const char* name) = 0;
  virtual void activity_ends() = 0;
};

// The activity `name` for as long as this lives; nothing without an observer or a name.
class Activity {
 public:
  Activity(ActivityObserver* observer, const char* name)
      : observer_(name == nullptr ? nullptr : observer) {
    if (observer_ != nullptr) observer_->activity_begins(name);
  }
  ~Activity() {
    if (observer_ != nullptr) observer_->activity_ends();
  }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

 private:
  ActivityObserver* observer_;
};

}  // namespace autotune
