// SPDX-License-Identifier: Apache-2.0
#include "estimator/export_output.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "saver/saved_model.h"

namespace millrace {
namespace {

Status Check(const std::string& name, const ExportOutput& output) {
  const std::string where = absl::StrCat("export_outputs['", name, "']");
  const auto check = [&](const char* field, const Output& tensor, bool is_text) -> Status {
    if (!tensor.valid()) return absl::OkStatus();
    const DType dtype = WithoutRef(tensor.dtype());
    const bool fits = is_text ? dtype == DT_STRING : IsFloating(dtype);
    if (fits) return absl::OkStatus();
    return InvalidArgument("model_fn: ", where, ".", field, " must be ",
                           is_text ? "strings" : "of a floating type", ", got ", dtype, " '",
                           tensor.name(), "'");
  };
  switch (output.kind) {
    case ExportOutput::Kind::kClassification:
      if (!output.scores.valid() && !output.classes.valid()) {
        return InvalidArgument("model_fn: ", where, " must have scores or classes, got none");
      }
      MR_RETURN_IF_ERROR(check("scores", output.scores, false));
      return check("classes", output.classes, true);
    case ExportOutput::Kind::kRegression:
      if (!output.value.valid()) {
        return InvalidArgument("model_fn: ", where, " must have a value, got none");
      }
      return check("value", output.value, false);
    case ExportOutput::Kind::kPredict:
      if (output.outputs.empty()) {
        return InvalidArgument("model_fn: ", where, " must have outputs, got none");
      }
      for (const auto& [key, tensor] : output.outputs.map()) {
        if (tensor.valid()) continue;
        return InvalidArgument("model_fn: ", where, "['", key,
                               "'] must be a tensor, got an invalid one");
      }
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace

ExportOutput ClassificationOutput(Output scores, Output classes) {
  ExportOutput output;
  output.kind = ExportOutput::Kind::kClassification;
  output.scores = std::move(scores);
  output.classes = std::move(classes);
  return output;
}

ExportOutput RegressionOutput(Output value) {
  ExportOutput output;
  output.kind = ExportOutput::Kind::kRegression;
  output.value = std::move(value);
  return output;
}

ExportOutput PredictOutput(Predictions outputs) {
  ExportOutput output;
  output.outputs = std::move(outputs);
  return output;
}

StatusOr<std::map<std::string, ExportOutput>> ResolveExportOutputs(
    const std::map<std::string, ExportOutput>& outputs, const Predictions& predictions) {
  std::map<std::string, ExportOutput> resolved = outputs;
  if (resolved.empty()) resolved[kDefaultServingSignature] = PredictOutput(predictions);
  for (const auto& [name, output] : resolved) MR_RETURN_IF_ERROR(Check(name, output));
  if (resolved.count(kDefaultServingSignature) == 0) {
    if (resolved.size() > 1) {
      return InvalidArgument(
          "model_fn: export_outputs must have one called '", kDefaultServingSignature, "', got ",
          absl::StrJoin(resolved, ", ", [](std::string* out, const auto& output) {
            absl::StrAppend(out, "'", output.first, "'");
          }));
    }
    resolved[kDefaultServingSignature] = resolved.begin()->second;
  }
  return resolved;
}

}  // namespace millrace
