// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_UNARY_CALL_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_UNARY_CALL_H_

// BeginUnary: one call to a task by gRPC, with one request and one answer.
//
// Thread-safety: from any thread; it throws nothing. Lifetime: the channel outlives the beginning
// of the call, what `read` uses its end. Failure: `done` hears once what comes of the call, and of
// what `write` and `read` throw.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "distributed/transport/call_options.h"
#include "net/rpc_channel.h"
#include "net/tensor_coding.h"

namespace millrace {

// `write` (Status(MessageWriter*)) makes the request before this returns, `read`
// (Status(const grpc::ByteBuffer&)) takes the answer. `method` is a literal.
template <typename Write, typename Read>
void BeginUnary(RpcChannel* channel, const char* service, const char* method,
                const CallOptions& options, CallDone done, const Write& write, Read read) {
  // Kept until the channel has it: what becomes of it when that throws is not known.
  struct Call {
    Call(const char* m, CallDone&& d, Read&& r)
        : method(m), done(std::move(d)), read(std::move(r)) {}
    const char* const method;
    CallDone done;
    Read read;
  };
  std::shared_ptr<Call> call;
  const Status begun = NoExceptions(method, [&]() -> Status {
    MessageWriter writer;
    MR_RETURN_IF_ERROR(write(&writer));
    const StatusOr<grpc::ByteBuffer> message = writer.Finish();
    MR_RETURN_IF_ERROR(message.status());
    RpcOptions rpc;
    rpc.deadline = options.deadline;
    rpc.wait_for_ready = options.wait_for_ready;
    rpc.cancellation = options.cancellation;
    rpc.asks_for_refusal = options.asks_for_refusal;
    call = std::make_shared<Call>(method, std::move(done), std::move(read));
    channel->Unary(absl::StrCat(service, method), rpc, *message,
                   [call](const Status& status, const grpc::ByteBuffer& answer) {
                     call->done(!status.ok() ? status : NoExceptions(call->method, [&] {
                       return call->read(answer);
                     }));
                   });
    return absl::OkStatus();
  });
  if (!begun.ok()) (call == nullptr ? done : call->done)(begun);
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_UNARY_CALL_H_
