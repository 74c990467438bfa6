#include "common/copy.h"

#include <algorithm>
#include <cstring>

#include "common/fetch_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace autotune {

namespace {

// glibc before 2.39 copies 4 KiB and more by the processor's own string instruction, which on AMD's
// takes half as long again when source and target lie alike in their pages (glibc's bug 30994; here
// 22 instead of 14 ms for an allreduce of 102 MB). Less than that it copies by vectors.
constexpr int64_t piece_bytes = 2 << 10;

bool copies_in_pieces() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

void copy_fetched(char* to, const char* from, int64_t bytes) {
  by_fetched_blocks(
      bytes, 1,
      [&](int64_t at) {
        fetch_block(from + at);
        fetch_block_to_write(to + at);
      },
      [&](int64_t at, int64_t length) {
        if (length == fetched_block_bytes) {
          std::memcpy(to + at, from + at, static_cast<size_t>(fetched_block_bytes));
        } else {
          std::memcpy(to + at, from + at, static_cast<size_t>(length));
        }
      });
}

#if defined(__x86_64__)

constexpr int64_t line = 64;  // of the caches

bool has_wide_stores() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") != 0;
}

// Whole lines of an aligned target.
void stream_lines(char* to, const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += sizeof(__m128i)) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), value);
  }
}

// A line by one store: it leaves the core at once and whole, however many others are under way.
__attribute__((target("avx512f"))) void stream_lines_wide(char* to, const char* from,
                                                          int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += line) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
}

#endif

}  // namespace

void copy_bytes(void* to, const void* from, int64_t bytes) {
  static const bool in_pieces = copies_in_pieces();
  if (to == from || bytes <= 0) return;
  if (fetches_ahead())
    return copy_fetched(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  if (!in_pieces) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t done = 0; done < bytes; done += piece_bytes) {
    std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done,
                static_cast<size_t>(std::min(piece_bytes, bytes - done)));
  }
}

void stream_bytes(void* to, const void* from, int64_t bytes) {
#if defined(__x86_64__)
  static const auto stream = has_wide_stores() ? stream_lines_wide : stream_lines;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const auto at = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(to) % line);
  const int64_t before = std::min((line - at) % line, bytes);  // streaming stores are aligned
  const int64_t whole = (bytes - before) / line * line;
  copy_bytes(target, source, before);
  stream(target + before, source + before, whole);
  copy_bytes(target + before + whole, source + before + whole, bytes - before - whole);
  _mm_sfence();
#else
  copy_bytes(to, from, bytes);
#endif
}

}  // namespace autotune
