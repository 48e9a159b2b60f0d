// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_PROTO_SERVING_METHOD_PATHS_H_
#define MILLRACE_PROTO_SERVING_METHOD_PATHS_H_

// The names by which gRPC's clients call TensorFlow Serving's methods: `/service/method` with the
// full name of the service. Nothing else of a service is on the wire, so a server that takes calls
// by name needs no generated code.
//
// Thread-safety: constants. Failure: none.

namespace millrace {

inline constexpr char kPredictPath[] = "/tensorflow.serving.PredictionService/Predict";
inline constexpr char kClassifyPath[] = "/tensorflow.serving.PredictionService/Classify";
inline constexpr char kRegressPath[] = "/tensorflow.serving.PredictionService/Regress";
inline constexpr char kMultiInferencePath[] =
    "/tensorflow.serving.PredictionService/MultiInference";
inline constexpr char kGetModelMetadataPath[] =
    "/tensorflow.serving.PredictionService/GetModelMetadata";

inline constexpr char kGetModelStatusPath[] = "/tensorflow.serving.ModelService/GetModelStatus";
inline constexpr char kHandleReloadConfigRequestPath[] =
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest";

inline constexpr char kSessionRunPath[] = "/tensorflow.serving.SessionService/SessionRun";

}  // namespace millrace

#endif  // MILLRACE_PROTO_SERVING_METHOD_PATHS_H_
