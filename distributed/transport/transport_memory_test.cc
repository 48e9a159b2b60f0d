// SPDX-License-Identifier: Apache-2.0
//
// Whichever allocation fails while a call's messages are written or read, the call ends once, with
// a status: those who wait for it wait on nothing else.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/grpc_control.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/tensor_source.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "distributed/worker/worker_service.h"
#include "gtest/gtest.h"
#include "net/call_limits.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "net/tensor_coding.h"
#include "proto/worker.pb.h"
#include "proto/worker_control.pb.h"
#include "run/training_run.h"

// covers: clusters: an exception while a call's messages are written or read ends that call, once,
//   with a status

namespace millrace {
namespace {

using testing::ForEveryAllocation;

constexpr char kTask[] = "/job:ps/replica:0/task:0";

// A network that always has memory. Each call is answered in the calling thread, but what `done`
// throws is lost, as it is on a poller.
class AnsweringChannel : public RpcChannel {
 public:
  void Unary(const std::string&, const RpcOptions&, const grpc::ByteBuffer&,
             UnaryDone done) override {
    Lose([&] { done(absl::OkStatus(), answer); });
  }
  void Stream(const std::string&, const RpcOptions&, const grpc::ByteBuffer&, OnMessage on_message,
              StreamDone done) override {
    const StatusOr<bool> another = NoExceptions("Stream", [&] { return on_message(answer); });
    Lose([&] { done(another.status()); });
  }
  const std::string& address() const override { return address_; }

  grpc::ByteBuffer answer;

 private:
  template <typename Body>
  static void Lose(const Body& body) {
    try {
      body();
    } catch (...) {
    }
  }
  const std::string address_ = "answers.example:1";
};

struct Heard {
  int times = 0;
  Status status;
  CallDone Done() {
    return [this](const Status& s) {
      ++times;
      status = s;
    };
  }
};

class TransportMemoryTest : public ::testing::Test {
 protected:
  template <typename Message>
  void Answer(const Message& message) {
    MessageWriter writer;
    writer.AddMessage(message);
    const auto bytes = writer.Finish();
    ASSERT_OK(bytes);
    channel_->answer = *bytes;
  }
  // `begin` makes one call, whose end `heard` hears.
  void EndsOnceWhicheverAllocationFails(
      const std::function<void(const CallOptions&, Heard*)>& begin) {
    const CallOptions options;
    Heard heard;
    const auto body = [&] {
      heard = Heard();
      begin(options, &heard);
    };
    body();  // what is made once per process
    EXPECT_EQ(heard.times, 1);
    EXPECT_OK(heard.status);
    const int64_t failures = ForEveryAllocation(body, [&](int64_t k, bool failed) {
      EXPECT_EQ(heard.times, 1) << k;
      if (failed) {
        // Some failures cost a line of the log, or a copy that was not needed.
        EXPECT_TRUE(heard.status.ok() || absl::IsResourceExhausted(heard.status) ||
                    absl::IsInvalidArgument(heard.status))
            << k << ": " << heard.status;
      } else {
        EXPECT_OK(heard.status);
      }
    });
    EXPECT_GT(failures, 3);
  }

