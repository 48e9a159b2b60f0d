// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_CSV_CUTS_H_
#define MILLRACE_FORMATS_CSV_CUTS_H_

// CsvCuts: where the fields of a plain CSV record end, 64 bytes at a time.
//
// A record is plain when no byte in it needs a rule: no newline, and no quote where quotes mean
// something. Nearly all records are; the others are for CsvFields (csv_fields.h),
// which knows the rules.
//
// A value that is used again; one thread. Failure: none.

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace {

class CsvCuts {
 public:
  // Ends of the first `num_fields` > 0 fields are asked for. `quote` is 0 where quotes mean
  // nothing.
  CsvCuts(char delim, char quote, size_t num_fields)
      : delim_(_mm256_set1_epi8(delim)),
        // A newline that is looked for twice is no other byte.
        quote_(_mm256_set1_epi8(quote == 0 ? '\n' : quote)),
        num_fields_(num_fields),
        ends_(num_fields + kPiece) {}

  // The number of fields. 0: the record is not plain. The record is not empty.
  size_t Cut(absl::string_view record) {
    const char* const bytes = record.data();
    const size_t size = record.size();
    size_t fields = 0, begin = 0;
    for (; begin + kPiece <= size; begin += kPiece) {
      if (!CutPiece(Look(bytes + begin), begin, &fields)) return 0;
    }
    if (const size_t rest = size - begin; rest > 0) {
      Found found;
      if (begin > 0) {
        // The last bytes, without those that were looked at.
        found = Look(bytes + size - kPiece);
        found.cuts >>= kPiece - rest;
        found.others >>= kPiece - rest;
      } else {
        char piece[kPiece];
        std::memcpy(piece, bytes, rest);
        found = Look(piece);
        const uint64_t wanted = (uint64_t{1} << rest) - 1;
        found.cuts &= wanted;
        found.others &= wanted;
      }
      if (!CutPiece(found, begin, &fields)) return 0;
    }
    if (fields < num_fields_) ends_[fields] = size;
    return fields + 1;
  }
  // The byte of the delimiter behind the field, or the record's end.
  size_t end(size_t field) const { return ends_[field]; }

 private:
  static constexpr size_t kPiece = 64;

  // A bit for each byte of a piece.
  struct Found {
    uint64_t cuts;    // delimiters
    uint64_t others;  // what a plain record does not have
  };
  Found Look(const char* piece) const {
    const Found low = LookAtHalf(piece), high = LookAtHalf(piece + kPiece / 2);
    return {low.cuts | high.cuts << 32, low.others | high.others << 32};
  }
  Found LookAtHalf(const char* half) const {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half));
    const auto where = [](__m256i found) {
      return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(found))};
    };
    const __m256i newline = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\n')),
                                            _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\r')));
    return {where(_mm256_cmpeq_epi8(bytes, delim_)),
            where(_mm256_or_si256(_mm256_cmpeq_epi8(bytes, quote_), newline))};
  }

  // False: the record is not plain. Ends are written several at a time, wanted or not: how many
  // there are in a piece cannot be predicted. Behind the last field that is asked for they go to
  // the room that is there for them.
  bool CutPiece(Found found, size_t begin, size_t* fields) {
    if (found.others != 0) return false;
    constexpr size_t kAtOnce = 8;
    static_assert(kPiece % kAtOnce == 0);
    size_t* const ends = ends_.data() + std::min(*fields, num_fields_);
    const auto count = static_cast<size_t>(std::popcount(found.cuts));
    for (size_t i = 0; i < count; i += kAtOnce) {
      for (size_t j = 0; j < kAtOnce; ++j) {
        ends[i + j] = begin + static_cast<size_t>(std::countr_zero(found.cuts));
        found.cuts &= found.cuts - 1;
      }
    }
    *fields += count;
    return true;
  }

  const __m256i delim_, quote_;
  const size_t num_fields_;
  std::vector<size_t> ends_;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_CSV_CUTS_H_
