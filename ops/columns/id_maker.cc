// SPDX-License-Identifier: Apache-2.0
#include "ops/columns/id_maker.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/fingerprint64.h"
#include "ops/loops/bucketize.h"

namespace millrace {
namespace {

using Kind = IdColumn::Kind;

bool IsText(DType dtype) { return dtype == DT_STRING; }
bool IsKey(DType dtype) { return dtype == DT_INT32 || dtype == DT_INT64; }

Status CheckFeature(const std::vector<DType>& dtypes, int64_t feature, bool text, bool key,
                    bool number) {
  if (feature < 0 || feature >= static_cast<int64_t>(dtypes.size())) {
    return InvalidArgument("its feature must be in [0, ", dtypes.size(), "), got ", feature);
  }
  const DType dtype = dtypes[static_cast<size_t>(feature)];
  if ((text && IsText(dtype)) || (key && IsKey(dtype)) || (number && dtype == DT_FLOAT)) {
    return absl::OkStatus();
  }
  return InvalidArgument("its feature must be ",
                         number ? "float"
                         : text ? "string"
                                : "",
                         text && key ? ", " : "", key ? "int32 or int64" : "", ", got ", dtype);
}

// What is in column i.
Status CheckColumn(const std::vector<IdColumn>& columns, size_t i,
                   const std::vector<DType>& dtypes) {
  const IdColumn& column = columns[i];
  const bool is_sized =
      column.kind != Kind::kWords && column.kind != Kind::kBuckets;  // others count theirs
  if (is_sized && column.size < 1) {
    return InvalidArgument("size must be >= 1, got ", column.size);
  }
  switch (column.kind) {
    case Kind::kHash:
      return CheckFeature(dtypes, column.feature, true, true, false);
    case Kind::kWords: {
      const bool text = column.vocabulary.dtype() == DT_STRING;
      const int64_t size = column.vocabulary.num_elements();
      if (column.num_oov_buckets < 0 ||
          column.num_oov_buckets > std::numeric_limits<int64_t>::max() - size) {
        return InvalidArgument("num_oov_buckets must be in [0, 2^63), got ",
                               column.num_oov_buckets);
      }
      if (column.default_value < -1 || column.default_value >= size) {
        return InvalidArgument("default_value must be -1 or in [0, ", size, "), got ",
                               column.default_value);
      }
      return CheckFeature(dtypes, column.feature, text, !text, false);
    }
    case Kind::kIdentity:
      if (column.default_value < -1 || column.default_value >= column.size) {
        return InvalidArgument("default_value must be -1 or in [0, ", column.size, "), got ",
                               column.default_value);
      }
      return CheckFeature(dtypes, column.feature, false, true, false);
    case Kind::kBuckets: {
      const std::vector<float>& bounds = column.boundaries;
      const bool numbers =
          std::none_of(bounds.begin(), bounds.end(), [](float x) { return std::isnan(x); });
      if (!numbers || !std::is_sorted(bounds.begin(), bounds.end())) {
        return InvalidArgument("boundaries must be sorted numbers, got others");
      }
      return CheckFeature(dtypes, column.feature, false, false, true);
    }
    case Kind::kCross:
      for (const IdColumn::Leaf& leaf : column.leaves) {
        if (leaf.column < 0) {
          MR_RETURN_IF_ERROR(CheckFeature(dtypes, leaf.feature, true, true, false));
        } else if (leaf.column >= static_cast<int64_t>(i)) {
          return InvalidArgument("columns of a cross must be in front of it, got ", leaf.column,
                                 " at ", i);
        }
      }
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

// Are `n` bytes equal? A call for the few that a word has costs more than to look at them, in
// pieces that overlap.
inline bool AreEqual(const char* a, const char* b, size_t n) {
  const auto differ = [&]<typename Piece>(Piece, size_t at) {
    Piece from_a, from_b;
    std::memcpy(&from_a, a + at, sizeof(Piece));
    std::memcpy(&from_b, b + at, sizeof(Piece));
    return static_cast<uint64_t>(from_a ^ from_b);
  };
  if (n > 32) return std::memcmp(a, b, n) == 0;
  if (n >= 8) {
    uint64_t different = differ(uint64_t(), 0) | differ(uint64_t(), n - 8);
    if (n > 16) different |= differ(uint64_t(), 8) | differ(uint64_t(), n - 16);
    return different == 0;
  }
  if (n >= 4) return (differ(uint32_t(), 0) | differ(uint32_t(), n - 4)) == 0;
  for (size_t i = 0; i < n; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

int64_t Bucket(int64_t hash, int64_t size) {
  return static_cast<int64_t>(static_cast<uint64_t>(hash) % static_cast<uint64_t>(size));
}
int64_t IntegerBucket(int64_t key, int64_t size) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof(text), key);
  return FingerprintBucket(absl::string_view(text, static_cast<size_t>(end.ptr - text)), size);
}

// The first key that is neither -1 nor in [0, size), or -1. Blocks of keys are looked at as a
// whole: nearly all are right.
template <typename Key>
int64_t FirstOutside(const Key* keys, int64_t count, int64_t size) {
  using Unsigned = std::make_unsigned_t<Key>;
  // With 1 added the right ones are [0, size], and none is more than the type's largest and 1.
  const auto most = static_cast<Unsigned>(std::min(
      static_cast<uint64_t>(size), static_cast<uint64_t>(std::numeric_limits<Key>::max()) + 1));
  const auto is_bad = [&](int64_t i) {
    return static_cast<Unsigned>(static_cast<Unsigned>(keys[i]) + 1u) > most;
  };
  constexpr int64_t kBlock = 64;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t last = std::min(first + kBlock, count);
    bool any = false;
    for (int64_t i = first; i < last; ++i) any |= is_bad(i);
    for (int64_t i = first; any && i < last; ++i) {
      if (is_bad(i)) return i;
    }
  }
  return -1;
}

template <typename Key>
void Identities(const Key* keys, int64_t begin, int64_t end, const IdColumn& column,
                int64_t missing, int64_t* ids) {
  const auto size = static_cast<uint64_t>(column.size);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t key = keys[i];
    const int64_t id = static_cast<uint64_t>(key) < size ? key : column.default_value;
    ids[i] = key == -1 ? missing : id;
  }
}

}  // namespace

IdFeature IdFeature::Of(const Tensor& values) {
  switch (values.dtype()) {
    case DT_STRING:
      return {.texts = values.raw<std::string>().data()};
    case DT_INT32:
      return {.small = values.raw<int32_t>().data()};
    case DT_INT64:
      return {.large = values.raw<int64_t>().data()};
    default:
      return {.numbers = values.raw<float>().data()};
  }
}

IdMaker::WordPlaces::WordPlaces(size_t num_words) {
  words_.reserve(num_words);
  if (num_words > 0) slots_.resize(std::bit_ceil(2 * num_words));
}

bool IdMaker::WordPlaces::Insert(absl::string_view word) {
  const uint64_t fingerprint = Fingerprint64(word);
  if (Find(word, fingerprint) >= 0) return false;
  size_t at = SlotOf(fingerprint);
  while (slots_[at].place >= 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {fingerprint, size()};
  words_.emplace_back(word);
  return true;
}

inline int64_t IdMaker::WordPlaces::Find(absl::string_view word, uint64_t fingerprint) const {
  for (size_t at = SlotOf(fingerprint);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.place < 0) return -1;
    if (slot.fingerprint != fingerprint) continue;
    const std::string& found = words_[static_cast<size_t>(slot.place)];
    if (found.size() == word.size() && AreEqual(found.data(), word.data(), word.size())) {
      return slot.place;
    }
  }
}

Status IdMaker::Check(const std::vector<IdColumn>& columns, size_t i,
                      const std::vector<DType>& dtypes) {
  return Prefixed(absl::StrCat("column '", columns[i].name, "'"), CheckColumn(columns, i, dtypes));
}

StatusOr<IdMaker> IdMaker::Make(std::vector<IdColumn> columns, const std::vector<DType>& dtypes) {
  IdMaker maker;
  maker.dtypes_ = dtypes;
  maker.fingerprints_.assign(dtypes.size(), -1);
  maker.missing_.assign(columns.size(), -1);
  for (size_t i = 0; i < columns.size(); ++i) {
    MR_RETURN_IF_ERROR(Check(columns, i, dtypes));
    const IdColumn& column = columns[i];
    if (column.kind == Kind::kHash || column.kind == Kind::kWords) {
      maker.NeedFingerprint(column.feature);
    }
    for (const IdColumn::Leaf& leaf : column.leaves) {
      if (leaf.column < 0) {
        maker.NeedFingerprint(leaf.feature);
      } else {
        maker.missing_[static_cast<size_t>(leaf.column)] = kMissing;
      }
    }
    const bool has_words = column.kind == Kind::kWords;
    const bool text = has_words && column.vocabulary.dtype() == DT_STRING;
    const auto twice = [&](const auto& word) {
      return InvalidArgument("column '", column.name, "': words must be different, got ", word,
                             " twice");
    };
    WordPlaces& words =
        maker.words_.emplace_back(text ? static_cast<size_t>(column.vocabulary.num_elements()) : 0);
    math::KeyIndex<int64_t>& integers = maker.integers_.emplace_back();
    if (text) {
      for (const std::string& word : column.vocabulary.raw<std::string>()) {
        if (!words.Insert(word)) return twice(absl::StrCat("'", word, "'"));
      }
    } else if (has_words) {
      for (const int64_t integer : column.vocabulary.ints()) {
        if (!integers.Insert(integer).is_new) return twice(integer);
      }
    }
  }
  maker.columns_ = std::move(columns);
  return maker;
}

void IdMaker::NeedFingerprint(int64_t feature) {
  int64_t& place = fingerprints_[static_cast<size_t>(feature)];
  if (place < 0 && IsTextFeature(feature)) place = num_fingerprints_++;
}

int64_t IdMaker::FirstBad(const IdColumn& column, absl::Span<const IdFeature> features,
                          int64_t count) {
  if (column.kind != Kind::kIdentity || column.default_value >= 0) return -1;
  const IdFeature& keys = features[static_cast<size_t>(column.feature)];
  return keys.small != nullptr ? FirstOutside(keys.small, count, column.size)
                               : FirstOutside(keys.large, count, column.size);
}

Status IdMaker::BadIdentity(const IdColumn& column, absl::Span<const IdFeature> features,
                            int64_t example) {
  return InvalidArgument("column '", column.name, "': ids must be in [0, ", column.size, "), got ",
                         features[static_cast<size_t>(column.feature)].key(example));
}

void IdMaker::MakeIds(const Examples& examples) const {
  for (size_t f = 0; f < fingerprints_.size(); ++f) {
    if (fingerprints_[f] < 0) continue;
    const IdFeature& texts = examples.features[f];
    int64_t* const hashes = examples.hashes + fingerprints_[f] * examples.batch;
    for (int64_t i = examples.begin; i < examples.end; ++i) {
      hashes[i] = static_cast<int64_t>(Fingerprint64(texts.text(i)));
    }
  }
  for (size_t c = 0; c < columns_.size(); ++c) MakeColumn(examples, c);
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (missing_[c] == -1) continue;
    int64_t* const own = examples.IdsOf(c);
    for (int64_t i = examples.begin; i < examples.end; ++i) own[i] = std::max<int64_t>(own[i], -1);
  }
}

