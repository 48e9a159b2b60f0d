// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SUMMARIES_H_
#define MILLRACE_TRAIN_SUMMARIES_H_

// Summaries: what a model shows of its steps in TensorBoard, named as tf.summary names it.
//
//   AddScalarSummary(model, "loss", loss);
//   AddHistogramSummary(model, "conv1/weights", w.value);
//   Output all = MergeAllSummaries(root);
//   ...
//   events->AddSerializedSummary(out[0].scalar<std::string>(), step);   // saver/event_writer.h
//
// The node, and the tag, is the scope's prefix and the name, made unique. Characters that a tag
// must not have become '_'. With a family the tag is `<family>/<prefix><family>/<name>`:
// TensorBoard shows the summaries of a family together.
//
// Each is a scalar string, entered into its collections by its name. Errors go into the Scope.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/scope.h"

namespace millrace {

struct SummaryAttrs {
  std::string family = "";
  std::vector<std::string> collections = {"summaries"};
};

// One real number.
Output AddScalarSummary(ScopeAt at, absl::string_view name, Output value,
                        const SummaryAttrs& attrs = {});
// Real numbers of any shape; a step that gives one that is not finite fails.
Output AddHistogramSummary(ScopeAt at, absl::string_view name, Output values,
                           const SummaryAttrs& attrs = {});
// The first `max_images` of a batch of images (ops/summary/image_summary.h).
Output AddImageSummary(ScopeAt at, absl::string_view name, Output images, int max_images = 3,
                       const SummaryAttrs& attrs = {});
// Strings of any shape, shown as text and, of rank 2 and less, as tables.
Output AddTextSummary(ScopeAt at, absl::string_view name, Output text,
                      const SummaryAttrs& attrs = {});

// All summaries of a collection in one; an invalid Output, and no error, when there are none.
Output MergeAllSummaries(ScopeAt at, const std::string& collection = "summaries");

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SUMMARIES_H_
