// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_CLIENT_MODEL_CALLS_H_
#define MILLRACE_SERVING_CLIENT_MODEL_CALLS_H_

// What callers of a model server say and get, by a port (model_client.h) and in its process
// (serving/server/local_model_server.h).
//
// Thread-safety: values. Failure: none.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "core/tensor.h"
#include "saver/model_signature.h"

namespace millrace {

// Which version of a model; nothing: the newest that is available.
struct ModelVersionChoice {
  std::optional<int64_t> version = std::nullopt;
  std::string label = "";  // "stable"; not with `version`
};

struct ModelPredictOptions {
  ModelVersionChoice which = {};
  std::string signature = "";             // "": serving_default
  std::vector<std::string> outputs = {};  // none: all
  std::optional<absl::Duration> timeout = std::nullopt;
};

struct ModelPrediction {
  std::map<std::string, Tensor> outputs;
  int64_t version = 0;  // that answered
  std::string signature;
};

// TensorFlow Serving's states and numbers.
enum class ServedVersionState : int32_t {
  kUnknown = 0,
  kStart = 10,
  kLoading = 20,
  kAvailable = 30,
  kUnloading = 40,
  kEnd = 50,
};

struct ServedVersionStatus {
  int64_t version = 0;
  ServedVersionState state = ServedVersionState::kUnknown;
  Status error;  // why it failed; OK otherwise
};

struct ServedModelMetadata {
  int64_t version = 0;
  // What callers feed and fetch, with dtypes and shapes.
  std::map<std::string, ModelSignature> signatures;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_CLIENT_MODEL_CALLS_H_
