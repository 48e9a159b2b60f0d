// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_DATASET_INPUT_H_
#define MILLRACE_ESTIMATOR_DATASET_INPUT_H_

// DatasetInput: a Dataset as the input of a graph: features and labels are what IteratorGetNext
// gives, and a hook initialises the iterator in each session, also after a recovery.
//
// Failure: InvalidArgument for a dataset without a known spec, and for columns that do not fit it.

#include <memory>

#include "core/status.h"
#include "data/dataset.h"
#include "data/initializable_iterator.h"
#include "data/iterator.h"
#include "estimator/input_fn.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "train/session_run_hook.h"

namespace millrace {

struct DatasetInput {
  Features features;
  Labels labels;
  std::shared_ptr<SessionRunHook> initializer;
  // For who initialises it otherwise.
  data::InitializableIterator iterator;
};

// The nodes are where `scope` puts them.
StatusOr<DatasetInput> MakeDatasetInput(const Scope& scope, const data::Dataset& dataset,
                                        const DatasetColumns& columns,
                                        const data::IteratorOptions& options);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_DATASET_INPUT_H_
