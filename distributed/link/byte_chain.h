// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_BYTE_CHAIN_H_
#define MILLRACE_DISTRIBUTED_LINK_BYTE_CHAIN_H_

// ByteChain: bytes that leave one after the other and lie in several places.
//
// A piece either owns its bytes or refers to a buffer and keeps it. With the first byte of a piece
// a descriptor may leave, for wires that pass them. Tensors therefore leave from where they were
// computed; a variable whose buffer is in a chain is updated in another buffer.
//
// A value that moves. Threads: one at a time; it may be destroyed on any. Failure: none.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/buffer.h"
#include "core/owned_fd.h"

namespace millrace {

class ByteChain {
 public:
  class Piece {
   public:
    Piece() = default;
    // `bytes` lie in `buffer`.
    Piece(BufferRef buffer, absl::string_view bytes)
        : buffer_(std::move(buffer)), referred_(bytes) {}

    bool is_reference() const { return static_cast<bool>(buffer_); }
    // Valid until the piece is moved, changed or destroyed.
    absl::string_view bytes() const { return is_reference() ? referred_ : absl::string_view(own_); }
    // What a transport keeps while the bytes travel. Null for a piece that owns its bytes.
    const BufferRef& buffer() const { return buffer_; }
    // Null for most.
    const std::shared_ptr<const OwnedFd>& descriptor() const { return descriptor_; }

   private:
    friend class ByteChain;  // appends to own_
    std::string own_;
    BufferRef buffer_;
    absl::string_view referred_;
    std::shared_ptr<const OwnedFd> descriptor_;
  };

  ByteChain() = default;
  ByteChain(ByteChain&&) = default;
  ByteChain& operator=(ByteChain&&) = default;

  // Copies `bytes`.
  void Append(absl::string_view bytes) {
    if (bytes.empty()) return;
    if (pieces_.empty() || pieces_.back().is_reference()) pieces_.emplace_back();
    pieces_.back().own_.append(bytes.data(), bytes.size());
    num_bytes_ += static_cast<int64_t>(bytes.size());
  }
  // The same, and `descriptor` leaves with their first byte.
  void AppendWithDescriptor(absl::string_view bytes, std::shared_ptr<const OwnedFd> descriptor) {
    if (bytes.empty()) return;
    Piece& piece = pieces_.emplace_back();
    piece.own_.assign(bytes.data(), bytes.size());
    piece.descriptor_ = std::move(descriptor);
    num_bytes_ += static_cast<int64_t>(bytes.size());
  }
  // Keeps `buffer`, in which `bytes` lie.
  void AppendReference(BufferRef buffer, absl::string_view bytes) {
    if (bytes.empty()) return;
    pieces_.emplace_back(std::move(buffer), bytes);
    num_bytes_ += static_cast<int64_t>(bytes.size());
  }
  // All of `other`, which is empty afterwards.
  void Append(ByteChain other) {
    for (Piece& piece : other.pieces_) {
      if (piece.is_reference()) {
        const absl::string_view bytes = piece.bytes();
        AppendReference(std::move(piece.buffer_), bytes);
      } else if (piece.descriptor_ != nullptr) {
        AppendWithDescriptor(piece.bytes(), std::move(piece.descriptor_));
      } else {
        Append(piece.bytes());
      }
    }
  }

  bool empty() const { return pieces_.empty(); }
  int64_t num_bytes() const { return num_bytes_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  // All bytes, copied; for tests and for what is small.
  std::string ToString() const {
    std::string result;
    for (const Piece& piece : pieces_) {
      result.append(piece.bytes().data(), piece.bytes().size());
    }
    return result;
  }

 private:
  std::vector<Piece> pieces_;
  int64_t num_bytes_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_BYTE_CHAIN_H_
