// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SERVING_SERVED_PROCESS_H_
#define MILLRACE_TESTS_SERVING_SERVED_PROCESS_H_

// ServedProcess: the program model_server, run by a test, and ways to ask it.
//
//   ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = {...}}));
//   ASSERT_OK_AND_ASSIGN(const float scale, server->AskGrpc("m", 3));
//
// Ports are free ones; when somebody else takes one meanwhile, others are taken. It has started
// when both are open.
//
// Thread-safety: all methods, from any thread but for process()'s destructor; a RestAsker is its
// thread's own. Lifetime: as Process (tests/cluster/process.h): the thread that called Start lives
// as long. The destructor kills it.
// Failure: of Start: what the program printed. Requests: gRPC's status; Internal for a reply that
// is not the right one; of HTTP, the status in the text.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "net/http/testing/raw_http_client.h"
#include "net/rpc_channel.h"
#include "net/tensor_coding.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/predict.pb.h"
#include "tests/cluster/process.h"

namespace millrace {

// What takes longer hangs.
inline constexpr absl::Duration kServingHang = absl::Seconds(120);

// The request that goes with `x`: rows {x, x + 1} and "w<x>", for ExportScaling's signature.
tensorflow::serving::PredictRequest ScalingRequest(const std::string& model, int x);
// The scale by which the reply to it was computed; Internal for what is no reply to it.
StatusOr<float> ScaleOf(const tensorflow::serving::PredictResponse& response, int x);
// The same as JSON of REST and of /v2.
std::string ScalingRestBody(int x);
std::string ScalingV2Body(int x);
StatusOr<float> ScaleOfRest(const RawHttpReply& reply, int x);
StatusOr<float> ScaleOfV2(const RawHttpReply& reply, int x);

// Asks for the condition until it holds, with pauses; false when kServingHang is over.
template <typename Condition>
bool AwaitServing(const Condition& condition);
void PauseServing();

struct ServedProcessOptions {
  std::vector<std::string> args = {};  // without ports
  int grpc_port = 0, rest_port = 0;    // 0: free ones
};

class ServedProcess {
 public:
  static StatusOr<std::unique_ptr<ServedProcess>> Start(const ServedProcessOptions& options);

  Process* process() const { return process_.get(); }
  int grpc_port() const { return grpc_port_; }
  int rest_port() const { return rest_port_; }
  const std::shared_ptr<RpcChannel>& channel() const { return channel_; }

  template <typename Request, typename Response>
  Status Call(const std::string& path, const Request& request, Response* response) const {
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, EncodeMessage(request));
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer reply,
                        channel_->Call(path, {.deadline = absl::Now() + kServingHang}, bytes));
    response->Clear();
    return DecodeMessage(path, reply, response);
  }
  Status Predict(const tensorflow::serving::PredictRequest& request,
                 tensorflow::serving::PredictResponse* response) const;
  // Bytes that need be no message.
  Status CallRaw(const std::string& path, const std::string& bytes) const;
  // The scale, by gRPC.
  StatusOr<float> AskGrpc(const std::string& model, int x,
                          std::optional<int64_t> version = std::nullopt) const;
  // On a connection of its own.
  RawHttpReply Rest(absl::string_view method, absl::string_view path, absl::string_view body = "",
                    absl::string_view headers = "") const;
  // Versions of a model by GetModelStatus.
  using Versions = std::map<int64_t, tensorflow::serving::ModelVersionStatus>;
  StatusOr<Versions> StatusOf(const std::string& model) const;
  // Waits until one version is in a state.
  bool AwaitState(const std::string& model, int64_t version,
                  tensorflow::serving::ModelVersionStatus::State state) const;
  // Requests for steps that run now, by the page of status.
  StatusOr<int64_t> NumRunning() const;
  // By SIGTERM; the exit code.
  StatusOr<int> Terminate(absl::Duration timeout = kServingHang) const;

 private:
  ServedProcess() = default;
  std::unique_ptr<Process> process_;
  int grpc_port_ = 0, rest_port_ = 0;
  std::shared_ptr<RpcChannel> channel_;
};

// Asks over one connection as long as the server keeps it.
class RestAsker {
 public:
  enum class Api { kRest, kV2 };
  RestAsker(int port, std::string model, Api api)
      : port_(port), model_(std::move(model)), api_(api) {}

  StatusOr<float> Ask(int x);

 private:
  const int port_;
  const std::string model_;
  const Api api_;
  std::optional<RawHttpClient> client_;
};

template <typename Condition>
bool AwaitServing(const Condition& condition) {
  for (const absl::Time hang = absl::Now() + kServingHang;;) {
    if (condition()) return true;
    if (absl::Now() >= hang) return false;
    PauseServing();
  }
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_SERVING_SERVED_PROCESS_H_
