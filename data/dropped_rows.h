// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DROPPED_ROWS_H_
#define MILLRACE_DATA_DROPPED_ROWS_H_

// DroppedRows: counts rows that are kept and bad ones that are dropped, and says when too many are.
//
//   DroppedRows rows({.most = 10}, {.where = "vocab_gen", .unit = "rows", .hint = "..."});
//   MR_RETURN_IF_ERROR(good.ok() ? rows.Keep() : rows.Drop(good));
//
// Thread-safety: thread-compatible.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace::data {

struct DropLimit {
  int64_t most = -1;          // -1: any number
  double most_share = 0.01;   // of all rows so far; 1: all of them
  int64_t share_from = 1000;  // the share counts when there are so many rows
};

// For messages.
struct DropWords {
  std::string where, unit, hint;
};

class DroppedRows {
 public:
  DroppedRows(const DropLimit& limit, DropWords words) : limit_(limit), words_(std::move(words)) {}

  // OK, or the InvalidArgument with which the reader ends: more than the limit were dropped.
  // Several rows are as many calls: where the share is counted first, it is the largest.
  Status Keep(int64_t rows = 1) {
    const int64_t before = kept_ + dropped_;
    kept_ += rows;
    if (dropped_ == 0) return absl::OkStatus();
    return Check(std::min(kept_ + dropped_, std::max(limit_.share_from, before + 1)));
  }
  Status Drop(const Status& error);

  int64_t kept() const { return kept_; }
  int64_t dropped() const { return dropped_; }
  // The message of the first error; "" without one.
  const std::string& first() const { return first_; }
  // "3 of 200 rows (1.5 %), the first: <its message>".
  std::string Text() const;
  // As if these had been counted.
  void Restore(int64_t kept, int64_t dropped, absl::string_view first);

 private:
  // `rows`: what the share is of.
  Status Check(int64_t rows) const;

  const DropLimit limit_;
  const DropWords words_;
  int64_t kept_ = 0, dropped_ = 0;
  std::string first_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_DROPPED_ROWS_H_
