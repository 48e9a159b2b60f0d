// SPDX-License-Identifier: Apache-2.0
#include "serving/server/grpc_front.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/exceptions.h"
#include "net/tensor_coding.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/method_paths.h"
#include "proto/serving/model_management.pb.h"
#include "proto/serving/regression.pb.h"
#include "proto/serving/session_service.pb.h"
#include "serving/cut_text.h"
#include "serving/request_observer.h"
#include "serving/server/message_cost.h"
#include "serving/server/predict_call.h"
#include "serving/session_run.h"
#include "serving/step_bounds.h"

namespace millrace {
namespace {

constexpr size_t kMaxTextBytes = 1024;

using Requests = std::shared_ptr<const ModelRequests>;

// What comes with a message.
struct Asked {
  StepBounds bounds;
  RequestOrigin origin;
};

// `answer(requests, bytes, asked)` gives the bytes of the reply.
template <typename Answer>
RpcServer::Handler BytesHandlerOf(Requests requests, CallWeight weight, Answer answer) {
  return RpcServer::Handler(
      [requests = std::move(requests), answer](std::shared_ptr<ServerCall> call,
                                               const grpc::ByteBuffer& bytes) {
        StatusOr<grpc::ByteBuffer> reply =
            NoExceptions(call->method(), [&]() -> StatusOr<grpc::ByteBuffer> {
              const Asked asked = {
                  .bounds = {.deadline = call->deadline(), .cancellation = call->cancellation()},
                  .origin = {.entrypoint = RequestEntrypoint::kGrpc,
                             .client = call->peer(),
                             .bytes_in = static_cast<int64_t>(bytes.Length())}};
              return answer(*requests, bytes, asked);
            });
        if (!reply.ok()) return call->FinishWithStatus(CutForClients(reply.status()));
        call->Finish(*reply);
      },
      weight);
}

// `answer(requests, request, asked, &response)`.
template <typename Request, typename Response, typename Answer>
RpcServer::Handler HandlerOf(Requests requests, CallWeight weight, Answer answer) {
  return BytesHandlerOf(std::move(requests), weight,
                        [answer](const ModelRequests& r, const grpc::ByteBuffer& bytes,
                                 const Asked& asked) -> StatusOr<grpc::ByteBuffer> {
                          Request request;
                          MR_RETURN_IF_ERROR(CheckReceivedCost(*Request::descriptor(), bytes));
                          MR_RETURN_IF_ERROR(DecodeMessage(request.GetTypeName(), bytes, &request));
                          Response response;
                          MR_RETURN_IF_ERROR(answer(r, request, asked, &response));
                          return EncodeMessage(response);
                        });
}

}  // namespace

Status CutForClients(const Status& status) {
  if (status.message().size() <= kMaxTextBytes) return status;
  return Status(status.code(), CutText(status.message(), kMaxTextBytes));
}

std::map<std::string, RpcServer::Handler> GrpcFront(Requests requests) {
  namespace serving = tensorflow::serving;
  std::map<std::string, RpcServer::Handler> handlers;
  handlers[kPredictPath] =
      BytesHandlerOf(requests, CallWeight::kHeavy,
                     [](const ModelRequests& r, const grpc::ByteBuffer& bytes, const Asked& asked) {
                       return AnswerPredict(r, bytes, asked.bounds, asked.origin);
                     });
  handlers[kClassifyPath] =
      HandlerOf<serving::ClassificationRequest, serving::ClassificationResponse>(
          requests, CallWeight::kHeavy,
          [](const ModelRequests& r, const auto& request, const Asked& asked, auto* response) {
            return r.Classify(request, asked.bounds, response, asked.origin);
          });
  handlers[kRegressPath] = HandlerOf<serving::RegressionRequest, serving::RegressionResponse>(
      requests, CallWeight::kHeavy,
      [](const ModelRequests& r, const auto& request, const Asked& asked, auto* response) {
        return r.Regress(request, asked.bounds, response, asked.origin);
      });
  handlers[kMultiInferencePath] =
      HandlerOf<serving::MultiInferenceRequest, serving::MultiInferenceResponse>(
          requests, CallWeight::kHeavy,
          [](const ModelRequests& r, const auto& request, const Asked& asked, auto* response) {
            return r.MultiInference(request, asked.bounds, response, asked.origin);
          });
  handlers[kGetModelMetadataPath] =
      HandlerOf<serving::GetModelMetadataRequest, serving::GetModelMetadataResponse>(
          requests, CallWeight::kHeavy,  // a model may have to load first
          [](const ModelRequests& r, const auto& request, const Asked& asked, auto* response) {
            return r.GetModelMetadata(request, response, asked.bounds);
          });
  handlers[kGetModelStatusPath] =
      HandlerOf<serving::GetModelStatusRequest, serving::GetModelStatusResponse>(
          requests, CallWeight::kUrgent,
          [](const ModelRequests& r, const auto& request, const Asked&, auto* response) {
            return r.GetModelStatus(request, response);
          });
  // It waits for models; ModelRequests runs one at a time.
  handlers[kHandleReloadConfigRequestPath] =
      HandlerOf<serving::ReloadConfigRequest, serving::ReloadConfigResponse>(
          requests, CallWeight::kUrgent,
          [](const ModelRequests& r, const auto& request, const Asked&, auto* response) {
            return r.ReloadConfig(request, response);
          });
  return handlers;
}

std::map<std::string, RpcServer::Handler> SessionFront(Requests requests, int64_t max_splat_bytes) {
  namespace serving = tensorflow::serving;
  std::map<std::string, RpcServer::Handler> handlers;
  handlers[kSessionRunPath] = HandlerOf<serving::SessionRunRequest, serving::SessionRunResponse>(
      std::move(requests), CallWeight::kHeavy,
      [max_splat_bytes](const ModelRequests& r, const auto& request, const Asked& asked,
                        auto* response) -> Status {
        MR_ASSIGN_OR_RETURN(const ModelRequests::Pinned model, r.PinOf(request, asked.bounds));
        return SessionRun(*model, request, asked.bounds, max_splat_bytes, response);
      });
  return handlers;
}

}  // namespace millrace
