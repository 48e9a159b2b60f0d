// SPDX-License-Identifier: Apache-2.0
//
// Sessions on "grpc://" whose masters answer wrongly, or not at all.
#include "distributed/grpc_session.h"

#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/tensor.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "distributed/master/grpc_master.h"
#include "distributed/master/master_interface.h"
#include "distributed/transport/named_tensor.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "proto/graph.pb.h"
#include "run/training_run.h"
#include "runtime/session.h"

namespace millrace {
namespace {

// A master that answers with nothing.
class EmptyMaster : public MasterInterface {
 public:
  Status CreateSession(const tensorflow::CreateSessionRequest&, absl::Duration, int,
                       tensorflow::CreateSessionResponse* response) override {
    response->set_session_handle("empty");
    return absl::OkStatus();
  }
  Status ExtendSession(const tensorflow::ExtendSessionRequest&,
                       tensorflow::ExtendSessionResponse*) override {
    return absl::OkStatus();
  }
  StatusOr<StepResult> RunStep(const tensorflow::RunStepRequest& request,
                               absl::Span<const NamedTensor>) override {
    limit_ms = request.options().timeout_in_ms();
    return StepResult();
  }
  Status MakeCallable(const tensorflow::MakeCallableRequest&,
                      tensorflow::MakeCallableResponse* response) override {
    response->set_handle(1);
    return absl::OkStatus();
  }
  StatusOr<StepResult> RunCallable(const tensorflow::RunCallableRequest&, absl::Span<const Tensor>,
                                   const tensorflow::RunOptions* options) override {
    limit_ms = options == nullptr ? 0 : options->timeout_in_ms();
    return StepResult();
  }
  Status ReleaseCallable(const tensorflow::ReleaseCallableRequest&) override {
    return absl::OkStatus();
  }
  Status CloseSession(const tensorflow::CloseSessionRequest&) override { return absl::OkStatus(); }
  Status ListDevices(const tensorflow::ListDevicesRequest&,
                     tensorflow::ListDevicesResponse*) override {
    return absl::OkStatus();
  }
  Status EndRun(const std::string&, const RunEnd&) override { return absl::OkStatus(); }
  StatusOr<RunTrainers> FindTrainers(const std::string&) override { return RunTrainers(); }
  Status Reset(const tensorflow::ResetRequest&) override { return absl::OkStatus(); }

