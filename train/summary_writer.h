// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SUMMARY_WRITER_H_
#define MILLRACE_TRAIN_SUMMARY_WRITER_H_

// SummaryWriter: where hooks write what TensorBoard shows. The event files that implement it are
// another library's; hooks that were given none do without.
//
// Thread-safety: all methods, from any thread.
// Failure: of the files; hooks log it and go on, as training is worth more than its curve.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace tensorflow {
class GraphDef;
class RunMetadata;
}  // namespace tensorflow

namespace millrace {

// TensorFlow's SessionLog.
enum class SessionEvent { kStart, kStop, kCheckpoint };

class SummaryWriter {
 public:
  virtual ~SummaryWriter() = default;
  virtual Status AddScalar(absl::string_view tag, double value, int64_t step) = 0;
  // `summary`: a serialized Summary, as summary operations give it.
  virtual Status AddSummary(absl::string_view summary, int64_t step) = 0;
  virtual Status AddGraph(const tensorflow::GraphDef& graph) = 0;
  // A serialized MetaGraphDef.
  virtual Status AddMetaGraph(absl::string_view meta_graph) = 0;
  virtual Status AddRunMetadata(absl::string_view tag, const tensorflow::RunMetadata& metadata,
                                int64_t step) = 0;
  // `checkpoint`: the path, of kCheckpoint.
  virtual Status AddSessionEvent(SessionEvent event, int64_t step,
                                 absl::string_view checkpoint) = 0;
  virtual Status Flush() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SUMMARY_WRITER_H_
