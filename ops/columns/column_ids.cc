// SPDX-License-Identifier: Apache-2.0
// Each text is hashed once, however many columns and crosses use its fingerprint: words are found
// by it, too.
#include "ops/columns/column_ids.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/fingerprint64.h"
#include "graph/op_registry.h"
#include "ops/loops/bucketize.h"
#include "ops/loops/key_index.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Kind = IdColumn::Kind;

bool IsText(DType dtype) { return dtype == DT_STRING; }
bool IsKey(DType dtype) { return dtype == DT_INT32 || dtype == DT_INT64; }

// The columns as the attrs have them: a list for each member of IdColumn, lists of lists one after
// the other.
struct ColumnIdsRule {
  std::vector<DType> dtypes;  // of the features
  std::vector<IdColumn> columns;
  std::vector<std::vector<std::string>> words;  // of each column
  std::vector<std::vector<int64_t>> integers;

  Status Init(const NodeAttrs& attrs) {
    std::vector<std::string> kinds, names, all_words;
    std::vector<int64_t> features, sizes, counts, oov, defaults, hash_keys, all_integers;
    std::vector<int64_t> leaf_columns, leaf_features;
    std::vector<float> boundaries;
    MR_RETURN_IF_ERROR(ReadAttrs(
        attrs, "Tfeatures", &dtypes, "kinds", &kinds, "names", &names, "from", &features, "sizes",
        &sizes, "counts", &counts, "oov_buckets", &oov, "defaults", &defaults, "hash_keys",
        &hash_keys, "words", &all_words, "integers", &all_integers, "boundaries", &boundaries,
        "leaf_columns", &leaf_columns, "leaf_features", &leaf_features));
    const size_t n = kinds.size();
    for (const size_t size : {names.size(), features.size(), sizes.size(), counts.size(),
                              oov.size(), defaults.size(), hash_keys.size()}) {
      if (size != n) {
        return InvalidArgument("the lists of columns must have ", n, " elements as kinds, got ",
                               size);
      }
    }
    if (leaf_columns.size() != leaf_features.size()) {
      return InvalidArgument("leaf_columns and leaf_features must be as many, got ",
                             leaf_columns.size(), " and ", leaf_features.size());
    }
    size_t word = 0, integer = 0, boundary = 0, leaf = 0;
    // The next `count` elements of `all`, from `*at` on.
    const auto take = [](const auto& all, int64_t count, size_t* at, auto* to) -> Status {
      if (count < 1 || static_cast<uint64_t>(count) > all.size() - *at) {
        return InvalidArgument("counts must say what the lists have, got ", count, " where ",
                               all.size() - *at, " are left");
      }
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(*at);
      to->assign(begin, begin + static_cast<std::ptrdiff_t>(count));
      *at += static_cast<size_t>(count);
      return absl::OkStatus();
    };
    for (size_t i = 0; i < n; ++i) {
      IdColumn& column = columns.emplace_back();
      column = {.name = names[i],
                .feature = features[i],
                .size = sizes[i],
                .num_oov_buckets = oov[i],
                .default_value = defaults[i],
                .hash_key = static_cast<uint64_t>(hash_keys[i])};
      words.emplace_back();
      integers.emplace_back();
      const std::string& kind = kinds[i];
      if (kind == "hash") {
        column.kind = Kind::kHash;
      } else if (kind == "words") {
        column.kind = Kind::kWords;
        MR_RETURN_IF_ERROR(take(all_words, counts[i], &word, &words.back()));
      } else if (kind == "integers") {
        column.kind = Kind::kWords;
        MR_RETURN_IF_ERROR(take(all_integers, counts[i], &integer, &integers.back()));
      } else if (kind == "identity") {
        column.kind = Kind::kIdentity;
      } else if (kind == "buckets") {
        column.kind = Kind::kBuckets;
        MR_RETURN_IF_ERROR(take(boundaries, counts[i], &boundary, &column.boundaries));
      } else if (kind == "cross") {
        column.kind = Kind::kCross;
        std::vector<int64_t> from_columns, from_features;
        size_t same = leaf;
        MR_RETURN_IF_ERROR(take(leaf_columns, counts[i], &leaf, &from_columns));
        MR_RETURN_IF_ERROR(take(leaf_features, counts[i], &same, &from_features));
        for (size_t j = 0; j < from_columns.size(); ++j) {
          column.leaves.push_back({from_columns[j], from_features[j]});
        }
      } else {
        return InvalidArgument(
            "kinds must be hash, words, integers, identity, buckets or cross, got '", kind, "'");
      }
      MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("column '", column.name, "'"), Check(i)));
    }
    return absl::OkStatus();
  }

  Status CheckFeature(int64_t feature, bool text, bool key, bool number) const {
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
  Status Check(size_t i) const {
    const IdColumn& column = columns[i];
    const bool is_sized =
        column.kind != Kind::kWords && column.kind != Kind::kBuckets;  // others count theirs
    if (is_sized && column.size < 1) {
      return InvalidArgument("size must be >= 1, got ", column.size);
    }
    switch (column.kind) {
      case Kind::kHash:
        return CheckFeature(column.feature, true, true, false);
      case Kind::kWords: {
        const bool text = !words[i].empty();
        const auto size = static_cast<int64_t>(text ? words[i].size() : integers[i].size());
        if (column.num_oov_buckets < 0 ||
            column.num_oov_buckets > std::numeric_limits<int64_t>::max() - size) {
          return InvalidArgument("num_oov_buckets must be in [0, 2^63), got ",
                                 column.num_oov_buckets);
        }
        if (column.default_value < -1 || column.default_value >= size) {
          return InvalidArgument("default_value must be -1 or in [0, ", size, "), got ",
                                 column.default_value);
        }
        return CheckFeature(column.feature, text, !text, false);
      }
      case Kind::kIdentity:
        if (column.default_value < -1 || column.default_value >= column.size) {
          return InvalidArgument("default_value must be -1 or in [0, ", column.size, "), got ",
                                 column.default_value);
        }
        return CheckFeature(column.feature, false, true, false);
      case Kind::kBuckets: {
        const std::vector<float>& bounds = column.boundaries;
        const bool numbers =
            std::none_of(bounds.begin(), bounds.end(), [](float x) { return std::isnan(x); });
        if (!numbers || !std::is_sorted(bounds.begin(), bounds.end())) {
          return InvalidArgument("boundaries must be sorted numbers, got others");
        }
        return CheckFeature(column.feature, false, false, true);
      }
      case Kind::kCross:
        for (const IdColumn::Leaf& leaf : column.leaves) {
          if (leaf.column < 0) {
            MR_RETURN_IF_ERROR(CheckFeature(leaf.feature, true, true, false));
          } else if (leaf.column >= static_cast<int64_t>(i)) {
            return InvalidArgument("columns of a cross must be in front of it, got ", leaf.column,
                                   " at ", i);
          }
        }
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  StatusOr<PartialShape> operator()(RuleContext* c) const {
    int64_t batch = -1;
    int first = -1;
    for (int i = 0; i < c->num_inputs(); ++i) {
      const PartialShape& shape = c->input(i);
      if (!shape.has_rank()) continue;
      const bool fits =
          shape.rank() == 1 || (shape.rank() == 2 && (shape.dim(1) == 1 || shape.dim(1) == -1));
      if (!fits) {
        return InvalidArgument("feature ", i, " must have one value per example, got shape ",
                               shape);
      }
      if (shape.dim(0) < 0) continue;
      if (batch >= 0 && shape.dim(0) != batch) {
        return InvalidArgument("features must have as many examples, got ", shape.dim(0),
                               " of feature ", i, " and ", batch, " of feature ", first);
      }
      batch = shape.dim(0);
      first = i;
    }
    return PartialShape::Make({static_cast<int64_t>(columns.size()), batch});
  }
};

// --- The kernel ----------------------------------------------------------------------------------

// Are `n` bytes equal? A call for the few that a word has costs more than to look at them.
bool AreEqual(const char* a, const char* b, size_t n) {
  const auto load = [](const char* from) {
    uint64_t piece;
    std::memcpy(&piece, from, sizeof(piece));
    return piece;
  };
  if (n < 8 || n > 32) return std::memcmp(a, b, n) == 0;
  uint64_t different = load(a) ^ load(b);
  different |= load(a + n - 8) ^ load(b + n - 8);
  if (n > 16) {
    different |= load(a + 8) ^ load(b + 8);
    different |= load(a + n - 16) ^ load(b + n - 16);
  }
  return different == 0;
}

// The places of different words, by their fingerprints. Open addressing with linear probing; at
// most half of the slots are taken.
class WordPlaces {
 public:
  explicit WordPlaces(size_t num_words = 0) {
    words_.reserve(num_words);
    if (num_words > 0) slots_.resize(std::bit_ceil(2 * num_words));
  }
  int64_t size() const { return static_cast<int64_t>(words_.size()); }

  // False: it is there. At most `num_words` are.
  bool Insert(absl::string_view word) {
    const uint64_t fingerprint = Fingerprint64(word);
    if (Find(word, fingerprint) >= 0) return false;
    size_t at = SlotOf(fingerprint);
    while (slots_[at].place >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {fingerprint, size()};
    words_.emplace_back(word);
    return true;
  }
  // The place of a word, or -1.
  int64_t Find(absl::string_view word, uint64_t fingerprint) const {
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

// No value, which a cross tells from an id of -1. No column gives it: ids and defaults are >= -1.
constexpr int64_t kMissing = std::numeric_limits<int64_t>::min();

class ColumnIdsKernel : public RuledKernel<ColumnIdsRule> {
 protected:
  Status Prepare(KernelConstruction*) override {
    fingerprints_.assign(rule().dtypes.size(), -1);
    for (size_t i = 0; i < rule().columns.size(); ++i) {
      const IdColumn& column = rule().columns[i];
      if (column.kind == Kind::kHash || column.kind == Kind::kWords) {
        NeedFingerprint(column.feature);
      }
      for (const IdColumn::Leaf& leaf : column.leaves) {
        if (leaf.column < 0) NeedFingerprint(leaf.feature);
      }
      WordPlaces& words = words_.emplace_back(rule().words[i].size());
      for (const std::string& word : rule().words[i]) {
        if (words.Insert(word)) continue;
        return InvalidArgument("column '", column.name, "': words must be different, got '", word,
                               "' twice");
      }
      math::KeyIndex<int64_t>& integers = integers_.emplace_back();
      for (const int64_t integer : rule().integers[i]) {
        if (integers.Insert(integer).is_new) continue;
        return InvalidArgument("column '", column.name, "': words must be different, got ", integer,
                               " twice");
      }
    }
    return absl::OkStatus();
  }

  Status Run(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
    const int64_t batch = out->dim(1);
    MR_RETURN_IF_ERROR(CheckIdentities(*ctx));
    MR_ASSIGN_OR_RETURN(const Shape scratch, Shape::Make({num_fingerprints_, batch}));
    MR_ASSIGN_OR_RETURN(Tensor fingerprints, ctx->AllocateTemp(DT_INT64, scratch));
    int64_t* const ids = out->mutable_raw<int64_t>().data();
    int64_t* const hashes = fingerprints.mutable_raw<int64_t>().data();
    const double cost_ns = 20.0 * static_cast<double>(rule().columns.size());
    ctx->ParallelFor(batch, cost_ns, [&](int64_t begin, int64_t end) {
      const Step step = {ctx, batch, begin, end, ids, hashes};
      for (size_t f = 0; f < fingerprints_.size(); ++f) {
        if (fingerprints_[f] >= 0) Fingerprints(step, f);
      }
      const size_t n = rule().columns.size();
      for (size_t c = 0; c < n; ++c) MakeIds(step, c);
      for (size_t c = 0; c < n; ++c) {
        int64_t* const own = step.IdsOf(c);
        for (int64_t i = begin; i < end; ++i) own[i] = std::max<int64_t>(own[i], -1);
      }
    });
    return absl::OkStatus();
  }

 private:
  // Examples [begin, end) of a step.
  struct Step {
    const KernelContext* ctx;
    int64_t batch, begin, end;
    int64_t* ids;
    int64_t* hashes;

    int64_t* IdsOf(size_t column) const { return ids + static_cast<int64_t>(column) * batch; }
    const std::string* Texts(int64_t feature) const {
      return ctx->input(static_cast<int>(feature)).raw<std::string>().data();
    }
  };
  // The integers of a feature.
  struct Keys {
    explicit Keys(const Tensor& x)
        : small(x.dtype() == DT_INT32 ? x.raw<int32_t>().data() : nullptr),
          large(x.dtype() == DT_INT32 ? nullptr : x.raw<int64_t>().data()) {}
    int64_t operator[](int64_t i) const { return small != nullptr ? small[i] : large[i]; }
    const int32_t* small;
    const int64_t* large;
  };
  static Keys KeysOf(const KernelContext& ctx, int64_t feature) {
    return Keys(ctx.input(static_cast<int>(feature)));
  }

  bool IsTextFeature(int64_t feature) const {
    return IsText(rule().dtypes[static_cast<size_t>(feature)]);
  }
  void NeedFingerprint(int64_t feature) {
    int64_t& place = fingerprints_[static_cast<size_t>(feature)];
    if (place < 0 && IsTextFeature(feature)) place = num_fingerprints_++;
  }
  const int64_t* HashesOf(const Step& step, int64_t feature) const {
    return step.hashes + fingerprints_[static_cast<size_t>(feature)] * step.batch;
  }

  // The first value, column by column, that may not be.
  Status CheckIdentities(const KernelContext& ctx) const {
    for (const IdColumn& column : rule().columns) {
      if (column.kind != Kind::kIdentity || column.default_value >= 0) continue;
      const Keys keys = KeysOf(ctx, column.feature);
      const int64_t batch = ctx.input(static_cast<int>(column.feature)).num_elements();
      for (int64_t i = 0; i < batch; ++i) {
        if (keys[i] == -1 || (keys[i] >= 0 && keys[i] < column.size)) continue;
        return InvalidArgument("column '", column.name, "': ids must be in [0, ", column.size,
                               "), got ", keys[i]);
      }
    }
    return absl::OkStatus();
  }

  void Fingerprints(const Step& step, size_t feature) const {
    const std::string* const texts = step.Texts(static_cast<int64_t>(feature));
    int64_t* const hashes = step.hashes + fingerprints_[feature] * step.batch;
    for (int64_t i = step.begin; i < step.end; ++i) {
      hashes[i] = static_cast<int64_t>(Fingerprint64(texts[i]));
    }
  }

  static int64_t Bucket(int64_t hash, int64_t size) {
    return static_cast<int64_t>(static_cast<uint64_t>(hash) % static_cast<uint64_t>(size));
  }
  static int64_t IntegerBucket(int64_t key, int64_t size) {
    char text[24];
    const auto end = std::to_chars(text, text + sizeof(text), key);
    return FingerprintBucket(absl::string_view(text, static_cast<size_t>(end.ptr - text)), size);
  }

  void MakeIds(const Step& step, size_t c) const {
    const IdColumn& column = rule().columns[c];
    int64_t* const ids = step.IdsOf(c);
    switch (column.kind) {
      case Kind::kHash:
        return Hash(step, column, ids);
      case Kind::kWords:
        return IsTextFeature(column.feature) ? Words(step, column, words_[c], ids)
                                             : Integers(step, column, integers_[c], ids);
      case Kind::kIdentity: {
        const Keys keys = KeysOf(*step.ctx, column.feature);
        for (int64_t i = step.begin; i < step.end; ++i) {
          const int64_t key = keys[i];
          ids[i] = key == -1                       ? kMissing
                   : key >= 0 && key < column.size ? key
                                                   : column.default_value;
        }
        return;
      }
      case Kind::kBuckets: {
        const float* const numbers =
            step.ctx->input(static_cast<int>(column.feature)).raw<float>().data();
        constexpr int64_t kBlock = 64;
        int32_t buckets[kBlock];
        for (int64_t i = step.begin; i < step.end; i += kBlock) {
          const int64_t n = std::min(kBlock, step.end - i);
          math::Bucketize(numbers + i, n, column.boundaries.data(),
                          static_cast<int64_t>(column.boundaries.size()), buckets);
          std::copy_n(buckets, n, ids + i);
        }
        return;
      }
      case Kind::kCross:
        return Cross(step, column, ids);
    }
  }

  void Hash(const Step& step, const IdColumn& column, int64_t* ids) const {
    if (IsTextFeature(column.feature)) {
      const std::string* const texts = step.Texts(column.feature);
      const int64_t* const hashes = HashesOf(step, column.feature);
      for (int64_t i = step.begin; i < step.end; ++i) {
        ids[i] = texts[i].empty() ? kMissing : Bucket(hashes[i], column.size);
      }
      return;
    }
    const Keys keys = KeysOf(*step.ctx, column.feature);
    for (int64_t i = step.begin; i < step.end; ++i) {
      ids[i] = keys[i] == -1 ? kMissing : IntegerBucket(keys[i], column.size);
    }
  }

  void Words(const Step& step, const IdColumn& column, const WordPlaces& words,
             int64_t* ids) const {
    const std::string* const texts = step.Texts(column.feature);
    const int64_t* const hashes = HashesOf(step, column.feature);
    constexpr int64_t kAhead = 8;
    const int64_t last_ahead = words.IsLarge() ? step.end - kAhead : step.begin;
    for (int64_t i = step.begin; i < step.end; ++i) {
      if (i < last_ahead) words.Prefetch(static_cast<uint64_t>(hashes[i + kAhead]));
      if (texts[i].empty()) {
        ids[i] = kMissing;
        continue;
      }
      ids[i] = words.Find(texts[i], static_cast<uint64_t>(hashes[i]));
      if (ids[i] >= 0) continue;
      ids[i] = column.num_oov_buckets > 0 ? words.size() + Bucket(hashes[i], column.num_oov_buckets)
                                          : column.default_value;
    }
  }
  static void Integers(const Step& step, const IdColumn& column,
                       const math::KeyIndex<int64_t>& words, int64_t* ids) {
    const Keys keys = KeysOf(*step.ctx, column.feature);
    for (int64_t i = step.begin; i < step.end; ++i) {
      if (keys[i] == -1) {
        ids[i] = kMissing;
        continue;
      }
      ids[i] = words.Find(keys[i]);
      if (ids[i] >= 0) continue;
      ids[i] = column.num_oov_buckets > 0
                   ? words.size() + IntegerBucket(keys[i], column.num_oov_buckets)
                   : column.default_value;
    }
  }

  void Cross(const Step& step, const IdColumn& column, int64_t* ids) const {
    std::fill(ids + step.begin, ids + step.end, static_cast<int64_t>(column.hash_key));
    constexpr int64_t kBlock = 64;
    for (int64_t first = step.begin; first < step.end; first += kBlock) {
      const int64_t last = std::min(first + kBlock, step.end);
      bool missing[kBlock] = {};
      for (const IdColumn::Leaf& leaf : column.leaves) {
        const auto add = [&](int64_t i, bool is_missing, int64_t hash) {
          missing[i - first] |= is_missing;
          ids[i] = static_cast<int64_t>(
              FingerprintCat64(static_cast<uint64_t>(ids[i]), static_cast<uint64_t>(hash)));
        };
        if (leaf.column >= 0) {
          const int64_t* const from = step.IdsOf(static_cast<size_t>(leaf.column));
          for (int64_t i = first; i < last; ++i) add(i, from[i] == kMissing, from[i]);
        } else if (IsTextFeature(leaf.feature)) {
          const std::string* const texts = step.Texts(leaf.feature);
          const int64_t* const hashes = HashesOf(step, leaf.feature);
          for (int64_t i = first; i < last; ++i) add(i, texts[i].empty(), hashes[i]);
        } else {
          const Keys keys = KeysOf(*step.ctx, leaf.feature);
          for (int64_t i = first; i < last; ++i) add(i, keys[i] == -1, keys[i]);
        }
      }
      for (int64_t i = first; i < last; ++i) {
        ids[i] = missing[i - first] ? kMissing : Bucket(ids[i], column.size);
      }
    }
  }

  std::vector<int64_t> fingerprints_;  // the place of each feature's, or -1
  int64_t num_fingerprints_ = 0;
  std::vector<WordPlaces> words_;  // of each column
  std::vector<math::KeyIndex<int64_t>> integers_;
};

const OpRegistration kColumnIds =
    OpSpec("_ColumnIds", "features: Tfeatures -> ids: int64",
           "Tfeatures: list(type) >= 1; kinds: list(string) >= 1; names: list(string); "
           "from: list(int); sizes: list(int); counts: list(int); oov_buckets: list(int); "
           "defaults: list(int); hash_keys: list(int); words: list(string); integers: list(int); "
           "boundaries: list(float); leaf_columns: list(int); leaf_features: list(int)")
        .With(KernelFor<ColumnIdsKernel>())
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
