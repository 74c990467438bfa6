// Text that is built from many small pieces, in memory that a file can be written from directly.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

namespace autotune {

class TextBuffer {
 public:
  static constexpr size_t alignment = 4096;  // `data` has it: direct writes ask for it

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  char* data() { return data_.get(); }
  std::string_view view() const { return {data_.get(), size_}; }
  void clear() { size_ = 0; }  // the memory is kept

  TextBuffer& operator<<(std::string_view piece) {
    std::memcpy(room(piece.size()), piece.data(), piece.size());
    size_ += piece.size();
    return *this;
  }
  TextBuffer& operator<<(int64_t number) {
    constexpr size_t longest = 20;
    char* const at = room(longest);
    size_ += static_cast<size_t>(std::to_chars(at, at + longest, number).ptr - at);
    return *this;
  }
  void append(size_t count, char c) {
    std::memset(room(count), c, count);
    size_ += count;
  }
  void cut(size_t size) { size_ = size; }
  // Forget the first `count` bytes.
  void drop_front(size_t count) {
    size_ -= count;
    std::memmove(data_.get(), data_.get() + count, size_);
  }

 private:
  struct Free {
    void operator()(char* memory) const {
      ::operator delete[](memory, std::align_val_t{alignment});
    }
  };
  using Memory = std::unique_ptr<char[], Free>;

  char* room(size_t bytes) {
    if (size_ + bytes > capacity_) grow(size_ + bytes);
    return data_.get() + size_;
  }
  void grow(size_t bytes) {
    const size_t capacity = 2 * bytes + alignment;
    Memory larger(new (std::align_val_t{alignment}) char[capacity]);
    if (size_ > 0) std::memcpy(larger.get(), data_.get(), size_);
    data_ = std::move(larger);
    capacity_ = capacity;
  }

  Memory data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace autotune
