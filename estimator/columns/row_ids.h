// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_ROW_IDS_H_
#define MILLRACE_ESTIMATOR_COLUMNS_ROW_IDS_H_

// GiveIds: the ids of a model's columns, made row by row where rows are read, so that a shuffle and
// a batch move a few numbers instead of texts, and a step need not look at a text at all.
//
//   people = people.Map(data::DecodeCsv(...));                      // rows: scalars with names
//   people = GiveIds(people, deep, wide).Shuffle(1000).Repeat().Batch(40).Prefetch(2);
//   return Input(people, {.labels = {"label"}});                    // names are the dataset's
//
// The model is that without it, whatever its lowering: layers of these columns
// (estimator/columns/input_layer.h, linear_model.h; those of canned Estimators) find the ids among
// their features. Seeded orders of what stands behind it are the same; files that are shuffled in
// front of it, and initial values, are only where they have seeds of their own (others depend on
// the number of transformations and of nodes). What serves the model is given texts, as before.
//
// Ids are made of features with one value a row (ops/columns/column_ids.h). A column that reads
// anything else (weights, a vocabulary file, a normalizer, a feature that the dataset has not as a
// scalar) is left to the graph, with what it reads.
//
// A pure function. Failure: an identity without a default out of range is an error of its row, in
// the words of _ColumnIds.

#include <string>
#include <vector>

#include "data/dataset.h"
#include "estimator/columns/feature_column.h"

namespace millrace {

struct GiveIdsOptions {
  // Texts that something else than these columns reads, too.
  std::vector<std::string> keep = {};
};

// The elements of `rows` with a component for the ids of each column of an InputLayer of `dense` or
// a LinearModel of `linear`: int32 [], int64 [] where they need it; without the texts that only
// these ids are made of. `rows` itself when there are none. A dataset that is an error: for rows
// that are, for columns that are, and InvalidArgument when it is not known what the rows are, or
// `keep` names what they have not.
data::Dataset GiveIds(const data::Dataset& rows, const std::vector<DenseColumn>& dense,
                      const std::vector<FeatureColumn>& linear, const GiveIdsOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_ROW_IDS_H_
