// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/feature_column.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "estimator/columns/column_spec.h"
#include "estimator/columns/vocabulary_size.h"

namespace millrace {

// --- ColumnSpec ----------------------------------------------------------------------------------

bool ColumnSpec::is_categorical() const {
  return As<BucketizedSpec>() != nullptr || As<HashBucketSpec>() != nullptr ||
         As<VocabularySpec>() != nullptr || As<IdentitySpec>() != nullptr ||
         As<WeightedSpec>() != nullptr || As<CrossedSpec>() != nullptr;
}

bool ColumnSpec::is_dense() const {
  return As<NumericSpec>() != nullptr || As<BucketizedSpec>() != nullptr ||
         As<IndicatorSpec>() != nullptr || As<EmbeddingSpec>() != nullptr;
}

Status OfColumn(const ColumnSpec& column, const Status& status) {
  return Suffixed(status, absl::StrCat("; column made at ", column.where.file_name(), ":",
                                       column.where.line()));
}

int64_t NumIds(const ColumnSpec& column) {
  if (const auto* c = column.As<BucketizedSpec>()) {
    const int64_t buckets = static_cast<int64_t>(c->boundaries.size()) + 1;
    return c->source == nullptr ? 0 : buckets * c->source->As<NumericSpec>()->shape.dim(0);
  }
  if (const auto* c = column.As<HashBucketSpec>()) return c->num_buckets;
  if (const auto* c = column.As<VocabularySpec>()) return c->size + c->num_oov_buckets;
  if (const auto* c = column.As<IdentitySpec>()) return c->num_buckets;
  if (const auto* c = column.As<WeightedSpec>()) return NumIds(*c->column);
  if (const auto* c = column.As<CrossedSpec>()) return c->num_buckets;
  return 0;
}

// --- FeatureColumn -------------------------------------------------------------------------------

const std::string& FeatureColumn::name() const {
  static const std::string* const kNone = new std::string;
  return spec_ == nullptr ? *kNone : spec_->name;
}

Status FeatureColumn::status() const {
  if (spec_ == nullptr) return InvalidArgument("FeatureColumn: the column must be one, got none");
  return spec_->status;
}

namespace {

// A spec in the making. The first error stays.
class NewSpec {
 public:
  NewSpec(const char* function, std::string name, std::source_location where)
      : function_(function), spec_(std::make_shared<ColumnSpec>()) {
    spec_->name = std::move(name);
    spec_->where = where;
  }

  template <typename... Parts>
  void Require(bool holds, const Parts&... rule) {
    if (!holds) Fail(InvalidArgument(rule...));
  }
  void Fail(const Status& status) {
    if (status.ok() || !spec_->status.ok()) return;
    spec_->status =
        OfColumn(*spec_, Prefixed(absl::StrCat(function_, " '", spec_->name, "'"), status));
  }
  // A column that it stands on; null when that has an error, which is this one's then.
  ColumnSpecPtr Source(const FeatureColumn& column) {
    if (!column.valid()) Require(false, "the column must be one, got none");
    if (column.valid() && spec_->status.ok()) spec_->status = column.spec()->status;
    return ok() ? column.spec() : nullptr;
  }

  bool ok() const { return spec_->status.ok(); }
  ColumnSpec& operator*() { return *spec_; }
  ColumnSpec* operator->() { return spec_.get(); }
  ColumnSpecPtr Done() { return std::move(spec_); }

 private:
  const char* function_;
  std::shared_ptr<ColumnSpec> spec_;
};

// The shape of one example's (or step's) values.
Shape ExampleShape(NewSpec* spec, const std::vector<int64_t>& dims) {
  const bool positive = std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d >= 1; });
  spec->Require(positive, "shape must have dimensions >= 1, got [", absl::StrJoin(dims, ","), "]");
  if (!positive) return Shape();
  const StatusOr<Shape> shape = Shape::Make(dims);
  if (!shape.ok()) spec->Fail(shape.status());
  return shape.ok() ? *shape : Shape();
}

