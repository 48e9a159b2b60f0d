// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_PREDICT_CALL_H_
#define MILLRACE_SERVING_SERVER_PREDICT_CALL_H_

// AnswerPredict: the bytes of a PredictRequest to those of its PredictResponse. The elements of
// numbers are copied once, from where gRPC has received them into the tensor that is fed, and not
// at all on the way back: the reply refers to the results (net/tensor_coding.h).
//
// A request that is not that plain (an input twice, a tensor that cannot be read, elements that are
// not listed) goes through the message: what it means and the texts of its errors are those of
// ServedModel::Predict in any case.
//
// Thread-safety: from any thread. Failure: as ModelRequests::Predict.

#include <grpcpp/support/byte_buffer.h>

#include "core/status.h"
#include "serving/model_requests.h"
#include "serving/request_observer.h"
#include "serving/step_bounds.h"

namespace millrace {

StatusOr<grpc::ByteBuffer> AnswerPredict(const ModelRequests& requests,
                                         const grpc::ByteBuffer& request, const StepBounds& bounds,
                                         const RequestOrigin& origin);

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_PREDICT_CALL_H_
