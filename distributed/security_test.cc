// SPDX-License-Identifier: Apache-2.0
//
// Who may call a server: tokens, certificates, addresses.
#include "net/security.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "distributed/testing/raw_client.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/two_servers.h"
#include "gtest/gtest.h"
#include "net/call_metadata.h"
#include "net/rpc_channel.h"
#include "net/testing/test_certificates.h"
#include "runtime/session.h"
#include "tests/failures/tcp_proxy.h"

// covers: clusters: with a token each method of all services refuses a caller without it, before it
//   reads the request; the token is in no log and no error; files that others can read are refused
// covers: clusters: TLS and mutual TLS from files; plaintext on either side, another authority,
//   another host, an expired certificate: refused with the reason, and no task waits for such a
//   peer
// covers: clusters: a server refuses connections to other addresses of its machine

namespace millrace {
namespace {

constexpr char kToken[] = "the-token-of-this-cluster-0123456789";
constexpr char kOtherToken[] = "the-token-of-another-cluster-0123456";
constexpr char kGetStatus[] = "/tensorflow.grpc.WorkerService/GetStatus";

std::string TestFile(absl::string_view name) {
  return absl::StrCat(::testing::TempDir(), "/security_test_", ::getpid(), "_", name);
}

std::string TokenFile(const std::string& name, const std::string& text, int mode = 0600) {
  const std::string path = TestFile(name);
  WriteTestFile(path, text, mode);
  return path;
}

ServerOptions With(const SecurityOptions& security) {
  ServerOptions options;
  options.security = security;
  return options;
}

// What this process shows as a client is the whole process's: each test leaves it as it was.
class SecurityTest : public ::testing::Test {
 protected:
  ~SecurityTest() override { EXPECT_OK(SetClusterSecurity({})); }
};

void TrainAStep(TwoServers* servers, bool over_network) {
  const SmallModel model = MakeSmallModel();
  ASSERT_OK_AND_ASSIGN(const auto session, servers->NewSession(model.root, over_network));
  ASSERT_OK(session->Run({}, {}, {model.init}));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{model.x, Tensor::Vector<float>({3, 1})},
                                                     {model.y, Tensor::Vector<float>({3, 1})}},
                                                    {model.loss}, {model.train}));
  EXPECT_EQ(out[0].scalar<float>(), 5);
}

// --- Tokens --------------------------------------------------------------------------------------

TEST_F(SecurityTest, TasksAndClientsWithTheTokenTrain) {
  const SecurityOptions security{.token_file = TokenFile("token", absl::StrCat(kToken, "\n"))};
  TwoServers servers(With(security), With(security));
  ASSERT_OK(SetClusterSecurity(security));
  TrainAStep(&servers, /*over_network=*/false);
  TrainAStep(&servers, /*over_network=*/true);
}

