// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_V2_INFER_H_
#define MILLRACE_SERVING_PROTOCOLS_V2_INFER_H_

// Requests of the Open Inference Protocol (version 2) over the models of a server, whichever way
// they came: gRPC (v2_messages.h) or JSON (v2_json.h).
//
// Inputs and outputs are those of a signature: serving_default, or the one that the request's
// parameter signature_name says. Versions are numbers; "" is the latest.
//
// Thread-safety: pure functions over ModelRequests. Failure: codes of ModelRequests;
// InvalidArgument for what no model can answer.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "serving/aliased_tensor.h"
#include "serving/model_requests.h"
#include "serving/protocols/readiness.h"
#include "serving/request_observer.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"

namespace inference {
class ModelMetadataResponse;
class ServerMetadataResponse;
}  // namespace inference

namespace millrace {

// The parameter of a request that names a signature.
inline constexpr char kV2SignatureParameter[] = "signature_name";

struct V2Infer {
  struct Output {
    std::string name;
    bool raw = false;
  };
  std::string id;
  std::string signature_name;  // "": the default
  std::vector<AliasedTensor> inputs;
  std::vector<Output> outputs;  // none: all
  bool raw_outputs = false;     // of those that are not listed
};

// What a request is for.
struct V2Target {
  std::string model;
  std::optional<int64_t> version;
};
StatusOr<V2Target> V2TargetOf(absl::string_view model, absl::string_view version);

StatusOr<ModelRequests::Pinned> PinV2(const ModelRequests& requests, const V2Target& target,
                                      const StepBounds& bounds = {});

// The outputs in the order of the request; all of them in the order of their names.
StatusOr<std::vector<AliasedTensor>> RunV2(const ServedModel& model, const V2Infer& request,
                                           const StepBounds& bounds, PredictCaller caller);

// The same, told to `observed`, which has ended after an error. Its record points to the request
// and to what was returned.
StatusOr<std::vector<AliasedTensor>> RunObservedV2(const ServedModel& model, const V2Infer& request,
                                                   const StepBounds& bounds, PredictCaller caller,
                                                   ObservedRequest* observed);

enum class V2Ready { kReady, kNotReady, kUnknown };
// A model, or a version of it, that is listed or still holds something is known.
V2Ready IsModelReadyV2(const ModelRequests& requests, const Readiness& readiness,
                       const V2Target& target);

// Of the default signature: a model without it has no inputs and outputs here. Dimensions of any
// size, and the one dimension of an unknown rank, are -1; a dtype without a name in the protocol
// has TensorFlow's.
StatusOr<inference::ModelMetadataResponse> ModelMetadataV2(const ModelRequests& requests,
                                                           const V2Target& target,
                                                           const StepBounds& bounds = {});
inference::ServerMetadataResponse ServerMetadataV2();

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_V2_INFER_H_
