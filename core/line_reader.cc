// SPDX-License-Identifier: Apache-2.0
#include "core/line_reader.h"

namespace millrace {

std::optional<absl::string_view> LineReader::Take(size_t length, size_t with_end) {
  absl::string_view line = bytes_->unread().substr(0, length);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  given_ = with_end;
  ++line_number_;
  return line;
}

StatusOr<std::optional<absl::string_view>> LineReader::Next() {
  bytes_->Consume(given_);
  given_ = 0;
  size_t searched = 0;
  while (true) {
    const absl::string_view unread = bytes_->unread();
    const size_t newline = unread.find('\n', searched);
    const bool is_whole = newline != absl::string_view::npos;
    searched = is_whole ? newline : unread.size();
    if (searched > max_line_bytes_) {
      return InvalidArgument(label_, " line ", line_number_ + 1, ": a line must have at most ",
                             max_line_bytes_, " bytes, got more");
    }
    if (is_whole) return Take(newline, newline + 1);
    MR_ASSIGN_OR_RETURN(const bool more, bytes_->Fill(unread.size() + 1));
    if (more) continue;
    MR_RETURN_IF_ERROR(bytes_->CheckEnd());
    if (searched == 0) return std::optional<absl::string_view>();
    return Take(searched, searched);  // the last line needs no newline
  }
}

}  // namespace millrace
