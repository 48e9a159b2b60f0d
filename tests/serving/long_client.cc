// SPDX-License-Identifier: Apache-2.0
//
// A client that is to be killed: asks for "loop" of the model "m" by gRPC, so many turns, and
// waits.
//
//   long_client PORT TURNS

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/status.h"
#include "net/rpc_channel.h"
#include "net/security.h"
#include "net/tensor_coding.h"
#include "proto/serving/method_paths.h"
#include "tests/serving/loop_request.h"

namespace millrace {
namespace {

Status Ask(int port, int32_t turns) {
  const auto channel =
      RpcChannel::Make(absl::StrCat("127.0.0.1:", port), std::make_shared<Credentials>());
  MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer request, EncodeMessage(LoopRequest("m", turns)));
  return channel->Call(kPredictPath, {.wait_for_ready = true}, request).status();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  int port = 0, turns = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[1], &port) || !absl::SimpleAtoi(argv[2], &turns)) {
    std::cerr << "long_client: must be given PORT and TURNS\n";
    return millrace::kExitError;
  }
  const millrace::Status status = millrace::Ask(port, turns);
  std::cerr << "long_client: " << status.ToString() << "\n";
  return status.ok() ? millrace::kExitOk : millrace::kExitError;
}
