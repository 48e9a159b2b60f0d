// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_COLUMNS_ID_MAKER_H_
#define MILLRACE_OPS_COLUMNS_ID_MAKER_H_

// IdMaker: the ids of columns (ops/columns/column_ids.h says which they are), made of features that
// are in memory: what the op _ColumnIds and functions of rows before a batch have in common.
//
// Each text is hashed once, however many columns and crosses use its fingerprint: words are found
// by it, too.
//
// Immutable once made; any thread, several at once.
// Failure: InvalidArgument for columns that do not fit their features, and for words twice.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/columns/column_ids.h"
#include "ops/loops/key_index.h"

namespace millrace {

// The values of a feature, one for each example: one of them is there. They belong to the caller.
struct IdFeature {
  const std::string* texts = nullptr;
  const absl::string_view* views = nullptr;
  const int32_t* small = nullptr;
  const int64_t* large = nullptr;
  const float* numbers = nullptr;

  // The elements of a tensor of strings, int32, int64 or floats.
  static IdFeature Of(const Tensor& values);

  absl::string_view text(int64_t i) const {
    return views != nullptr ? views[i] : absl::string_view(texts[i]);
  }
  int64_t key(int64_t i) const { return small != nullptr ? small[i] : large[i]; }
};

class IdMaker {
 public:
  // About what an id costs: what callers cut their loops by.
  static constexpr double kIdNs = 20;

  // Is what is in column `i` right for features of these dtypes? The message names the column.
  static Status Check(const std::vector<IdColumn>& columns, size_t i,
                      const std::vector<DType>& dtypes);
  static StatusOr<IdMaker> Make(std::vector<IdColumn> columns, const std::vector<DType>& dtypes);
  IdMaker() = default;  // of no columns

  const std::vector<IdColumn>& columns() const { return columns_; }

  // The first of `count` examples whose value an identity without a default does not take, and what
  // is wrong there; -1 when there is none, as for all other columns.
  static int64_t FirstBad(const IdColumn& column, absl::Span<const IdFeature> features,
                          int64_t count);
  static Status BadIdentity(const IdColumn& column, absl::Span<const IdFeature> features,
                            int64_t example);

  // Rows of `hashes` that a batch needs.
  int64_t num_fingerprints() const { return num_fingerprints_; }
  // Examples [begin, end) of a batch: ids[c * batch + i] becomes the id of example i in column c.
  // `hashes` are [num_fingerprints, batch], to work with.
  struct Examples {
    absl::Span<const IdFeature> features;
    int64_t batch, begin, end;
    int64_t* ids;
    int64_t* hashes;

    int64_t* IdsOf(size_t column) const { return ids + static_cast<int64_t>(column) * batch; }
    const IdFeature& feature(int64_t i) const { return features[static_cast<size_t>(i)]; }
  };
  void MakeIds(const Examples& examples) const;

 private:
  // The places of different words, by their fingerprints. Open addressing with linear probing; at
  // most half of the slots are taken.
  class WordPlaces {
   public:
    explicit WordPlaces(size_t num_words);
    int64_t size() const { return static_cast<int64_t>(words_.size()); }
    // False: it is there. At most `num_words` are.
    bool Insert(absl::string_view word);
    // The place of a word, or -1.
    int64_t Find(absl::string_view word, uint64_t fingerprint) const;
    // Fetches what Find will look at.
    void Prefetch(uint64_t fingerprint) const { __builtin_prefetch(&slots_[SlotOf(fingerprint)]); }
    bool IsLarge() const { return slots_.size() * sizeof(Slot) > kNearBytes; }

   private:
    static constexpr size_t kNearBytes = size_t{16} << 10;  // of slots that caches will have
    struct Slot {
      uint64_t fingerprint = 0;
      int64_t place = -1;
    };
    size_t SlotOf(uint64_t fingerprint) const {
      return static_cast<size_t>(fingerprint) & (slots_.size() - 1);
    }

    std::vector<std::string> words_;
    std::vector<Slot> slots_;
  };

  // No value in a column of a cross, which tells that from an id of -1. No column gives it: ids and
  // defaults are >= -1. Other columns have -1 for it at once.
  static constexpr int64_t kMissing = std::numeric_limits<int64_t>::min();

  bool IsTextFeature(int64_t feature) const {
    return dtypes_[static_cast<size_t>(feature)] == DT_STRING;
  }
  void NeedFingerprint(int64_t feature);
  const int64_t* HashesOf(const Examples& examples, int64_t feature) const {
    return examples.hashes + fingerprints_[static_cast<size_t>(feature)] * examples.batch;
  }
  void MakeColumn(const Examples& examples, size_t c) const;
  void Hash(const Examples& examples, const IdColumn& column, int64_t missing, int64_t* ids) const;
  void Words(const Examples& examples, const IdColumn& column, const WordPlaces& words,
             int64_t missing, int64_t* ids) const;
  static void Integers(const Examples& examples, const IdColumn& column,
                       const math::KeyIndex<int64_t>& words, int64_t missing, int64_t* ids);
  void Cross(const Examples& examples, const IdColumn& column, int64_t missing, int64_t* ids) const;

  std::vector<IdColumn> columns_;
  std::vector<DType> dtypes_;          // of the features
  std::vector<int64_t> fingerprints_;  // the place of each feature's, or -1
  int64_t num_fingerprints_ = 0;
  std::vector<int64_t> missing_;   // of each column: kMissing or -1
  std::vector<WordPlaces> words_;  // of each column
  std::vector<math::KeyIndex<int64_t>> integers_;
};

}  // namespace millrace

#endif  // MILLRACE_OPS_COLUMNS_ID_MAKER_H_
