// One connection of a TcpPointToPoint: a chunk on its way out, another one on its way in.
//
// What is read may be anything: a header is believed only within the message that was posted.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace autotune {

// Comes before the bytes of each chunk, in the byte order of both ends (which is compared at init).
// The chunk has `bytes` of the `total` bytes of its message, from `offset` on; the messages of this
// sender to this receiver are counted from 0.
struct ChunkHeader {
  static constexpr uint32_t right_mark = 0x31746468;  // it says nothing but what this is
  uint32_t mark = right_mark;
  uint32_t bytes = 0;
  uint32_t offset = 0;
  uint32_t total = 0;
  uint64_t message = 0;
};
static_assert(sizeof(ChunkHeader) == 24);

class TcpStream {
 public:
  // Takes the socket.
  explicit TcpStream(int fd);
  ~TcpStream();
  TcpStream(TcpStream&& other) noexcept;
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;
  TcpStream& operator=(TcpStream&&) = delete;

  int fd() const { return fd_; }

  // The kernel has told that it is worth trying.
  bool may_read = true;
  bool may_write = true;

  // Something was moved; not more now; the other end is gone (`error`: errno, 0: it closed).
  enum class Outcome { moved, not_now, gone };

  // -- out: one chunk at a time
  bool is_writing() const { return is_writing_; }
  void begin_write(const ChunkHeader& header, const char* data);
  Outcome write();  // it clears is_writing() when the chunk is whole

  // -- in: a header, then a chunk's bytes
  bool has_header() const { return header_bytes_ == sizeof(ChunkHeader); }
  const ChunkHeader& header() const { return in_; }
  bool is_reading() const { return is_reading_; }
  Outcome read_header();
  void begin_read(char* data) { is_reading_ = true, in_data_ = data, in_done_ = 0; }
  // Clears is_reading() and has_header() when the chunk is whole.
  Outcome read();

  int error() const { return error_; }

 private:
  Outcome failed(ssize_t n, bool& may);

  int fd_;
  int error_ = 0;

  bool is_writing_ = false;
  ChunkHeader out_;
  const char* out_data_ = nullptr;
  size_t out_done_ = 0;  // it counts the header, too

  bool is_reading_ = false;
  ChunkHeader in_;
  size_t header_bytes_ = 0;
  char* in_data_ = nullptr;
  size_t in_done_ = 0;
};

}  // namespace autotune
