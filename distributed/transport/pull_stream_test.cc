// SPDX-License-Identifier: Apache-2.0
//
// A Pull from the sink of the task that serves it to the sink of the one that asked, without a
// network between them.
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/exit_code.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/transport/grpc_transport.h"
#include "distributed/transport/transport.h"
#include "distributed/worker/worker_service.h"
#include "gtest/gtest.h"
#include "net/call_limits.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "run/training_run.h"

// covers: training: the end of a run or a newer chief, learned from the task that has the tensors,
//   is an end and not an error

namespace millrace {
namespace {

// A call that keeps its last message.
class KeptCall : public ServerCall {
 public:
  const std::string& method() const override { return method_; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  CancellationManager* cancellation() override { return &cancellation_; }
  const CallLimits& limits() const override { return limits_; }
  bool is_from_member() const override { return true; }
  void Write(const grpc::ByteBuffer&, absl::AnyInvocable<void()>) override {
    ADD_FAILURE() << "there is nothing to write before the end";
  }
  void Finish(const grpc::ByteBuffer& message) override { last = message; }
  void FinishWithStatus(const Status& status) override { ADD_FAILURE() << status; }

  grpc::ByteBuffer last;

 private:
  const std::string method_ = "/test/Kept";
  const CallLimits limits_;
  CancellationManager cancellation_;
};

// A call that counts what is written; a test says when the network has taken it.
class WritingCall : public KeptCall {
 public:
  void Write(const grpc::ByteBuffer&, absl::AnyInvocable<void()> written) override {
    ++writes;
    written_ = std::move(written);
  }
  void Take() {
    absl::AnyInvocable<void()> written = std::move(written_);
    written();
  }
  int writes = 0;

 private:
  absl::AnyInvocable<void()> written_;
};

// A call whose network has taken each message before the thread that gave it is back.
class TakingCall : public KeptCall {
 public:
  void Write(const grpc::ByteBuffer&, absl::AnyInvocable<void()> written) override {
    ++writes;
    written();
  }
  int writes = 0;
};

// Answers a stream with one message.
class AnsweringChannel : public RpcChannel {
 public:
  explicit AnsweringChannel(grpc::ByteBuffer answer) : answer_(std::move(answer)) {}
  void Unary(const std::string&, const RpcOptions&, const grpc::ByteBuffer&, UnaryDone) override {
    ADD_FAILURE() << "a Pull is a stream";
  }
  void Stream(const std::string&, const RpcOptions&, const grpc::ByteBuffer&, OnMessage on_message,
              StreamDone done) override {
    done(on_message(answer_).status());
  }
  const std::string& address() const override { return address_; }