void RequireNumber(NewSpec* spec, DType dtype) {
  spec->Require(IsFloating(dtype) || IsInteger(dtype), "dtype must be a number, got ", dtype);
}
void RequireTextOrInteger(NewSpec* spec, DType dtype) {
  spec->Require(dtype == DT_STRING || IsInteger(dtype), "dtype must be string or an integer, got ",
                dtype);
}

template <typename T>
Tensor Filled(const Shape& shape, const std::vector<double>& values) {
  std::vector<T> elements(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < elements.size(); ++i) {
    elements[i] = static_cast<T>(values[values.size() == 1 ? 0 : i]);
  }
  return *Tensor::FromValues<T>(shape, elements);
}

// What an Example without the feature has; Examples hold floats and int64s.
std::optional<Tensor> DefaultValue(NewSpec* spec, const NumericSpec& numeric,
                                   const std::vector<double>& values) {
  if (values.empty() || !spec->ok()) return std::nullopt;
  const auto wanted = static_cast<size_t>(numeric.shape.num_elements());
  spec->Require(values.size() == 1 || values.size() == wanted,
                "default_value must have 1 number or those of the shape, ", wanted, ", got ",
                values.size());
  if (!spec->ok()) return std::nullopt;
  if (IsFloating(numeric.dtype)) {
    if (numeric.dtype == DT_DOUBLE) return Filled<double>(numeric.shape, values);
    return Filled<float>(numeric.shape, values);
  }
  for (const double value : values) {
    spec->Require(std::floor(value) == value && std::abs(value) <= 9007199254740992.0,
                  "default_value must be of integers, as dtype ", numeric.dtype, " is, got ",
                  value);
  }
  if (!spec->ok()) return std::nullopt;
  return Filled<int64_t>(numeric.shape, values);
}

}  // namespace

// --- Numbers -------------------------------------------------------------------------------------

NumericColumn::NumericColumn(absl::string_view key, const NumericColumnOptions& options,
                             std::source_location where) {
  NewSpec spec("NumericColumn", std::string(key), where);
  NumericSpec numeric = {.key = std::string(key),
                         .shape = ExampleShape(&spec, options.shape),
                         .default_value = std::nullopt,
                         .dtype = options.dtype,
                         .normalizer = options.normalizer};
  RequireNumber(&spec, options.dtype);
  numeric.default_value = DefaultValue(&spec, numeric, options.default_value);
  spec->kind = std::move(numeric);
  spec_ = spec.Done();
}

BucketizedColumn::BucketizedColumn(const NumericColumn& source, std::vector<float> boundaries,
                                   std::source_location where) {
  NewSpec spec("BucketizedColumn", absl::StrCat(source.name(), "_bucketized"), where);
  BucketizedSpec bucketized = {.source = spec.Source(source), .boundaries = std::move(boundaries)};
  if (bucketized.source != nullptr) {
    const Shape& shape = bucketized.source->As<NumericSpec>()->shape;
    spec.Require(shape.rank() == 1, "the numeric column must have a shape of rank 1, got ", shape);
    const auto buckets = static_cast<int64_t>(bucketized.boundaries.size()) + 1;
    spec.Require(shape.num_elements() <= std::numeric_limits<int32_t>::max() / buckets,
                 "elements and buckets must make fewer than 2^31 ids, got ", shape.num_elements(),
                 " and ", buckets);
  }
  const std::vector<float>& b = bucketized.boundaries;
  spec.Require(!b.empty(), "boundaries must be one or more, got none");
  for (size_t i = 0; i < b.size(); ++i) {
    spec.Require(!std::isnan(b[i]), "boundaries must be numbers, got nan");
    spec.Require(i == 0 || b[i - 1] < b[i], "boundaries must increase, got ", i == 0 ? 0 : b[i - 1],
                 " before ", b[i]);
  }
  spec->kind = std::move(bucketized);
  spec_ = spec.Done();
}

// --- Ids -----------------------------------------------------------------------------------------

