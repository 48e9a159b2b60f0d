// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_CLIENT_MODEL_CLIENT_H_
#define MILLRACE_SERVING_CLIENT_MODEL_CLIENT_H_

// ModelClient: asks a model server over gRPC: Millrace's, or any other of TensorFlow Serving's API.
//
//   #include <millrace/client.h>
//
//   MR_ASSIGN_OR_RETURN(const auto client, ModelClient::Connect("localhost:8500"));
//   MR_ASSIGN_OR_RETURN(const ModelPrediction got,
//                       client->Predict("census", {{"age", Tensor::Of({25.f, 38.f})}}));
//   Use(got.outputs.at("probabilities"), got.version);
//
// Every call has a deadline, which travels with it: a server stops what nobody waits for. A call
// that surely did not run is tried again within its deadline (serving/client/call_retries.h); one
// that may have run never is.
//
// Elements of tensors travel as raw bytes, without a message object between; of replies typed lists
// and raw bytes are read.
//
// Thread-safety: all methods, from any thread; many calls share one connection. They block.
// Lifetime: calls end before the client does.
// Failure: the server's status, its text unchanged; Unavailable when it cannot be reached;
// DeadlineExceeded; InvalidArgument for a reply that is no such message, and for options that
// contradict each other.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "core/tensor.h"
#include "net/security.h"
#include "serving/client/model_calls.h"  // IWYU pragma: export

namespace millrace {

class RpcChannel;

struct ModelClientOptions {
  // Token and TLS. Null: those of this process (docs/security.md), which may be none.
  std::shared_ptr<const Credentials> credentials = nullptr;
  // Of a call that has none of its own. Positive and finite.
  absl::Duration timeout = absl::Seconds(60);
  // More tries of a call that surely did not run.
  int max_retries = 5;
};

class ModelClient {
 public:
  // `address`: "host:port" or "unix:/path". Waits for nothing: a server may start later.
  static StatusOr<std::unique_ptr<ModelClient>> Connect(const std::string& address,
                                                        const ModelClientOptions& options = {});
  ~ModelClient();
  ModelClient(const ModelClient&) = delete;
  ModelClient& operator=(const ModelClient&) = delete;

  // Outputs by their aliases.
  StatusOr<ModelPrediction> Predict(const std::string& model,
                                    const std::map<std::string, Tensor>& inputs,
                                    const ModelPredictOptions& options = {}) const;

  // The state of the versions, the highest first; of one when `version` is given. NotFound for a
  // model that the server does not know.
  StatusOr<std::vector<ServedVersionStatus>> GetModelStatus(
      const std::string& model, std::optional<int64_t> version = std::nullopt) const;

  StatusOr<ServedModelMetadata> GetMetadata(const std::string& model,
                                            const ModelVersionChoice& which = {}) const;

  const std::string& address() const;

 private:
  ModelClient(std::shared_ptr<RpcChannel> channel, const ModelClientOptions& options);
  absl::Time DeadlineOf(std::optional<absl::Duration> timeout) const;

  const std::shared_ptr<RpcChannel> channel_;
  const absl::Duration timeout_;
  const int max_retries_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_CLIENT_MODEL_CLIENT_H_
