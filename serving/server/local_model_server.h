// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_LOCAL_MODEL_SERVER_H_
#define MILLRACE_SERVING_SERVER_LOCAL_MODEL_SERVER_H_

// LocalModelServer: a model server inside of a program, without a port: versions that come and go
// while requests run, batching, warm-up and metrics, all as of the program model_server.
//
//   #include <millrace/model_server.h>
//
//   MR_ASSIGN_OR_RETURN(const auto server,
//                       LocalModelServer::Start({.models = {{.name = "census",
//                                                            .base_path = "/models/census"}}}));
//   MR_ASSIGN_OR_RETURN(const ModelPrediction got,
//                       server->Predict("census", {{"age", Tensor::Of({25.f, 38.f})}}));
//
// It is asked as a server with a port is by ModelClient (serving/client/model_client.h), by the
// same names, or by TensorFlow Serving's messages. A request runs in its caller's thread, pins one
// version and ends on it. Tensors go in and out without a copy.
//
// A relative base path is of the directory that was current at the call.
//
// Thread-safety: all methods, from any thread.
// Lifetime: calls end before the object does.
// Failure: as a server's, with TensorFlow Serving's codes and texts: NotFound "Servable not found
// for request: ..." for what is not there; InvalidArgument for inputs that do not fit and for
// options that contradict each other; DeadlineExceeded; Unavailable after Stop.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "core/tensor.h"
#include "serving/client/model_calls.h"  // IWYU pragma: export

// <millrace/proto/serving/predict.pb.h> and so on.
namespace tensorflow::serving {
class ClassificationRequest;
class ClassificationResponse;
class MultiInferenceRequest;
class MultiInferenceResponse;
class PredictRequest;
class PredictResponse;
class RegressionRequest;
class RegressionResponse;
}  // namespace tensorflow::serving

namespace millrace {

// A directory of versions, each a SavedModel in a directory whose name is a number.
struct LocalModel {
  std::string name;
  std::string base_path;
  int num_latest = 1;                          // so many of the highest versions serve
  std::vector<int64_t> versions = {};          // these serve instead, where there are some
  std::map<std::string, int64_t> labels = {};  // to versions
};

struct LocalModelServerOptions {
  std::vector<LocalModel> models = {};
  // Or a ModelServerConfig as text, as --model_config_file has it.
  std::string model_config = "";
  // Start fails when one of several models is not available; else the others serve.
  bool require_all_models = false;
  // How long Start waits for them.
  absl::Duration start_timeout = absl::InfiniteDuration();

  // Requests that wait together run in one step; without parameters nothing waits for others.
  bool batching = false;
  std::string batching_parameters = "";  // a BatchingParameters as text

  bool warm_up = true;  // by the requests that stand next to a version
  // And by so many of the last requests that a model_config's logging_config has logged.
  int64_t warm_up_from_request_log = 0;
  // Between two looks for versions; infinite: by Start until files have settled, then by Poll and
  // Reload alone.
  absl::Duration poll_period = absl::Seconds(1);
  // Takes a version as soon as its directory is there.
  bool trust_new_versions = false;
  int max_load_retries = 5;
  // More models than memory, as --load_on_demand, --idle_unload_seconds, --model_memory_limit.
  bool load_on_demand = false;
  absl::Duration idle_unload = absl::InfiniteDuration();
  int64_t memory_limit = 0;
  // Of a model's session; 0: those of the process.
  int intra_op_threads = 0, inter_op_threads = 0;
};

class LocalModelServer {
 public:
  // Waits until each model has an available version, or has failed its first try.
  static StatusOr<std::unique_ptr<LocalModelServer>> Start(const LocalModelServerOptions& options);
  ~LocalModelServer();
  LocalModelServer(const LocalModelServer&) = delete;
  LocalModelServer& operator=(const LocalModelServer&) = delete;

  // Outputs by their aliases. Without a timeout it has none.
  StatusOr<ModelPrediction> Predict(const std::string& model,
                                    const std::map<std::string, Tensor>& inputs,
                                    const ModelPredictOptions& options = {}) const;
  // By message; the response is empty after an error.
  Status Predict(const tensorflow::serving::PredictRequest& request,
                 tensorflow::serving::PredictResponse* response,
                 absl::Duration timeout = absl::InfiniteDuration()) const;
  Status Classify(const tensorflow::serving::ClassificationRequest& request,
                  tensorflow::serving::ClassificationResponse* response,
                  absl::Duration timeout = absl::InfiniteDuration()) const;
  Status Regress(const tensorflow::serving::RegressionRequest& request,
                 tensorflow::serving::RegressionResponse* response,
                 absl::Duration timeout = absl::InfiniteDuration()) const;
  Status MultiInference(const tensorflow::serving::MultiInferenceRequest& request,
                        tensorflow::serving::MultiInferenceResponse* response,
                        absl::Duration timeout = absl::InfiniteDuration()) const;

  // As of ModelClient.
  StatusOr<std::vector<ServedVersionStatus>> GetModelStatus(
      const std::string& model, std::optional<int64_t> version = std::nullopt) const;
  StatusOr<ServedModelMetadata> GetMetadata(const std::string& model,
                                            const ModelVersionChoice& which = {}) const;

  // From now on these are the models: waits until the new ones have been tried, then others
  // unload. After an error of the list the old one stays.
  Status Reload(const std::vector<LocalModel>& models, absl::Duration timeout = absl::Minutes(10));
  // Looks for versions once, in this thread. What it finds loads behind it.
  void Poll();

  // What /millrace/status says: JSON.
  std::string StatusText() const;
  // Metrics for Prometheus, by TensorFlow Serving's names and ours.
  std::string MetricsText() const;

  // Later requests are Unavailable; those that run end as they would. Then the models go.
  // Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit LocalModelServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_LOCAL_MODEL_SERVER_H_