CategoricalColumn CategoricalColumnWithHashBucket(absl::string_view key, int64_t num_buckets,
                                                  DType dtype, std::source_location where) {
  NewSpec spec("CategoricalColumnWithHashBucket", std::string(key), where);
  spec.Require(num_buckets >= 1, "num_buckets must be >= 1, got ", num_buckets);
  RequireTextOrInteger(&spec, dtype);
  spec->kind = HashBucketSpec{std::string(key), num_buckets, dtype};
  return CategoricalColumn(spec.Done());
}

namespace {

// The words, each once.
template <typename Word>
void RequireDifferent(NewSpec* spec, const std::vector<Word>& words) {
  absl::flat_hash_set<Word> seen;
  for (const Word& word : words) {
    spec->Require(seen.insert(word).second, "vocabulary must have each word once, got '", word,
                  "' twice");
    if (!spec->ok()) return;
  }
}

// What becomes of values outside of the vocabulary.
void SetOutOfVocabulary(NewSpec* spec, VocabularySpec* vocabulary,
                        const std::optional<int64_t>& default_value, int64_t num_oov_buckets) {
  vocabulary->num_oov_buckets = num_oov_buckets;
  vocabulary->default_value = default_value.value_or(-1);
  spec->Require(num_oov_buckets >= 0, "num_oov_buckets must be >= 0, got ", num_oov_buckets);
  spec->Require(num_oov_buckets == 0 || vocabulary->default_value == -1,
                "default_value must not be given together with num_oov_buckets, got ",
                vocabulary->default_value, " and ", num_oov_buckets);
  spec->Require(vocabulary->size <= std::numeric_limits<int64_t>::max() - num_oov_buckets,
                "num_oov_buckets must be a number of ids, got ", num_oov_buckets);
  spec->Require(vocabulary->default_value >= -1 && vocabulary->default_value < vocabulary->size,
                "default_value must be -1 or in [0, ", vocabulary->size, "), got ",
                vocabulary->default_value);
}

}  // namespace

CategoricalColumn CategoricalColumnWithVocabularyList(absl::string_view key,
                                                      const Vocabulary& words,
                                                      const VocabularyListOptions& options,
                                                      std::source_location where) {
  NewSpec spec("CategoricalColumnWithVocabularyList", std::string(key), where);
  VocabularySpec vocabulary;
  vocabulary.key = std::string(key);
  if (words.numbers.empty()) {
    vocabulary.dtype = DT_STRING;
    vocabulary.words = Tensor::Vector<std::string>(absl::MakeConstSpan(words.texts));
    RequireDifferent(&spec, words.texts);
  } else {
    vocabulary.dtype = DT_INT64;
    vocabulary.words = Tensor::Vector<int64_t>(absl::MakeConstSpan(words.numbers));
    RequireDifferent(&spec, words.numbers);
  }
  vocabulary.size = vocabulary.words.num_elements();
  spec.Require(vocabulary.size > 0, "vocabulary must have one or more words, got none");
  SetOutOfVocabulary(&spec, &vocabulary, options.default_value, options.num_oov_buckets);
  spec->kind = std::move(vocabulary);
  return CategoricalColumn(spec.Done());
}

CategoricalColumn CategoricalColumnWithVocabularyFile(absl::string_view key,
                                                      absl::string_view vocabulary_file,
                                                      const VocabularyFileOptions& options,
                                                      std::source_location where) {
  NewSpec spec("CategoricalColumnWithVocabularyFile", std::string(key), where);
  VocabularySpec vocabulary;
  vocabulary.key = std::string(key);
  vocabulary.dtype = options.dtype;
  vocabulary.file = std::string(vocabulary_file);
  spec.Require(!vocabulary.file.empty(), "vocabulary_file must be a path, got ''");
  spec.Require(options.dtype == DT_STRING || options.dtype == DT_INT64,
               "dtype must be string or int64, got ", options.dtype);
  if (options.vocabulary_size) {
    vocabulary.size = *options.vocabulary_size;
    spec.Require(vocabulary.size >= 1, "vocabulary_size must be >= 1, got ", vocabulary.size);
  } else if (spec.ok()) {
    const StatusOr<int64_t> lines = CountVocabularyLines(vocabulary.file);
    if (!lines.ok()) spec.Fail(lines.status());
    vocabulary.size = lines.ok() ? *lines : 0;
    spec.Require(vocabulary.size >= 1, "vocabulary_file must have one or more lines, got none in '",
                 vocabulary.file, "'");
  }
  SetOutOfVocabulary(&spec, &vocabulary, options.default_value, options.num_oov_buckets);
  spec->kind = std::move(vocabulary);
  return CategoricalColumn(spec.Done());
}

