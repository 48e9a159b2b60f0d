// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_MULTI_LABEL_HEAD_H_
#define MILLRACE_ESTIMATOR_HEADS_MULTI_LABEL_HEAD_H_

// MultiLabelHead: any number of several classes, which do not exclude each other.
//
//   logits          [batch, n_classes], n_classes > 1
//   labels          [batch, n_classes] of 0 and 1, or sparse [batch, ?]: integers in [0,
//   n_classes),
//                   or words of the label_vocabulary
//   loss            the mean over classes of sigmoid cross entropy
//   predictions     logits, probabilities = sigmoid(logits)
//   export          serving_default and classification: probabilities of classes; predict: all
//   metrics         auc, auc_precision_recall, average_loss, and at each threshold
//                   accuracy|precision|recall/positive_threshold_<t>; each class of each example
//                   counts by itself
//
// Failure: as any head (estimator/heads/head.h).

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "estimator/heads/head.h"
#include "layers/losses.h"

namespace millrace {

struct MultiLabelHeadOptions {
  WeightColumn weight_column = {};                 // of examples, not of classes
  std::vector<double> thresholds = {};             // in (0, 1)
  std::vector<std::string> label_vocabulary = {};  // a word for each class
  LossReduction loss_reduction = LossReduction::kSum;
  LossFn loss_fn = {};  // losses of shape [batch, 1] of labels of 0 and 1
  std::string name = "";
};
HeadPtr MultiLabelHead(int64_t n_classes, const MultiLabelHeadOptions& options = {},
                       std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_MULTI_LABEL_HEAD_H_
