// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVED_MODEL_H_
#define MILLRACE_SERVING_SERVED_MODEL_H_

// ServedModel: one loaded version of a model, as requests of TensorFlow Serving's API ask it.
//
//   MR_ASSIGN_OR_RETURN(const auto model, ServedModel::Load("flowers", 3, "models/flowers/3"));
//   tensorflow::serving::PredictResponse response;
//   MR_RETURN_IF_ERROR(model->Predict(request, {.deadline = deadline}, &response));
//
// Which model and version a request means was settled before; its model_spec is only asked for the
// signature, and for the name that the reply repeats. Codes and texts of errors are TensorFlow
// Serving's. What a request's tensors must be is checked by the session, not here.
//
// All signatures are compiled when the model is loaded (saver/servable_model.h): a request for all
// outputs of one compiles nothing and takes no lock. Other sets of outputs (an output filter,
// several signatures at once) are compiled at their first request; so many of them are kept, those
// that were not asked for the longest go first.
//
// Of the meta graph only the signatures stay.
//
// Thread-safety: all methods, from any thread; many requests at once.
// Lifetime: destroy it after the last request.
// Failure: Load as ServableModel::Load. Requests: InvalidArgument and FailedPrecondition for what
// does not fit the signature; DeadlineExceeded and Cancelled as their bounds say; else the error of
// the step. Responses are empty after an error.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/session.h"
#include "saver/model_signature.h"
#include "saver/servable_model.h"
#include "serving/aliased_tensor.h"
#include "serving/servable.h"
#include "serving/step_bounds.h"

namespace tensorflow::serving {
class ClassificationRequest;
class ClassificationResponse;
class GetModelMetadataRequest;
class GetModelMetadataResponse;
class ModelSpec;
class MultiInferenceRequest;
class MultiInferenceResponse;
class PredictRequest;
class PredictResponse;
class RegressionRequest;
class RegressionResponse;
}  // namespace tensorflow::serving

namespace millrace {

class StepRunner;  // serving/step_runner.h

struct ServedModelOptions {
  LoadModelOptions load = {};
  // Replies carry tensors as raw content; clients of TensorFlow Serving read typed lists.
  bool serialize_as_tensor_content = false;
  // Refuses signatures whose method is another one than the call's. Models of TensorFlow 2 have one
  // method for all.
  bool check_method_names = false;
  // Sets of outputs that are kept compiled.
  int max_output_sets = 64;
  // What the elements that a request's tensors do not list may take in memory: the last one
  // repeats, so a few bytes can stand for gigabytes.
  int64_t max_splat_bytes = int64_t{256} << 20;
  // Runs the steps of requests; null: each at once, alone.
  std::shared_ptr<StepRunner> runner = nullptr;
};

// Who asked, which decides the text for a signature that the model does not have.
enum class PredictCaller { kGrpc, kRest };

class ServedModel : public Servable {
 public:
  // The SavedModel in `directory`.
  static StatusOr<std::unique_ptr<ServedModel>> Load(std::string name, int64_t version,
                                                     const std::string& directory,
                                                     const ServedModelOptions& options = {});
  ~ServedModel() override;

  const std::string& name() const;
  int64_t version() const;
  // The sizes of the model's files, without those that only its graph reads.
  int64_t num_bytes() const override;
  // By their keys, without the one that names the init op.
  const std::map<std::string, ModelSignature>& signatures() const;
  // For what no signature names. Valid as long as the model.
  Session* session() const;

  Status Predict(const tensorflow::serving::PredictRequest& request, const StepBounds& bounds,
                 tensorflow::serving::PredictResponse* response) const;
  // The same with tensors: `filter` names the outputs, none: all. The result is in the order of the
  // aliases. `signature_name` "" is the default one.
  StatusOr<std::vector<AliasedTensor>> PredictTensors(absl::string_view signature_name,
                                                      absl::Span<const AliasedTensor> inputs,
                                                      absl::Span<const std::string> filter,
                                                      const StepBounds& bounds,
                                                      PredictCaller caller) const;

  Status Classify(const tensorflow::serving::ClassificationRequest& request,
                  const StepBounds& bounds,
                  tensorflow::serving::ClassificationResponse* response) const;
  Status Regress(const tensorflow::serving::RegressionRequest& request, const StepBounds& bounds,
                 tensorflow::serving::RegressionResponse* response) const;
  // All tasks in one step.
  Status MultiInference(const tensorflow::serving::MultiInferenceRequest& request,
                        const StepBounds& bounds,
                        tensorflow::serving::MultiInferenceResponse* response) const;

  // "signature_def" is the only field: the signatures as they stand in the model's file.
  Status GetModelMetadata(const tensorflow::serving::GetModelMetadataRequest& request,
                          tensorflow::serving::GetModelMetadataResponse* response) const;

  // As the options say.
  bool serializes_as_tensor_content() const;

  // Sets of outputs that are compiled now, those of whole signatures apart.
  int num_output_sets() const;

 private:
  struct Impl;
  explicit ServedModel(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// The spec of a reply: the name and the signature as asked, the version, no label.
void FillModelSpec(const tensorflow::serving::ModelSpec& asked, int64_t version,
                   tensorflow::serving::ModelSpec* spec);

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVED_MODEL_H_