 private:
  const grpc::ByteBuffer answer_;
  const std::string address_ = "answers.example:1";
};

class KeptEnd : public PullSink {
 public:
  void OnSendTimes(uint64_t index, const SendTimes& sent) override { times[index] = sent; }
  void OnTensor(uint64_t, Tensor, bool) override {}
  void OnDone(const Status& end) override { status = end; }
  Status status = absl::UnknownError("not ended");
  std::map<uint64_t, SendTimes> times;
};

Status ThroughAPull(const Status& status) {
  const auto call = std::make_shared<KeptCall>();
  MakePullStream(call)->OnDone(status);
  const auto transport =
      MakeGrpcTransport("/job:ps/replica:0/task:0", std::make_shared<AnsweringChannel>(call->last));
  const auto end = std::make_shared<KeptEnd>();
  transport->Pull(CallOptions(), PullRequest(), end);
  return end->status;
}

TEST(PullStreamTest, TensorsOfATracedStepArriveWithTheTimesOfTheirSender) {
  for (const bool traced : {true, false}) {
    const auto call = std::make_shared<KeptCall>();
    const std::shared_ptr<PullSink> stream = MakePullStream(call, nullptr, traced);
    const int64_t before = absl::GetCurrentTimeNanos();
    stream->OnSendTimes(3, {.ready_ns = 1234});
    stream->OnTensor(3, Tensor::Scalar(1.0f), false);
    stream->OnTensor(4, Tensor::Scalar(1.0f), false);  // its time is not known
    stream->OnDone(absl::OkStatus());
    const int64_t after = absl::GetCurrentTimeNanos();
    const auto transport = MakeGrpcTransport("/job:ps/replica:0/task:0",
                                             std::make_shared<AnsweringChannel>(call->last));
    const auto end = std::make_shared<KeptEnd>();
    transport->Pull(CallOptions(), PullRequest(), end);
    ASSERT_OK(end->status);
    ASSERT_EQ(end->times.size(), traced ? 1u : 0u);
    if (!traced) continue;
    EXPECT_EQ(end->times.at(3).ready_ns, 1234);
    EXPECT_GE(end->times.at(3).left_ns, before);
    EXPECT_LE(end->times.at(3).left_ns, after);
  }
}

// Whoever holds tensors back decides when they leave; the stream must not do it for them when a
// write ends.
TEST(PullStreamTest, OnlyWhatIsFlushedLeaves) {
  const auto call = std::make_shared<WritingCall>();
  const std::shared_ptr<PullSink> stream = MakePullStream(call);
  const Tensor value = Tensor::Vector<float>(std::vector<float>(100'000, 1.0f));
  stream->OnTensor(0, value, false);
  EXPECT_EQ(call->writes, 0);
  stream->Flush();
  EXPECT_EQ(call->writes, 1);
  stream->Flush();  // there is nothing more
  stream->OnTensor(1, value, false);
  call->Take();
  EXPECT_EQ(call->writes, 1);
  stream->Flush();
  EXPECT_EQ(call->writes, 2);
  // While one is written: what is flushed leaves after it, in one message.
  for (uint64_t i = 2; i < 5; ++i) {
    stream->OnTensor(i, Tensor(), true);
    stream->Flush();
  }
  EXPECT_EQ(call->writes, 2);
  call->Take();
  EXPECT_EQ(call->writes, 3);
  call->Take();
  EXPECT_EQ(call->writes, 3);
  stream->OnTensor(5, value, false);
  stream->OnDone(absl::OkStatus());
  EXPECT_EQ(call->writes, 3);
  EXPECT_GT(call->last.Length(), 400'000u);  // the last tensor leaves with the end
}

// The thread that gives a message may write it to the socket: nobody else waits for it meanwhile.
TEST(PullStreamTest, AMessageIsGivenToTheNetworkWithoutTheLockOfTheStream) {
  const auto call = std::make_shared<TakingCall>();
  const std::shared_ptr<PullSink> stream = MakePullStream(call);
  for (int i = 0; i < 3; ++i) {
    stream->OnTensor(static_cast<uint64_t>(i), Tensor::Scalar(1.0f), false);
    stream->Flush();
    EXPECT_EQ(call->writes, i + 1);
  }
  stream->OnDone(absl::OkStatus());
  EXPECT_EQ(call->writes, 3);
  EXPECT_GT(call->last.Length(), 0u);
}

// Whoever hears first that the run has ended, or that another chief has it, hears it from the task
// that has its tensors: what that says must not get lost on this way either.
TEST(PullStreamTest, AnErrorSaysWhatItMeansForTheRun) {
  const TrainingRun run = {.name = "/run", .id = "a1"};
  const RunEnd end = {.global_step = 7, .reason = "done"};
  const Status ended = ThroughAPull(RunEndedError("ps", run, end));
  EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RunEndOf(ended), end) << ended;
  EXPECT_EQ(ExitCode(ended), kExitOk);
  EXPECT_TRUE(IsFenced(ThroughAPull(FencedError("ps", run, "another"))));
  EXPECT_EQ(ThroughAPull(absl::AbortedError("gone")), absl::AbortedError("gone"));
  EXPECT_OK(ThroughAPull(absl::OkStatus()));
}

}  // namespace
}  // namespace millrace
