// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_LINE_READER_H_
#define MILLRACE_CORE_LINE_READER_H_

// LineReader: the lines of a text file, from front to back, seen in place.
//
//   while (true) {
//     MR_ASSIGN_OR_RETURN(const std::optional<absl::string_view> line, reader.Next());
//     if (!line) break;
//     ...
//   }
//
// Lines end with "\n" or "\r\n", which are not part of them; the last one may end with the file.
//
// Failure: of the ByteReader, at the line that it concerns; InvalidArgument, with the line's
// number, for a line above the limit: a compressed file of a few bytes can be one line that never
// ends.
//
// Thread-safety: one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/byte_reader.h"
#include "core/status.h"

namespace millrace {

class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t{64} << 20;

  // `label` begins messages: "Table file 'a.txt'".
  LineReader(std::string label, std::unique_ptr<ByteReader> bytes,
             size_t max_line_bytes = kMaxLineBytes)
      : label_(std::move(label)), bytes_(std::move(bytes)), max_line_bytes_(max_line_bytes) {}

  // Valid until the next call. None at the end.
  StatusOr<std::optional<absl::string_view>> Next();
  // Of the last line that Next gave, from 1 on.
  int64_t line_number() const { return line_number_; }
  const std::string& label() const { return label_; }

 private:
  std::optional<absl::string_view> Take(size_t length, size_t with_end);

  const std::string label_;
  const std::unique_ptr<ByteReader> bytes_;
  const size_t max_line_bytes_;
  size_t given_ = 0;  // bytes of the last line and its end
  int64_t line_number_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_LINE_READER_H_