CategoricalColumn CategoricalColumnWithIdentity(absl::string_view key, int64_t num_buckets,
                                                std::optional<int64_t> default_value,
                                                std::source_location where) {
  NewSpec spec("CategoricalColumnWithIdentity", std::string(key), where);
  spec.Require(num_buckets >= 1, "num_buckets must be >= 1, got ", num_buckets);
  const int64_t value = default_value.value_or(0);
  spec.Require(value >= 0 && value < num_buckets, "default_value must be in [0, ", num_buckets,
               "), got ", value);
  spec->kind = IdentitySpec{std::string(key), num_buckets, default_value};
  return CategoricalColumn(spec.Done());
}

CategoricalColumn WeightedCategoricalColumn(const CategoricalColumn& column,
                                            absl::string_view weight_key, DType dtype,
                                            std::source_location where) {
  NewSpec spec("WeightedCategoricalColumn",
               absl::StrCat(column.name(), "_weighted_by_", weight_key), where);
  WeightedSpec weighted = {spec.Source(column), std::string(weight_key), dtype};
  RequireNumber(&spec, dtype);
  spec.Require(weighted.column == nullptr || weighted.column->As<WeightedSpec>() == nullptr,
               "the column must not have weights already, got '", column.name(), "'");
  spec->kind = std::move(weighted);
  return CategoricalColumn(spec.Done());
}

CategoricalColumn CrossedColumn(std::vector<CrossKey> keys, int64_t num_buckets,
                                const CrossedColumnOptions& options, std::source_location where) {
  // Flat, in the declared order.
  std::vector<CrossedSpec::Leaf> leaves;
  Status inner;
  for (CrossKey& key : keys) {
    if (!key.column.valid()) {
      leaves.push_back({std::move(key.key), nullptr});
    } else if (const auto* cross = key.column.spec()->As<CrossedSpec>()) {
      leaves.insert(leaves.end(), cross->leaves.begin(), cross->leaves.end());
      if (inner.ok()) inner = key.column.status();
    } else {
      leaves.push_back({"", key.column.spec()});
    }
  }
  std::vector<std::string> names;
  for (const CrossedSpec::Leaf& leaf : leaves) {
    names.push_back(leaf.column == nullptr ? leaf.key : leaf.column->name);
  }
  std::sort(names.begin(), names.end());

  NewSpec spec("CrossedColumn", absl::StrJoin(names, "_X_"), where);
  if (!inner.ok()) spec->status = inner;
  spec.Require(keys.size() >= 2, "keys must be two or more, got ", keys.size());
  spec.Require(num_buckets >= 1, "num_buckets must be >= 1, got ", num_buckets);
  for (const CrossedSpec::Leaf& leaf : leaves) {
    if (leaf.column == nullptr) {
      spec.Require(!leaf.key.empty(), "keys must be features or columns, got ''");
      continue;
    }
    if (spec.Source(FeatureColumn(leaf.column)) == nullptr) break;
    spec.Require(leaf.column->As<HashBucketSpec>() == nullptr,
                 "keys must not be columns with hash buckets, whose ids would be hashed once more, "
                 "got '",
                 leaf.column->name, "'; give its feature's key");
    spec.Require(leaf.column->As<WeightedSpec>() == nullptr,
                 "keys must not be columns with weights, got '", leaf.column->name, "'");
  }
  constexpr uint64_t kDefaultHashKey = 0xDECAFCAFFE;  // of 0, too: TensorFlow's rule
  const uint64_t hash_key = options.hash_key == 0 ? kDefaultHashKey : options.hash_key;
  spec->kind = CrossedSpec{std::move(leaves), num_buckets, hash_key, options.tf_compat_cross_order};
  return CategoricalColumn(spec.Done());
}

