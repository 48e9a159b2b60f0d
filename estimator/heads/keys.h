// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_KEYS_H_
#define MILLRACE_ESTIMATOR_HEADS_KEYS_H_

// The names by which heads give predictions and metrics: TensorFlow 1.15's.

namespace millrace {

// --- Predictions ---------------------------------------------------------------------------------

inline constexpr char kLogits[] = "logits";
inline constexpr char kLogistic[] = "logistic";
inline constexpr char kProbabilities[] = "probabilities";
inline constexpr char kClassIds[] = "class_ids";
inline constexpr char kClasses[] = "classes";
inline constexpr char kAllClassIds[] = "all_class_ids";
inline constexpr char kAllClasses[] = "all_classes";
inline constexpr char kPredictions[] = "predictions";

// --- Signatures of an export besides "serving_default" -------------------------------------------

inline constexpr char kClassificationSignature[] = "classification";
inline constexpr char kRegressionSignature[] = "regression";
inline constexpr char kPredictSignature[] = "predict";

// --- Metrics -------------------------------------------------------------------------------------

inline constexpr char kLossMetric[] = "loss";
inline constexpr char kAverageLossMetric[] = "average_loss";
inline constexpr char kRegularizationLossMetric[] = "regularization_loss";
inline constexpr char kAccuracyMetric[] = "accuracy";
inline constexpr char kAccuracyBaselineMetric[] = "accuracy_baseline";
inline constexpr char kPrecisionMetric[] = "precision";
inline constexpr char kRecallMetric[] = "recall";
inline constexpr char kAucMetric[] = "auc";
inline constexpr char kAucPrecisionRecallMetric[] = "auc_precision_recall";
inline constexpr char kLabelMeanMetric[] = "label/mean";
inline constexpr char kPredictionMeanMetric[] = "prediction/mean";

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_KEYS_H_