TEST_F(SecurityTest, EachMethodOfAllServicesAsksForTheTokenBeforeItReadsTheRequest) {
  const SecurityOptions security{.token_file = TokenFile("token", kToken)};
  TwoServers servers(With(security), With(security));
  RawClient stranger(servers.worker_address());
  RawClient member(servers.worker_address());
  member.SetMetadata({{kTokenKey, absl::StrCat(kTokenPrefix, kToken)}});
  std::vector<std::string> methods;
  for (const char* package : {"tensorflow", "tensorflow.grpc"}) {
    for (const char* method :
         {"CreateSession", "ExtendSession", "RunStep", "CloseSession", "ListDevices", "Reset",
          "MakeCallable", "RunCallable", "ReleaseCallable"}) {
      methods.push_back(absl::StrCat("/", package, ".MasterService/", method));
    }
    for (const char* method : {"GetStatus", "CreateWorkerSession", "DeleteWorkerSession",
                               "RegisterGraph", "DeregisterGraph", "RunGraph", "CleanupGraph",
                               "CleanupAll", "RecvTensor", "Logging", "Tracing"}) {
      methods.push_back(absl::StrCat("/", package, ".WorkerService/", method));
    }
  }
  for (const char* method :
       {"GetStatus", "CreateWorkerSession", "DeleteWorkerSession", "RegisterGraph",
        "DeregisterGraph", "CleanupAll", "GetPeerCounts", "RenewSessions", "FindRun", "EndRun"}) {
    methods.push_back(absl::StrCat("/millrace.WorkerControl/", method));
  }
  for (const char* method : {"RenewSessions", "EndRun", "FindTrainers"}) {
    methods.push_back(absl::StrCat("/millrace.Master/", method));
  }
  methods.push_back("/millrace.Link/Connect");
  // Also what is not there: a stranger does not hear which methods are.
  methods.push_back("/no.Service/Method");
  const std::vector<std::map<std::string, std::string>> strangers = {
      {},
      {{kTokenKey, ""}},
      {{kTokenKey, kToken}},
      {{kTokenKey, "Bearer "}},
      {{kTokenKey, absl::StrCat(kTokenPrefix, kOtherToken)}},
      {{kTokenKey, absl::StrCat(kTokenPrefix, std::string(kToken).substr(1))}},
      {{kTokenKey, absl::StrCat(kTokenPrefix, kToken, "x")}},
      {{kTokenKey, absl::StrCat(kTokenPrefix, kToken, kToken)}}};
  for (const std::string& method : methods) {
    // Bytes that no method can read: a request that was read would be InvalidArgument.
    EXPECT_NE(member.Call(method, "\xff").error_code(), grpc::StatusCode::UNAUTHENTICATED)
        << method;
    for (const auto& metadata : strangers) {
      stranger.SetMetadata(metadata);
      const grpc::Status status = stranger.Call(method, "\xff");
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
      EXPECT_NE(status.error_message().find("set MILLRACE_TOKEN_FILE"), std::string::npos)
          << status.error_message();
      EXPECT_EQ(status.error_message().find("cluster-0123"), std::string::npos)
          << status.error_message();
    }
  }
}

TEST_F(SecurityTest, SessionsWithoutTheTokenEndAtOnceAndTheTokenIsNeitherInLogNorError) {
  ::testing::internal::CaptureStderr();
  const SecurityOptions security{.token_file = TokenFile("token", kToken)};
  const SecurityOptions other{.token_file = TokenFile("other", kOtherToken)};
  TwoServers servers(With(security), With(other));
  // A client at a master.
  ASSERT_OK(SetClusterSecurity(security));
  const Status client = servers.NewSession(MakeSmallModel().root, true).status();
  EXPECT_STATUS(client, absl::StatusCode::kUnauthenticated,
                "callers must show the token of this cluster, got another one");
  // A master at another task.
  const Status master = servers.NewSession(MakeSmallModel().root, false).status();
  EXPECT_STATUS(master, absl::StatusCode::kUnauthenticated, "From /job:ps/replica:0/task:0");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("listens on"), std::string::npos);
  for (const std::string& text :
       {log, std::string(client.message()), std::string(master.message())}) {
    EXPECT_EQ(text.find("cluster-0123"), std::string::npos) << text;
  }
}

TEST_F(SecurityTest, AServerWithoutATokenServesCallersThatShowOne) {
  TwoServers servers;
  ASSERT_OK(SetClusterSecurity({.token_file = TokenFile("token", kToken)}));
  TrainAStep(&servers, /*over_network=*/true);
}