  const std::shared_ptr<AnsweringChannel> channel_ = std::make_shared<AnsweringChannel>();
  const std::shared_ptr<WorkerControl> control_ = MakeGrpcControl(kTask, channel_);
  const std::shared_ptr<TensorSource> source_ = MakeGrpcTensorSource(channel_);
  const std::string long_name_ = std::string(100, 'x');
};

TEST_F(TransportMemoryTest, ACallWithoutTensorsEndsOnce) {
  wire::GetStatusResponse answer;
  for (int i = 0; i < 3; ++i) answer.add_device()->set_name(long_name_);
  Answer(answer);
  EndsOnceWhicheverAllocationFails([&](const CallOptions& options, Heard* heard) {
    std::vector<tensorflow::DeviceAttributes> devices;
    control_->GetStatus(options, &devices, heard->Done());
  });
  EndsOnceWhicheverAllocationFails([&](const CallOptions& options, Heard* heard) {
    RegisteredPart part;
    control_->RegisterGraph(options, PartOrder(), &part, heard->Done());
  });
}

TEST_F(TransportMemoryTest, ACallOfOurOwnEndsOnce) {
  wire::FindRunResponse found;
  found.set_state(wire::FindRunResponse::CLAIMED);
  found.mutable_run()->set_id(long_name_);
  Answer(found);
  EndsOnceWhicheverAllocationFails([&](const CallOptions& options, Heard* heard) {
    FoundRun run;
    control_->FindRun(options, "a", "b", &run, heard->Done());
  });
  wire::RenewSessionsResponse renewed;
  renewed.add_unknown(long_name_);
  Answer(renewed);
  const std::vector<std::string> handles = {long_name_, "b"};
  EndsOnceWhicheverAllocationFails([&](const CallOptions& options, Heard* heard) {
    std::vector<std::string> unknown;
    control_->RenewSessions(options, handles, &unknown, heard->Done());
  });
}

TEST_F(TransportMemoryTest, ACallWithATensorEndsOnce) {
  const Tensor value = Tensor::Vector<float>(std::vector<float>(2000, 1.0f));
  {
    MessageWriter writer;
    ASSERT_OK(writer.AddTensor(1, value));
    ASSERT_OK_AND_ASSIGN(channel_->answer, writer.Finish());
  }
  EndsOnceWhicheverAllocationFails([&](const CallOptions& options, Heard* heard) {
    NamedTensor tensor;
    source_->RecvTensor(options, {}, &tensor, heard->Done());
  });
}

// --- The serving side ----------------------------------------------------------------------------

// A call that keeps what it is given; it needs no memory.
class KeptCall : public ServerCall {
 public:
  const std::string& method() const override { return method_; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  CancellationManager* cancellation() override { return &cancellation_; }
  const CallLimits& limits() const override { return limits_; }
  bool is_from_member() const override { return true; }
  void Write(const grpc::ByteBuffer&, absl::AnyInvocable<void()>) override {
    ADD_FAILURE() << "no method answers in several messages";
  }
  void Finish(const grpc::ByteBuffer&) override { End(absl::OkStatus()); }
  void FinishWithStatus(const Status& s) override { End(s); }

  int ends = 0;
  Status status;

 private:
  void End(const Status& s) {
    ++ends;
    status = s;
  }

  const std::string method_ = "/test/Kept";
  const CallLimits limits_;
  CancellationManager cancellation_;
};

TEST(HandlersMemoryTest, ACallIsAnsweredOnceWhicheverAllocationFails) {
  WorkerOptions options;
  options.task = kTask;
  options.own_arena = Arena::Make(1);
  options.io_pool = IoPool::Default();
  Worker worker(std::move(options));
  const std::map<std::string, RpcServer::Handler> handlers = WorkerHandlers(&worker);
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  for (const char* name :
       {"/tensorflow.grpc.WorkerService/GetStatus", "/tensorflow.grpc.WorkerService/CleanupGraph",
        "/tensorflow.grpc.WorkerService/RunGraph", "/tensorflow.grpc.WorkerService/RecvTensor",
        "/millrace.WorkerControl/FindRun", "/millrace.WorkerControl/GetStatus"}) {
    SCOPED_TRACE(name);
    const RpcServer::Handler& handler = handlers.at(name);
    // Protobuf makes descriptors on their first use, and dies when memory fails then.
    handler(std::make_shared<KeptCall>(), request);
    std::shared_ptr<KeptCall> call;
    ForEveryAllocation(
        [&] {
          call = nullptr;
          try {
            call = std::make_shared<KeptCall>();
            handler(call, request);
          } catch (const std::bad_alloc&) {
            // As the server does: what has been answered stays so.
            if (call != nullptr && call->ends == 0) {
              call->FinishWithStatus(absl::ResourceExhaustedError(""));
            }
          }
        },
        [&](int64_t k, bool) {
          if (call == nullptr) return;
          EXPECT_EQ(call->ends, 1) << k;
        });
  }
}

}  // namespace
}  // namespace millrace
