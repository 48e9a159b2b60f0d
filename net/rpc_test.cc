// SPDX-License-Identifier: Apache-2.0
//
// Calls whose own code throws: each ends, once, on both sides of the network. What servers count.
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "core/visit.h"
#include "gtest/gtest.h"
#include "net/call_guard.h"
#include "net/duplex_call.h"
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

// One side of a DuplexCall: writes down what it hears, and says one message after the other.
class Talker : public DuplexCall::User, public std::enable_shared_from_this<Talker> {
 public:
  using OnHeard = std::function<void(Talker*, const grpc::ByteBuffer&)>;

  // `on_heard` is called after the length of a message was written down; may be null.
  Talker(std::shared_ptr<DuplexCall> call, OnHeard on_heard)
      : call_(std::move(call)), on_heard_(std::move(on_heard)) {}

  void Start() { call_->Start(shared_from_this()); }
  void Say(const grpc::ByteBuffer& message) {
    {
      MutexLock lock(&mu_);
      to_say_.push_back(message);
    }
    SayNext();
  }
  // Once all is said.
  void CloseThen() {
    {
      MutexLock lock(&mu_);
      closes_ = true;
    }
    SayNext();
  }

  void OnMessage(const grpc::ByteBuffer& message) override {
    {
      MutexLock lock(&mu_);
      lengths_.push_back(message.Length());
      changed_.SignalAll();
    }
    if (on_heard_) on_heard_(this, message);
  }
  void OnWritten() override {
    {
      MutexLock lock(&mu_);
      is_saying_ = false;
    }
    SayNext();
  }
  void OnEnded(const Status& status, bool by_peer) override {
    MutexLock lock(&mu_);
    ++ends_;
    status_ = status;
    by_peer_ = by_peer;
    changed_.SignalAll();
  }

  // False when it takes too long.
  bool AwaitMessages(size_t n) {
    return Await([&] { return lengths_.size() >= n; });
  }
  bool AwaitEnd() {
    return Await([&] { return ends_ > 0; });
  }
  std::vector<size_t> lengths() {
    MutexLock lock(&mu_);
    return lengths_;
  }
  Status status() {
    MutexLock lock(&mu_);
    EXPECT_EQ(ends_, 1);
    return status_;
  }
  bool by_peer() {
    MutexLock lock(&mu_);
    return by_peer_;
  }

 private:
  void SayNext() {
    grpc::ByteBuffer next;
    {
      MutexLock lock(&mu_);
      if (is_saying_) return;
      if (to_say_.empty()) {
        if (!closes_) return;
      } else {
        is_saying_ = true;
        next = to_say_.front();
        to_say_.pop_front();
      }
    }
    if (!next.Valid()) return call_->Close();
    call_->Write(next);
  }
  template <typename Condition>
  bool Await(Condition condition) {
    const absl::Time hang = absl::Now() + kHang;
    MutexLock lock(&mu_);
    while (!condition()) {
      if (absl::Now() >= hang) return false;
      changed_.WaitWithTimeout(&mu_, absl::Seconds(1));
    }
    return true;
  }

