// SPDX-License-Identifier: Apache-2.0
#include "serving/server/predict_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "net/tensor_coding.h"
#include "proto/serving/predict.pb.h"
#include "serving/aliased_tensor.h"
#include "serving/server/message_cost.h"

namespace millrace {
namespace {

using tensorflow::serving::PredictRequest;
using tensorflow::serving::PredictResponse;

// Of PredictRequest and of PredictResponse.
constexpr int kInputsField = PredictRequest::kInputsFieldNumber;
constexpr int kOutputsField = PredictResponse::kOutputsFieldNumber;

// A request with more is no model's; each takes far more memory than its bytes.
constexpr size_t kMaxInputs = 4096;

// Protobuf refuses what is no UTF-8.
bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

// May be read so, and what it says is what protobuf would read.
bool ReadPlain(const grpc::ByteBuffer& bytes, PredictRequest* request,
               std::vector<AliasedTensor>* inputs) {
  std::vector<DecodedTensor> tensors;
  // No element that is not listed: the model's bound is for the message.
  const Status status =
      DecodeMessage("PredictRequest", bytes, kInputsField, TensorField::kNamedOrIndexed, &tensors,
                    request, /*max_splat_bytes=*/0, kMaxInputs);
  if (!status.ok()) return false;
  std::set<absl::string_view> aliases;
  for (const DecodedTensor& tensor : tensors) {
    const bool is_plain = tensor.value.has_value() && tensor.index == 0 && !tensor.is_dead &&
                          IsAscii(tensor.name) && aliases.insert(tensor.name).second;
    if (!is_plain) return false;
  }
  inputs->reserve(tensors.size());
  for (DecodedTensor& tensor : tensors) {
    inputs->push_back({std::move(tensor.name), std::move(tensor.value)});
  }
  return true;
}

StatusOr<grpc::ByteBuffer> AnswerMessage(const ModelRequests& requests,
                                         const grpc::ByteBuffer& bytes, const StepBounds& bounds,
                                         const RequestOrigin& origin) {
  PredictRequest request;
  MR_RETURN_IF_ERROR(CheckReceivedCost(*PredictRequest::descriptor(), bytes));
  MR_RETURN_IF_ERROR(DecodeMessage(request.GetTypeName(), bytes, &request));
  PredictResponse response;
  MR_RETURN_IF_ERROR(requests.Predict(request, bounds, &response, origin));
  return EncodeMessage(response);
}

}  // namespace

StatusOr<grpc::ByteBuffer> AnswerPredict(const ModelRequests& requests,
                                         const grpc::ByteBuffer& bytes, const StepBounds& bounds,
                                         const RequestOrigin& origin) {
  PredictRequest request;
  std::vector<AliasedTensor> inputs;
  if (!ReadPlain(bytes, &request, &inputs)) {
    request.Clear();
    return AnswerMessage(requests, bytes, bounds, origin);
  }
  MessageWriter writer;
  MR_RETURN_IF_ERROR(requests.PredictTensors(
      request, inputs, bounds,
      [&](const ModelRequests::PredictedTensors& predicted) -> StatusOr<int64_t> {
        const TensorForm form =
            predicted.as_content ? TensorForm::kAllContent : TensorForm::kListed;
        for (const AliasedTensor& output : predicted.outputs) {
          MR_RETURN_IF_ERROR(
              writer.AddNamedTensor(kOutputsField, output.alias, output.tensor, form));
        }
        PredictResponse rest;
        *rest.mutable_model_spec() = predicted.spec;
        writer.AddMessage(rest);
        return writer.num_bytes();
      },
      origin));
  return writer.Finish();
}

}  // namespace millrace
