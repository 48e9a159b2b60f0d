// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_API_MODEL_SERVER_H_
#define MILLRACE_API_MODEL_SERVER_H_

// Model servers inside of a program, without a port:
//
//   #include <millrace/model_server.h>
//
//   MR_ASSIGN_OR_RETURN(const auto server,
//                       LocalModelServer::Start({.models = {{.name = "census",
//                                                            .base_path = "/models/census"}}}));
//   MR_ASSIGN_OR_RETURN(const auto got, server->Predict("census", {{"age", age}}));
//
// It stands alone. Who links millrace has it. Like <millrace/millrace.h> it knows no protobuf; who
// asks by TensorFlow Serving's messages includes <millrace/proto/serving/predict.pb.h> too.

#include "core/status.h"                        // IWYU pragma: export
#include "core/tensor.h"                        // IWYU pragma: export
#include "serving/server/local_model_server.h"  // IWYU pragma: export

#endif  // MILLRACE_API_MODEL_SERVER_H_