// --- Numbers of ids ------------------------------------------------------------------------------

namespace {

ColumnSpecPtr Indicator(const FeatureColumn& column, std::source_location where) {
  NewSpec spec("IndicatorColumn", absl::StrCat(column.name(), "_indicator"), where);
  const ColumnSpecPtr source = spec.Source(column);
  spec->sequence = source != nullptr && source->sequence;
  spec->kind = IndicatorSpec{source};
  return spec.Done();
}

ColumnSpecPtr Embedding(const FeatureColumn& column, const char* function, std::string name,
                        int64_t dimension, const EmbeddingColumnOptions& options,
                        std::string shared_name, std::source_location where) {
  NewSpec spec(function, std::move(name), where);
  const ColumnSpecPtr source = spec.Source(column);
  spec->sequence = source != nullptr && source->sequence;
  spec.Require(dimension >= 1, "dimension must be >= 1, got ", dimension);
  spec.Require(options.ckpt_to_load_from.empty() == options.tensor_name_in_ckpt.empty(),
               "ckpt_to_load_from and tensor_name_in_ckpt must be given together, got '",
               options.ckpt_to_load_from, "' and '", options.tensor_name_in_ckpt, "'");
  spec.Require(!options.max_norm || *options.max_norm > 0, "max_norm must be > 0, got ",
               options.max_norm.value_or(0));
  if (source != nullptr) {
    const StatusOr<Shape> shape = Shape::Make({NumIds(*source), std::max<int64_t>(dimension, 1)});
    if (!shape.ok()) spec.Fail(shape.status());
  }
  const Initializer initializer =
      options.initializer
          ? options.initializer
          : TruncatedNormalInitializer(
                {.stddev = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(dimension, 1)))});
  spec->kind = EmbeddingSpec{source,
                             dimension,
                             options.combiner,
                             initializer,
                             options.ckpt_to_load_from,
                             options.tensor_name_in_ckpt,
                             options.max_norm,
                             options.trainable,
                             std::move(shared_name)};
  return spec.Done();
}

// The column itself, below its weights.
const ColumnSpec* Unweighted(const ColumnSpec* column) {
  const auto* weighted = column->As<WeightedSpec>();
  return weighted == nullptr || weighted->column == nullptr ? column : weighted->column.get();
}

// Why the columns may not share a table.
Status CheckSharing(const std::vector<CategoricalColumn>& columns) {
  if (columns.empty()) return InvalidArgument("columns must be one or more, got none");
  for (const CategoricalColumn& column : columns) {
    if (!column.status().ok()) return absl::OkStatus();  // said of the column
    const ColumnSpec* first = Unweighted(columns[0].spec().get());
    const ColumnSpec* other = Unweighted(column.spec().get());
    if (first->kind.index() != other->kind.index()) {
      return InvalidArgument("columns must be of one kind, got '", columns[0].name(), "' and '",
                             column.name(), "' of different ones");
    }
    if (NumIds(*first) != NumIds(*other)) {
      return InvalidArgument("columns must have as many ids, got ", NumIds(*first), " of '",
                             columns[0].name(), "' and ", NumIds(*other), " of '", column.name(),
                             "'");
    }
  }
  return absl::OkStatus();
}

}  // namespace

DenseColumn IndicatorColumn(const CategoricalColumn& column, std::source_location where) {
  return DenseColumn(Indicator(column, where));
}

DenseColumn EmbeddingColumn(const CategoricalColumn& column, int64_t dimension,
                            const EmbeddingColumnOptions& options, std::source_location where) {
  return DenseColumn(Embedding(column, "EmbeddingColumn", absl::StrCat(column.name(), "_embedding"),
                               dimension, options, "", where));
}