TEST_F(SecurityTest, TokenFilesThatAreNoneOrOpenToOthersAreRefused) {
  struct Case {
    std::string text;
    int mode;
    absl::StatusCode code;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"", 0600, absl::StatusCode::kInvalidArgument, "must hold 16 to 1024 printable"},
      {"\n\n", 0600, absl::StatusCode::kInvalidArgument, "got 0"},
      {"short", 0600, absl::StatusCode::kInvalidArgument, "got 5"},
      {"two words that are long enough", 0600, absl::StatusCode::kInvalidArgument, "got others"},
      {std::string(20, '\0'), 0600, absl::StatusCode::kInvalidArgument, "got others"},
      {std::string(2000, 'x'), 0600, absl::StatusCode::kInvalidArgument, "got 2000"},
      {std::string(2 << 20, 'x'), 0600, absl::StatusCode::kFailedPrecondition, "at most"},
      {kToken, 0644, absl::StatusCode::kFailedPrecondition, "got mode 0644; chmod 600"},
      {kToken, 0602, absl::StatusCode::kFailedPrecondition, "got mode 0602"},
      {kToken, 0660, absl::StatusCode::kFailedPrecondition, "got mode 0660"},
  };
  for (const Case& c : cases) {
    const SecurityOptions security{.token_file = TokenFile("token", c.text, c.mode)};
    EXPECT_STATUS(Credentials::Load(security).status(), c.code, c.message);
  }
  EXPECT_OK(Credentials::Load({.token_file = TokenFile("token", kToken, 0440)}));
  EXPECT_STATUS(Credentials::Load({.token_file = TestFile("absent")}).status(),
                absl::StatusCode::kFailedPrecondition, "No such file");
  EXPECT_STATUS(Credentials::Load({.token_file = ::testing::TempDir()}).status(),
                absl::StatusCode::kFailedPrecondition, "must be a file");
}

TEST(SecurityEnvironmentTest, TheEnvironmentSaysItForAWholeProcess) {
  const std::string path = TokenFile("token", kToken);
  ::setenv("MILLRACE_TOKEN_FILE", path.c_str(), 1);
  ::setenv("MILLRACE_CA_FILE", "ca", 1);
  ::setenv("MILLRACE_CERTIFICATE_FILE", "cert", 1);
  ::setenv("MILLRACE_KEY_FILE", "key", 1);
  ::setenv("MILLRACE_REQUIRE_CLIENT_CERTIFICATE", "0", 1);
  ASSERT_OK_AND_ASSIGN(const SecurityOptions options, SecurityOptions::FromEnvironment());
  EXPECT_EQ(options.token_file, path);
  EXPECT_EQ(options.ca_file, "ca");
  EXPECT_EQ(options.certificate_file, "cert");
  EXPECT_EQ(options.key_file, "key");
  EXPECT_FALSE(options.require_client_certificate);
  ::setenv("MILLRACE_REQUIRE_CLIENT_CERTIFICATE", "maybe", 1);
  EXPECT_STATUS(SecurityOptions::FromEnvironment().status(), absl::StatusCode::kInvalidArgument,
                "must be 0 or 1, got 'maybe'");
  ::setenv("MILLRACE_REQUIRE_CLIENT_CERTIFICATE", "1", 1);
  EXPECT_OK(SecurityOptions::FromEnvironment().status());
  ::unsetenv("MILLRACE_CA_FILE");
  EXPECT_STATUS(SecurityOptions::FromEnvironment().status(), absl::StatusCode::kInvalidArgument,
                "MILLRACE_REQUIRE_CLIENT_CERTIFICATE must be given with a CA, got none");
  for (const char* name : {"MILLRACE_TOKEN_FILE", "MILLRACE_CA_FILE", "MILLRACE_CERTIFICATE_FILE",
                           "MILLRACE_KEY_FILE", "MILLRACE_REQUIRE_CLIENT_CERTIFICATE"}) {
    ::unsetenv(name);
  }
}

TEST(SecretTest, OnlyTheSameSecretIsTheSame) {
  EXPECT_TRUE(IsSameSecret("abc", "abc"));
  for (const char* shown : {"", "a", "ab", "abd", "Abc", "abca", "abcabc"}) {
    EXPECT_FALSE(IsSameSecret("abc", shown)) << shown;
  }
  EXPECT_FALSE(IsSameSecret("", ""));
  EXPECT_FALSE(IsSameSecret("", "abc"));
}

// --- TLS -----------------------------------------------------------------------------------------

class TlsTest : public SecurityTest {
 protected:
  TlsTest()
      : authority_(::testing::TempDir(), absl::StrCat("ca", ::getpid())),
        stranger_(::testing::TempDir(), absl::StrCat("stranger", ::getpid())) {}

