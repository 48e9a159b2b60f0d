// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SUMMARY_VALUE_SUMMARY_H_
#define MILLRACE_OPS_SUMMARY_VALUE_SUMMARY_H_

// Summaries: values of a step as serialized Summary messages, for event files
// (saver/event_writer.h). train/summaries.h names them as TensorFlow's tf.summary does.

#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// A scalar string with one value per element of `values`, real numbers, under the tag at the same
// place of `tags`, strings of the same shape.
inline Output ScalarSummary(ScopeAt at, Output tags, Output values) {
  return BuildOp(at, "ScalarSummary", {tags, values});
}

// How many of `values`, real numbers of any shape, lie where (core/histogram.h); `tag` is a scalar.
// InvalidArgument "Nan in summary histogram for: <node>" and "Infinity in ...".
inline Output HistogramSummary(ScopeAt at, Output tag, Output values) {
  return BuildOp(at, "HistogramSummary", {tag, values});
}

// The values of several summaries in one. InvalidArgument for a tag that comes twice.
inline Output MergeSummary(ScopeAt at, absl::Span<const Output> inputs) {
  return BuildOp(at, "MergeSummary", {inputs});
}

struct TensorSummaryAttrs {
  std::string description = "";
  std::vector<std::string> labels = {};
  std::string display_name = "";
};
// A tensor of any type, under the name of the node. For old graphs.
inline Output TensorSummary(ScopeAt at, Output tensor, const TensorSummaryAttrs& attrs = {}) {
  return BuildOp(at, "TensorSummary", {tensor}, "description", attrs.description, "labels",
                 attrs.labels, "display_name", attrs.display_name);
}

// A tensor of any type under `tag`, with a serialized SummaryMetadata, which says what shows it.
inline Output TensorSummaryV2(ScopeAt at, Output tag, Output tensor,
                              Output serialized_summary_metadata) {
  return BuildOp(at, "TensorSummaryV2", {tag, tensor, serialized_summary_metadata});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SUMMARY_VALUE_SUMMARY_H_
