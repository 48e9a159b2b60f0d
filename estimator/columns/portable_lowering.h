// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_PORTABLE_LOWERING_H_
#define MILLRACE_ESTIMATOR_COLUMNS_PORTABLE_LOWERING_H_

// PortableColumns: the layers of a column plan as nodes that every TensorFlow 1.x runs, named as
// TensorFlow 1.15 names them where that costs nothing.
//
// The nodes of a column stand in a scope of its name. What several columns of a plan use is built
// once, in the scope of the first.
//
// Failure: an error in the scope of a call; everything is invalid from there on. A column is to
// blame with the line that made it.

#include <optional>
#include <string>
#include <vector>

#include "estimator/columns/column_plan.h"
#include "estimator/columns/column_spec.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/sparse/sparse_tensor.h"

namespace millrace {

class PortableColumns {
 public:
  // Both outlive the object. `own_ops`: as parts of another lowering, whose graphs no TensorFlow
  // runs: look-ups in parts on other tasks are SparseLookupAttrs's that are not portable.
  PortableColumns(const ColumnPlan& plan, const Features& features, bool own_ops = false);

  // `tables`: those of the layer (estimator/columns/column_variables.h). The scope's own nodes are
  // those of the layer.

  // [batch, width].
  Output InputLayer(const ScopeAt& in, const LayerPlan& layer,
                    const std::vector<PartitionedVariable>& tables);
  // [batch, units].
  Output LinearModel(const ScopeAt& in, const LayerPlan& layer,
                     const std::vector<PartitionedVariable>& tables);
  // [batch, steps, width], and int64 [batch].
  struct Sequence {
    Output steps;
    Output length;
  };
  Sequence SequenceInputLayer(const ScopeAt& in, const LayerPlan& layer,
                              const std::vector<PartitionedVariable>& tables);

  // --- Parts of them, for a lowering that does others by itself

  // What one consumer gives: [batch, its width] of an input layer, [batch, units] of a linear
  // model.
  Output InputPart(const ScopeAt& in, const ConsumerPlan& consumer,
                   const std::vector<PartitionedVariable>& tables);
  Output LinearPart(const ScopeAt& in, const LayerPlan& layer, const ConsumerPlan& consumer,
                    const std::vector<PartitionedVariable>& tables);
  // The parts of a linear model and its bias: [batch, units].
  Output LinearTotal(const ScopeAt& in, const std::vector<Output>& parts,
                     const std::vector<PartitionedVariable>& tables);
  // Floats [batch, ...], as many for each example as the numeric column has elements.
  Output Numeric(const ScopeAt& in, int numeric);

 private:
  // A feature, of rank 2 or more; one of both.
  struct Raw {
    Output dense;
    SparseTensor sparse;
  };
  struct IdsAndWeights {
    SparseTensor ids;
    SparseTensor weights;  // invalid: 1 each
  };

  // Each makes what `in` has not made yet, for `column`.
  const Raw& Source(const ScopeAt& in, int source, const ColumnSpec& column);
  SparseTensor Categorical(const ScopeAt& in, int source, const ColumnSpec& column);
  Output Buckets(const ScopeAt& in, int ids);
  const SparseTensor& Ids(const ScopeAt& in, int ids);
  IdsAndWeights IdsOf(const ScopeAt& in, const ConsumerPlan& consumer);

  SparseTensor MakeIds(const ScopeAt& in, int position);
  SparseTensor BucketIds(const ScopeAt& in, int position);
  SparseTensor CrossIds(const ScopeAt& in, const IdsPlan& ids);
  // [batch, width], or [batch, steps, width] of a sequence.
  Output Dense(const ScopeAt& in, const ConsumerPlan& consumer,
               const std::vector<PartitionedVariable>& tables);
  Output Indicator(const ScopeAt& in, const IdsAndWeights& ids, int64_t num_ids);
  Sequence Steps(const ScopeAt& in, const ConsumerPlan& consumer,
                 const std::vector<PartitionedVariable>& tables);

  const ColumnPlan& plan_;
  const Features& features_;
  const bool own_ops_;
  std::vector<std::optional<Raw>> sources_;
  std::vector<Output> numerics_;
  std::vector<Output> buckets_;  // of bucketized ids
  std::vector<SparseTensor> ids_;
  std::vector<SparseTensor> given_;  // estimator/columns/given_ids.h
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_PORTABLE_LOWERING_H_
