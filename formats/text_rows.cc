// SPDX-License-Identifier: Apache-2.0
#include "formats/text_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"

namespace millrace {
namespace {

constexpr size_t kNone = absl::string_view::npos;

// The first newline or quote in [from, end), or `end`.
const char* FindNewlineOrQuote(const char* from, const char* end) {
  constexpr ptrdiff_t kPiece = 32;
  const __m256i newline = _mm256_set1_epi8('\n'), quote = _mm256_set1_epi8('"');
  for (; end - from >= kPiece; from += kPiece) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i found =
        _mm256_or_si256(_mm256_cmpeq_epi8(bytes, newline), _mm256_cmpeq_epi8(bytes, quote));
    const uint32_t where = static_cast<uint32_t>(_mm256_movemask_epi8(found));
    if (where != 0) return from + std::countr_zero(where);
  }
  while (from != end && *from != '\n' && *from != '"') ++from;
  return from;
}

size_t Distance(const char* from, const char* to) { return static_cast<size_t>(to - from); }

}  // namespace

// How far the row at the front was looked at.
struct TextRows::Search {
  bool as_line;             // it ends with its first line, whatever is quoted in it
  size_t looked = 0;        // bytes, which have no end of it
  bool is_open = false;     // they end inside a field in quotes
  size_t opened = 0;        // where it begins
  bool had_fields = false;  // a field in quotes: there may be several lines

  void BecomeLine() { *this = {.as_line = true}; }
};

void SkipByteOrderMark(ByteReader* bytes) {
  constexpr absl::string_view kMark = "\xef\xbb\xbf";
  const StatusOr<bool> filled = bytes->Fill(kMark.size());
  if (filled.ok() && absl::StartsWith(bytes->unread(), kMark)) bytes->Consume(kMark.size());
}

TextRows::TextRows(std::unique_ptr<ByteReader> bytes, TextRowsOptions options, int64_t line)
    : bytes_(std::move(bytes)), options_(std::move(options)), next_line_(line) {}

size_t TextRows::LineEnd(absl::string_view rest, Search* search) const {
  const size_t left = rest.size() - search->looked;
  const void* const newline =
      left == 0 ? nullptr : std::memchr(rest.data() + search->looked, '\n', left);
  if (newline != nullptr) return Distance(rest.data(), static_cast<const char*>(newline));
  search->looked = rest.size();
  return kNone;
}

size_t TextRows::RecordEnd(absl::string_view rest, Search* search) const {
  const char* const begin = rest.data();
  const char* const end = begin + rest.size();
  while (true) {
    const char* const from = begin + search->looked;
    if (!search->is_open) {
      const char* const found = FindNewlineOrQuote(from, end);
      if (found == end) {
        search->looked = rest.size();
        return kNone;
      }
      if (*found == '\n') return Distance(begin, found);
      search->looked = Distance(begin, found) + 1;
      search->is_open = found == begin || IsDelim(found[-1]);
      search->opened = search->looked;
      search->had_fields = search->had_fields || search->is_open;
      continue;
    }
    const size_t left = Distance(from, end);
    const char* const quote =
        left == 0 ? nullptr : static_cast<const char*>(std::memchr(from, '"', left));
    if (quote != nullptr && quote + 1 != end) {
      const char next = quote[1];
      search->looked = Distance(begin, quote) + 1;
      const bool is_long = search->looked - search->opened > options_.most_quoted_bytes;
      if (next == '"' && !is_long) {  // it stands for one
        ++search->looked;
        continue;
      }
      search->is_open = false;
      if (!is_long && (IsDelim(next) || next == '\n' || next == '\r')) continue;
      search->BecomeLine();
      return LineEnd(rest, search);
    }
    // What follows a quote at the end decides; it is looked at again.
    search->looked = quote == nullptr ? rest.size() : Distance(begin, quote);
    if (search->looked - search->opened <= options_.most_quoted_bytes) return kNone;
    search->BecomeLine();
    return LineEnd(rest, search);
  }
}

void TextRows::Give(absl::string_view row, const Search& search,
                    std::vector<absl::string_view>* rows) {
  ++next_line_;
  if (search.had_fields) next_line_ += std::count(row.begin(), row.end(), '\n');
  rows->push_back(row);
}

Status TextRows::Next(size_t most, std::vector<absl::string_view>* rows) {
  line_ = next_line_;
  return Find(most, rows);
}

Status TextRows::Find(size_t most, std::vector<absl::string_view>* rows) {
  rows->clear();
  bytes_->Consume(given_);
  given_ = 0;
  if (bytes_->offset() == 0) {
    SkipByteOrderMark(bytes_.get());
    const absl::string_view front = bytes_->unread().substr(0, 2);
    if (options_.quotes && (front == "\xff\xfe" || front == "\xfe\xff")) {
      return InvalidArgument(options_.label, ": it must be UTF-8, got UTF-16's byte order mark");
    }
  }
  const Search fresh = {.as_line = !options_.quotes};
  Search search = fresh;
  while (rows->size() < most) {
    const absl::string_view rest = bytes_->unread().substr(given_);
    const size_t end = search.as_line ? LineEnd(rest, &search) : RecordEnd(rest, &search);
    if ((end == kNone ? rest.size() : end) > options_.max_row_bytes) {
      if (!rows->empty()) break;
      return InvalidArgument(options_.label, " line ", line_, ": a line must have at most ",
                             options_.max_row_bytes, " bytes, got more");
    }
    if (end != kNone) {
      given_ += end + 1;
      const size_t length = end > 0 && rest[end - 1] == '\r' ? end - 1 : end;
      Give(rest.substr(0, length), search, rows);
      // So that the numbers of lines are those of rows.
      if (search.had_fields && next_line_ - line_ != static_cast<int64_t>(rows->size())) break;
      search = fresh;
      continue;
    }
    if (!rows->empty()) break;
    MR_ASSIGN_OR_RETURN(const bool more, bytes_->Fill(rest.size() + 1));
    if (more) continue;
    MR_RETURN_IF_ERROR(bytes_->CheckEnd());
    if (rest.empty()) break;
    // A quote at the end of the file closes its field.
    if (search.is_open && search.looked == rest.size()) {
      search.BecomeLine();
      continue;
    }
    const bool has_return = rest.back() == '\r' && !options_.keep_last_return;
    Give(has_return ? rest.substr(0, rest.size() - 1) : rest, search, rows);
    given_ = rest.size();
    break;
  }
  return absl::OkStatus();
}

}  // namespace millrace
