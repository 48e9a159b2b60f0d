// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_FUSED_LOWERING_H_
#define MILLRACE_ESTIMATOR_COLUMNS_FUSED_LOWERING_H_

// FusedColumns: the layers of a column plan in two nodes each: one for all ids
// (ops/columns/column_ids.h) and one for what is made of them (ops/columns/column_layer.h), with a
// third for all gradients. Layers whose columns were known together share the node of ids
// (estimator/columns/shared_ids.h).
//
// They take columns of dense features with one value an example: hashed, of a list of words,
// identities, buckets, crosses of such, as indicators, embeddings and linear weights, in tables
// that are whole or in parts. What variables on other devices (parameter servers) give is looked up
// there, by one node for each device (estimator/columns/row_lookups.h); wide rows cross from one
// task to another once for each different id (ops/columns/column_unique.h). All others (several
// values, weights, vocabulary files, max_norm, tf_compat_cross_order) are built as PortableColumns
// builds them and join at the end: any plan can be lowered.
//
// Failure: as PortableColumns.

#include <string>
#include <vector>

#include "estimator/columns/column_plan.h"
#include "estimator/columns/portable_lowering.h"
#include "estimator/columns/row_lookups.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/columns/column_ids.h"

namespace millrace {

class FusedColumns {
 public:
  // All outlive the object. `shared`: ids that are made already; a layer takes its ids from there
  // when all of them are.
  FusedColumns(const ColumnPlan& plan, const Features& features, const SharedIds& shared);

  // One node with the ids of all layers, as far as they can be taken.
  SharedIds Ids(const ScopeAt& in);

  // As PortableColumns.
  Output InputLayer(const ScopeAt& in, const LayerPlan& layer,
                    const std::vector<PartitionedVariable>& tables);
  Output LinearModel(const ScopeAt& in, const LayerPlan& layer,
                     const std::vector<PartitionedVariable>& tables);

 private:
  // What can be taken: the only place that knows.
  bool TakesIds(const Scope& scope, int ids) const;
  static bool TakesTable(const PartitionedVariable& table);
  bool Takes(const Scope& scope, const ConsumerPlan& consumer,
             const std::vector<PartitionedVariable>& tables) const;

  std::vector<const ConsumerPlan*> TakenOf(const Scope& scope, const LayerPlan& layer,
                                           const std::vector<PartitionedVariable>& tables) const;
  // The matrix of ids that these look up.
  Output IdsOf(const ScopeAt& in, const std::vector<const ConsumerPlan*>& taken);
  // One for each device that has tables of theirs, or parts of such.
  // What a look-up on another device gives, [batch, its width].
  Output RowsFrom(const ScopeAt& in, const Output& ids, const RowLookup& lookup);
  std::vector<RowLookup> LookupsOf(const ScopeAt& in, const LayerPlan& layer,
                                   const std::vector<const ConsumerPlan*>& taken,
                                   const std::vector<PartitionedVariable>& tables);

  // The row of the matrix of ids that has these; adds what is not there yet. OwnRowOf: not of given
  // ids (estimator/columns/given_ids.h), as crosses need them.
  int64_t RowOf(const ScopeAt& in, int ids);
  int64_t OwnRowOf(const ScopeAt& in, int ids);
  int64_t FeatureOf(int source);
  // Are the ids of all of these consumers among the shared ones?
  bool AreShared(const std::vector<const ConsumerPlan*>& consumers) const;
  // The matrix that RowOf counts rows of.
  Output IdsNode(const ScopeAt& in) const;
  // As PortableColumns::Numeric, in one node at most where the feature has one value an example.
  Output Number(const ScopeAt& in, int numeric);

  const ColumnPlan& plan_;
  const Features& features_;
  const SharedIds& shared_;
  bool takes_shared_ = false;  // the layer that is made takes its ids from there
  PortableColumns portable_;
  std::vector<Output> inputs_;         // of the node of ids
  std::vector<int64_t> of_source_;     // the input that a source is, or -1
  std::vector<int64_t> row_of_;        // the row that ids are, or -1
  std::vector<int64_t> given_row_of_;  // the row that given ids are, or -1
  std::vector<IdColumn> columns_;      // a row each
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_FUSED_LOWERING_H_
