// SPDX-License-Identifier: Apache-2.0
//
// Peers that lie about who they are, at the links of real servers: in HELLO, in what they offer or
// take within the host, and with a nonce that was said before. Whoever is refused hears why, and
// the job of the others goes on.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/frame.h"
#include "distributed/link/grpc_wire.h"
#include "distributed/link/link.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/testing/system_state.h"
#include "distributed/link/unix_acceptor.h"
#include "distributed/link/unix_dial.h"
#include "distributed/link/unix_offer.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/server_links.h"
#include "distributed/testing/raw_link.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/two_servers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "net/duplex_call.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "runtime/session.h"

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

// A task that no cluster names. Another one each time: a server may not have seen the end of the
// last one's link yet.
std::string Stranger() {
  static int number = 0;
  return absl::StrCat("/job:stranger/replica:0/task:", ++number);
}

HelloFrame HelloOf(const std::string& task, uint64_t incarnation) {
  HelloFrame hello;
  hello.task = task;
  hello.incarnation = incarnation;
  hello.window_bytes = int64_t{64} << 20;
  return hello;
}

// As it says to a master that is not in its cluster.
uint64_t IncarnationOf(const std::string& address) {
  const auto link = RawLink::Dial(address);
  link->Say(FrameBytes(HelloOf(Stranger(), 1)));
  const std::optional<HelloFrame> hello = link->AwaitHello();
  EXPECT_TRUE(hello.has_value());
  return hello.has_value() ? hello->incarnation : 0;
}

// A ps and a worker that train.
class Job {
 public:
  explicit Job(bool unix_links)
      : servers_({.unix_links = unix_links}, {.unix_links = unix_links}), model_(MakeSmallModel()) {
    auto session = servers_.NewSession(model_.root);
    EXPECT_OK(session);
    if (!session.ok()) return;
    session_ = *std::move(session);
    EXPECT_OK(session_->Run({}, {}, {model_.init}));
    ExpectSteps();
  }
  void ExpectSteps() {
    ASSERT_NE(session_, nullptr);
    for (int i = 0; i < 3; ++i) {
      EXPECT_OK(session_->Run(SmallModelBatch(model_), {model_.loss}, {model_.train}));
    }
  }
  TwoServers& servers() { return servers_; }

 private:
  TwoServers servers_;
  const SmallModel model_;
  std::unique_ptr<Session> session_;
};

// covers: clusters: a caller that lies in HELLO about its version, its name, its incarnation or its
//   window is refused by a server and hears why, while the job of the task whose name it takes goes
//   on
TEST(LyingPeersTest, WhoLiesInHelloHearsWhichRuleItBroke) {
  for (const bool unix_links : {false, true}) {
    SCOPED_TRACE(unix_links);
    Job job(unix_links);
    const std::string address = job.servers().ps_address();
    const uint64_t incarnation = IncarnationOf(job.servers().worker_address());
    HelloFrame version = HelloOf(Stranger(), 1), window = version, takes = version;
    version.version = kLinkVersion + 1;
    window.window_bytes = 1;
    takes.takes_offer = true;
    const struct {
      std::string bytes;
      absl::StatusCode code;
      std::string message;
    } kCases[] = {
        {FrameBytes(version), absl::StatusCode::kFailedPrecondition,
         absl::StrCat("both tasks must speak version ", kLinkVersion, " of links, got a peer of ",
                      "version ", kLinkVersion + 1)},
        {FrameBytes(window), absl::StatusCode::kInvalidArgument, "the window must be at least"},
        {FrameBytes(takes), absl::StatusCode::kInvalidArgument,
         "HELLO must take an offer that was made, got none"},
        {FrameBytes(HelloOf("", 1)), absl::StatusCode::kInvalidArgument,
         "a caller must have the name of a task, got ''"},
        {FrameBytes(HelloOf("the chief", 1)), absl::StatusCode::kInvalidArgument,
         "a caller must have the name of a task, got 'the chief'"},
        {FrameBytes(HelloOf(absl::StrCat("/job:", std::string(3000, 'j'), "/replica:0/task:0"), 1)),
         absl::StatusCode::kInvalidArgument, "a caller must have the name of a task, got '/job:jj"},
        {FrameBytes(HelloOf(kPs, 1)), absl::StatusCode::kFailedPrecondition,
         absl::StrCat("the caller must be another task, got '", kPs, "'")},
        {FrameBytes(HelloOf(kWorker, incarnation)), absl::StatusCode::kAlreadyExists,
         absl::StrCat(kWorker, " must have one link, got another")},
        {FrameBytes(HelloOf(kWorker, incarnation + 1)), absl::StatusCode::kAlreadyExists,
         absl::StrCat(kWorker, " must have one link, got one of another incarnation")},
        {FrameBytes(PingFrame{1}), absl::StatusCode::kInvalidArgument,
         "the first frame must be HELLO"},
        {"GET / HTTP/1.1\r\n\r\n", absl::StatusCode::kInvalidArgument, "got kind 71"},
    };
    for (const auto& c : kCases) {
      SCOPED_TRACE(c.message);
      const auto liar = RawLink::Dial(address);
      liar->Say(c.bytes);
      EXPECT_STATUS(liar->AwaitFarewell(), c.code, c.message);
      EXPECT_EQ(liar->num_frames(), 1);  // BYE alone
      job.ExpectSteps();
    }
    // Until the worker, which was asked, has answered, it is told to come again.
    Status second;
    Await("the worker has answered", [&] {
      const auto liar = RawLink::Dial(address);
      liar->Say(FrameBytes(HelloOf(kWorker, incarnation + 1)));
      second = liar->AwaitFarewell();
      return !absl::IsAlreadyExists(second);
    });
    EXPECT_STATUS(
        second, absl::StatusCode::kUnavailable,
        absl::StrCat("must be one program, got a second one (incarnation ", incarnation + 1,
                     ") while that of incarnation ", incarnation, " answers"));
    job.ExpectSteps();
    EXPECT_EQ(CountsOf(job.servers().ps()).unix_links, unix_links ? 1 : 0);
  }
}

