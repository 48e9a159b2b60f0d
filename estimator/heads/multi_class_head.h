// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_MULTI_CLASS_HEAD_H_
#define MILLRACE_ESTIMATOR_HEADS_MULTI_CLASS_HEAD_H_

// MultiClassHead: one of several classes.
//
//   logits          [batch, n_classes], n_classes > 2 (BinaryHead for two)
//   labels          [batch] or [batch, 1]: integers in [0, n_classes), or words of the
//                   label_vocabulary
//   loss            softmax cross entropy
//   predictions     logits, probabilities, class_ids [batch, 1] (the first of equals), classes
//   export          serving_default and classification: probabilities of classes; predict: all
//   metrics         accuracy, average_loss
//
// Failure: as any head (estimator/heads/head.h).

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "estimator/heads/head.h"
#include "layers/losses.h"

namespace millrace {

struct MultiClassHeadOptions {
  WeightColumn weight_column = {};
  std::vector<std::string> label_vocabulary = {};  // a word for each class
  LossReduction loss_reduction = LossReduction::kSum;
  LossFn loss_fn = {};  // losses of shape [batch, 1] of labels that are indices
  std::string name = "";
  bool predict_all_classes = false;  // as BinaryHeadOptions
};
HeadPtr MultiClassHead(int64_t n_classes, const MultiClassHeadOptions& options = {},
                       std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_MULTI_CLASS_HEAD_H_