  SecurityOptions Task(const TestCertificate& files) const {
    return {.ca_file = authority_.ca_file(),
            .certificate_file = files.certificate_file,
            .key_file = files.key_file};
  }
  // What a client hears that shows `client` at servers that show `server`.
  Status Hear(const SecurityOptions& server, const SecurityOptions& client,
              absl::Duration timeout = absl::Seconds(30)) {
    TwoServers servers(With(server), With(server));
    EXPECT_OK(SetClusterSecurity(client));
    return servers.NewSession(MakeSmallModel().root, true, timeout).status();
  }

  TestAuthority authority_, stranger_;
  const TestCertificate local_ = authority_.Sign("local", "IP:127.0.0.1");
};

TEST_F(TlsTest, TasksAndClientsTrainOverMutualTls) {
  const SecurityOptions task = Task(local_);
  TwoServers servers(With(task), With(task));
  ASSERT_OK(SetClusterSecurity(task));
  TrainAStep(&servers, false);
  TrainAStep(&servers, true);
}

TEST_F(TlsTest, AClientWithoutACertificateTrainsWhereNoneIsAskedFor) {
  SecurityOptions task = Task(local_);
  task.require_client_certificate = false;
  TwoServers servers(With(task), With(task));
  ASSERT_OK(SetClusterSecurity({.ca_file = authority_.ca_file()}));
  TrainAStep(&servers, true);
}

TEST_F(TlsTest, ATokenIsAskedForOverTlsToo) {
  SecurityOptions task = Task(local_);
  const SecurityOptions without = task;
  task.token_file = TokenFile("token", kToken);
  TwoServers servers(With(task), With(task));
  ASSERT_OK(SetClusterSecurity(task));
  TrainAStep(&servers, true);
  ASSERT_OK(SetClusterSecurity(without));
  EXPECT_STATUS(servers.NewSession(MakeSmallModel().root, true).status(),
                absl::StatusCode::kUnauthenticated, "got none");
}

TEST_F(TlsTest, PeersThatDoNotAgreeAreUnavailableAndTheLikelyReasonIsNamed) {
  const SecurityOptions task = Task(local_);
  SecurityOptions one_sided = task;
  one_sided.require_client_certificate = false;
  // Plaintext and TLS.
  EXPECT_STATUS(Hear(task, {}), absl::StatusCode::kUnavailable,
                "it speaks TLS, but this process was given no CA; set MILLRACE_CA_FILE here");
  EXPECT_STATUS(Hear({}, task), absl::StatusCode::kUnavailable, "it speaks no TLS");
  // A master at another task.
  for (const bool ps_has_tls : {false, true}) {
    const SecurityOptions none;
    TwoServers servers(With(ps_has_tls ? task : none), With(ps_has_tls ? none : task));
    const Status heard = servers.NewSession(MakeSmallModel().root).status();
    EXPECT_STATUS(heard, absl::StatusCode::kUnavailable, "From /job:ps/replica:0/task:0");
    EXPECT_STATUS(heard, absl::StatusCode::kUnavailable,
                  ps_has_tls ? "it speaks TLS" : "it speaks no TLS");
  }
  // The server's certificate.
  const SecurityOptions trusts_another{.ca_file = stranger_.ca_file()};
  EXPECT_STATUS(Hear(one_sided, trusts_another), absl::StatusCode::kUnavailable,
                "is not signed by the CA of MILLRACE_CA_FILE here");
  const TestCertificate elsewhere = authority_.Sign("elsewhere", "DNS:host7,IP:127.0.0.2");
  EXPECT_STATUS(Hear(Task(elsewhere), task), absl::StatusCode::kUnavailable,
                "its certificate is not for the host of ipv4:127.0.0.1:");
  // The client's.
  EXPECT_STATUS(Hear(task, {.ca_file = authority_.ca_file()}), absl::StatusCode::kUnavailable,
                "it asks for a certificate; set MILLRACE_CERTIFICATE_FILE");
  const TestCertificate unknown = stranger_.Sign("unknown", "IP:127.0.0.1");
  EXPECT_STATUS(Hear(task, Task(unknown)), absl::StatusCode::kUnavailable,
                "it does not take this process's certificate");
}

