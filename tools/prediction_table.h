// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_PREDICTION_TABLE_H_
#define MILLRACE_TOOLS_PREDICTION_TABLE_H_

// Predictions as text: a table as `gcloud ml-engine local predict` prints it, or JSON as a server's
// reply has it.
//
//   CLASS_IDS  CLASSES  LOGISTIC                LOGITS
//   [0]        ['0']    [0.0658264085650444]    [-2.6526732444763184]
//
// Columns are the outputs in the order of their names; a cell is the row of that instance. Text has
// Python's quotes, Booleans and floats are as in JSON, floats in the shortest form that reads back.
//
// Thread-safety: pure functions. Failure: InvalidArgument for an output that has not a row for each
// instance; Unimplemented for resources and variants.

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "saver/loaded_model.h"

namespace millrace {

// Of `count` instances; each line ends with "\n".
StatusOr<std::string> PredictionTable(const NamedTensors& outputs, int64_t count);
// {"predictions": [{"class_ids": [0], ...}, ...]}; of a single output each prediction is its row.
StatusOr<std::string> PredictionJson(const NamedTensors& outputs, int64_t count);
// Each of these predictions as JSON in one line, without its end.
StatusOr<std::vector<std::string>> PredictionLines(const NamedTensors& outputs, int64_t count);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_PREDICTION_TABLE_H_