// covers: clusters: an offer of another host, of a socket that is not there, or of other bytes is
//   not taken by a server, and the link that was dialled carries the steps
TEST(LyingPeersTest, OffersThatLieAreNotTaken) {
  Job job(/*unix_links=*/true);
  UnixOffer nowhere, elsewhere;
  nowhere.host = elsewhere.host = UnixOffer::ThisHost();
  elsewhere.host[0] = static_cast<char>(elsewhere.host[0] ^ 1);
  ASSERT_OK_AND_ASSIGN(nowhere.socket, UnixOffer::Random());
  // One that would take a connection of its own host.
  ASSERT_OK_AND_ASSIGN(const auto acceptor, UnixAcceptor::Listen());
  ASSERT_OK_AND_ASSIGN(const UnixOffer real,
                       acceptor->Offer([](const StatusOr<std::unique_ptr<ByteWire>>&) {}));
  elsewhere.socket = real.socket;
  elsewhere.nonce = real.nonce;
  std::string later = real.Encode();
  later[0] = UnixOffer::kOfferVersion + 1;
  for (const std::string& offer :
       {elsewhere.Encode(), nowhere.Encode(), later, real.Encode() + "x", std::string("offer")}) {
    SCOPED_TRACE(offer.size());
    HelloFrame hello = HelloOf(Stranger(), 1);
    hello.offer = offer;
    const auto liar = RawLink::Dial(job.servers().ps_address());
    liar->Say(FrameBytes(hello));
    const std::optional<HelloFrame> answer = liar->AwaitHello();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->task, kPs);
    EXPECT_FALSE(answer->takes_offer);
    // It is a link: what comes on it is read.
    liar->Say(FrameBytes(hello));
    EXPECT_STATUS(liar->AwaitFarewell(), absl::StatusCode::kInvalidArgument,
                  "HELLO must come once");
  }
  EXPECT_EQ(acceptor->counts().proven, 0);
  job.ExpectSteps();
  EXPECT_EQ(CountsOf(job.servers().ps()).unix_links, 1);
}

// covers: clusters: a caller that is another task, or another life of it, or nobody on the Unix
//   socket that it has offered loses both links
TEST(LyingPeersTest, WhoIsAnotherOneWithinTheHostLosesBothLinks) {
  Job job(/*unix_links=*/true);
  enum class Lie { kTask, kIncarnation, kNoHello, kSilence };
  const struct {
    Lie lie;
    std::string message;
  } kCases[] = {
      {Lie::kTask, "that task must answer, got /job:worker/replica:0/task:0"},
      {Lie::kIncarnation, "(incarnation 1 expected, 2 found)"},
      {Lie::kNoHello, "the first frame must be HELLO"},
      {Lie::kSilence, "HELLO must come within 3s, got none"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.message);
    const std::string stranger = Stranger();
    struct Came {
      Notification done;
      StatusOr<std::unique_ptr<ByteWire>> wire;
    };
    const auto came = std::make_shared<Came>();
    ASSERT_OK_AND_ASSIGN(const auto acceptor, UnixAcceptor::Listen());
    ASSERT_OK_AND_ASSIGN(const UnixOffer offer,
                         acceptor->Offer([came](StatusOr<std::unique_ptr<ByteWire>> wire) {
                           came->wire = std::move(wire);
                           came->done.Notify();
                         }));
    HelloFrame hello = HelloOf(stranger, 1);
    hello.offer = offer.Encode();
    const auto witness = RawLink::Dial(job.servers().ps_address());
    witness->Say(FrameBytes(hello));
    const std::optional<HelloFrame> answer = witness->AwaitHello();
    ASSERT_TRUE(answer.has_value());
    EXPECT_TRUE(answer->takes_offer);
    ASSERT_TRUE(came->done.WaitFor(absl::Minutes(1)));
    ASSERT_OK(came->wire);
    RawLink carrier(*std::move(came->wire));
    switch (c.lie) {
      case Lie::kTask:
        carrier.Say(FrameBytes(HelloOf(kWorker, 1)));
        break;
      case Lie::kIncarnation:
        carrier.Say(FrameBytes(HelloOf(stranger, 2)));
        break;
      case Lie::kNoHello:
        carrier.Say(FrameBytes(PingFrame{1}));
        break;
      case Lie::kSilence:
        break;
    }
    // Who has not spoken is told nothing; on the other link nobody waits until the farewell left.
    const Status told = carrier.AwaitFarewell();
    EXPECT_TRUE(carrier.is_closed());
    EXPECT_EQ(told.ok(), c.lie == Lie::kSilence) << told;
    if (!told.ok()) {
      EXPECT_THAT(std::string(told.message()), ::testing::HasSubstr(c.message));
    }
    const Status told_too = witness->AwaitFarewell();
    EXPECT_TRUE(witness->is_closed());
    if (!told_too.ok()) {
      EXPECT_THAT(std::string(told_too.message()), ::testing::HasSubstr(c.message));
    }
    job.ExpectSteps();
  }
  EXPECT_EQ(CountsOf(job.servers().ps()).unix_links, 1);
}

