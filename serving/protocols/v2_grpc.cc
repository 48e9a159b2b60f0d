// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/v2_grpc.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "net/tensor_coding.h"
#include "proto/inference/grpc_service.pb.h"
#include "serving/aliased_tensor.h"
#include "serving/protocols/v2_infer.h"
#include "serving/protocols/v2_messages.h"
#include "serving/step_bounds.h"

namespace millrace {
namespace {

constexpr char kService[] = "/inference.GRPCInferenceService/";

// `answer(request, bounds)` gives a StatusOr of the response.
template <typename Request, typename Answer>
RpcServer::Handler HandlerOf(CallWeight weight, Answer answer) {
  return RpcServer::Handler(
      [answer](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
        FinishWith(call.get(), [&]() -> StatusOr<grpc::ByteBuffer> {
          Request request;
          MR_RETURN_IF_ERROR(DecodeMessage(request.GetTypeName(), bytes, &request));
          MR_ASSIGN_OR_RETURN(const auto response,
                              answer(request, StepBounds{.deadline = call->deadline(),
                                                         .cancellation = call->cancellation()}));
          return EncodeMessage(response);
        });
      },
      weight);
}

StatusOr<inference::ModelInferResponse> Infer(const ModelRequests& requests,
                                              const inference::ModelInferRequest& request,
                                              const StepBounds& bounds) {
  MR_ASSIGN_OR_RETURN(const V2Target target,
                      V2TargetOf(request.model_name(), request.model_version()));
  MR_ASSIGN_OR_RETURN(const ModelRequests::Pinned model, PinV2(requests, target, bounds));
  MR_ASSIGN_OR_RETURN(const V2Infer read, ReadInferRequest(request));
  MR_ASSIGN_OR_RETURN(const std::vector<AliasedTensor> outputs,
                      RunV2(*model, read, bounds, PredictCaller::kGrpc));
  inference::ModelInferResponse response;
  response.set_model_name(target.model);
  response.set_model_version(absl::StrCat(model->version()));
  response.set_id(read.id);
  MR_RETURN_IF_ERROR(WriteInferOutputs(outputs, read.raw_outputs, &response));
  return response;
}

}  // namespace

std::map<std::string, RpcServer::Handler> InferenceHandlers(
    std::shared_ptr<const ModelRequests> requests, std::shared_ptr<const Readiness> readiness) {
  std::map<std::string, RpcServer::Handler> handlers;
  const auto add = [&](const char* method, RpcServer::Handler handler) {
    handlers[absl::StrCat(kService, method)] = std::move(handler);
  };
  add("ServerLive",
      HandlerOf<inference::ServerLiveRequest>(
          CallWeight::kLight,
          [](const auto&, const StepBounds&) -> StatusOr<inference::ServerLiveResponse> {
            inference::ServerLiveResponse response;
            response.set_live(true);
            return response;
          }));
  add("ServerReady",
      HandlerOf<inference::ServerReadyRequest>(
          CallWeight::kLight,
          [readiness](const auto&, const StepBounds&) -> StatusOr<inference::ServerReadyResponse> {
            inference::ServerReadyResponse response;
            response.set_ready(readiness->is_ready());
            return response;
          }));
  add("ModelReady",
      HandlerOf<inference::ModelReadyRequest>(
          CallWeight::kUrgent,
          [requests, readiness](const auto& request,
                                const StepBounds&) -> StatusOr<inference::ModelReadyResponse> {
            MR_ASSIGN_OR_RETURN(const V2Target target,
                                V2TargetOf(request.name(), request.version()));
            inference::ModelReadyResponse response;
            response.set_ready(IsModelReadyV2(*requests, *readiness, target) == V2Ready::kReady);
            return response;
          }));
  add("ServerMetadata",
      HandlerOf<inference::ServerMetadataRequest>(
          CallWeight::kLight,
          [](const auto&, const StepBounds&) -> StatusOr<inference::ServerMetadataResponse> {
            return ServerMetadataV2();
          }));
  add("ModelMetadata",
      HandlerOf<inference::ModelMetadataRequest>(
          CallWeight::kHeavy,  // a model may have to load first
          [requests](const auto& request,
                     const StepBounds& bounds) -> StatusOr<inference::ModelMetadataResponse> {
            MR_ASSIGN_OR_RETURN(const V2Target target,
                                V2TargetOf(request.name(), request.version()));
            return ModelMetadataV2(*requests, target, bounds);
          }));
  add("ModelInfer",
      HandlerOf<inference::ModelInferRequest>(
          CallWeight::kHeavy, [requests](const auto& request, const StepBounds& bounds) {
            return Infer(*requests, request, bounds);
          }));
  return handlers;
}

}  // namespace millrace
