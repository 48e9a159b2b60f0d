// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/v2_grpc.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "net/tensor_coding.h"
#include "proto/inference/grpc_service.pb.h"
#include "serving/aliased_tensor.h"
#include "serving/protocols/v2_infer.h"
#include "serving/protocols/v2_messages.h"
#include "serving/request_observer.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"

namespace millrace {
namespace {

constexpr char kService[] = "/inference.GRPCInferenceService/";

// The raw contents of a request, which go from where they were received straight into tensors.
struct RawContents {
  std::vector<grpc::Slice> slices;
  std::vector<ReceivedBytes> fields;
  V2RawContents raw;  // of `fields`
};

// What comes with a message.
struct Asked {
  StepBounds bounds;
  RequestOrigin origin;
  const V2RawContents& raw;
};

template <typename Request>
Status Decode(const grpc::ByteBuffer& bytes, Request* request, RawContents*) {
  return DecodeMessage(request->GetTypeName(), bytes, request);
}
Status Decode(const grpc::ByteBuffer& bytes, inference::ModelInferRequest* request,
              RawContents* contents) {
  MR_RETURN_IF_ERROR(DecodeMessageAround(request->GetTypeName(), bytes, kV2RawInputContents,
                                         &contents->slices, &contents->fields, request));
  for (const ReceivedBytes& one : contents->fields) contents->raw.push_back(one.pieces);
  return absl::OkStatus();
}

// `answer(request, asked)` gives a StatusOr of the response.
template <typename Request, typename Answer>
RpcServer::Handler HandlerOf(CallWeight weight, Answer answer) {
  return RpcServer::Handler(
      [answer](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
        FinishWith(call.get(), [&]() -> StatusOr<grpc::ByteBuffer> {
          Request request;
          RawContents contents;
          MR_RETURN_IF_ERROR(Decode(bytes, &request, &contents));
          const Asked asked = {
              .bounds = {.deadline = call->deadline(), .cancellation = call->cancellation()},
              .origin = {.entrypoint = RequestEntrypoint::kGrpc,
                         .client = call->peer(),
                         .bytes_in = static_cast<int64_t>(bytes.Length())},
              .raw = contents.raw};
          MR_ASSIGN_OR_RETURN(const auto response, answer(request, asked));
          return EncodeMessage(response);
        });
      },
      weight);
}

// Ends `observed` while the tensors are there; after an error before the model it has not ended.
StatusOr<inference::ModelInferResponse> InferOn(const ServedModel& model,
                                                const inference::ModelInferRequest& request,
                                                const Asked& asked, ObservedRequest* observed) {
  MR_ASSIGN_OR_RETURN(const V2Infer read, ReadInferRequest(request, asked.raw));
  MR_ASSIGN_OR_RETURN(const std::vector<AliasedTensor> outputs,
                      RunObservedV2(model, read, asked.bounds, PredictCaller::kGrpc, observed));
  inference::ModelInferResponse response;
  response.set_model_name(request.model_name());
  response.set_model_version(absl::StrCat(model.version()));
  response.set_id(read.id);
  MR_RETURN_IF_ERROR(observed->End(WriteInferOutputs(outputs, read.raw_outputs, &response)));
  return response;
}

StatusOr<inference::ModelInferResponse> Infer(const ModelRequests& requests,
                                              const inference::ModelInferRequest& request,
                                              const Asked& asked) {
  std::optional<ModelRequests::Pinned> model;  // until the observer has seen the end
  ObservedRequest observed(requests.observer(), RequestApi::kPredict, asked.origin);
  observed.record()->model = request.model_name();
  StatusOr<inference::ModelInferResponse> response =
      NoExceptions("gRPC", [&]() -> StatusOr<inference::ModelInferResponse> {
        MR_ASSIGN_OR_RETURN(const V2Target target,
                            V2TargetOf(request.model_name(), request.model_version()));
        MR_ASSIGN_OR_RETURN(ModelRequests::Pinned pinned, PinV2(requests, target, asked.bounds));
        model.emplace(std::move(pinned));
        observed.Found(**model);
        return InferOn(**model, request, asked, &observed);
      });
  // Of what did not come to the model; else the end was before.
  if (!response.ok()) return observed.EndWithoutMessages(response.status());
  return response;
}

}  // namespace

std::map<std::string, RpcServer::Handler> InferenceHandlers(
    std::shared_ptr<const ModelRequests> requests, std::shared_ptr<const Readiness> readiness) {
  std::map<std::string, RpcServer::Handler> handlers;
  const auto add = [&](const char* method, RpcServer::Handler handler) {
    handlers[absl::StrCat(kService, method)] = std::move(handler);
  };
  add("ServerLive", HandlerOf<inference::ServerLiveRequest>(
                        CallWeight::kLight,
                        [](const auto&, const Asked&) -> StatusOr<inference::ServerLiveResponse> {
                          inference::ServerLiveResponse response;
                          response.set_live(true);
                          return response;
                        }));
  add("ServerReady",
      HandlerOf<inference::ServerReadyRequest>(
          CallWeight::kLight,
          [readiness](const auto&, const Asked&) -> StatusOr<inference::ServerReadyResponse> {
            inference::ServerReadyResponse response;
            response.set_ready(readiness->is_ready());
            return response;
          }));
  add("ModelReady",
      HandlerOf<inference::ModelReadyRequest>(
          CallWeight::kUrgent,
          [requests, readiness](const auto& request,
                                const Asked&) -> StatusOr<inference::ModelReadyResponse> {
            MR_ASSIGN_OR_RETURN(const V2Target target,
                                V2TargetOf(request.name(), request.version()));
            inference::ModelReadyResponse response;
            response.set_ready(IsModelReadyV2(*requests, *readiness, target) == V2Ready::kReady);
            return response;
          }));
  add("ServerMetadata",
      HandlerOf<inference::ServerMetadataRequest>(
          CallWeight::kLight,
          [](const auto&, const Asked&) -> StatusOr<inference::ServerMetadataResponse> {
            return ServerMetadataV2();
          }));
  add("ModelMetadata",
      HandlerOf<inference::ModelMetadataRequest>(
          CallWeight::kHeavy,  // a model may have to load first
          [requests](const auto& request,
                     const Asked& asked) -> StatusOr<inference::ModelMetadataResponse> {
            MR_ASSIGN_OR_RETURN(const V2Target target,
                                V2TargetOf(request.name(), request.version()));
            return ModelMetadataV2(*requests, target, asked.bounds);
          }));
  add("ModelInfer", HandlerOf<inference::ModelInferRequest>(
                        CallWeight::kHeavy, [requests](const auto& request, const Asked& asked) {
                          return Infer(*requests, request, asked);
                        }));
  return handlers;
}

}  // namespace millrace
