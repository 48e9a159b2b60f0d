// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_BUFFER_H_
#define MILLRACE_CORE_BUFFER_H_

// Buffer: reference-counted memory that tensors share.
//
// A buffer's address and size never change. Its bytes may be written only by a
// holder that knows it is the only one (RefCountIsOne) or by the owner of a
// variable under the variable's rules. Of a read-only buffer nobody ever is the
// only holder: who wants to write takes a copy, as of a buffer that is shared.
//
// Thread-safety: counting is atomic (release on the last Unref, acquire before the
// memory is freed); the bytes are the holders' business.

#include <atomic>
#include <cstddef>
#include <functional>
#include <utility>

#include "core/allocator.h"

namespace millrace {

class BufferRef;

class Buffer {
 public:
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Uninitialised memory in one block with its header; null when there is no memory.
  static BufferRef Allocate(Allocator* allocator, size_t size);
  // Memory of somebody else; `release` is called when the last reference goes, on any thread.
  static BufferRef External(void* data, size_t size, std::function<void()> release);

  // The same, of bytes that nobody may write (memory that is mapped to be read, perhaps).
  static BufferRef ReadOnly(const void* data, size_t size, std::function<void()> release);

  // Of a read-only buffer: to be read.
  void* data() const { return data_; }
  size_t size() const { return size_; }
  bool is_read_only() const { return last_ != 1; }
  // Was it made by External? Its owner may write to it after the call that it was given to.
  virtual bool is_external() const { return false; }

  void Ref() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() const {
    // A sole holder needs no read-modify-write: nobody else can add a reference.
    if (refs_.load(std::memory_order_acquire) == last_ ||
        refs_.fetch_sub(1, std::memory_order_acq_rel) == last_) {
      const_cast<Buffer*>(this)->Destroy();
    }
  }
  // Acquire: what former holders did with the bytes has happened before. Never of a read-only one.
  bool RefCountIsOne() const { return refs_.load(std::memory_order_acquire) == 1; }

 protected:
  Buffer(void* data, size_t size, bool is_read_only = false)
      : refs_(is_read_only ? 2 : 1), last_(is_read_only ? 2 : 1), data_(data), size_(size) {}
  virtual ~Buffer() = default;
  // Frees the memory and this object.
  virtual void Destroy() = 0;

 private:
  mutable std::atomic<int> refs_;
  // What refs_ is while there is one holder: a read-only buffer counts one that is not there.
  const int last_;
  void* const data_;
  const size_t size_;
};

// Owns one reference.
class BufferRef {
 public:
  BufferRef() = default;
  // Takes over a reference.
  explicit BufferRef(Buffer* buffer) : buffer_(buffer) {}
  BufferRef(const BufferRef& other) : buffer_(other.buffer_) {
    if (buffer_ != nullptr) buffer_->Ref();
  }
  BufferRef(BufferRef&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferRef() {
    if (buffer_ != nullptr) buffer_->Unref();
  }

  Buffer* get() const { return buffer_; }
  Buffer* operator->() const { return buffer_; }
  explicit operator bool() const { return buffer_ != nullptr; }

 private:
  Buffer* buffer_ = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_BUFFER_H_
