// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/given_ids.h"

#include <bit>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/fingerprint64.h"

namespace millrace {
namespace {

// Texts behind their length: no two lists give the same.
void Add(absl::string_view text, std::string* key) { absl::StrAppend(key, text.size(), ":", text); }
template <typename... Numbers>
void AddNumbers(std::string* key, const Numbers&... numbers) {
  (absl::StrAppend(key, numbers, ";"), ...);
}

// Adds all that ids depend on. False: that cannot be said.
bool AddKey(const ColumnSpec& column, std::string* key) {
  Add(column.name, key);
  AddNumbers(key, column.kind.index());
  if (column.sequence) return false;
  if (const auto* buckets = column.As<BucketizedSpec>()) {
    const auto& number = *buckets->source->As<NumericSpec>();
    if (number.normalizer || number.shape.num_elements() != 1) return false;
    Add(number.key, key);
    for (const float boundary : buckets->boundaries) {
      AddNumbers(key, std::bit_cast<uint32_t>(boundary));
    }
    return true;
  }
  if (const auto* hashed = column.As<HashBucketSpec>()) {
    Add(hashed->key, key);
    AddNumbers(key, hashed->num_buckets, static_cast<int>(hashed->dtype));
    return true;
  }
  if (const auto* vocabulary = column.As<VocabularySpec>()) {
    if (!vocabulary->file.empty()) return false;
    Add(vocabulary->key, key);
    AddNumbers(key, vocabulary->num_oov_buckets, vocabulary->default_value,
               static_cast<int>(vocabulary->dtype));
    if (vocabulary->dtype == DT_STRING) {
      for (const std::string& word : vocabulary->words.raw<std::string>()) Add(word, key);
    } else {
      for (const int64_t word : vocabulary->words.ints()) AddNumbers(key, word);
    }
    return true;
  }
  if (const auto* identity = column.As<IdentitySpec>()) {
    Add(identity->key, key);
    AddNumbers(key, identity->num_buckets, identity->default_value.value_or(-1));
    return true;
  }
  if (const auto* cross = column.As<CrossedSpec>()) {
    if (cross->tf_compat_cross_order) return false;
    AddNumbers(key, cross->num_buckets, cross->hash_key, cross->leaves.size());
    for (const CrossedSpec::Leaf& leaf : cross->leaves) {
      AddNumbers(key, leaf.column == nullptr ? 0 : 1);
      if (leaf.column == nullptr) {
        Add(leaf.key, key);
      } else if (!AddKey(*leaf.column, key)) {
        return false;
      }
    }
    return true;
  }
  return false;
}

}  // namespace

std::string GivenIdsName(const ColumnSpec& column) {
  std::string key;
  if (!AddKey(column, &key)) return std::string();
  return absl::StrCat("_ids/", column.name, "/", absl::Hex(Fingerprint64(key), absl::kZeroPad16));
}

Output GivenIds(const Scope& scope, const Features& features, const ColumnSpec& column) {
  const std::string name = GivenIdsName(column);
  if (name.empty()) return Output();
  const auto found = features.map().find(name);
  if (found == features.map().end() || !found->second.valid()) return Output();
  const Output& ids = found->second;
  const DType dtype = ids.dtype();
  const bool fits = (dtype == DT_INT32 || dtype == DT_INT64) && HasOneValue(scope.shape(ids));
  return fits ? ids : Output();
}

bool HasOneValue(const PartialShape& shape) {
  return shape.has_rank() && (shape.rank() == 1 || (shape.rank() == 2 && shape.dim(1) == 1));
}

}  // namespace millrace