// It takes connections, and breaks them off, for longer than any refusal would take.
TEST_F(TlsTest, AProxyWhoseTaskIsNotThereIsWaitedForUntilItIs) {
  for (const SecurityOptions& security : {SecurityOptions(), Task(local_)}) {
    TwoServers servers(With(security), With(security));
    ASSERT_OK(SetClusterSecurity(security));
    ASSERT_OK_AND_ASSIGN(const auto proxy, TcpProxy::Start(FreePort()));
    SessionOptions options;
    options.target = absl::StrCat("grpc://127.0.0.1:", proxy->port());
    const auto open = [&options] {
      const auto session = NewSession(options);
      return session.ok() ? (*session)->Extend(MakeSmallModel().root) : session.status();
    };
    options.creation_timeout = absl::Seconds(3);
    EXPECT_STATUS(open(), absl::StatusCode::kDeadlineExceeded, "must answer within 3s");
    options.creation_timeout = absl::Minutes(2);
    Status opened;
    std::thread waits([&] { opened = open(); });
    const int64_t before = proxy->connections();
    const absl::Time hang = absl::Now() + absl::Minutes(1);
    while (proxy->connections() < before + 3 && absl::Now() < hang) std::this_thread::yield();
    proxy->SetTarget(servers.worker().port());
    waits.join();
    EXPECT_OK(opened);
  }
}

TEST_F(TlsTest, ARunningServerKeepsTheFilesThatItHasRead) {
  const SecurityOptions task = Task(local_);
  TwoServers servers(With(task), With(task));
  ASSERT_OK(SetClusterSecurity(task));
  const TestCertificate other = stranger_.Sign("other", "IP:127.0.0.1");
  for (const auto& [from, to, mode] :
       {std::tuple{other.certificate_file, local_.certificate_file, 0644},
        std::tuple{other.key_file, local_.key_file, 0600}}) {
    std::ifstream in(from);
    WriteTestFile(to, std::string(std::istreambuf_iterator<char>(in), {}), mode);
  }
  TrainAStep(&servers, true);
  // Who starts now reads the files as they are.
  EXPECT_OK(Credentials::Load(task));
  EXPECT_STATUS(Hear(Task(authority_.Sign("third", "IP:127.0.0.1")), task),
                absl::StatusCode::kUnavailable, "it does not take this process's certificate");
}

TEST_F(TlsTest, ACertificateThatExpiresWhileItsServerRunsIsRefused) {
  const std::string address = absl::StrCat("127.0.0.1:", FreePort());
  ASSERT_OK_AND_ASSIGN(
      const ClusterConfig config,
      ClusterConfig::Parse(absl::StrCat("{\"cluster\": {\"worker\": [\"", address,
                                        "\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}")));
  SecurityOptions security;
  std::unique_ptr<Server> server;
  // A busy machine may need longer to start it than the certificate is valid.
  for (int64_t seconds = 8; server == nullptr; seconds *= 2) {
    ASSERT_LE(seconds, 256);
    security = Task(authority_.Sign("brief", "IP:127.0.0.1", seconds));
    security.require_client_certificate = false;
    auto started = Server::Start(config, With(security));
    if (started.ok()) {
      server = *std::move(started);
    } else {
      ASSERT_TRUE(absl::StrContains(started.status().message(), "expired")) << started.status();
    }
  }
  ASSERT_OK(SetClusterSecurity({.ca_file = authority_.ca_file()}));
  // Until it has: a condition of the world's clock, which nothing here can move.
  while (Credentials::Load(security).ok()) absl::SleepFor(absl::Milliseconds(100));
  SessionOptions options;
  // gRPC's other name of the address, as in TwoServers.
  options.target = absl::StrCat("grpc://ipv4:", address);
  options.creation_timeout = absl::Seconds(30);
  const auto session = NewSession(options);
  EXPECT_STATUS(session.ok() ? (*session)->Extend(MakeSmallModel().root) : session.status(),
                absl::StatusCode::kUnavailable, "its certificate has expired");
}

