// SPDX-License-Identifier: Apache-2.0
#include "data/dropped_rows.h"

#include "absl/strings/str_cat.h"

namespace millrace::data {

Status DroppedRows::Drop(const Status& error) {
  if (dropped_++ == 0) first_ = std::string(error.message());
  return Check(kept_ + dropped_);
}

Status DroppedRows::Check(int64_t rows) const {
  const bool too_many = limit_.most >= 0 && dropped_ > limit_.most;
  const double most = limit_.most_share * static_cast<double>(rows);
  const bool too_large = rows >= limit_.share_from && static_cast<double>(dropped_) > most;
  if (!too_many && !too_large) return absl::OkStatus();
  const std::string allowed =
      too_many ? absl::StrCat(limit_.most) : absl::StrCat(100 * limit_.most_share, " % of the");
  return InvalidArgument(words_.where, ": at most ", allowed, " ", words_.unit,
                         " may be dropped, got ", Text(), "; ", words_.hint);
}

std::string DroppedRows::Text() const {
  const int64_t rows = kept_ + dropped_;
  const double percent =
      rows == 0 ? 0 : 100 * static_cast<double>(dropped_) / static_cast<double>(rows);
  return absl::StrCat(dropped_, " of ", rows, " ", words_.unit, " (", percent, " %)",
                      first_.empty() ? "" : ", the first: ", first_);
}

void DroppedRows::Restore(int64_t kept, int64_t dropped, absl::string_view first) {
  kept_ = kept;
  dropped_ = dropped;
  first_ = std::string(first);
}

}  // namespace millrace::data
