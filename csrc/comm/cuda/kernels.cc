#include "comm/cuda/kernels.h"

#include <algorithm>
#include <cstring>

#include "comm/cuda/kernel_source.h"
#include "common/errors.h"
#include "common/library.h"

namespace autotune {

namespace {

constexpr unsigned threads = 512;
// A chunk is one block's work: long enough to be worth a block.
constexpr int64_t shortest_chunk_bytes = 16 << 10;
// Kernel arguments may be 32 KiB long from here on (before: 4 KiB), driver and compiler alike.
constexpr int large_tables_version = 12010;

// As in kernel_source.cc.
struct Chunk {
  const void* from;
  void* to;
  long long count;
  double factor;
  int divisor;
  uint16_t from_type;
  uint16_t to_type;
};
static_assert(sizeof(Chunk) == 40, "the table of 100 chunks fits into 4 KiB");

struct Nvrtc {
  explicit Nvrtc(const std::string& path) {
    const Library library("the NVRTC library",
                          {path, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
    library.find("nvrtcVersion", version);
    library.find("nvrtcCreateProgram", create);
    library.find("nvrtcCompileProgram", compile);
    library.find("nvrtcDestroyProgram", destroy);
    library.find("nvrtcGetNumSupportedArchs", count_known);
    library.find("nvrtcGetSupportedArchs", known);
    library.find("nvrtcGetCUBINSize", machine_size);
    library.find("nvrtcGetCUBIN", machine_code);
    library.find("nvrtcGetPTXSize", portable_size);
    library.find("nvrtcGetPTX", portable_code);
    library.find("nvrtcGetProgramLogSize", log_size);
    library.find("nvrtcGetProgramLog", log);
  }
  int (*version)(int* major, int* minor);
  int (*create)(void** program, const char* source, const char* name, int headers,
                const char* const* texts, const char* const* names);
  int (*compile)(void* program, int options, const char* const* texts);
  int (*destroy)(void** program);
  int (*count_known)(int* count);
  int (*known)(int* architectures);
  int (*machine_size)(void* program, size_t* bytes);
  int (*machine_code)(void* program, char* code);
  int (*portable_size)(void* program, size_t* bytes);
  int (*portable_code)(void* program, char* code);  // it is text
  int (*log_size)(void* program, size_t* bytes);
  int (*log)(void* program, char* text);
};

std::string log_of(const Nvrtc& nvrtc, void* program) {
  size_t bytes = 0;
  if (nvrtc.log_size(program, &bytes) != 0 || bytes == 0) return "no log";
  std::string text(bytes, '\0');
  nvrtc.log(program, text.data());
  return text;
}

std::vector<int> known_architectures(const Nvrtc& nvrtc) {
  int count = 0;
  if (nvrtc.count_known(&count) != 0) return {};
  std::vector<int> known(static_cast<size_t>(count));
  nvrtc.known(known.data());
  return known;
}

}  // namespace

KernelTarget kernel_target(int major, int minor, const std::vector<int>& known) {
  const int own = 10 * major + minor;
  int newest = 0;
  for (const int each : known) {
    if (each <= own) newest = std::max(newest, each);
  }
  if (newest == 0) return {own, true};  // the compiler says why not
  return {newest, newest == own};
}

std::string compile_copy_kernels(int major, int minor, const std::string& path, int& version) {
  const Nvrtc nvrtc(path);
  int version_major = 0, version_minor = 0;
  nvrtc.version(&version_major, &version_minor);
  version = version_major * 1000 + version_minor * 10;
  const KernelTarget target = kernel_target(major, minor, known_architectures(nvrtc));
  const bool machine = target.is_machine_code;
  const std::string architecture = std::string("--gpu-architecture=") +
                                   (machine ? "sm_" : "compute_") +
                                   std::to_string(target.architecture);
  std::vector<const char*> options{architecture.c_str(), "--std=c++17"};
  if (version >= large_tables_version) options.push_back("-DHVD_LARGE_TABLES");
  void* program = nullptr;
  if (nvrtc.create(&program, copy_kernel_source, "copy_kernels", 0, nullptr, nullptr) != 0) {
    throw EngineError("GPU: NVRTC cannot be started");
  }
  const int result = nvrtc.compile(program, static_cast<int>(options.size()), options.data());
  std::string image;
  size_t bytes = 0;
  const auto size = machine ? nvrtc.machine_size : nvrtc.portable_size;
  if (result == 0 && size(program, &bytes) == 0) {
    image.resize(bytes);
    (machine ? nvrtc.machine_code : nvrtc.portable_code)(program, image.data());
  }
  const std::string log = image.empty() ? log_of(nvrtc, program) : "";
  nvrtc.destroy(&program);
  if (image.empty()) {
    throw EngineError("GPU: NVRTC " + std::to_string(version_major) + "." +
                      std::to_string(version_minor) + " cannot compile for " + architecture + ": " +
                      log + "; GPUs from compute capability 7.0 on are supported");
  }
  return image;
}

CopyKernels::CopyKernels(const CudaDriver& driver, int device, const std::string& nvrtc)
    : driver_(driver) {
  constexpr int multiprocessors = 16, major_attribute = 75, minor_attribute = 76;
  int major = 0, minor = 0, processors = 0, driver_version = 0, compiler_version = 0;
  driver_.check(driver_.device_attribute(&major, major_attribute, device), "asking for the model");
  driver_.check(driver_.device_attribute(&minor, minor_attribute, device), "asking for the model");
  driver_.check(driver_.device_attribute(&processors, multiprocessors, device),
                "asking for the size");
  driver_.check(driver_.driver_version(&driver_version), "asking for the version");
  blocks_ = int64_t{4} * processors;
  const std::string image = compile_copy_kernels(major, minor, nvrtc, compiler_version);
  void* module = nullptr;
  driver_.check(driver_.module_load(&module, image.data()), "loading the copy kernels");
  const auto add = [&](const char* name, size_t most_chunks) {
    void* function = nullptr;
    driver_.check(driver_.module_function(&function, module, name), name);
    kernels_.push_back({most_chunks, function});
  };
  add("copy_small", 16);
  add("copy_medium", 100);
  if (std::min(driver_version, compiler_version) >= large_tables_version) add("copy_large", 800);
  table_.resize(kernels_.back().most_chunks * sizeof(Chunk));
}

void CopyKernels::run(const std::vector<DeviceCopy>& copies, void* stream) {
  const auto most = static_cast<int64_t>(kernels_.back().most_chunks);
  int64_t total_bytes = 0;
  for (const DeviceCopy& copy : copies) {
    total_bytes += copy.count * static_cast<int64_t>(size_of(copy.from_type));
  }
  // Chunks of equal length, as many as blocks fill the GPU, and no more than one launch takes.
  const int64_t room = std::max<int64_t>(most - static_cast<int64_t>(copies.size()), most / 4);
  const int64_t chunk_bytes = std::max(shortest_chunk_bytes, total_bytes / std::min(room, blocks_));
  for (const DeviceCopy& copy : copies) {
    const auto item = static_cast<int64_t>(size_of(copy.from_type));
    const auto to_item = static_cast<int64_t>(size_of(copy.to_type));
    const int64_t elements = (chunk_bytes / item + 127) / 128 * 128;  // keeps alignment
    for (int64_t done = 0; done < copy.count; done += elements) {
      if (chunks_ == static_cast<size_t>(most)) launch(stream);
      const Chunk chunk{static_cast<const char*>(copy.from) + done * item,
                        static_cast<char*>(copy.to) + done * to_item,
                        std::min(elements, copy.count - done),
                        copy.factor,
                        copy.divisor,
                        static_cast<uint16_t>(copy.from_type),
                        static_cast<uint16_t>(copy.to_type)};
      std::memcpy(table_.data() + chunks_++ * sizeof chunk, &chunk, sizeof chunk);
    }
  }
  if (chunks_ > 0) launch(stream);
}

void CopyKernels::launch(void* stream) {
  const auto kernel = std::find_if(kernels_.begin(), kernels_.end(),
                                   [&](const Kernel& each) { return chunks_ <= each.most_chunks; });
  void* arguments[] = {table_.data()};
  const int result = driver_.launch(kernel->function, static_cast<unsigned>(chunks_), 1, 1, threads,
                                    1, 1, 0, stream, arguments, nullptr);
  chunks_ = 0;
  driver_.check(result, "launching a copy");
}

}  // namespace autotune
