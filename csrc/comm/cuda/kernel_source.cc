#include "comm/cuda/kernel_source.h"

namespace autotune {

// CUDA C++ for NVRTC, without any header. `Chunk` is the one of kernels.cc; the numbers of the
// types are DataType's.
const char* const copy_kernel_source = R"cuda(

struct Half { unsigned short bits; };
struct BFloat { unsigned short bits; };

__device__ float load(Half h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
  return f;
}
__device__ float load(BFloat b) { return __uint_as_float(((unsigned)b.bits) << 16); }
__device__ float load(float f) { return f; }
__device__ double load(double d) { return d; }
template <typename Integer>
__device__ double load(Integer i) { return (double)i; }

__device__ void store(Half& to, float f) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(f));
}
__device__ void store(BFloat& to, float f) {
  unsigned bits = __float_as_uint(f);
  if (f != f) {
    to.bits = 0x7fc0;
  } else {
    to.bits = (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}
__device__ void store(Half& to, double d) { store(to, (float)d); }
__device__ void store(BFloat& to, double d) { store(to, (float)d); }
__device__ void store(float& to, float f) { to = f; }
__device__ void store(float& to, double d) { to = (float)d; }
__device__ void store(double& to, double d) { to = d; }
template <typename Integer>
__device__ void store(Integer& to, double d) { to = (Integer)(long long)d; }

template <typename T>
struct Number { typedef double Type; };
template <>
struct Number<Half> { typedef float Type; };
template <>
struct Number<BFloat> { typedef float Type; };
template <>
struct Number<float> { typedef float Type; };

struct Chunk {
  const void* from;
  void* to;
  long long count;
  double factor;
  int divisor;
  unsigned short from_type;
  unsigned short to_type;
};

template <typename From, typename To>
__device__ void convert(const Chunk& chunk) {
  typedef typename Number<From>::Type Work;
  const From* from = (const From*)chunk.from;
  To* to = (To*)chunk.to;
  const Work factor = (Work)chunk.factor;
  const Work divisor = (Work)chunk.divisor;
  const bool divides = chunk.divisor != 1;
  for (long long i = threadIdx.x; i < chunk.count; i += blockDim.x) {
    Work value = load(from[i]) * factor;
    if (divides) value /= divisor;
    store(to[i], value);
  }
}

// Bits as they are; 64-bit integers would not survive a double.
template <typename From, typename To>
__device__ void convert_integer(const Chunk& chunk) {
  if (chunk.factor != 1.0 || chunk.divisor != 1) return convert<From, To>(chunk);
  const From* from = (const From*)chunk.from;
  To* to = (To*)chunk.to;
  for (long long i = threadIdx.x; i < chunk.count; i += blockDim.x) to[i] = (To)from[i];
}

template <typename From>
__device__ void convert_float(const Chunk& chunk) {
  switch (chunk.to_type) {
    case 5: return convert<From, Half>(chunk);
    case 6: return convert<From, BFloat>(chunk);
    case 7: return convert<From, float>(chunk);
    case 8: return convert<From, double>(chunk);
  }
}

// One copy of it for all kernels: compiling takes time.
__device__ __noinline__ void convert_any(Chunk chunk) {
  switch (chunk.from_type) {
    case 0: return convert<unsigned char, unsigned char>(chunk);
    case 1: return convert<signed char, signed char>(chunk);
    case 2:
      if (chunk.to_type == 3) return convert_integer<short, int>(chunk);
      return convert_integer<short, short>(chunk);
    case 3:
      if (chunk.to_type == 2) return convert_integer<int, short>(chunk);
      return convert_integer<int, int>(chunk);
    case 4: return convert<long long, long long>(chunk);
    case 5: return convert_float<Half>(chunk);
    case 6: return convert_float<BFloat>(chunk);
    case 7: return convert_float<float>(chunk);
    case 8: return convert_float<double>(chunk);
  }
}

__device__ __noinline__ void copy_bytes(const char* from, char* to, long long bytes) {
  long long done = 0;
  const unsigned long long places = (unsigned long long)from | (unsigned long long)to;
  if (places % 16 == 0) {
    const uint4* wide_from = (const uint4*)from;
    uint4* wide_to = (uint4*)to;
    const long long words = bytes / 16;
#pragma unroll 4
    for (long long i = threadIdx.x; i < words; i += blockDim.x) wide_to[i] = wide_from[i];
    done = words * 16;
  } else if (places % 4 == 0) {
    const unsigned* wide_from = (const unsigned*)from;
    unsigned* wide_to = (unsigned*)to;
    const long long words = bytes / 4;
#pragma unroll 4
    for (long long i = threadIdx.x; i < words; i += blockDim.x) wide_to[i] = wide_from[i];
    done = words * 4;
  }
  for (long long i = done + threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

__device__ int size_of(unsigned short type) {
  const int sizes[10] = {1, 1, 2, 4, 8, 2, 2, 4, 8, 1};
  return sizes[type];
}

template <int Length>
struct Table { Chunk chunks[Length]; };

template <int Length>
__device__ void copy_chunk(const Table<Length>& table) {
  const Chunk chunk = table.chunks[blockIdx.x];
  if (chunk.from_type == chunk.to_type && chunk.factor == 1.0 && chunk.divisor == 1) {
    copy_bytes((const char*)chunk.from, (char*)chunk.to, chunk.count * size_of(chunk.from_type));
  } else {
    convert_any(chunk);
  }
}

extern "C" __global__ void __launch_bounds__(512) copy_small(const __grid_constant__ Table<16> t) {
  copy_chunk(t);
}
extern "C" __global__ void __launch_bounds__(512) copy_medium(const __grid_constant__ Table<100> t) {
  copy_chunk(t);
}
#ifdef HVD_LARGE_TABLES
extern "C" __global__ void __launch_bounds__(512) copy_large(const __grid_constant__ Table<800> t) {
  copy_chunk(t);
}
#endif

)cuda";

}  // namespace autotune