void IdMaker::MakeColumn(const Examples& examples, size_t c) const {
  const IdColumn& column = columns_[c];
  int64_t* const ids = examples.IdsOf(c);
  const int64_t missing = missing_[c];
  switch (column.kind) {
    case Kind::kHash:
      return Hash(examples, column, missing, ids);
    case Kind::kWords:
      return IsTextFeature(column.feature) ? Words(examples, column, words_[c], missing, ids)
                                           : Integers(examples, column, integers_[c], missing, ids);
    case Kind::kIdentity: {
      const IdFeature& keys = examples.feature(column.feature);
      if (keys.small != nullptr) {
        Identities(keys.small, examples.begin, examples.end, column, missing, ids);
      } else {
        Identities(keys.large, examples.begin, examples.end, column, missing, ids);
      }
      return;
    }
    case Kind::kBuckets: {
      const float* const numbers = examples.feature(column.feature).numbers;
      constexpr int64_t kBlock = 64;
      int32_t buckets[kBlock];
      for (int64_t i = examples.begin; i < examples.end; i += kBlock) {
        const int64_t n = std::min(kBlock, examples.end - i);
        math::Bucketize(numbers + i, n, column.boundaries.data(),
                        static_cast<int64_t>(column.boundaries.size()), buckets);
        std::copy_n(buckets, n, ids + i);
      }
      return;
    }
    case Kind::kCross:
      return Cross(examples, column, missing, ids);
  }
}

