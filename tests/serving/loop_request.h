// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SERVING_LOOP_REQUEST_H_
#define MILLRACE_TESTS_SERVING_LOOP_REQUEST_H_

// Requests that run long, for ExportLooping's signature "loop" (served_models.h).
//
// Thread-safety: pure functions. Failure: none.

#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/serving/predict.pb.h"
#include "proto/tensor.pb.h"
#include "proto/types.pb.h"

namespace millrace {

// Turns that no test waits for: more than ten minutes of them.
inline constexpr int32_t kEndlessTurns = std::numeric_limits<int32_t>::max();

inline tensorflow::serving::PredictRequest LoopRequest(const std::string& model, int32_t turns) {
  tensorflow::serving::PredictRequest request;
  request.mutable_model_spec()->set_name(model);
  request.mutable_model_spec()->set_signature_name("loop");
  tensorflow::TensorProto& n = (*request.mutable_inputs())["n"];
  n.set_dtype(tensorflow::DT_INT32);
  n.mutable_tensor_shape();
  n.add_int_val(turns);
  return request;
}
inline std::string LoopRestBody(int32_t turns) {
  return absl::StrCat(R"({"signature_name": "loop", "inputs": )", turns, "}");
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_SERVING_LOOP_REQUEST_H_
