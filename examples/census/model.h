// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_CENSUS_MODEL_H_
#define MILLRACE_EXAMPLES_CENSUS_MODEL_H_

// The wide and deep model of the census data: its columns, the Estimator that is made of them, and
// what callers of the exported model feed.
//
// Wide: three crosses and what they are made of. Deep: words as indicators or as embeddings, and
// the numbers as they are. The columns and their sizes are those of the model that TensorFlow's
// users know from "Easy distributed training with TensorFlow using train_and_evaluate".

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "data/dataset.h"
#include "estimator/estimator.h"
#include "estimator/run_config.h"
#include "estimator/serving_input.h"

namespace millrace::census {

// max(2, whole part of first * scale^i) for each layer.
std::vector<int64_t> HiddenUnits(int64_t first, int64_t layers, double scale);

struct ModelOptions {
  int64_t embedding_size = 8;
  std::vector<int64_t> hidden_units = {100, 70, 50, 25};
  // Capital gains are up to 99,999. They go into the network as they are, or multiplied by this.
  double capital_gain_scale = 1;
};
Estimator IncomeModel(const ModelOptions& options, const RunConfig& config);
// People with the ids of the model's columns instead of the texts that those are made of: the model
// of them is the same, and what is made before a step need not be made in it.
data::Dataset WithIds(const ModelOptions& options, const data::Dataset& people);

enum class ExportFormat {
  kJson,     // a value per feature, by its name
  kCsv,      // rows of the file: "csv_row"
  kExample,  // serialized tensorflow.Examples: "example_proto"
};
ServingInputReceiverFn Receiver(ExportFormat format);

}  // namespace millrace::census

#endif  // MILLRACE_EXAMPLES_CENSUS_MODEL_H_
