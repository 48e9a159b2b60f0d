// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_FEATURE_COLUMN_H_
#define MILLRACE_ESTIMATOR_COLUMNS_FEATURE_COLUMN_H_

// FeatureColumn: what a model makes of a feature, said before there is a graph.
//
//   const NumericColumn age("age");
//   const BucketizedColumn ages(age, {18, 25, 30, 35, 40, 45, 50, 55, 60, 65});
//   const auto occupation = CategoricalColumnWithHashBucket("occupation", 100);
//   std::vector<FeatureColumn> wide = {ages, occupation,
//                                      CrossedColumn({"education", "occupation"}, 10'000)};
//   std::vector<DenseColumn> deep = {age, EmbeddingColumn(occupation, 8)};
//
// TensorFlow's feature columns, with its names, defaults and values, so that its checkpoints and
// exports agree (docs/feature_columns.md has the table). What each column gives is a type:
//
//   DenseColumn        numbers, as many for each example           InputLayer, LinearModel
//   CategoricalColumn  ids, any number of them for each example    LinearModel; in a DenseColumn
//   SequenceColumn     numbers for each step of an example         SequenceInputLayer
//
// A BucketizedColumn is both of the first two. A column in the wrong place does not compile.
//
// Categorical columns take a dense feature or a sparse one. Of a dense one '' and -1 mean that
// nothing is there. Ids that are negative (a value outside of a vocabulary) count as nothing, too.
// Features of rank 1 are one value per example.
//
// Columns are named after their features: the key, "<x>_bucketized", "<x>_indicator",
// "<x>_embedding", "<x>_shared_embedding", "<x>_weighted_by_<w>"; a cross by the sorted names of
// what it crosses, "a_X_b". Layers sort columns by name; two of one name are an error there.
//
// Values; immutable. Threads may share them.
// Failure: a column with arguments that make no sense keeps the error (status()), as does every
// column made of it; the layer that it is given to has that error then, with the line that made
// the column.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/embedding.h"
#include "layers/initializers.h"

namespace millrace {

struct ColumnSpec;  // estimator/columns/column_spec.h: for code that plans and lowers columns

class FeatureColumn {
 public:
  FeatureColumn() = default;  // none
  // For functions that make columns.
  explicit FeatureColumn(std::shared_ptr<const ColumnSpec> spec) : spec_(std::move(spec)) {}

  bool valid() const { return spec_ != nullptr; }
  // "" for none.
  const std::string& name() const;
  // What is wrong with it, with the line that made it. InvalidArgument for none.
  Status status() const;
  // Of this column; requires valid().
  const std::shared_ptr<const ColumnSpec>& spec() const { return spec_; }

