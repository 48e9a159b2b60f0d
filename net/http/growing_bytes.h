// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_GROWING_BYTES_H_
#define MILLRACE_NET_HTTP_GROWING_BYTES_H_

// GrowingBytes: bytes in one piece that grow as they come, within a budget.
//
// A large piece grows by moving pages (realloc), not by copying them, and what is reserved costs no
// memory before it is written. The budget counts what is reserved.
//
// Thread-compatible. Lifetime: shares the budget, which gets everything back when the bytes go.
// Failure: a call that returns false left the bytes as they were.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/byte_budget.h"

namespace millrace {

class GrowingBytes {
 public:
  // `budget` null: no bound.
  explicit GrowingBytes(std::shared_ptr<ByteBudget> budget = nullptr)
      : budget_(std::move(budget)) {}
  GrowingBytes(GrowingBytes&& other) noexcept
      : budget_(std::move(other.budget_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  GrowingBytes& operator=(GrowingBytes&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~GrowingBytes() {
    std::free(data_);
    if (budget_ != nullptr) budget_->Return(static_cast<int64_t>(capacity_));
  }

  absl::string_view view() const { return {data_, size_}; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }

  // Room for `capacity` bytes in all. False when the budget or the system has none.
  bool Reserve(size_t capacity) {
    if (capacity <= capacity_) return true;
    const int64_t more = static_cast<int64_t>(capacity - capacity_);
    if (budget_ != nullptr && !budget_->Take(more)) return false;
    char* const grown = static_cast<char*>(std::realloc(data_, capacity));
    if (grown == nullptr) {
      if (budget_ != nullptr) budget_->Return(more);
      return false;
    }
    data_ = grown;
    capacity_ = capacity;
    return true;
  }

  // Doubles the room when it is used up, but never beyond `most` bytes if these are enough.
  bool Append(absl::string_view bytes, size_t most = SIZE_MAX) {
    if (bytes.empty()) return true;
    if (!MakeRoom(bytes.size(), most)) return false;
    std::memcpy(data_ + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
    return true;
  }

  // For a writer of its own: at least one byte of room behind the last one, then how many of the
  // free_room() were written.
  bool MakeRoom(size_t bytes, size_t most) {
    if (bytes <= capacity_ - size_) return true;
    const size_t least = size_ + bytes;
    const size_t doubled = std::min(std::max(capacity_ * 2, kLeastCapacity), most);
    return Reserve(std::max(least, doubled));
  }
  char* end() { return data_ + size_; }
  size_t free_room() const { return capacity_ - size_; }
  // Requires written <= free_room().
  void Advance(size_t written) { size_ += written; }

 private:
  static constexpr size_t kLeastCapacity = 4'096;

  std::shared_ptr<ByteBudget> budget_;
  char* data_ = nullptr;  // by malloc
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_GROWING_BYTES_H_
