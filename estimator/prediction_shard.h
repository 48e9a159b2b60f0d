// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_PREDICTION_SHARD_H_
#define MILLRACE_ESTIMATOR_PREDICTION_SHARD_H_

// PredictionShardWriter: predictions as rows of a file.
//
//   kJsonLines   {"class_ids":[1],"classes":["yes"],"logistic":[0.75]}
//                a line per row, keys in the order of the alphabet, values as formats/json_value.h
//                has them, nested as the tensors' dimensions are
//   kTfRecord    a tensorflow.Example per row, a feature per key: values flat; floats of all sizes
//                are floats, integers and bools int64, strings bytes.
//
// Equal rows give equal bytes.
//
// Thread-safety: thread-compatible. Failure: Unimplemented for a dtype that has no form;
// InvalidArgument for tensors that have not one number of rows; of the file.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

enum class PredictionFormat { kJsonLines, kTfRecord };

// "jsonl", "tfrecord": also how names of files end.
const char* PredictionFormatName(PredictionFormat format);
// InvalidArgument for another name.
StatusOr<PredictionFormat> ParsePredictionFormat(absl::string_view name);

// What is in a file.
struct ShardContent {
  int64_t rows = 0;
  int64_t bytes = 0;
  uint32_t crc32c = 0;  // of all bytes, not masked
};

class PredictionShardWriter {
 public:
  // Creates or truncates.
  static StatusOr<std::unique_ptr<PredictionShardWriter>> Create(FileSystem* fs,
                                                                 const std::string& path,
                                                                 PredictionFormat format);
  virtual ~PredictionShardWriter() = default;  // closes, ignoring errors

  // A row for each first index of the tensors, which are named in the same order.
  virtual Status Write(absl::Span<const std::string> names, absl::Span<const Tensor> values) = 0;
  // Others see what was written.
  virtual Status Flush() = 0;
  // On the device, and closed.
  virtual StatusOr<ShardContent> Finish() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_PREDICTION_SHARD_H_