// The task that was dialled, as the test likes.
class FakeTask {
 public:
  FakeTask() {
    RpcServer::Options options;
    options.address = "127.0.0.1:0";
    options.duplex_handlers[kLinkMethod] = [this](std::shared_ptr<DuplexCall> call) {
      auto link = std::make_unique<RawLink>(AcceptGrpcWire(std::move(call)));
      MutexLock lock(&mu_);
      links_.push_back(std::move(link));
    };
    auto server = RpcServer::Start(std::move(options));
    EXPECT_OK(server);
    if (server.ok()) server_ = *std::move(server);
  }
  ~FakeTask() {
    {
      MutexLock lock(&mu_);
      links_.clear();
    }
    if (server_ != nullptr) server_->Shutdown(absl::Now());
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  // The first that was dialled; null when none is within a minute.
  RawLink* AwaitLink() {
    RawLink* link = nullptr;
    Await("a link is dialled", [&] {
      MutexLock lock(&mu_);
      if (!links_.empty()) link = links_.front().get();
      return link != nullptr;
    });
    return link;
  }

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<RawLink>> links_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<RpcServer> server_;
};

// covers: clusters: a nonce that was said before, or is not the one of the offer, opens no link to
//   a server within the host, and the link of the task that said it first stays
TEST(LyingPeersTest, ANonceThatIsReplayedOpensNothing) {
  FakeTask ps;
  const std::shared_ptr<RpcChannel> channel = RpcChannel::Make(ps.address());
  const auto end = std::make_shared<RecordingEnd>();
  ServerLinks links;
  ServerLinksOptions options;
  options.task = kWorker;
  options.incarnation = 41;
  options.channel = [&](const std::string&) { return channel; };
  options.make_end = [&] { return end; };
  links.Open(std::move(options));
  struct Got {
    Notification done;
    Status status;
  };
  const auto got = std::make_shared<Got>();
  links.Get(kPs, [got](const StatusOr<std::shared_ptr<Link>>& link) {
    got->status = link.status();
    got->done.Notify();
  });
  RawLink* const witness = ps.AwaitLink();
  ASSERT_NE(witness, nullptr);
  const std::optional<HelloFrame> hello = witness->AwaitHello();
  ASSERT_TRUE(hello.has_value());
  ASSERT_OK_AND_ASSIGN(const UnixOffer offer, UnixOffer::Decode(hello->offer));

  const auto expect_refused = [](const UnixOffer& said) {
    ASSERT_OK_AND_ASSIGN(auto wire, DialUnix(said));
    RawLink stranger(std::move(wire));
    stranger.Say(FrameBytes(HelloOf(kPs, 42)));
    EXPECT_OK(stranger.AwaitFarewell());  // there is none
    EXPECT_TRUE(stranger.is_closed());
    EXPECT_EQ(stranger.num_frames(), 0);
  };
  UnixOffer wrong = offer;
  wrong.nonce[7] = static_cast<char>(wrong.nonce[7] ^ 1);
  expect_refused(wrong);
  // The task itself.
  ASSERT_OK_AND_ASSIGN(auto wire, DialUnix(offer));
  RawLink carrier(std::move(wire));
  HelloFrame answer = HelloOf(kPs, 42);
  answer.takes_offer = true;
  witness->Say(FrameBytes(answer));
  ASSERT_TRUE(carrier.AwaitHello().has_value());
  carrier.Say(FrameBytes(HelloOf(kPs, 42)));
  ASSERT_TRUE(got->done.WaitFor(absl::Minutes(1)));
  EXPECT_OK(got->status);
  // Who has heard the nonce.
  expect_refused(offer);
  expect_refused(wrong);
  EXPECT_EQ(links.num_unix_links(), 1);
  ASSERT_NE(end->link(), nullptr);
  EXPECT_OK(end->link()->Send(CancelFrame{7, absl::CancelledError("a message")}));
  Await("it comes on the link within the host", [&] { return carrier.num_frames() >= 2; });

  links.CloseAll(absl::UnavailableError("the test is over"));
  Await("the link is lost", [&] { return end->num_losses() == 1; });
  end->LetGo();
}

}  // namespace
}  // namespace millrace
