// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_COLUMN_PLAN_H_
#define MILLRACE_ESTIMATOR_COLUMNS_COLUMN_PLAN_H_

// ColumnPlan: what the columns of one or more layers ask for, taken apart: which features are read,
// which ids are made of them, and who uses the ids. It stands between columns and the graph; every
// lowering builds from it, and one place makes the variables that it names
// (estimator/columns/column_variables.h), so lowerings can be exchanged.
//
//   sources       numbers and ids            consumers of a layer   its tables
//   0 "age"  -->  numerics[0] [batch, 1] --> numeric, offset 0
//            -->  ids[0] 11 buckets ------>  ids                    "age_bucketized/weights"
//   1 "occ"  -->  ids[1] 100 hash buckets -> embedding, offset 1 "occ_embedding/embedding_weights"
//   1, 2 -------> ids[2] cross ----------->  ids                    "edu_X_occ/weights"
//
// References are positions in the vectors. What is used twice is there once: features by key,
// numbers and ids by column name. Ids come before those that use them. Consumers of a layer stand
// in the order of their columns' names, as do tables, in which variables are made.
//
// A plan is plain data, immutable once made, without a graph: it says what TensorFlow's columns say
// and nothing about nodes.

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "estimator/columns/column_spec.h"
#include "estimator/columns/feature_column.h"
#include "layers/embedding.h"
#include "layers/initializers.h"

namespace millrace {

// A feature that is read. Several columns may read one.
struct SourcePlan {
  std::string key;
  std::string column;          // the first that reads it, for messages
  std::source_location where;  // that made the column
};

// A dense feature as floats [batch, elements].
struct NumericPlan {
  int source = -1;
  ColumnSpecPtr column = {};  // NumericSpec
  int64_t elements = 1;       // of an example
};

// Any number of ids per example, from 0 to num_ids - 1, or negative: nothing.
struct IdsPlan {
  struct Leaf {  // of a cross: one of both
    int source = -1;
    int ids = -1;
  };
  // HashBucketSpec, VocabularySpec and IdentitySpec read `source`, BucketizedSpec `numeric`,
  // CrossedSpec `leaves`.
  ColumnSpecPtr column = {};
  int64_t num_ids = 0;
  int source = -1;
  int numeric = -1;
  std::vector<Leaf> leaves = {};
};

// A variable: rows by id, or by element of a dense column. [rows, columns].
struct TablePlan {
  std::string name = {};      // in the layer's variable scope: "occ_embedding/embedding_weights"
  ColumnSpecPtr column = {};  // the first that uses it
  Shape shape = {};
  Initializer initializer = {};
  bool trainable = true;
  std::string ckpt_to_load_from = {}, tensor_name_in_ckpt = {};  // "" or where it begins
};

// What a column is in its layer.
struct ConsumerPlan {
  enum class Kind {
    kNumeric,    // `numeric`
    kBuckets,    // `ids` (bucketized), one of each element: a one among num_ids numbers
    kIndicator,  // `ids`: how often each is there
    kEmbedding,  // `ids` looked up in `table`
    kIds,        // `ids` for `weights` alone: a linear model's categorical columns
    kSequenceNumeric,
  };
  Kind kind = Kind::kNumeric;
  ColumnSpecPtr column = {};
  int numeric = -1;
  int ids = -1;
  int id_weights = -1;  // the source that has a weight for each id, if any
  int source = -1;      // of kSequenceNumeric
  int table = -1;       // in the layer's tables
  int weights = -1;     // a linear model's, in the layer's tables
  int64_t offset = 0;   // an input layer's: where in the matrix it begins
  int64_t width = 0;    // numbers per example (and step); ids of kIds
};

struct LayerPlan {
  enum class Kind { kInput, kLinear, kSequence };
  Kind kind = Kind::kInput;
  std::vector<ConsumerPlan> consumers = {};
  std::vector<TablePlan> tables =
      {};             // a linear model's bias is the last one: "bias_weights" [units]
  int64_t width = 0;  // of an input layer: of the matrix; of a linear model: units
  Combiner sparse_combiner = Combiner::kSum;  // of a linear model
};

struct ColumnPlan {
  std::vector<SourcePlan> sources;
  std::vector<NumericPlan> numerics;
  std::vector<IdsPlan> ids;
  std::vector<LayerPlan> layers;  // in the order in which they were asked for
};

// What a layer is made of.
struct AskedLayer {
  LayerPlan::Kind kind = LayerPlan::Kind::kInput;
  std::vector<FeatureColumn> columns = {};  // of the types that the layer takes
  int64_t units = 1;                        // of a linear model
  Combiner sparse_combiner = Combiner::kSum;
};

// Do two columns give the same numbers or ids?
bool GiveTheSame(const ColumnSpecPtr& a, const ColumnSpecPtr& b);

// The plan of layers that read the same features. Errors: those of columns; InvalidArgument for no
// columns, two of one name in a layer, a column that the layer does not take, a name that no node
// may have, units < 1, tables too large. They say which line made the column.
StatusOr<ColumnPlan> MakeColumnPlan(const std::vector<AskedLayer>& layers);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_COLUMN_PLAN_H_
