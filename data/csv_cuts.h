// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_CSV_CUTS_H_
#define MILLRACE_DATA_CSV_CUTS_H_

// CsvCuts: where the fields of a plain CSV record end, 32 bytes at a time.
//
// A record is plain when no byte in it needs a rule: no newline, and no quote where quotes mean
// something. Nearly all records are; the others are for who knows the rules (data/csv.cc).
//
// A value that is used again; one thread. Failure: none.

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace::data {

class CsvCuts {
 public:
  // Ends of the first `num_fields` > 0 fields are asked for. `quote` is 0 where quotes mean
  // nothing.
  CsvCuts(char delim, char quote, size_t num_fields)
      : delim_(_mm256_set1_epi8(delim)),
        // A newline that is looked for twice is no other byte.
        quote_(_mm256_set1_epi8(quote == 0 ? '\n' : quote)),
        ends_(num_fields) {}

  // The number of fields. 0: the record is not plain. The record is not empty.
  size_t Cut(absl::string_view record) {
    const size_t size = record.size();
    size_t fields = 0, begin = 0;
    for (; begin + kPiece <= size; begin += kPiece) {
      if (!CutPiece(record.data() + begin, begin, UINT32_MAX, &fields)) return 0;
    }
    if (const size_t rest = size - begin; rest > 0) {
      char piece[kPiece];
      std::memcpy(piece, record.data() + begin, rest);
      if (!CutPiece(piece, begin, (uint32_t{1} << rest) - 1, &fields)) return 0;
    }
    if (fields < ends_.size()) ends_[fields] = size;
    return fields + 1;
  }
  // The byte of the delimiter behind the field, or the record's end.
  size_t end(size_t field) const { return ends_[field]; }

 private:
  static constexpr size_t kPiece = 32;

  // `wanted`: the bytes of the piece that count. False: the record is not plain.
  bool CutPiece(const char* piece, size_t begin, uint32_t wanted, size_t* fields) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(piece));
    const auto where = [&](__m256i found) {
      return static_cast<uint32_t>(_mm256_movemask_epi8(found)) & wanted;
    };
    const __m256i newline = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\n')),
                                            _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\r')));
    if (where(_mm256_or_si256(_mm256_cmpeq_epi8(bytes, quote_), newline)) != 0) return false;
    for (uint32_t cuts = where(_mm256_cmpeq_epi8(bytes, delim_)); cuts != 0; cuts &= cuts - 1) {
      if (*fields < ends_.size()) {
        ends_[*fields] = begin + static_cast<size_t>(std::countr_zero(cuts));
      }
      ++*fields;
    }
    return true;
  }

  const __m256i delim_, quote_;
  std::vector<size_t> ends_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_CSV_CUTS_H_
