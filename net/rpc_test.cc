// SPDX-License-Identifier: Apache-2.0
//
// Calls whose own code throws: each ends, once, on both sides of the network. What servers count.
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "core/visit.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"

// covers: clusters: an exception while a call's messages are written or read ends that call, once,
//   with a status

namespace millrace {
namespace {

// Longer than any call takes: a call that has not ended by then hangs.
constexpr absl::Duration kHang = absl::Seconds(15);

grpc::ByteBuffer Bytes(size_t n) {
  const grpc::Slice slice(std::string(n, 'x'));
  return grpc::ByteBuffer(&slice, 1);
}

// Sends large messages until its client is gone.
class Flood : public std::enable_shared_from_this<Flood> {
 public:
  explicit Flood(std::shared_ptr<ServerCall> call) : call_(std::move(call)) {}
  void Begin() {
    if (!call_->cancellation()->Register(&token_, [this] { is_over_ = true; })) is_over_ = true;
    Next();
  }

 private:
  void Next() {
    if (is_over_) {
      call_->cancellation()->Deregister(token_);
      return call_->FinishWithStatus(absl::CancelledError("the client has gone"));
    }
    call_->Write(message_, [self = shared_from_this()] { self->Next(); });
  }

  const std::shared_ptr<ServerCall> call_;
  const grpc::ByteBuffer message_ = Bytes(1 << 20);
  CancellationManager::Token token_ = 0;
  std::atomic<bool> is_over_{false};
};

class RpcTest : public ::testing::Test {
 protected:
  RpcTest() {
    RpcServer::Options options;
    options.address = "127.0.0.1:0";
    options.handlers["/test/Flood"] = [](std::shared_ptr<ServerCall> call,
                                         const grpc::ByteBuffer&) {
      std::make_shared<Flood>(std::move(call))->Begin();
    };
    options.handlers["/test/ThrowsWhenWritten"] = [](std::shared_ptr<ServerCall> call,
                                                     const grpc::ByteBuffer&) {
      call->Write(Bytes(10), [] { throw std::runtime_error("in the middle of a stream"); });
    };
    options.handlers["/test/Three"] = [](std::shared_ptr<ServerCall> call,
                                         const grpc::ByteBuffer&) {
      call->Write(Bytes(10),
                  [call] { call->Write(Bytes(10), [call] { call->Finish(Bytes(10)); }); });
    };
    options.handlers["/test/Refuse"] = [](std::shared_ptr<ServerCall> call,
                                          const grpc::ByteBuffer&) {
      call->FinishWithStatus(absl::InvalidArgumentError("refused"));
    };
    auto server = RpcServer::Start(std::move(options));
    EXPECT_OK(server);
    if (server.ok()) server_ = *std::move(server);
    channel_ = RpcChannel::Make(absl::StrCat("127.0.0.1:", server_->port()));
  }

