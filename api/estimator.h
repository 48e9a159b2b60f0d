// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_API_ESTIMATOR_H_
#define MILLRACE_API_ESTIMATOR_H_

// Estimators: programs of a model, an input and a receiver, which train, evaluate, predict and
// export in one process, and as any task of a cluster.
//
//   #include <millrace/estimator.h>
//
//   using namespace millrace;
//   const Estimator income = DNNClassifier({.feature_columns = {NumericColumn("age")}, ...});
//   TrainAndEvaluate(income, {.input_fn = people, .max_steps = 1000}, {.input_fn = others});
//
// It has all of <millrace/millrace.h>; programs without an Estimator do not pay for it. Who links
// millrace has both. Like that header it knows no protobuf.
//
// docs/estimator.md and docs/feature_columns.md are the pages for users.

#include "api/millrace.h"  // IWYU pragma: export

#if __cplusplus >= 201709L  // api/millrace.h tells the others

#include "data/csv.h"                                // IWYU pragma: export
#include "data/dataset.h"                            // IWYU pragma: export
#include "estimator/add_metrics.h"                   // IWYU pragma: export
#include "estimator/best_exporter.h"                 // IWYU pragma: export
#include "estimator/canned/canned.h"                 // IWYU pragma: export
#include "estimator/columns/feature_column.h"        // IWYU pragma: export
#include "estimator/columns/input_layer.h"           // IWYU pragma: export
#include "estimator/columns/linear_model.h"          // IWYU pragma: export
#include "estimator/columns/parse_spec.h"            // IWYU pragma: export
#include "estimator/columns/row_ids.h"               // IWYU pragma: export
#include "estimator/columns/sequence_input_layer.h"  // IWYU pragma: export
#include "estimator/distributed_predict.h"           // IWYU pragma: export
#include "estimator/early_stopping.h"                // IWYU pragma: export
#include "estimator/estimator.h"                     // IWYU pragma: export
#include "estimator/exporter.h"                      // IWYU pragma: export
#include "estimator/heads/heads.h"                   // IWYU pragma: export
#include "estimator/synced_optimizer.h"              // IWYU pragma: export
#include "estimator/tf_config.h"                     // IWYU pragma: export
#include "estimator/train_and_evaluate.h"            // IWYU pragma: export

#endif  // C++20

#endif  // MILLRACE_API_ESTIMATOR_H_
