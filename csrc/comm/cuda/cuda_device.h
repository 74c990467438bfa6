// A GPU by NVIDIA's driver interface.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/cuda/driver.h"
#include "comm/cuda/kernels.h"
#include "comm/device.h"

namespace autotune {

class CudaDevice final : public Device {
 public:
  // `index`: as CUDA_VISIBLE_DEVICES numbers them. `nvrtc`: path of the compiler's library, or
  // empty. Throws EngineError.
  CudaDevice(int index, const std::string& nvrtc);
  // Its stream, its events and its kernels are kept for the next one of this GPU: frameworks
  // remember for which stream they gave memory, so a stream may not be destroyed.
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int index() const override { return index_; }
  std::string identity() const override { return identity_; }
  DeviceStream stream() const override { return reinterpret_cast<DeviceStream>(stream_); }
  uint64_t id_of(DeviceStream stream) const override;
  std::unique_ptr<DeviceUse> use() const override { return std::make_unique<Current>(*this); }
  std::function<void()> binder() const override;
  EventPtr record(DeviceStream stream, bool timed) override;
  void wait(DeviceStream stream, const DeviceEvent& event) override;
  bool is_complete(const DeviceEvent& event) override;
  double elapsed_us(const DeviceEvent& begin, const DeviceEvent& end) override;
  void copy_all(const std::vector<DeviceCopy>& copies) override;
  void clear(void* memory, int64_t bytes) override;
  std::shared_ptr<char> host_memory(int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes, DeviceStream stream) override;

 private:
  // Events that are not in use, for the next ones; by whether they are timed.
  struct Pool {
    std::mutex mutex;
    std::vector<void*> free[2];
    uint64_t recorded = 0;
  };
  // Makes the GPU's context the calling thread's as long as this lives. Meanwhile no call of the
  // thread spoils what another one captures into a graph.
  class Current final : public DeviceUse {
   public:
    explicit Current(const CudaDevice& device);
    ~Current() override;

   private:
    const CudaDevice& device_;
    bool pushed_ = false;
    int capture_mode_;  // it is what the thread had before
  };

  // What the next one uses.
  struct Kept {
    CudaDriver driver;
    void* context = nullptr;  // it is the primary one, which frameworks use, too
    void* stream = nullptr;
    std::shared_ptr<Pool> pool = std::make_shared<Pool>();
    std::unique_ptr<CopyKernels> kernels;
    // It is page-locked, and never freed: that would wait for the GPU.
    std::shared_ptr<char> host_memory;
    int64_t host_memory_bytes = 0;
  };
  struct Shelf;

  static Shelf& shelf();
  static std::unique_ptr<Kept> take_kept(int index);
  void* take_event(bool timed);

  std::unique_ptr<Kept> kept_;
  const CudaDriver& driver_;
  const int index_;
  std::string identity_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::shared_ptr<Pool> pool_;
};

}  // namespace autotune
