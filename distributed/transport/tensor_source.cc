// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/tensor_source.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "core/status.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/unary_call.h"
#include "distributed/transport/worker_messages.h"
#include "net/tensor_coding.h"

namespace millrace {
namespace {

class GrpcTensorSource : public TensorSource {
 public:
  explicit GrpcTensorSource(std::shared_ptr<RpcChannel> channel) : channel_(std::move(channel)) {}

  void RecvTensor(const CallOptions& options, const tensorflow::RecvTensorRequest& request,
                  NamedTensor* tensor, CallDone done) override {
    BeginUnary(
        channel_.get(), kWorkerService, "RecvTensor", options, std::move(done),
        [&request](MessageWriter* writer) {
          writer->AddMessage(request);
          return absl::OkStatus();
        },
        [tensor](const grpc::ByteBuffer& answer) -> Status {
          tensorflow::RecvTensorResponse rest;
          std::vector<DecodedTensor> tensors;
          MR_RETURN_IF_ERROR(DecodeMessage("RecvTensorResponse", answer, kRecvTensorTensor,
                                           TensorField::kTensor, &tensors, &rest));
          tensor->is_dead = rest.is_dead();
          // Nonsense is worth as little as nothing.
          if (rest.send_start_micros() > 0 && rest.send_start_micros() < INT64_MAX / 2000) {
            tensor->sent_ns = rest.send_start_micros() * 1000;
          }
          if (!tensors.empty()) tensor->value = std::move(tensors.back().value);
          return absl::OkStatus();
        });
  }

 private:
  const std::shared_ptr<RpcChannel> channel_;
};

}  // namespace

std::shared_ptr<TensorSource> MakeGrpcTensorSource(std::shared_ptr<RpcChannel> channel) {
  return std::make_shared<GrpcTensorSource>(std::move(channel));
}

}  // namespace millrace