  const std::shared_ptr<DuplexCall> call_;
  const OnHeard on_heard_;
  Mutex mu_;
  CondVar changed_;
  std::deque<grpc::ByteBuffer> to_say_;
  bool is_saying_ = false, closes_ = false;
  std::vector<size_t> lengths_;
  int ends_ = 0;
  Status status_;
  bool by_peer_ = false;
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
    options.duplex_handlers["/test/Talk"] = [this](std::shared_ptr<DuplexCall> call) {
      auto talker = std::make_shared<Talker>(std::move(call), on_server_message_);
      {
        MutexLock lock(&mu_);
        server_talker_ = talker;
      }
      talker->Start();
    };
    // Never reads, and so does not follow when the call is closed.
    options.duplex_handlers["/test/Deaf"] = [this](std::shared_ptr<DuplexCall> call) {
      MutexLock lock(&mu_);
      deaf_ = std::move(call);
    };
    options.duplex_handlers["/test/ThrowsBeforeItStarts"] = [](std::shared_ptr<DuplexCall>) {
      throw std::bad_alloc();
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

  static std::shared_ptr<Talker> Start(std::shared_ptr<DuplexCall> call,
                                       Talker::OnHeard on_heard = nullptr) {
    auto talker = std::make_shared<Talker>(std::move(call), std::move(on_heard));
    talker->Start();
    return talker;
  }
  // Once its first message has been answered.
  std::shared_ptr<Talker> server_talker() {
    MutexLock lock(&mu_);
    return server_talker_;
  }

  // Before a call begins.
  Talker::OnHeard on_server_message_;
  Mutex mu_;
  std::shared_ptr<Talker> server_talker_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<DuplexCall> deaf_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<RpcChannel> channel_;
  std::unique_ptr<RpcServer> server_;  // goes first: its handlers use the others
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

void Echo(Talker* server, const grpc::ByteBuffer& message) { server->Say(message); }

// covers: clusters: a call with messages both ways carries them in order until a side closes it;
//   both hear that once
TEST_F(RpcTest, ADuplexCallCarriesMessagesBothWaysUntilASideClosesIt) {
  for (const bool server_closes : {false, true}) {
    SCOPED_TRACE(server_closes);
    on_server_message_ = [server_closes](Talker* server, const grpc::ByteBuffer& message) {
      server->Say(message);
      if (server_closes && message.Length() == 3) server->CloseThen();
    };
    const auto client = Start(channel_->Duplex("/test/Talk"));
    for (size_t length = 1; length <= 3; ++length) client->Say(Bytes(length));
    ASSERT_TRUE(client->AwaitMessages(3));
    if (!server_closes) client->CloseThen();
    ASSERT_TRUE(client->AwaitEnd());
    const auto server = server_talker();
    ASSERT_TRUE(server->AwaitEnd());
    EXPECT_EQ(client->lengths(), (std::vector<size_t>{1, 2, 3}));
    EXPECT_EQ(server->lengths(), (std::vector<size_t>{1, 2, 3}));
    EXPECT_EQ(client->by_peer(), server_closes);
    EXPECT_EQ(server->by_peer(), !server_closes);
    EXPECT_STATUS((server_closes ? server : client)->status(), absl::StatusCode::kCancelled,
                  "closed here");
    EXPECT_STATUS((server_closes ? client : server)->status(), absl::StatusCode::kUnavailable,
                  "has ended the call");
    // Nothing leaves any more.
    client->Say(Bytes(4));
    client->CloseThen();
  }
  auto counts = server_->counts();
  EXPECT_EQ(counts["/test/Talk"].calls, 2);
  EXPECT_EQ(counts["/test/Talk"].messages, 6);
}

// covers: clusters: what was written before a call of both directions is closed arrives
TEST_F(RpcTest, ACloseOfADuplexCallLosesNothing) {
  for (int i = 0; i < 50; ++i) {
    const auto client = Start(channel_->Duplex("/test/Talk"));
    for (const size_t length : {size_t{10}, size_t{200'000}, size_t{1}}) client->Say(Bytes(length));
    client->CloseThen();
    ASSERT_TRUE(client->AwaitEnd());
    ASSERT_TRUE(server_talker()->AwaitEnd());
    ASSERT_EQ(server_talker()->lengths(), (std::vector<size_t>{10, 200'000, 1}));
  }
}

TEST_F(RpcTest, ADuplexCallWhosePeerDoesNotFollowIsCutOff) {
  const auto client = Start(channel_->Duplex("/test/Deaf"));
  client->Say(Bytes(1));
  client->CloseThen();
  ASSERT_TRUE(client->AwaitEnd());
  EXPECT_STATUS(client->status(), absl::StatusCode::kCancelled, "closed here");
  // The other side hears it when it looks.
  std::shared_ptr<DuplexCall> deaf;
  {
    MutexLock lock(&mu_);
    deaf.swap(deaf_);
  }
  ASSERT_TRUE(deaf != nullptr);
  const auto server = Start(std::move(deaf));
  ASSERT_TRUE(server->AwaitEnd());
  EXPECT_TRUE(server->by_peer());
}

TEST_F(RpcTest, ADuplexCallWhoseReaderThrowsEndsAtBothSides) {
  // At the server.
  on_server_message_ = [](Talker*, const grpc::ByteBuffer&) { throw std::bad_alloc(); };
  auto client = Start(channel_->Duplex("/test/Talk"));
  client->Say(Bytes(1));
  ASSERT_TRUE(client->AwaitEnd());
  EXPECT_FALSE(client->status().ok());
  ASSERT_TRUE(server_talker()->AwaitEnd());
  EXPECT_STATUS(server_talker()->status(), absl::StatusCode::kResourceExhausted, "out of memory");
  EXPECT_FALSE(server_talker()->by_peer());
  // At the client.
  on_server_message_ = Echo;
  client = Start(channel_->Duplex("/test/Talk"), [](Talker*, const grpc::ByteBuffer&) {
    throw std::runtime_error("no such message");
  });
  client->Say(Bytes(1));
  ASSERT_TRUE(client->AwaitEnd());
  EXPECT_STATUS(client->status(), absl::StatusCode::kInternal, "no such message");
  ASSERT_TRUE(server_talker()->AwaitEnd());
  EXPECT_TRUE(server_talker()->by_peer());
  // Before there is a reader.
  client = Start(channel_->Duplex("/test/ThrowsBeforeItStarts"));
  client->Say(Bytes(1));
  ASSERT_TRUE(client->AwaitEnd());
  EXPECT_STATUS(client->status(), absl::StatusCode::kResourceExhausted, "out of memory");
}

// covers: clusters: work that a message of a call of both directions makes ready runs on the thread
//   that read the message, at clients and at servers
TEST_F(RpcTest, AMessagesWorkRunsOnTheThreadThatReadItAlsoAtTheServer) {
  Notification at_once;
  at_once.Notify();
  WaitingWork at_server(&at_once), at_client(&at_once);
  on_server_message_ = [&](Talker* server, const grpc::ByteBuffer& message) {
    EXPECT_TRUE(Visit::Offer(&at_server, 2));
    server->Say(message);
  };
  const auto client = Start(channel_->Duplex("/test/Talk"), [&](Talker*, const grpc::ByteBuffer&) {
    EXPECT_TRUE(Visit::Offer(&at_client, 2));
  });
  client->Say(Bytes(1));
  EXPECT_TRUE(at_server.ran.WaitFor(kHang));
  EXPECT_TRUE(at_client.ran.WaitFor(kHang));
  client->CloseThen();
  ASSERT_TRUE(client->AwaitEnd());
  ASSERT_TRUE(server_talker()->AwaitEnd());
}

TEST_F(RpcTest, ADuplexCallOfNoMethodOrNoServerEndsOnce) {
  const auto none = Start(channel_->Duplex("/test/None"));
  none->Say(Bytes(1));
  ASSERT_TRUE(none->AwaitEnd());
  EXPECT_STATUS(none->status(), absl::StatusCode::kUnimplemented,
                "Method must be one of this server, got /test/None");
  EXPECT_FALSE(none->by_peer());
  const auto nobody = Start(RpcChannel::Make("127.0.0.1:1")->Duplex("/test/Talk"));
  nobody->Say(Bytes(1));
  ASSERT_TRUE(nobody->AwaitEnd());
  EXPECT_STATUS(nobody->status(), absl::StatusCode::kUnavailable, "127.0.0.1:1");
  EXPECT_FALSE(nobody->by_peer());
}

TEST_F(RpcTest, AServerThatShutsDownEndsItsDuplexCalls) {
  on_server_message_ = Echo;
  const auto client = Start(channel_->Duplex("/test/Talk"));
  client->Say(Bytes(1));
  ASSERT_TRUE(client->AwaitMessages(1));
  server_->Shutdown(absl::InfinitePast());
  ASSERT_TRUE(client->AwaitEnd());
  EXPECT_TRUE(client->by_peer());
  EXPECT_STATUS(client->status(), absl::StatusCode::kUnavailable, "");
  ASSERT_TRUE(server_talker()->AwaitEnd());
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

// --- Limits --------------------------------------------------------------------------------------

TEST(RpcServerLimits, AServerFullOfHeavyCallsTakesLightAndUrgentOnes) {
  Notification inside, release;
  RpcServer::Options options;
  options.address = "127.0.0.1:0";
  options.limits.max_calls = 1;
  options.limits.max_calls_of_connection = 1;
  options.limits.max_other_calls = 100;
  options.handlers["/test/Heavy"] = RpcServer::Handler(
      [&](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& request) {
        if (!inside.HasBeenNotified()) inside.Notify();
        release.Wait();
        call->Finish(request);
      },
      CallWeight::kHeavy);
  const auto echo = [](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& request) {
    call->Finish(request);
  };
  options.handlers["/test/Light"] = RpcServer::Handler(echo, CallWeight::kLight);
  options.handlers["/test/Urgent"] = RpcServer::Handler(echo, CallWeight::kUrgent);
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start(std::move(options)));
  const auto channel = RpcChannel::Make(absl::StrCat("127.0.0.1:", server->port()));
  const auto call = [&](const char* method) {
    return channel->Call(method, {.deadline = absl::Now() + kHang}, Bytes(1)).status();
  };
  std::thread first([&] { EXPECT_OK(call("/test/Heavy")); });
  inside.Wait();
  // The bound of heavy calls is reached, in all and of this connection.
  EXPECT_STATUS(call("/test/Heavy"), absl::StatusCode::kResourceExhausted, "max_calls");
  EXPECT_OK(call("/test/Light"));
  EXPECT_OK(call("/test/Urgent"));
  release.Notify();
  first.join();
}

// --- Addresses -----------------------------------------------------------------------------------

RpcServer::Options Echoes(const std::string& address) {
  RpcServer::Options options;
  options.address = address;
  options.handlers["/test/Echo"] =
      RpcServer::Handler([](std::shared_ptr<ServerCall> call,
                            const grpc::ByteBuffer& request) { call->Finish(request); },
                         CallWeight::kLight);
  return options;
}

// Tests' own folders may be too deep for a socket.
std::string ShortPath() { return absl::StrCat("/tmp/millrace_", RandomHexName()); }

size_t EchoedBytes(const std::string& address) {
  const auto channel = RpcChannel::Make(address);
  const StatusOr<grpc::ByteBuffer> reply =
      channel->Call("/test/Echo", {.deadline = absl::Now() + kHang}, Bytes(3));
  EXPECT_OK(reply.status()) << address;
  return reply.ok() ? reply->Length() : 0;
}

// covers: clusters: a call says who called: an address with its port, or a unix socket
TEST(RpcServerPeer, ACallSaysWhoCalled) {
  const std::string path = ShortPath();
  RpcServer::Options options;
  options.address = "127.0.0.1:0";
  options.more_addresses = {"unix:" + path};
  std::string peer;
  options.handlers["/test/Who"] = RpcServer::Handler(
      [&peer](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& request) {
        peer = std::string(call->peer());
        call->Finish(request);
      },
      CallWeight::kLight);
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start(std::move(options)));
  const auto peer_at = [&peer](const std::string& address) {
    EXPECT_OK(RpcChannel::Make(address)
                  ->Call("/test/Who", {.deadline = absl::Now() + kHang}, Bytes(1))
                  .status());
    return peer;
  };
  const std::string over_network = peer_at(absl::StrCat("127.0.0.1:", server->port()));
  EXPECT_TRUE(absl::StartsWith(over_network, "127.0.0.1:")) << over_network;
  EXPECT_EQ(peer_at("unix:" + path), "unix");
}

TEST(RpcServerPeer, NamesAreThoseThatOthersWrite) {
  for (const auto& [of_grpc, name] : std::vector<std::pair<std::string, std::string>>{
           {"ipv4:127.0.0.1:1234", "127.0.0.1:1234"},
           {"ipv6:%5B::1%5D:1234", "[::1]:1234"},
           {"ipv6:[::1]:1234", "[::1]:1234"},
           {"ipv6:%5Bfe80::1%25eth0%5D:1", "[fe80::1%eth0]:1"},
           {"unix:", "unix"},
           {"unix:/a/socket", "unix"},
           {"unix-abstract:a", "unix"},
           {"another", "another"},
           {"", ""}}) {
    EXPECT_EQ(PeerName(of_grpc), name);
  }
}

TEST(RpcServerAddresses, AUnixSocketServesBesideAPortAndItsFileIsReplacedOnceNobodyListens) {
  const std::string path = ShortPath();
  const std::string unix_address = absl::StrCat("unix:", path);
  RpcServer::Options options = Echoes("127.0.0.1:0");
  options.more_addresses = {unix_address};
  options.channel_arguments = {{"grpc.max_connection_age_ms", "100000"}, {"grpc.some_text", "x"}};
  ASSERT_OK_AND_ASSIGN(auto server, RpcServer::Start(std::move(options)));
  EXPECT_EQ(EchoedBytes(absl::StrCat("127.0.0.1:", server->port())), 3);
  EXPECT_EQ(EchoedBytes(unix_address), 3);
  EXPECT_STATUS(RpcServer::Start(Echoes(unix_address)).status(),
                absl::StatusCode::kFailedPrecondition, "must be free");
  server.reset();
  ASSERT_OK_AND_ASSIGN(server, RpcServer::Start(Echoes(unix_address)));
  EXPECT_EQ(server->port(), 0);
  EXPECT_EQ(EchoedBytes(unix_address), 3);
  server.reset();
  unlink(path.c_str());
}

TEST(RpcServerAddresses, BadOnesAreRefusedBeforeAnythingListens) {
  const std::string file = ShortPath();
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), file, "not a socket"));
  EXPECT_STATUS(RpcServer::Start(Echoes("unix:" + file)).status(),
                absl::StatusCode::kFailedPrecondition, "must be a socket or not there");
  unlink(file.c_str());
  EXPECT_STATUS(RpcServer::Start(Echoes("unix:")).status(), absl::StatusCode::kInvalidArgument,
                "the path of a unix socket must have 1 to 107 characters");
  EXPECT_STATUS(RpcServer::Start(Echoes("unix:/" + std::string(200, 'x'))).status(),
                absl::StatusCode::kInvalidArgument, "must have 1 to 107 characters");
}

}  // namespace
}  // namespace millrace
