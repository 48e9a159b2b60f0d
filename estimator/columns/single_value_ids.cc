// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/single_value_ids.h"

#include <algorithm>

namespace millrace {

bool HasSingleValueIds(const ColumnPlan& plan, int ids, const DTypeOfSingleValue& dtype_of) {
  const IdsPlan& own = plan.ids[static_cast<size_t>(ids)];
  const ColumnSpec& column = *own.column;
  const auto takes = [&](int source, bool text, bool key) {
    const std::optional<DType> dtype = dtype_of(plan.sources[static_cast<size_t>(source)].key);
    return (text && dtype == DT_STRING) || (key && (dtype == DT_INT32 || dtype == DT_INT64));
  };
  if (column.As<BucketizedSpec>() != nullptr) {
    const NumericPlan& numeric = plan.numerics[static_cast<size_t>(own.numeric)];
    const std::string& key = plan.sources[static_cast<size_t>(numeric.source)].key;
    return numeric.elements == 1 && dtype_of(key).has_value();
  }
  if (const auto* cross = column.As<CrossedSpec>()) {
    return !cross->tf_compat_cross_order &&
           std::all_of(own.leaves.begin(), own.leaves.end(), [&](const IdsPlan::Leaf& leaf) {
             return leaf.ids >= 0 ? HasSingleValueIds(plan, leaf.ids, dtype_of)
                                  : takes(leaf.source, true, true);
           });
  }
  if (const auto* hashed = column.As<HashBucketSpec>()) {
    const bool text = hashed->dtype == DT_STRING;
    return takes(own.source, text, !text);
  }
  if (const auto* vocabulary = column.As<VocabularySpec>()) {
    const bool text = vocabulary->dtype == DT_STRING;
    return vocabulary->file.empty() && takes(own.source, text, !text);
  }
  return column.As<IdentitySpec>() != nullptr && takes(own.source, false, true);
}

IdColumn IdColumnOf(const ColumnSpec& column) {
  IdColumn made = {.name = column.name};
  if (const auto* buckets = column.As<BucketizedSpec>()) {
    made.kind = IdColumn::Kind::kBuckets;
    made.boundaries = buckets->boundaries;
  } else if (const auto* cross = column.As<CrossedSpec>()) {
    made.kind = IdColumn::Kind::kCross;
    made.size = cross->num_buckets;
    made.hash_key = cross->hash_key;
  } else if (const auto* hashed = column.As<HashBucketSpec>()) {
    made.kind = IdColumn::Kind::kHash;
    made.size = hashed->num_buckets;
  } else if (const auto* vocabulary = column.As<VocabularySpec>()) {
    made.kind = IdColumn::Kind::kWords;
    made.vocabulary = vocabulary->words;
    made.num_oov_buckets = vocabulary->num_oov_buckets;
    made.default_value = vocabulary->default_value;
  } else if (const auto* identity = column.As<IdentitySpec>()) {
    made.kind = IdColumn::Kind::kIdentity;
    made.size = identity->num_buckets;
    made.default_value = identity->default_value.value_or(-1);
  }
  return made;
}

}  // namespace millrace
