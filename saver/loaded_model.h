// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_LOADED_MODEL_H_
#define MILLRACE_SAVER_LOADED_MODEL_H_

// LoadedModel: a SavedModel to predict with, by the names in its signatures.
//
//   MR_ASSIGN_OR_RETURN(LoadedModel model, LoadModel("export/1"));
//   MR_ASSIGN_OR_RETURN(NamedTensors out, model.Predict({{"ids", ids}}));
//   absl::Span<const float> scores = out.at("scores").flat<float>();
//
// The face of a ServableModel (saver/servable_model.h) by names. Inputs are checked against the
// signature before the model runs, as far as it says anything sound of their dtype and shape.
//
// Thread-safety: all methods, from any thread; many Predicts at once.
// Failure: LoadModel as ServableModel::Load. Predict: InvalidArgument for an
// unknown signature or input, a missing input, a wrong dtype or shape, with what there is instead;
// else the error of the step.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "runtime/session.h"
#include "saver/model.h"
#include "saver/servable_model.h"  // IWYU pragma: export

namespace millrace {

// Names that callers use -> tensors.
using NamedTensors = std::map<std::string, Tensor>;

struct PredictOptions {
  std::string signature = "serving_default";
};

class LoadedModel {
 public:
  // All outputs of the signature.
  StatusOr<NamedTensors> Predict(const NamedTensors& inputs,
                                 const PredictOptions& options = {}) const;
  // By their keys, without the one that names the init op.
  const std::map<std::string, ModelSignature>& signatures() const { return model_.signatures(); }
  // For what no signature names. Valid as long as the model.
  Session* session() const { return model_.session(); }

 private:
  friend StatusOr<LoadedModel> LoadModel(const std::string& directory,
                                         const LoadModelOptions& options);
  friend StatusOr<LoadedModel> LoadModel(const Model& model, const SessionOptions& options,
                                         const std::vector<std::string>& signatures);
  explicit LoadedModel(ServableModel model) : model_(std::move(model)) {}
  ServableModel model_;
};

StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadModelOptions& options = {});
// `signatures` as in LoadModelOptions.
StatusOr<LoadedModel> LoadModel(const Model& model, const SessionOptions& options = {},
                                const std::vector<std::string>& signatures = {});

}  // namespace millrace

#endif  // MILLRACE_SAVER_LOADED_MODEL_H_
