// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_COLUMN_SPEC_H_
#define MILLRACE_ESTIMATOR_COLUMNS_COLUMN_SPEC_H_

// ColumnSpec: what is in a FeatureColumn (estimator/columns/feature_column.h says what each kind
// means). For column plans; users need it as little as lowerings do.
//
// Specs are immutable, checked when they are made, and shared by the columns that stand on them.
// One whose status is an error has a name and nothing else that may be relied on.

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <variant>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/columns/feature_column.h"
#include "layers/embedding.h"
#include "layers/initializers.h"

namespace millrace {

using ColumnSpecPtr = std::shared_ptr<const ColumnSpec>;

struct NumericSpec {
  std::string key;
  Shape shape;
  std::optional<Tensor> default_value;  // of dtype and shape
  DType dtype = DT_FLOAT;
  Normalizer normalizer;
};
struct BucketizedSpec {
  ColumnSpecPtr source;  // a NumericSpec of rank 1
  std::vector<float> boundaries;
};

struct HashBucketSpec {
  std::string key;
  int64_t num_buckets = 0;
  DType dtype = DT_STRING;
};
struct VocabularySpec {
  std::string key;
  DType dtype = DT_STRING;  // or DT_INT64
  Tensor words;             // a list's; empty for a file's
  std::string file;         // "" for a list
  int64_t size = 0;
  int64_t num_oov_buckets = 0;
  int64_t default_value = -1;
};
struct IdentitySpec {
  std::string key;
  int64_t num_buckets = 0;
  std::optional<int64_t> default_value;
};
struct WeightedSpec {
  ColumnSpecPtr column;
  std::string weight_key;
  DType dtype = DT_FLOAT;
};
struct CrossedSpec {
  struct Leaf {
    std::string key;       // a feature, when there is no column
    ColumnSpecPtr column;  // categorical, not crossed, not weighted
  };
  std::vector<Leaf> leaves;  // two or more, in the declared order
  int64_t num_buckets = 0;
  uint64_t hash_key = 0;
  bool tf_compat_cross_order = false;
};

struct IndicatorSpec {
  ColumnSpecPtr column;  // categorical
};
struct EmbeddingSpec {
  ColumnSpecPtr column;  // categorical
  int64_t dimension = 0;
  Combiner combiner = Combiner::kMean;
  Initializer initializer;
  std::string ckpt_to_load_from, tensor_name_in_ckpt;
  std::optional<double> max_norm;
  bool trainable = true;
  std::string shared_name;  // "" when the table is the column's own
};
struct SequenceNumericSpec {
  std::string key;
  Shape shape;
  double default_value = 0;
  DType dtype = DT_FLOAT;
  Normalizer normalizer;
};

struct ColumnSpec {
  std::string name;
  std::source_location where;  // that made it
  // The first error of it or of a column that it stands on, with the line that made that one.
  Status status;
  bool sequence = false;  // of ids for each step, or numbers made of such
  std::variant<NumericSpec, BucketizedSpec, HashBucketSpec, VocabularySpec, IdentitySpec,
               WeightedSpec, CrossedSpec, IndicatorSpec, EmbeddingSpec, SequenceNumericSpec>
      kind;

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&kind);
  }
  // Is it one that gives ids? (A bucketized one gives both.)
  bool is_categorical() const;
  bool is_dense() const;
};

// `status`, an error of the column, with the line that made it.
Status OfColumn(const ColumnSpec& column, const Status& status);

// How many ids a categorical column has.
int64_t NumIds(const ColumnSpec& column);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_COLUMN_SPEC_H_