  int64_t limit_ms = -1;  // of the last step
};

StatusOr<std::unique_ptr<Session>> NewSessionOn(std::shared_ptr<MasterInterface> master,
                                                SessionOptions options = {}) {
  const std::string address = "empty.example:1";
  RegisterLocalMaster(address, std::move(master));
  options.target = absl::StrCat("grpc://", address);
  StatusOr<std::unique_ptr<Session>> session = NewSession(options);
  UnregisterLocalMaster(address);
  return session;
}

TEST(GrpcSessionTest, TheSessionsLimitIsThatOfStepsWithoutTheirOwn) {
  const auto master = std::make_shared<EmptyMaster>();
  SessionOptions options;
  options.config.operation_timeout_in_ms = 30'000;
  ASSERT_OK_AND_ASSIGN(const auto session, NewSessionOn(master, options));
  tensorflow::RunOptions own;
  own.set_timeout_in_ms(200);
  ASSERT_OK(session->Run({}, {}, {"x"}));
  EXPECT_EQ(master->limit_ms, 30'000);
  ASSERT_OK(session->Run(own, {}, {}, {"x"}, nullptr));
  EXPECT_EQ(master->limit_ms, 200);
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({{}, {}, {"x"}}));
  ASSERT_OK(step->Run({}));
  EXPECT_EQ(master->limit_ms, 30'000);
  ASSERT_OK(step->Run(own, {}, nullptr));
  EXPECT_EQ(master->limit_ms, 200);
}

TEST(GrpcSessionTest, AMasterThatAnswersWithTooFewTensorsIsAnError) {
  ASSERT_OK_AND_ASSIGN(const auto session, NewSessionOn(std::make_shared<EmptyMaster>()));
  EXPECT_STATUS(session->Run({}, {"x"}), absl::StatusCode::kInternal,
                "the master must answer with 1 tensors, got 0");
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({{}, {"x"}, {}}));
  EXPECT_STATUS(step->Run({}), absl::StatusCode::kInternal,
                "the master must answer with 1 tensors, got 0");
}

TEST(GrpcSessionTest, ANameThatWasUnknownIsResolvedAgainAfterExtend) {
  ASSERT_OK_AND_ASSIGN(const auto session, NewSessionOn(std::make_shared<EmptyMaster>()));
  // Until the graph says that it is an operation, it is taken for a tensor.
  for (int i = 0; i < 2; ++i) {
    EXPECT_STATUS(session->Run({}, {"init"}), absl::StatusCode::kInternal,
                  "the master must answer with 1 tensors, got 0");
  }
  tensorflow::GraphDef graph;
  graph.add_node()->set_name("init");
  graph.mutable_node(0)->set_op("NoOp");
  ASSERT_OK(session->Extend(graph));
  for (int i = 0; i < 2; ++i) EXPECT_OK(session->Run({}, {"init"}));
}

TEST(GrpcSessionTest, EqualNamesAreResolvedOnce) {
  ASSERT_OK_AND_ASSIGN(const auto session, NewSessionOn(std::make_shared<EmptyMaster>()));
  const std::vector<FetchName> targets = {"a/long/name/of/a/target", "another/long/name/of/one"};
  const auto allocated_by_run = [&] {
    const int64_t before = testing::Allocations();
    EXPECT_OK(session->Run(std::vector<Feed>(), {}, targets));
    return testing::Allocations() - before;
  };
  const int64_t first = allocated_by_run();
  const int64_t second = allocated_by_run();
  EXPECT_LT(second, first);
  EXPECT_EQ(allocated_by_run(), second);
}

TEST(GrpcSessionTest, ARunThatFindsNoMemoryLeavesItsSessionUsable) {
  ASSERT_OK_AND_ASSIGN(const auto session, NewSessionOn(std::make_shared<EmptyMaster>()));
  int64_t number = 0;
  std::vector<FetchName> targets = {"a/name"};
  Status status;
  const int64_t failed = testing::ForEveryAllocation(
      [&] { status = session->Run(std::vector<Feed>(), {}, targets).status(); },
      [&](int64_t k, bool) {
        EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << k << ": " << status;
        EXPECT_OK(session->Run(std::vector<Feed>(), {}, targets)) << k;
        targets = {absl::StrCat("another/name/for/each/time/", ++number)};
      });
  EXPECT_GT(failed, 5);
}

// The time of each call passes at once, without an answer.
class SilentChannel : public RpcChannel {
 public:
  void Unary(const std::string&, const RpcOptions& options, const grpc::ByteBuffer&,
             UnaryDone done) override {
    deadline = options.deadline;
    done(absl::DeadlineExceededError("Deadline Exceeded"), grpc::ByteBuffer());
  }
  void Stream(const std::string&, const RpcOptions&, const grpc::ByteBuffer&, OnMessage,
              StreamDone done) override {
    done(absl::UnimplementedError("no streams"));
  }
  const std::string& address() const override { return address_; }
  absl::Time deadline;  // of the last call

 private:
  const std::string address_ = "silent.example:1";
};

TEST(GrpcSessionTest, AMasterThatIgnoresAStepsLimitIsNamed) {
  const auto channel = std::make_shared<SilentChannel>();
  const std::shared_ptr<MasterInterface> master = MakeGrpcMaster(channel);
  constexpr char kText[] =
      "Session: the master at silent.example:1 must end a step within its limit of 200ms and "
      "answer within 5s more, got no answer; it hangs or does not know the limit";
  tensorflow::RunStepRequest step;
  step.mutable_options()->set_timeout_in_ms(200);
  const absl::Time start = absl::Now();
  EXPECT_STATUS(master->RunStep(step, {}), absl::StatusCode::kDeadlineExceeded, kText);
  EXPECT_GE(channel->deadline - start, absl::Milliseconds(5200));
  EXPECT_STATUS(master->RunCallable({}, {}, &step.options()), absl::StatusCode::kDeadlineExceeded,
                kText);
}

// What the test above takes for granted.
TEST(GrpcSessionTest, ACallWithoutAnAnswerEndsWithGrpcsOwnText) {
  Mutex mu;
  std::shared_ptr<ServerCall> unanswered;
  RpcServer::Options options;
  options.address = "127.0.0.1:0";
  options.handlers["/test/Ignore"] = [&](std::shared_ptr<ServerCall> call,
                                         const grpc::ByteBuffer&) {
    MutexLock lock(&mu);
    unanswered = std::move(call);
  };
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start(std::move(options)));
  RpcOptions call;
  call.deadline = absl::Now() + absl::Milliseconds(200);
  call.wait_for_ready = true;
  const grpc::Slice nothing;
  const Status status = RpcChannel::Make(absl::StrCat("127.0.0.1:", server->port()))
                            ->Call("/test/Ignore", call, grpc::ByteBuffer(&nothing, 1))
                            .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "Deadline Exceeded");
  MutexLock lock(&mu);
  if (unanswered != nullptr) unanswered->FinishWithStatus(absl::CancelledError("over"));
  unanswered = nullptr;
}

}  // namespace
}  // namespace millrace