void IdMaker::Hash(const Examples& examples, const IdColumn& column, int64_t missing,
                   int64_t* ids) const {
  if (IsTextFeature(column.feature)) {
    const IdFeature& texts = examples.feature(column.feature);
    const int64_t* const hashes = HashesOf(examples, column.feature);
    for (int64_t i = examples.begin; i < examples.end; ++i) {
      ids[i] = texts.text(i).empty() ? missing : Bucket(hashes[i], column.size);
    }
    return;
  }
  const IdFeature& keys = examples.feature(column.feature);
  for (int64_t i = examples.begin; i < examples.end; ++i) {
    ids[i] = keys.key(i) == -1 ? missing : IntegerBucket(keys.key(i), column.size);
  }
}

void IdMaker::Words(const Examples& examples, const IdColumn& column, const WordPlaces& words,
                    int64_t missing, int64_t* ids) const {
  const IdFeature& texts = examples.feature(column.feature);
  const int64_t* const hashes = HashesOf(examples, column.feature);
  constexpr int64_t kAhead = 8;
  const int64_t last_ahead = words.IsLarge() ? examples.end - kAhead : examples.begin;
  for (int64_t i = examples.begin; i < examples.end; ++i) {
    if (i < last_ahead) words.Prefetch(static_cast<uint64_t>(hashes[i + kAhead]));
    if (texts.text(i).empty()) {
      ids[i] = missing;
      continue;
    }
    ids[i] = words.Find(texts.text(i), static_cast<uint64_t>(hashes[i]));
    if (ids[i] >= 0) continue;
    ids[i] = column.num_oov_buckets > 0 ? words.size() + Bucket(hashes[i], column.num_oov_buckets)
                                        : column.default_value;
  }
}
void IdMaker::Integers(const Examples& examples, const IdColumn& column,
                       const math::KeyIndex<int64_t>& words, int64_t missing, int64_t* ids) {
  const IdFeature& keys = examples.feature(column.feature);
  for (int64_t i = examples.begin; i < examples.end; ++i) {
    if (keys.key(i) == -1) {
      ids[i] = missing;
      continue;
    }
    ids[i] = words.Find(keys.key(i));
    if (ids[i] >= 0) continue;
    ids[i] = column.num_oov_buckets > 0
                 ? words.size() + IntegerBucket(keys.key(i), column.num_oov_buckets)
                 : column.default_value;
  }
}