  // The status that `done` gets; it must be called once.
  Status Stream(const char* method, RpcChannel::OnMessage on_message) {
    auto done = std::make_shared<Notification>();  // a second Notify would be seen by what follows
    auto calls = std::make_shared<std::atomic<int>>(0);
    auto heard = std::make_shared<Status>();
    channel_->Stream(method, {}, Bytes(1), std::move(on_message),
                     [done, calls, heard](const Status& status) {
                       if (calls->fetch_add(1) > 0) return;
                       *heard = status;
                       done->Notify();
                     });
    if (!done->WaitFor(kHang)) return absl::DeadlineExceededError("the call has not ended");
    EXPECT_EQ(calls->load(), 1);
    return *heard;
  }

  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<RpcChannel> channel_;
};

TEST_F(RpcTest, AStreamWhoseReaderThrowsEndsWithThatErrorWhileThePeerStillSends) {
  EXPECT_STATUS(Stream("/test/Flood",
                       [](const grpc::ByteBuffer&) -> StatusOr<bool> { throw std::bad_alloc(); }),
                absl::StatusCode::kResourceExhausted, "out of memory");
  EXPECT_STATUS(Stream("/test/Flood",
                       [n = 0](const grpc::ByteBuffer&) mutable -> StatusOr<bool> {
                         if (++n == 3) throw std::runtime_error("the third one");
                         return true;
                       }),
                absl::StatusCode::kInternal, "the third one");
}

TEST_F(RpcTest, AStreamWhoseReaderRefusesAMessageEndsWithItsError) {
  EXPECT_STATUS(Stream("/test/Flood",
                       [](const grpc::ByteBuffer&) -> StatusOr<bool> {
                         return absl::InvalidArgumentError("no such message");
                       }),
                absl::StatusCode::kInvalidArgument, "no such message");
}

TEST_F(RpcTest, AServerCountsTheCallsOfEachMethodAndTheMessagesThatItSends) {
  EXPECT_TRUE(server_->counts().empty());
  for (int i = 0; i < 2; ++i) {
    int messages = 0;
    EXPECT_OK(Stream("/test/Three",
                     [&](const grpc::ByteBuffer&) { return StatusOr<bool>(++messages < 3); }));
    EXPECT_EQ(messages, 3);
  }
  const auto ignored = [](const grpc::ByteBuffer&) { return StatusOr<bool>(true); };
  EXPECT_STATUS(Stream("/test/Refuse", ignored), absl::StatusCode::kInvalidArgument, "refused");
  // Of a method that is not there nothing is counted.
  EXPECT_STATUS(Stream("/test/None", ignored), absl::StatusCode::kUnimplemented, "");
  auto counts = server_->counts();
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts["/test/Three"].calls, 2);
  EXPECT_EQ(counts["/test/Three"].messages, 6);
  EXPECT_EQ(counts["/test/Refuse"].calls, 1);
  EXPECT_EQ(counts["/test/Refuse"].messages, 0);
}

// Work that a message made ready, and that waits for a later one.
struct WaitingWork final : Visit::Work {
  explicit WaitingWork(Notification* f) : until(f) {}
  void RunVisit() noexcept override {
    saw_it = until->WaitFor(kHang);
    ran.Notify();
  }
  Notification* const until;
  Notification ran;
  bool saw_it = false;
};

TEST_F(RpcTest, AMessagesWorkRunsOnTheNetworkThreadWhileOthersReadOn) {
  Notification last;
  WaitingWork first(&last), second(&last);  // as many as there are pollers
  int messages = 0;
  EXPECT_OK(Stream("/test/Three", [&](const grpc::ByteBuffer&) {
    ++messages;
    if (messages < 3) {
      EXPECT_TRUE(Visit::Offer(messages == 1 ? &first : &second, 2));
    }
    if (messages == 3) last.Notify();
    return StatusOr<bool>(messages < 3);
  }));
  EXPECT_TRUE(first.ran.WaitFor(kHang));
  EXPECT_TRUE(second.ran.WaitFor(kHang));
  EXPECT_TRUE(first.saw_it && second.saw_it);
}

TEST_F(RpcTest, AMessagesWorkRunsAlsoWhenItsReaderThrows) {
  Notification at_once;
  at_once.Notify();
  WaitingWork work(&at_once);
  EXPECT_STATUS(Stream("/test/Three",
                       [&](const grpc::ByteBuffer&) -> StatusOr<bool> {
                         EXPECT_TRUE(Visit::Offer(&work, 1));
                         throw std::bad_alloc();
                       }),
                absl::StatusCode::kResourceExhausted, "out of memory");
  EXPECT_TRUE(work.ran.WaitFor(kHang));
}

TEST_F(RpcTest, AServersStreamThatThrowsBetweenMessagesEndsForItsClient) {
  int messages = 0;
  const Status status = Stream("/test/ThrowsWhenWritten", [&](const grpc::ByteBuffer&) {
    ++messages;
    return StatusOr<bool>(true);
  });
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LE(messages, 1);
}

}  // namespace
}  // namespace millrace
