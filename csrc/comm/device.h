// A GPU as the engine sees it: streams, events, memory, and collectives over the GPUs of some
// ranks. Nothing here waits for the GPU: work is put into the engine's own stream, ordered against
// the streams of the script by events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "common/errors.h"
#include "common/types.h"

namespace autotune {

// Frameworks hand it over so (a cudaStream_t); 0 is the default stream.
using DeviceStream = std::uintptr_t;

// CPU tensors are there.
constexpr int32_t host_memory = -1;

// A point in a stream.
struct DeviceEvent {
  void* event = nullptr;
  uint64_t stream_id = 0;  // see Device::id_of
  uint64_t number = 0;     // a later event of the same stream has a larger one
};
using EventPtr = std::shared_ptr<const DeviceEvent>;

// to[i] = from[i] * factor / divisor. Between types: float16, bfloat16, float32 and float64, int16
// and int32. Integers are scaled in float64 and truncated towards zero.
struct DeviceCopy {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t count = 0;
  DataType from_type = DataType::uint8;
  DataType to_type = DataType::uint8;
  double factor = 1.0;
  int divisor = 1;
};

// While it lives, the GPU is the calling thread's.
class DeviceUse {
 public:
  virtual ~DeviceUse() = default;
};

// Memory of a GPU. It goes back when the last owner lets go of it, in any thread.
struct DeviceMemory {
  void* data = nullptr;
  std::shared_ptr<void> owner;
};

// Where memory of the GPU comes from: the framework. Its tensors lie there, too, and what it keeps
// for them would otherwise be out of reach.
class Allocator {
 public:
  virtual ~Allocator() = default;

  // Usable by what is put into `stream` afterwards; once it has gone back, it is used again after
  // what is in `stream` then. `data` is nullptr where there is none, also after the framework has
  // given back what it keeps. That may wait for the GPU: meanwhile `on_wait` is called, and what it
  // throws is thrown. Throws EngineError.
  virtual DeviceMemory allocate(int64_t bytes, DeviceStream stream, const WaitHook& on_wait) = 0;
};

// Errors of the GPU are EngineErrors. `id_of`, `record`, `wait`, `is_complete`, `elapsed_us` and
// `copy` may be called by any thread, the others by the one that performs operations.
class Device {
 public:
  virtual ~Device() = default;

  virtual int index() const = 0;
  // Tells GPUs of a host apart, whatever this process calls them.
  virtual std::string identity() const = 0;
  virtual DeviceStream stream() const = 0;  // it is the engine's own
  // Of no other stream, ever: a stream may get the handle of one that was destroyed.
  virtual uint64_t id_of(DeviceStream stream) const = 0;
  // For calls of a DeviceCommunicator, whose library asks the thread for its GPU.
  virtual std::unique_ptr<DeviceUse> use() const = 0;
  // Makes the GPU the calling thread's, for good; may be called after this is gone.
  virtual std::function<void()> binder() const = 0;

  // `timed`: for elapsed_us. Throws InvalidRequest when `stream` is being captured into a graph.
  virtual EventPtr record(DeviceStream stream, bool timed = false) = 0;
  // What is put into `stream` from now on runs after `event`.
  virtual void wait(DeviceStream stream, const DeviceEvent& event) = 0;
  virtual bool is_complete(const DeviceEvent& event) = 0;
  // Both are complete and timed.
  virtual double elapsed_us(const DeviceEvent& begin, const DeviceEvent& end) = 0;

  // In the engine's stream. The copies do not depend on each other: they run side by side, in one
  // launch as long as there are at most a few hundred.
  virtual void copy_all(const std::vector<DeviceCopy>& copies) = 0;
  virtual void clear(void* memory, int64_t bytes) = 0;
  // Memory of the host that `copy_all` can copy to; what it has copied is there when an event after
  // it is complete. Every call may give the same memory.
  virtual std::shared_ptr<char> host_memory(int64_t bytes) = 0;
  // In any stream: bytes.
  virtual void copy(void* to, const void* from, int64_t bytes, DeviceStream stream) = 0;
};

// Collectives in the engine's stream over the GPUs of some ranks. What the library lacks does not
// come here: int16, averages of integers, bool with anything but min and max. Bytes travel as
// uint8. The device is in use by the calling thread. A call may have to wait for other ranks (the
// first of its kind connects them); meanwhile it calls the `on_wait` that its maker was given, and
// throws what that throws.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // All spans in one launch. `average` for float types only.
  virtual void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op) = 0;
  // `blocks` holds a block of `count` elements per rank; `own` gets this rank's, reduced. `own` may
  // be its place in `blocks`.
  virtual void reduce_scatter(const void* blocks, void* own, int64_t count, DataType type,
                              ReduceOp op) = 0;
  // As Communicator's.
  virtual void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root_rank) = 0;
  virtual void alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) = 0;

  // Calls between `begin_group` and `end_group` become one launch; see DeviceGroup.
  virtual void begin_group() = 0;
  virtual void end_group() = 0;

  // What went wrong since, "" when nothing did.
  virtual std::string failure() = 0;
  // Begins to end what is running, also when other ranks are gone; nothing else may be called
  // afterwards. The destructor waits until it has ended, but seconds at most: that takes until all
  // communicators whose work is before it in the stream are aborted, too.
  virtual void abort() = 0;
};

// A group of calls. One that an exception leaves behind is ended, too: it would swallow the calls
// of whoever comes next in this thread.
class DeviceGroup {
 public:
  explicit DeviceGroup(DeviceCommunicator& communicator) : communicator_(communicator) {
    communicator_.begin_group();
  }
  ~DeviceGroup() {
    if (ended_) return;
    try {
      communicator_.end_group();
    } catch (const EngineError&) {  // another one is on its way
    }
  }
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  void end() {
    ended_ = true;
    communicator_.end_group();
  }

 private:
  DeviceCommunicator& communicator_;
  bool ended_ = false;
};

// Makes a communicator of the ranks of `plain` that say the same color, in the order of their
// ranks. `plain` connects all of them, nullptr: there is one. `on_wait` is called while waiting and
// may throw. It is independent of other communicators and of what they have to do. Collective over
// the ranks of `plain`.
using DeviceConnector = std::function<std::unique_ptr<DeviceCommunicator>(
    Communicator* plain, int color, const WaitHook& on_wait)>;

// The GPU of this process, how its ranks get communicators, where its memory comes from, and what
// is to be told of the parameters that are in force from now on, nullptr: nothing.
struct DeviceBackend {
  std::unique_ptr<Device> device;
  DeviceConnector connect;
  std::shared_ptr<Allocator> memory;
  std::function<void(const Params&)> tune = nullptr;
};

}  // namespace autotune