void IdMaker::Cross(const Examples& examples, const IdColumn& column, int64_t missing,
                    int64_t* ids) const {
  std::fill(ids + examples.begin, ids + examples.end, static_cast<int64_t>(column.hash_key));
  constexpr int64_t kBlock = 64;
  for (int64_t first = examples.begin; first < examples.end; first += kBlock) {
    const int64_t last = std::min(first + kBlock, examples.end);
    bool lacks[kBlock] = {};
    for (const IdColumn::Leaf& leaf : column.leaves) {
      const auto add = [&](int64_t i, bool is_missing, int64_t hash) {
        lacks[i - first] |= is_missing;
        ids[i] = static_cast<int64_t>(
            FingerprintCat64(static_cast<uint64_t>(ids[i]), static_cast<uint64_t>(hash)));
      };
      if (leaf.column >= 0) {
        const int64_t* const from = examples.IdsOf(static_cast<size_t>(leaf.column));
        for (int64_t i = first; i < last; ++i) add(i, from[i] == kMissing, from[i]);
      } else if (IsTextFeature(leaf.feature)) {
        const IdFeature& texts = examples.feature(leaf.feature);
        const int64_t* const hashes = HashesOf(examples, leaf.feature);
        for (int64_t i = first; i < last; ++i) add(i, texts.text(i).empty(), hashes[i]);
      } else {
        const IdFeature& keys = examples.feature(leaf.feature);
        for (int64_t i = first; i < last; ++i) add(i, keys.key(i) == -1, keys.key(i));
      }
    }
    for (int64_t i = first; i < last; ++i) {
      ids[i] = lacks[i - first] ? missing : Bucket(ids[i], column.size);
    }
  }
}

}  // namespace millrace
