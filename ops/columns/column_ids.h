// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_COLUMNS_COLUMN_IDS_H_
#define MILLRACE_OPS_COLUMNS_COLUMN_IDS_H_

// _ColumnIds: the ids of all columns of a layer in one node, for features of one value an example.
//
//   ids[c, i] = the id of example i in column c, -1 for nothing
//
// What is missing ("" of a text, -1 of an integer) has no id, and no cross with it has one. A word
// outside of a vocabulary without buckets has the default, an id or -1; a cross of it counts it as
// that number. These are the ids of TensorFlow's nodes for the same columns.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/node_builder.h"

namespace millrace {

// How ids are made. `feature`: which of the features, of the dtypes in brackets.
struct IdColumn {
  enum class Kind {
    kHash,      // Fingerprint64 of the text mod size; integers as decimals [string, int32, int64]
    kWords,     // the place in `vocabulary` [as it is: string, or int32 and int64]
    kIdentity,  // the value, in [0, size) [int32, int64]
    kBuckets,   // how many of `boundaries` it is not below [float]
    kCross,     // FingerprintCat64 of `leaves` in their order, from hash_key on, mod size
  };
  struct Leaf {  // of a cross: one of both, a column in front of it or [string, int32, int64]
    int64_t column = -1;
    int64_t feature = -1;
  };
  Kind kind = Kind::kHash;
  std::string name = "";  // for messages
  int64_t feature = -1;
  int64_t size = 0;
  Tensor vocabulary = {};       // of different strings or int64, not empty
  int64_t num_oov_buckets = 0;  // behind the words: Fingerprint64 mod their number
  // Of kWords: an id or -1. Of kIdentity: instead of what is not in [0, size); -1: an error.
  int64_t default_value = -1;
  std::vector<float> boundaries = {};  // ascending
  uint64_t hash_key = 0;
  std::vector<Leaf> leaves = {};
};

// int64 [columns, batch] of features [batch] or [batch, 1]. InvalidArgument for features of other
// shapes or of different batches, and in a step for an identity out of range.
Output ColumnIds(const ScopeAt& at, absl::Span<const Output> features,
                 const std::vector<IdColumn>& columns);

}  // namespace millrace

#endif  // MILLRACE_OPS_COLUMNS_COLUMN_IDS_H_
