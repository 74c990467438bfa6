#include "comm/tcp/tcp_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <utility>

#include "common/fork.h"

namespace autotune {

TcpStream::TcpStream(int fd) : fd_(fd) { drop_in_children(fd_); }

TcpStream::~TcpStream() { close_dropped(fd_); }

TcpStream::TcpStream(TcpStream&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

void TcpStream::begin_write(const ChunkHeader& header, const char* data) {
  is_writing_ = true;
  out_ = header;
  out_data_ = data;
  out_done_ = 0;
}

TcpStream::Outcome TcpStream::write() {
  iovec parts[2];
  size_t count = 0;
  if (out_done_ < sizeof out_) {
    parts[count++] = {reinterpret_cast<char*>(&out_) + out_done_, sizeof out_ - out_done_};
  }
  const size_t sent = out_done_ > sizeof out_ ? out_done_ - sizeof out_ : 0;
  if (sent < out_.bytes) {
    parts[count++] = {const_cast<char*>(out_data_) + sent, out_.bytes - sent};  // only read
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) return failed(n, may_write);
  out_done_ += static_cast<size_t>(n);
  is_writing_ = out_done_ < sizeof out_ + out_.bytes;
  if (is_writing_) may_write = false;  // the kernel has no room; it tells when it has
  return Outcome::moved;
}

TcpStream::Outcome TcpStream::read_header() {
  char* place = reinterpret_cast<char*>(&in_) + header_bytes_;
  const ssize_t n = ::recv(fd_, place, sizeof in_ - header_bytes_, MSG_DONTWAIT);
  if (n <= 0) return failed(n, may_read);
  header_bytes_ += static_cast<size_t>(n);
  if (!has_header()) may_read = false;
  return Outcome::moved;
}

TcpStream::Outcome TcpStream::read() {
  if (in_done_ < in_.bytes) {
    const ssize_t n = ::recv(fd_, in_data_ + in_done_, in_.bytes - in_done_, MSG_DONTWAIT);
    if (n <= 0) return failed(n, may_read);
    in_done_ += static_cast<size_t>(n);
  }
  if (in_done_ < in_.bytes) {
    may_read = false;
  } else {
    is_reading_ = false;
    header_bytes_ = 0;
  }
  return Outcome::moved;
}

TcpStream::Outcome TcpStream::failed(ssize_t n, bool& may) {
  if (n < 0 && errno == EINTR) return Outcome::moved;  // once more
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    may = false;
    return Outcome::not_now;
  }
  error_ = n < 0 ? errno : 0;
  return Outcome::gone;
}

}  // namespace autotune
