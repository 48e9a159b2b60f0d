// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_CLASSES_H_
#define MILLRACE_ESTIMATOR_HEADS_CLASSES_H_

// Classes: what heads that choose among classes have in common: the names of the classes (of a
// vocabulary, else their numbers as text), and the metrics of labels and probabilities.
//
// Failure: in the scope.

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "estimator/export_output.h"
#include "estimator/heads/head_inputs.h"
#include "estimator/heads/loss_head.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "ops/array/number_or_output.h"

namespace millrace {

struct Classes {
  int64_t count = 2;
  std::vector<std::string> vocabulary = {};  // none, or a name for each class

  // InvalidArgument for a vocabulary of another size, or with a word twice; `head` is the head's
  // function.
  Status Check(const char* head) const;
  // The classes of ids (int64), as strings of that shape; nodes are named in `at`'s scope.
  Output NamesOf(ScopeAt at, const Output& ids) const;
  // All of them in a row for each row of `like`: int32 and string [batch, count].
  Output AllIds(ScopeAt at, const Output& like) const;
  Output AllNames(ScopeAt at, const Output& like) const;
  // With a row of names for each row of scores [batch, count].
  ExportOutput Classification(ScopeAt at, const Output& scores) const;
};

// `logits` or what decides among classes as they do: "class_ids" [D0, ..., 1], int64 (the first of
// equals), "classes" and, if `all`, "all_class_ids" and "all_classes".
void AddClasses(const HeadInputs& in, const Scope& scope, const Classes& classes,
                const Output& logits, bool all, Predictions::Map* predictions);

// Of two classes, or of several that do not exclude each other.
struct Scores {
  Output labels;  // in [0, 1]
  Output probabilities;
  NumberOrOutput weights;
};
// "auc", "auc_precision_recall".
void AddAucMetrics(ScopeAt at, const Scores& scores, MetricMap* metrics);
// "accuracy/positive_threshold_<t>", "precision/…", "recall/…" for each. Accuracy counts a
// probability at the threshold as positive; precision and recall do not.
void AddThresholdMetrics(ScopeAt at, const Scores& scores, const std::vector<double>& thresholds,
                         MetricMap* metrics);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_CLASSES_H_
