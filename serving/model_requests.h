// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MODEL_REQUESTS_H_
#define MILLRACE_SERVING_MODEL_REQUESTS_H_

// ModelRequests: requests of TensorFlow Serving's API over the models of a server, by messages.
// Both fronts, and callers within the process, ask here.
//
// A request pins one version, once, and ends on it, whatever loads or unloads meanwhile.
//
// Thread-safety: all methods, from any thread. A request runs in its caller's thread.
// Lifetime: shares `versions`, whose loader makes ServedModels, and the observer.
// Failure: codes and texts of TensorFlow Serving.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/status.h"
#include "serving/aliased_tensor.h"
#include "serving/model_versions.h"
#include "serving/request_observer.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"

namespace tensorflow::serving {
class GetModelStatusRequest;
class GetModelStatusResponse;
class ModelSpec;
class ReloadConfigRequest;
class ReloadConfigResponse;
}  // namespace tensorflow::serving

namespace millrace {

class ModelRequests {
 public:
  // `reload_timeout`: how long a reload waits for its models.
  // `observer` is told of each request that asks a model; null: nothing is.
  explicit ModelRequests(std::shared_ptr<ModelVersions> versions,
                         absl::Duration reload_timeout = absl::Minutes(10),
                         std::shared_ptr<RequestObserver> observer = nullptr)
      : versions_(std::move(versions)),
        observer_(std::move(observer)),
        reload_timeout_(reload_timeout) {}

  // A version of a model, for one request.
  class Pinned {
   public:
    explicit Pinned(ModelVersions::Pin pin) : pin_(std::move(pin)) {}
    const ServedModel* operator->() const { return model(); }
    const ServedModel& operator*() const { return *model(); }

   private:
    const ServedModel* model() const { return static_cast<const ServedModel*>(pin_.servable()); }
    ModelVersions::Pin pin_;
  };
  // What a ModelSpec means now. At most one of version and label.
  StatusOr<Pinned> Pin(const std::string& name, std::optional<int64_t> version,
                       const std::optional<std::string>& label,
                       const StepBounds& bounds = {}) const;
  // The same of a request, which must have a spec with a name.
  template <typename Request>
  StatusOr<Pinned> PinOf(const Request& request, const StepBounds& bounds = {}) const {
    return PinSpec(request.has_model_spec() ? &request.model_spec() : nullptr, bounds);
  }

  // `origin` is for the observer.
  Status Predict(const tensorflow::serving::PredictRequest& request, const StepBounds& bounds,
                 tensorflow::serving::PredictResponse* response,
                 const RequestOrigin& origin = {}) const;
  // The same for fronts that read and write tensors themselves: `request` without its inputs, which
  // are `inputs`. What no request may have is for Predict by messages: it has TensorFlow Serving's
  // texts. `reply` writes the reply, of so many bytes, before the request has ended.
  struct PredictedTensors {
    absl::Span<const AliasedTensor> outputs;     // in the order of the aliases
    const tensorflow::serving::ModelSpec& spec;  // of the reply
    bool as_content = false;                     // ServedModelOptions
  };
  using WriteReplyFn = absl::FunctionRef<StatusOr<int64_t>(const PredictedTensors& predicted)>;
  Status PredictTensors(const tensorflow::serving::PredictRequest& request,
                        absl::Span<const AliasedTensor> inputs, const StepBounds& bounds,
                        WriteReplyFn reply, const RequestOrigin& origin = {}) const;
  Status Classify(const tensorflow::serving::ClassificationRequest& request,
                  const StepBounds& bounds, tensorflow::serving::ClassificationResponse* response,
                  const RequestOrigin& origin = {}) const;
  Status Regress(const tensorflow::serving::RegressionRequest& request, const StepBounds& bounds,
                 tensorflow::serving::RegressionResponse* response,
                 const RequestOrigin& origin = {}) const;
  Status MultiInference(const tensorflow::serving::MultiInferenceRequest& request,
                        const StepBounds& bounds,
                        tensorflow::serving::MultiInferenceResponse* response,
                        const RequestOrigin& origin = {}) const;
  Status GetModelMetadata(const tensorflow::serving::GetModelMetadataRequest& request,
                          tensorflow::serving::GetModelMetadataResponse* response,
                          const StepBounds& bounds = {}) const;

  // Versions in descending order; a label is not looked at.
  Status GetModelStatus(const tensorflow::serving::GetModelStatusRequest& request,
                        tensorflow::serving::GetModelStatusResponse* response) const;
  // The list of models becomes this one; waits until each new one has an available version. After
  // an error of the list itself it is the one of before; of a model that does not load, the new
  // one, as in TensorFlow Serving. One at a time: Unavailable. The response says what the returned
  // status says.
  Status ReloadConfig(const tensorflow::serving::ReloadConfigRequest& request,
                      tensorflow::serving::ReloadConfigResponse* response) const;

  ModelVersions* versions() const { return versions_.get(); }
  // For fronts that ask a pinned model themselves; may be null.
  RequestObserver* observer() const { return observer_.get(); }

 private:
  StatusOr<Pinned> PinSpec(const tensorflow::serving::ModelSpec* spec,
                           const StepBounds& bounds) const;
  // Asks the model of `spec` by `ask`, seen by the observer.
  template <typename Request, typename Response>
  Status Ask(RequestApi api, const tensorflow::serving::ModelSpec* spec, const Request& request,
             const StepBounds& bounds, Response* response, const RequestOrigin& origin,
             Status (ServedModel::*ask)(const Request&, const StepBounds&, Response*) const) const;

  const std::shared_ptr<ModelVersions> versions_;
  const std::shared_ptr<RequestObserver> observer_;
  const absl::Duration reload_timeout_;
  mutable Mutex reload_mu_;  // held by the one reload that runs
};

// "2 model(s) did not become available: {a: ..., b: ...}", with the code of the first.
Status ModelsNotAvailable(const std::vector<std::pair<std::string, Status>>& models);

}  // namespace millrace

#endif  // MILLRACE_SERVING_MODEL_REQUESTS_H_
