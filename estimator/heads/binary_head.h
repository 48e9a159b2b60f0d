// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_BINARY_HEAD_H_
#define MILLRACE_ESTIMATOR_HEADS_BINARY_HEAD_H_

// BinaryHead: yes or no.
//
//   logits          [batch, 1]
//   labels          [batch] or [batch, 1]: numbers in [0, 1]; words with a label_vocabulary of two
//   loss            sigmoid cross entropy
//   predictions     logits, logistic = sigmoid(logits), probabilities [batch, 2] of no and yes,
//                   class_ids [batch, 1] (0 where both are equal), classes
//   export          serving_default and classification: probabilities of classes; regression:
//                   logistic; predict: all predictions
//   metrics         accuracy, accuracy_baseline, auc, auc_precision_recall, average_loss,
//                   label/mean, precision, prediction/mean, recall, and at each threshold
//                   accuracy|precision|recall/positive_threshold_<t>
//
// Failure: as any head (estimator/heads/head.h).

#include <source_location>
#include <string>
#include <vector>

#include "estimator/heads/head.h"
#include "layers/losses.h"

namespace millrace {

struct BinaryHeadOptions {
  WeightColumn weight_column = {};
  std::vector<double> thresholds = {};             // in (0, 1)
  std::vector<std::string> label_vocabulary = {};  // two words: that of 0, that of 1
  LossReduction loss_reduction = LossReduction::kSum;
  LossFn loss_fn = {};  // losses of shape [batch, 1] of labels that are floats
  std::string name = "";
  // Predict "all_class_ids" and "all_classes", too, as TensorFlow does from 1.13 on.
  bool predict_all_classes = false;
};
HeadPtr BinaryHead(const BinaryHeadOptions& options = {},
                   std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_BINARY_HEAD_H_
