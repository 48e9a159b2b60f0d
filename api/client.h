// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_API_CLIENT_H_
#define MILLRACE_API_CLIENT_H_

// Clients of model servers:
//
//   #include <millrace/client.h>
//
//   MR_ASSIGN_OR_RETURN(const auto client, millrace::ModelClient::Connect("localhost:8500"));
//   MR_ASSIGN_OR_RETURN(const auto got, client->Predict("census", {{"age", age}}));
//
// It stands alone: a program that only asks a server needs no other header. Who links millrace has
// it. Like <millrace/millrace.h> it knows no protobuf.

#include "core/status.h"                  // IWYU pragma: export
#include "core/tensor.h"                  // IWYU pragma: export
#include "net/security.h"                 // IWYU pragma: export
#include "serving/client/model_client.h"  // IWYU pragma: export

#endif  // MILLRACE_API_CLIENT_H_
