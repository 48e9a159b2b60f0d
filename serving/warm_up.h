// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_WARM_UP_H_
#define MILLRACE_SERVING_WARM_UP_H_

// Warm-up: the requests that a model's exporter put next to it, run before others come.
//
//   MR_RETURN_IF_ERROR(WarmUp(*model, "models/flowers/3").status());
//
// They stand in assets.extra/tf_serving_warmup_requests: records (core/record.h), each a
// PredictionLog. Their answers are dropped. Which model and version a record names is not looked
// at. Each runs steps of its own: a model that batches keeps its places and queues for clients.
//
// Thread-safety: any thread, also while others use the model.
// Failure: InvalidArgument for bytes that are no PredictionLog and for more than kMaxWarmUpRecords;
// Unimplemented for the kinds SessionRun and PredictStreamed; DataLoss for a file that is none of
// records; what a request ends with. The first error ends it and names the record.

#include <cstdint>
#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"

namespace tensorflow::serving {
class PredictionLog;
}  // namespace tensorflow::serving

namespace millrace {

inline constexpr char kWarmUpFile[] = "assets.extra/tf_serving_warmup_requests";
// TensorFlow Serving's: a file of more was not meant to be run at each start.
inline constexpr int64_t kMaxWarmUpRecords = 1000;

struct WarmUpOptions {
  int iterations = 1;  // of each record, one after the other
  StepBounds bounds = {};
  FileSystem* file_system = FileSystem::Default();
};

// The number of records that were run; 0 when there is no file.
StatusOr<int64_t> WarmUp(const ServedModel& model, const std::string& directory,
                         const WarmUpOptions& options = {});

// The request of one record; a record without one is OK. The errors above, without the record.
Status RunWarmUpRecord(const ServedModel& model, const StepBounds& bounds,
                       const tensorflow::serving::PredictionLog& log);

}  // namespace millrace

#endif  // MILLRACE_SERVING_WARM_UP_H_
