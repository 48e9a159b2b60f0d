// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ITERATOR_STATE_H_
#define MILLRACE_DATA_ITERATOR_STATE_H_

// Where an iterator stands, as bytes: numbers, strings and elements in the order in which they were
// put. A reader must ask for the same.
//
// States of earlier versions are read, too: a field that they lack is not known then
// (StateReader::version), and what reads it says what that means.
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

// Of what is written. 2 has, where 1 has not, the files of rows that wait in a Map of a
// RowFunction, and how many files IgnoreErrors has left out.
inline constexpr int kIteratorStateVersion = 2;

class StateWriter {
 public:
  void PutUint(uint64_t value);
  void PutInt(int64_t value) { PutUint(static_cast<uint64_t>(value)); }
  void PutBool(bool value) { PutUint(value ? 1 : 0); }
  void PutBytes(absl::string_view bytes);
  // Code, message, and whether it is a lost file (data/lost_file.h).
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
  // Of the code that wrote the bytes; Iterator::Restore knows it.
  int version() const { return version_; }
  void set_version(int version) { version_ = version; }
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
  int version_ = kIteratorStateVersion;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ITERATOR_STATE_H_
