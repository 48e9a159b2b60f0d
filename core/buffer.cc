// SPDX-License-Identifier: Apache-2.0
#include "core/buffer.h"

#include <limits>
#include <new>

namespace millrace {
namespace {

// The header takes one alignment unit, so that the data behind it is aligned too.
constexpr size_t kHeaderSize = Allocator::kAlignment;

class OwnedBuffer final : public Buffer {
 public:
  OwnedBuffer(void* data, size_t size, Allocator* allocator)
      : Buffer(data, size), allocator_(allocator) {}

 private:
  void Destroy() override {
    Allocator* const allocator = allocator_;
    const size_t block_size = kHeaderSize + size();
    this->~OwnedBuffer();
    allocator->Deallocate(this, block_size);
  }

  Allocator* const allocator_;
};
static_assert(sizeof(OwnedBuffer) <= kHeaderSize);
static_assert(alignof(OwnedBuffer) <= Allocator::kAlignment);

class ExternalBuffer final : public Buffer {
 public:
  ExternalBuffer(void* data, size_t size, bool is_read_only, std::function<void()> release)
      : Buffer(data, size, is_read_only), release_(std::move(release)) {}
  bool is_external() const override { return true; }

 private:
  void Destroy() override {
    std::function<void()> release = std::move(release_);
    delete this;
    if (release) release();
  }

  std::function<void()> release_;
};

}  // namespace

BufferRef Buffer::Allocate(Allocator* allocator, size_t size) {
  if (size > std::numeric_limits<size_t>::max() - kHeaderSize) return BufferRef();
  void* const block = allocator->Allocate(kHeaderSize + size);
  if (block == nullptr) return BufferRef();
  return BufferRef(new (block)
                       OwnedBuffer(static_cast<char*>(block) + kHeaderSize, size, allocator));
}

BufferRef Buffer::External(void* data, size_t size, std::function<void()> release) {
  return BufferRef(new ExternalBuffer(data, size, /*is_read_only=*/false, std::move(release)));
}

BufferRef Buffer::ReadOnly(const void* data, size_t size, std::function<void()> release) {
  return BufferRef(
      new ExternalBuffer(const_cast<void*>(data), size, /*is_read_only=*/true, std::move(release)));
}

}  // namespace millrace