TEST_F(TlsTest, FilesThatCannotServeAreRefusedAtTheStart) {
  const TestCertificate expired = authority_.Sign("expired", "IP:127.0.0.1", /*seconds=*/-60);
  EXPECT_STATUS(Credentials::Load(Task(expired)).status(), absl::StatusCode::kFailedPrecondition,
                "must be valid now, got one that expired on");
  const TestCertificate early =
      authority_.Sign("early", "IP:127.0.0.1", /*seconds=*/7200, /*begins=*/3600);
  EXPECT_STATUS(Credentials::Load(Task(early)).status(), absl::StatusCode::kFailedPrecondition,
                "must be valid now, got one that begins on");
  for (const TestCertificate& absent :
       {TestCertificate{TestFile("absent"), local_.key_file},
        TestCertificate{local_.certificate_file, TestFile("absent")}}) {
    EXPECT_STATUS(Credentials::Load(Task(absent)).status(), absl::StatusCode::kFailedPrecondition,
                  "absent' must be readable, got: No such file");
  }
  EXPECT_STATUS(Credentials::Load({.ca_file = TestFile("absent")}).status(),
                absl::StatusCode::kFailedPrecondition, "the CA file '");
  const TestCertificate other = authority_.Sign("other", "IP:127.0.0.1");
  EXPECT_STATUS(Credentials::Load(Task({local_.certificate_file, other.key_file})).status(),
                absl::StatusCode::kInvalidArgument, "got another one");
  EXPECT_STATUS(Credentials::Load(Task({local_.certificate_file, ""})).status(),
                absl::StatusCode::kInvalidArgument, "must be given together");
  EXPECT_STATUS(Credentials::Load(Task({local_.key_file, local_.key_file})).status(),
                absl::StatusCode::kInvalidArgument, "must hold a certificate in PEM");
  EXPECT_STATUS(Credentials::Load(Task({local_.certificate_file, authority_.ca_file()})).status(),
                absl::StatusCode::kFailedPrecondition, "got mode 0644");
  const std::string no_key = TestFile("no_key");
  WriteTestFile(no_key, "nothing", 0600);
  EXPECT_STATUS(Credentials::Load(Task({local_.certificate_file, no_key})).status(),
                absl::StatusCode::kInvalidArgument, "must hold a private key");
  ASSERT_OK_AND_ASSIGN(const auto ca_only, Credentials::Load({.ca_file = authority_.ca_file()}));
  EXPECT_STATUS(ca_only->CheckServer(), absl::StatusCode::kInvalidArgument,
                "a server with a CA must have a certificate");
}

TEST(SecurityDeathTest, AProcessWhoseFilesAreBadSaysSoWhereItUsesThem) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        // The child begins anew, with nothing set.
        ::setenv("MILLRACE_TOKEN_FILE", TestFile("absent").c_str(), 1);
        const auto channel = RpcChannel::Make("127.0.0.1:1");
        const Status call = channel->Call(kGetStatus, {}, grpc::ByteBuffer()).status();
        std::fprintf(stderr, "%s\n", std::string(call.message()).c_str());
        std::_Exit(absl::IsFailedPrecondition(call) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "Security: the token file '.*absent' must be readable");
}

// --- Addresses -----------------------------------------------------------------------------------

TEST_F(SecurityTest, OnlyTheGivenAddressOfThisMachineAccepts) {
  TwoServers servers;  // on 127.0.0.1
  const auto connects = [](const char* address, int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(::inet_pton(AF_INET, address, &to.sin_addr), 1);
    const bool connected = ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
    ::close(fd);
    return connected;
  };
  for (const int port : {servers.ps().port(), servers.worker().port()}) {
    EXPECT_TRUE(connects("127.0.0.1", port));
    // All of 127/8 is this machine's loopback: a server on 0.0.0.0 would answer there.
    EXPECT_FALSE(connects("127.0.0.2", port));
    EXPECT_FALSE(connects("127.9.9.9", port));
  }
  // IPv6's loopback, where there is one.
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    sockaddr_in6 to = {};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(static_cast<uint16_t>(servers.ps().port()));
    to.sin6_addr = in6addr_loopback;
    EXPECT_NE(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    ::close(fd);
  }
}

}  // namespace
}  // namespace millrace