std::vector<DenseColumn> SharedEmbeddingColumns(const std::vector<CategoricalColumn>& columns,
                                                int64_t dimension,
                                                const SharedEmbeddingColumnsOptions& options,
                                                std::source_location where) {
  std::string shared_name = options.shared_name;
  if (shared_name.empty()) {
    std::vector<std::string> names;
    for (const CategoricalColumn& column : columns) names.push_back(column.name());
    std::sort(names.begin(), names.end());
    shared_name = absl::StrCat(absl::StrJoin(names, "_"), "_shared_embedding");
  }
  constexpr char kFunction[] = "SharedEmbeddingColumns";
  const Status sharing = CheckSharing(columns);
  std::vector<DenseColumn> result;
  if (!sharing.ok()) {
    NewSpec spec(kFunction, shared_name, where);
    spec.Fail(sharing);
    result.assign(std::max<size_t>(columns.size(), 1), DenseColumn(spec.Done()));
    return result;
  }
  for (const CategoricalColumn& column : columns) {
    result.push_back(
        DenseColumn(Embedding(column, kFunction, absl::StrCat(column.name(), "_shared_embedding"),
                              dimension, options, shared_name, where)));
  }
  return result;
}

// --- Sequences -----------------------------------------------------------------------------------

namespace {

SequenceCategoricalColumn AsSequence(const CategoricalColumn& column) {
  auto spec = std::make_shared<ColumnSpec>(*column.spec());
  spec->sequence = true;
  return SequenceCategoricalColumn(std::move(spec));
}

}  // namespace

SequenceCategoricalColumn SequenceCategoricalColumnWithHashBucket(absl::string_view key,
                                                                  int64_t num_buckets, DType dtype,
                                                                  std::source_location where) {
  return AsSequence(CategoricalColumnWithHashBucket(key, num_buckets, dtype, where));
}

SequenceCategoricalColumn SequenceCategoricalColumnWithVocabularyList(
    absl::string_view key, const Vocabulary& vocabulary, const VocabularyListOptions& options,
    std::source_location where) {
  return AsSequence(CategoricalColumnWithVocabularyList(key, vocabulary, options, where));
}

SequenceCategoricalColumn SequenceCategoricalColumnWithVocabularyFile(
    absl::string_view key, absl::string_view vocabulary_file, const VocabularyFileOptions& options,
    std::source_location where) {
  return AsSequence(CategoricalColumnWithVocabularyFile(key, vocabulary_file, options, where));
}

SequenceCategoricalColumn SequenceCategoricalColumnWithIdentity(
    absl::string_view key, int64_t num_buckets, std::optional<int64_t> default_value,
    std::source_location where) {
  return AsSequence(CategoricalColumnWithIdentity(key, num_buckets, default_value, where));
}

SequenceColumn IndicatorColumn(const SequenceCategoricalColumn& column,
                               std::source_location where) {
  return SequenceColumn(Indicator(column, where));
}

SequenceColumn EmbeddingColumn(const SequenceCategoricalColumn& column, int64_t dimension,
                               const EmbeddingColumnOptions& options, std::source_location where) {
  return SequenceColumn(Embedding(column, "EmbeddingColumn",
                                  absl::StrCat(column.name(), "_embedding"), dimension, options, "",
                                  where));
}

SequenceColumn SequenceNumericColumn(absl::string_view key,
                                     const SequenceNumericColumnOptions& options,
                                     std::source_location where) {
  NewSpec spec("SequenceNumericColumn", std::string(key), where);
  spec->sequence = true;
  SequenceNumericSpec numeric = {std::string(key), ExampleShape(&spec, options.shape),
                                 options.default_value, options.dtype, options.normalizer};
  RequireNumber(&spec, options.dtype);
  spec->kind = std::move(numeric);
  return SequenceColumn(spec.Done());
}

}  // namespace millrace
