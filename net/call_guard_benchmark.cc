// SPDX-License-Identifier: Apache-2.0
//
// What it costs to guard a call.
//
//   bazel run -c opt //net:call_guard_benchmark
//
// BM_Admit is all that the guard does for one call: token, version, limits, and giving back what it
// counted, also by several threads at once; BM_IsSameSecret the token alone. BM_Call
// is a whole call over loopback that does nothing, with and without a token.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/test/server_context_test_spouse.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "net/call_guard.h"
#include "net/call_limits.h"
#include "net/call_metadata.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "net/security.h"

namespace millrace {
namespace {

// As `openssl rand -hex 32` makes it.
const std::string& Token() {
  static const std::string* const token = new std::string(64, 'f');
  return *token;
}

std::shared_ptr<const Credentials> WithToken(bool has_token) {
  auto credentials = std::make_shared<Credentials>();
  if (has_token) credentials->token = Token();
  return credentials;
}

void BM_IsSameSecret(benchmark::State& state) {
  const std::string shown = Token();
  for (auto _ : state) benchmark::DoNotOptimize(IsSameSecret(Token(), shown));
}
BENCHMARK(BM_IsSameSecret);

// One guard for all threads of a benchmark.
void Admit(benchmark::State& state, CallGuard* guard) {
  grpc::GenericServerContext context;
  grpc::testing::ServerContextTestSpouse call(&context);
  call.AddClientMetadata(kTokenKey, absl::StrCat(kTokenPrefix, Token()));
  call.AddClientMetadata(kWireVersionKey, absl::StrCat(kWireVersion));
  const std::string method = "/tensorflow.grpc.WorkerService/RunGraph";
  for (auto _ : state) {
    CallGuard::Ticket ticket;
    if (!guard->Admit(context, CallKind::kHeavy, &ticket).ok() ||
        !ticket.TakeRequest(method, 1000).ok()) {
      state.SkipWithError("the guard must admit the call");
      break;
    }
  }
}

void BM_Admit(benchmark::State& state) {
  static const auto* const guards = new std::shared_ptr<CallGuard>[2] {
    std::make_shared<CallGuard>(WithToken(false), CallLimits()),
        std::make_shared<CallGuard>(WithToken(true), CallLimits())
  };
  Admit(state, guards[state.range(0)].get());
}
BENCHMARK(BM_Admit)->ArgName("token")->Arg(0)->Arg(1)->ThreadRange(1, 4);

void BM_Call(benchmark::State& state) {
  const auto credentials = WithToken(state.range(0) != 0);
  RpcServer::Options options;
  options.address = "127.0.0.1:0";
  options.credentials = credentials;
  options.handlers["/test/Nothing"] = {
      [](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& request) {
        call->Finish(request);
      },
      CallWeight::kLight};
  const auto server = RpcServer::Start(std::move(options));
  if (!server.ok()) return state.SkipWithError("the server must start");
  const auto channel = RpcChannel::Make(absl::StrCat("127.0.0.1:", (*server)->port()), credentials);
  const grpc::Slice slice("request");
  const grpc::ByteBuffer request(&slice, 1);
  for (auto _ : state) {
    if (!channel->Call("/test/Nothing", {}, request).ok()) {
      state.SkipWithError("the call must be answered");
      break;
    }
  }
}
BENCHMARK(BM_Call)->ArgName("token")->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace millrace
