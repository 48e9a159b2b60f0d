// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_CSV_FIELDS_H_
#define MILLRACE_FORMATS_CSV_FIELDS_H_

// CsvFields: cuts a CSV record into its fields, by the rules of TensorFlow's decode_csv: a field in
// quotes may hold delimiters, ends of lines and doubled quotes; one without holds none of these.
//
//   CsvFields fields(record, ',', /*quotes=*/true, &scratch);
//   absl::string_view text;
//   while (*fields.Next(&text)) Use(text);
//
// What is a missing field is said here, too.
//
// Thread-safety: thread-compatible. Failure: InvalidArgument in TensorFlow's words.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// Is a field missing? It is empty or `na_value`, which may have blanks around it; blanks alone are
// missing numbers, and texts.
inline bool IsMissingField(absl::string_view text, absl::string_view na_value, bool is_text) {
  if (text.empty() || text == na_value) return true;
  if (is_text && na_value.empty()) return false;
  const absl::string_view inner = absl::StripAsciiWhitespace(text);
  return inner.empty() ? !is_text : inner == na_value;
}

class CsvFields {
 public:
  // `record` and `scratch`, whose memory is used again, outlive it. A text is in the record where
  // it stands there as it is; only one with doubled quotes is in `scratch`.
  CsvFields(absl::string_view record, char delim, bool quotes, std::string* scratch)
      : record_(record), delim_(delim), quotes_(quotes), scratch_(*scratch) {}

  // False: there is none any more. `text` is valid until the next call.
  StatusOr<bool> Next(absl::string_view* text) {
    const size_t size = record_.size();
    while (at_ < size && (record_[at_] == '\n' || record_[at_] == '\r')) ++at_;
    if (at_ >= size) {
      // Behind a last delimiter there is an empty field.
      const bool last = !last_done_ && size > 0 && record_[size - 1] == delim_;
      last_done_ = true;
      *text = absl::string_view();
      return last;
    }
    if (quotes_ && record_[at_] == '"') {
      ++at_;
      MR_RETURN_IF_ERROR(Quoted(text));
    } else {
      MR_RETURN_IF_ERROR(Unquoted(text));
    }
    return true;
  }

 private:
  Status Unquoted(absl::string_view* text) {
    const size_t begin = at_;
    const size_t size = record_.size();
    for (; at_ < size; ++at_) {
      const char c = record_[at_];
      if (c == delim_) break;
      if (c == '\n' || c == '\r' || (quotes_ && c == '"')) {
        return absl::InvalidArgumentError("Unquoted fields cannot have quotes/CRLFs inside");
      }
    }
    *text = record_.substr(begin, at_ - begin);
    Past();
    return absl::OkStatus();
  }

  // Behind the first quote.
  Status Quoted(absl::string_view* text) {
    scratch_.clear();
    const size_t size = record_.size();
    const size_t begin = at_;
    for (;;) {
      const size_t quote = record_.find('"', at_);
      if (quote == absl::string_view::npos) {
        return absl::InvalidArgumentError(
            "Quoted field has to end with quote followed by delim or end");
      }
      const bool whole = at_ == begin;
      const bool last = quote + 1 == size || record_[quote + 1] == delim_;
      if (whole && last) {
        *text = record_.substr(begin, quote - begin);
        at_ = quote + 1;
        break;
      }
      scratch_.append(record_.data() + at_, quote - at_);
      at_ = quote + 1;
      if (last) {
        *text = scratch_;
        break;
      }
      if (record_[at_] != '"') {
        return absl::InvalidArgumentError(
            "Quote inside a string has to be escaped by another quote");
      }
      scratch_.push_back('"');
      ++at_;
    }
    Past();
    return absl::OkStatus();
  }

  // Over the delimiter; the end of the record is the end of the last field.
  void Past() {
    if (at_ == record_.size()) last_done_ = true;
    ++at_;
  }

  const absl::string_view record_;
  const char delim_;
  const bool quotes_;
  std::string& scratch_;
  size_t at_ = 0;
  bool last_done_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_CSV_FIELDS_H_
