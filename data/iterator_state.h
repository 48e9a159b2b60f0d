// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ITERATOR_STATE_H_
#define MILLRACE_DATA_ITERATOR_STATE_H_

// Where an iterator stands, as bytes: numbers, strings and elements in the order in which they were
// put. A reader must ask for the same.
//
// The bytes are not trusted: sizes are checked against what is there before anything is allocated,
// numbers against the bounds that the reader gives. There is no checksum: who keeps states in files
// adds one.
//
// Thread-safety: one thread at a time.
// Failure: DataLoss "Iterator state: ..." when it ends early or a value is out of bounds;
// Unimplemented for tensors that never leave the process (resources, datasets).

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "data/element.h"  // IWYU pragma: export

namespace millrace::data {

class StateWriter {
 public:
  void PutUint(uint64_t value);
  void PutInt(int64_t value) { PutUint(static_cast<uint64_t>(value)); }
  void PutBool(bool value) { PutUint(value ? 1 : 0); }
  void PutBytes(absl::string_view bytes);
  void PutStatus(const Status& status);
  Status PutElement(const Element& element);
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class StateReader {
 public:
  // `bytes` must outlive the reader.
  explicit StateReader(absl::string_view bytes) : bytes_(bytes) {}
  StatusOr<uint64_t> GetUint();
  // In [low, high].
  StatusOr<int64_t> GetInt(int64_t low, int64_t high);
  StatusOr<bool> GetBool();
  StatusOr<absl::string_view> GetBytes();  // valid as long as `bytes`
  Status GetStatus(Status* status);
  StatusOr<Element> GetElement();
  // How many of something follow, each of which takes at least one byte.
  StatusOr<int64_t> GetCount();
  bool empty() const { return bytes_.empty(); }

 private:
  absl::string_view bytes_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ITERATOR_STATE_H_