 protected:
  std::shared_ptr<const ColumnSpec> spec_;
};

class DenseColumn : public FeatureColumn {
 public:
  using FeatureColumn::FeatureColumn;
};
class CategoricalColumn : public FeatureColumn {
 public:
  using FeatureColumn::FeatureColumn;
};
// Ids for each step of an example.
class SequenceCategoricalColumn : public FeatureColumn {
 public:
  using FeatureColumn::FeatureColumn;
};
class SequenceColumn : public FeatureColumn {
 public:
  using FeatureColumn::FeatureColumn;
};

// --- Numbers -------------------------------------------------------------------------------------

// What is done to a numeric feature [batch, shape...] before anything else; the shape stays.
using Normalizer = std::function<Output(const Scope& scope, const Output& x)>;

struct NumericColumnOptions {
  std::vector<int64_t> shape = {1};  // of one example
  // Of an Example without the feature: one number, or one for each element. None: it is required.
  std::vector<double> default_value = {};
  DType dtype = DT_FLOAT;  // of the feature: a number; the column is float
  Normalizer normalizer = {};
};
class NumericColumn : public DenseColumn {
 public:
  NumericColumn() = default;
  NumericColumn(absl::string_view key, const NumericColumnOptions& options = {},  // NOLINT
                std::source_location where = std::source_location::current());
};

// In which of the intervals (-inf, b0), [b0, b1), ..., [bn, inf) a number is; NaN is in the last.
// Dense: a one at that place of n + 1. Categorical: that number, and the i-th element of a feature
// with several has ids of its own, from i * (n + 1) on. The feature has rank 1.
class BucketizedColumn : public DenseColumn {
 public:
  BucketizedColumn() = default;
  BucketizedColumn(const NumericColumn& source, std::vector<float> boundaries,
                   std::source_location where = std::source_location::current());
  operator CategoricalColumn() const { return CategoricalColumn(spec_); }  // NOLINT
};

// --- Ids -----------------------------------------------------------------------------------------

// Fingerprint64(value) mod num_buckets; integers are hashed as decimal text. `dtype`: of the
// feature, string or an integer.
CategoricalColumn CategoricalColumnWithHashBucket(
    absl::string_view key, int64_t num_buckets, DType dtype = DT_STRING,
    std::source_location where = std::source_location::current());

// The words of a vocabulary: texts, or integers.
struct Vocabulary {
  Vocabulary(std::initializer_list<absl::string_view> words)  // NOLINT
      : texts(words.begin(), words.end()) {}
  Vocabulary(std::vector<std::string> words) : texts(std::move(words)) {}  // NOLINT
  Vocabulary(std::initializer_list<int64_t> words) : numbers(words) {}     // NOLINT
  Vocabulary(std::vector<int64_t> words) : numbers(std::move(words)) {}    // NOLINT
  std::vector<std::string> texts;
  std::vector<int64_t> numbers;
};
struct VocabularyListOptions {
  // The id of what is not in the vocabulary: -1, which counts as nothing, or one of it; or, with
  // buckets, size + Fingerprint64(value) mod num_oov_buckets.
  std::optional<int64_t> default_value = std::nullopt;
  int64_t num_oov_buckets = 0;
};
// The place of a value in the vocabulary, from 0 on.
CategoricalColumn CategoricalColumnWithVocabularyList(
    absl::string_view key, const Vocabulary& vocabulary, const VocabularyListOptions& options = {},
    std::source_location where = std::source_location::current());

struct VocabularyFileOptions {
  // So many lines of the file; all of them, counted when the column is made, without it.
  std::optional<int64_t> vocabulary_size = std::nullopt;
  int64_t num_oov_buckets = 0;  // as above
  std::optional<int64_t> default_value = std::nullopt;
  DType dtype = DT_STRING;  // or int64: a number a line
};
// The same with a word a line. The file becomes an asset of exported models.
CategoricalColumn CategoricalColumnWithVocabularyFile(
    absl::string_view key, absl::string_view vocabulary_file,
    const VocabularyFileOptions& options = {},
    std::source_location where = std::source_location::current());

// An integer that is an id. One outside of [0, num_buckets) becomes default_value; without one it
// is an error of the step.
CategoricalColumn CategoricalColumnWithIdentity(
    absl::string_view key, int64_t num_buckets, std::optional<int64_t> default_value = std::nullopt,
    std::source_location where = std::source_location::current());

// Each id with a weight, which stands at the same place of the feature `weight_key`: a number of
// `dtype`. In means (kMean, kSqrtN) ids with a weight <= 0 count as nothing.
CategoricalColumn WeightedCategoricalColumn(
    const CategoricalColumn& column, absl::string_view weight_key, DType dtype = DT_FLOAT,
    std::source_location where = std::source_location::current());

// One of what is crossed: a feature, by its key, with its own values, or the ids of a column.
struct CrossKey {
  CrossKey(const char* k) : key(k) {}                                    // NOLINT
  CrossKey(std::string k) : key(std::move(k)) {}                         // NOLINT
  CrossKey(CategoricalColumn c) : column(std::move(c)) {}                // NOLINT
  CrossKey(const BucketizedColumn& c) : column(CategoricalColumn(c)) {}  // NOLINT
  std::string key;
  CategoricalColumn column;
};
struct CrossedColumnOptions {
  uint64_t hash_key = 0;  // each gives other ids; 0 is the default, 0xDECAFCAFFE
  // TensorFlow hashes keys whose features are dense after all others, so that a model trained on
  // dense features and served on sparse ones (tf.Example) computes other ids, and hashes '' as a
  // value. false: in the order of `keys`, whatever the features are, and '' is nothing there.
  bool tf_compat_cross_order = false;
};
// The combinations of values of several features, hashed into num_buckets ids: one for each
// combination of an example, none where one of them has no value. Crosses in it are taken apart. A
// column with hash buckets is refused (give its key), and one with weights.
CategoricalColumn CrossedColumn(std::vector<CrossKey> keys, int64_t num_buckets,
                                const CrossedColumnOptions& options = {},
                                std::source_location where = std::source_location::current());

// --- Numbers of ids ------------------------------------------------------------------------------

// For each id how often an example has it (of a weighted column: the sum of its weights).
DenseColumn IndicatorColumn(const CategoricalColumn& column,
                            std::source_location where = std::source_location::current());

struct EmbeddingColumnOptions {
  Combiner combiner = Combiner::kMean;  // how the rows of an example's ids become one
  Initializer initializer = {};         // truncated normal, stddev 1 / sqrt(dimension)
  // Begin with a tensor of a checkpoint: a file's prefix, or a directory for its newest one. Both
  // or none.
  std::string ckpt_to_load_from = "";
  std::string tensor_name_in_ckpt = "";
  // Rows longer than this (L2) are cut to it before they are combined.
  std::optional<double> max_norm = std::nullopt;
  bool trainable = true;
};
// A trained row of `dimension` numbers for each id.
DenseColumn EmbeddingColumn(const CategoricalColumn& column, int64_t dimension,
                            const EmbeddingColumnOptions& options = {},
                            std::source_location where = std::source_location::current());

struct SharedEmbeddingColumnsOptions : EmbeddingColumnOptions {
  // Of the table; the sorted names of the columns and "_shared_embedding" without it.
  std::string shared_name = "";
};
// One table for several columns of one kind and number of ids, in their order.
std::vector<DenseColumn> SharedEmbeddingColumns(
    const std::vector<CategoricalColumn>& columns, int64_t dimension,
    const SharedEmbeddingColumnsOptions& options = {},
    std::source_location where = std::source_location::current());

// --- Sequences -----------------------------------------------------------------------------------

// The same columns over sparse features whose second dimension is the step.
SequenceCategoricalColumn SequenceCategoricalColumnWithHashBucket(
    absl::string_view key, int64_t num_buckets, DType dtype = DT_STRING,
    std::source_location where = std::source_location::current());
SequenceCategoricalColumn SequenceCategoricalColumnWithVocabularyList(
    absl::string_view key, const Vocabulary& vocabulary, const VocabularyListOptions& options = {},
    std::source_location where = std::source_location::current());
SequenceCategoricalColumn SequenceCategoricalColumnWithVocabularyFile(
    absl::string_view key, absl::string_view vocabulary_file,
    const VocabularyFileOptions& options = {},
    std::source_location where = std::source_location::current());
SequenceCategoricalColumn SequenceCategoricalColumnWithIdentity(
    absl::string_view key, int64_t num_buckets, std::optional<int64_t> default_value = std::nullopt,
    std::source_location where = std::source_location::current());

SequenceColumn IndicatorColumn(const SequenceCategoricalColumn& column,
                               std::source_location where = std::source_location::current());
SequenceColumn EmbeddingColumn(const SequenceCategoricalColumn& column, int64_t dimension,
                               const EmbeddingColumnOptions& options = {},
                               std::source_location where = std::source_location::current());
struct SequenceNumericColumnOptions {
  std::vector<int64_t> shape = {1};  // of one step
  double default_value = 0;          // of steps behind an example's last
  DType dtype = DT_FLOAT;
  Normalizer normalizer = {};
};
SequenceColumn SequenceNumericColumn(absl::string_view key,
                                     const SequenceNumericColumnOptions& options = {},
                                     std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_FEATURE_COLUMN_H_
