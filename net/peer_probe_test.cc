// SPDX-License-Identifier: Apache-2.0
//
// What a peer says of itself, and when that is certain.
#include "net/peer_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/notification.h"
#include "core/refusal.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/rpc_server.h"
#include "net/security.h"
#include "net/testing/test_certificates.h"

// covers: clusters: a proxy that closes connections is waited for

namespace millrace {
namespace {

// Listens on a port of its own; calls `serve` with each connection, one after the other, then
// closes it.
class Listener {
 public:
  explicit Listener(std::function<void(int fd)> serve)
      : serve_(std::move(serve)), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in any = {};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(any);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&any), size), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&any), &size), 0);
    port_ = ntohs(any.sin_port);
    thread_ = std::thread([this] {
      for (;;) {
        const int connection = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
        if (connection < 0) return;
        serve_(connection);
        ::close(connection);
      }
    });
  }
  ~Listener() {
    ::shutdown(fd_, SHUT_RDWR);  // ends accept
    thread_.join();
    ::close(fd_);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  const std::function<void(int)> serve_;
  const int fd_;
  int port_ = 0;
  std::thread thread_;
};

// Reads until the other side has closed: closing with unread bytes would reset the connection.
void ReadToTheEnd(int fd) {
  char buffer[4096];
  while (::read(fd, buffer, sizeof(buffer)) > 0) continue;
}

// Sends these bytes, whatever the peer sends.
std::function<void(int)> Says(std::string bytes) {
  return [bytes = std::move(bytes)](int fd) {
    EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ReadToTheEnd(fd);
  };
}

class PeerProbeTest : public ::testing::Test {
 protected:
  PeerProbeTest()
      : authority_(::testing::TempDir(), absl::StrCat("probe_ca", ::getpid())),
        stranger_(::testing::TempDir(), absl::StrCat("probe_stranger", ::getpid())) {}

  SecurityOptions Options(const TestCertificate& files) const {
    return {.ca_file = authority_.ca_file(),
            .certificate_file = files.certificate_file,
            .key_file = files.key_file};
  }
  static std::shared_ptr<const Credentials> Load(const SecurityOptions& options) {
    auto credentials = Credentials::Load(options);
    EXPECT_OK(credentials);
    return credentials.ok() ? *credentials : std::make_shared<const Credentials>();
  }
  // How `client` sees a server of ours with the credentials `server`.
  static PeerView ServerSeenBy(const SecurityOptions& client, const SecurityOptions& server) {
    RpcServer::Options options;
    options.address = "127.0.0.1:0";
    options.credentials = Load(server);
    const auto started = RpcServer::Start(std::move(options));
    EXPECT_OK(started);
    if (!started.ok()) return {};
    return LookAtPeer(absl::StrCat("ipv4:127.0.0.1:", (*started)->port()), *Load(client));
  }
  static void ExpectRefusal(const PeerView& view, const std::string& what) {
    EXPECT_TRUE(view.refuses) << view.what;
    EXPECT_NE(view.what.find(what), std::string::npos) << view.what;
  }
  static void ExpectNoRefusal(const PeerView& view, const std::string& what) {
    EXPECT_FALSE(view.refuses) << view.what;
    EXPECT_NE(view.what.find(what), std::string::npos) << view.what;
    if (what.empty()) {
      EXPECT_EQ(view.what, "");
    }
  }

  TestAuthority authority_, stranger_;
  const TestCertificate local_ = authority_.Sign("local", "IP:127.0.0.1");
  const SecurityOptions task_ = Options(local_);
};

TEST_F(PeerProbeTest, AServerThatSpeaksAsWeDoIsNoRefusal) {
  ExpectNoRefusal(ServerSeenBy({}, {}), "");
  ExpectNoRefusal(ServerSeenBy(task_, task_), "");
  SecurityOptions one_sided = task_;
  one_sided.require_client_certificate = false;
  ExpectNoRefusal(ServerSeenBy({.ca_file = authority_.ca_file()}, one_sided), "");
}

TEST_F(PeerProbeTest, TlsOnOneSideOnlyIsARefusalEitherWay) {
  ExpectRefusal(ServerSeenBy({}, task_), "it speaks TLS, but this process was given no CA");
  ExpectRefusal(ServerSeenBy(task_, {}), "it speaks no TLS");
}

TEST_F(PeerProbeTest, CertificatesThatDoNotFitAreRefusalsByName) {
  SecurityOptions one_sided = task_;
  one_sided.require_client_certificate = false;
  ExpectRefusal(ServerSeenBy({.ca_file = stranger_.ca_file()}, one_sided),
                "its certificate is not signed by the CA of MILLRACE_CA_FILE here");

  ExpectRefusal(
      ServerSeenBy(task_, Options(authority_.Sign("elsewhere", "DNS:host7,IP:127.0.0.2"))),
      "its certificate is not for the host of ipv4:127.0.0.1:");
  // By gRPC's rules an address may also be written as a name.
  ExpectNoRefusal(ServerSeenBy(task_, Options(authority_.Sign("by_name", "DNS:127.0.0.1"))), "");
  ExpectRefusal(ServerSeenBy({.ca_file = authority_.ca_file()}, task_),
                "it asks for a certificate; set MILLRACE_CERTIFICATE_FILE");
  // Without a CA gRPC trusts authorities that only it knows.
  ExpectNoRefusal(
      ServerSeenBy({.certificate_file = local_.certificate_file, .key_file = local_.key_file},
                   one_sided),
      "this process was given no CA");
  const TestCertificate unknown = stranger_.Sign("unknown", "IP:127.0.0.1");
  ExpectRefusal(ServerSeenBy(Options(unknown), task_),
                "it does not take this process's certificate");
}

TEST_F(PeerProbeTest, AnAbsentOrSilentPeerMayStillCome) {
  for (const SecurityOptions& options : {SecurityOptions(), task_}) {
    const auto credentials = Load(options);
    ExpectNoRefusal(LookAtPeer(absl::StrCat("127.0.0.1:", FreePort()), *credentials), "");
    ExpectNoRefusal(LookAtPeer("no such host.invalid:1", *credentials), "");
    ExpectNoRefusal(LookAtPeer("nothing", *credentials), "");
    const Listener closes([](int) {});
    ExpectNoRefusal(LookAtPeer(closes.address(), *credentials), "like a proxy");
    const Listener reads_and_closes([](int fd) {
      char byte;
      EXPECT_EQ(::read(fd, &byte, 1), 1);
    });
    ExpectNoRefusal(LookAtPeer(reads_and_closes.address(), *credentials), "like a proxy");
    const Listener is_silent(ReadToTheEnd);
    ExpectNoRefusal(LookAtPeer(is_silent.address(), *credentials), "like a proxy");
    const Listener says_little(Says("\x16"));
    ExpectNoRefusal(LookAtPeer(says_little.address(), *credentials), "like a proxy");
  }
}

TEST_F(PeerProbeTest, APeerOfAnotherProtocolMayBeAProxyWithoutItsTask) {
  const Listener web(Says("HTTP/1.1 503 Service Unavailable\r\n\r\n"));
  for (const SecurityOptions& options : {SecurityOptions(), task_}) {
    ExpectNoRefusal(LookAtPeer(web.address(), *Load(options)), "neither TLS nor HTTP/2");
  }
  const Listener noise(Says(std::string(64 << 10, '\xff')));
  ExpectNoRefusal(LookAtPeer(noise.address(), *Load(task_)), "neither TLS nor HTTP/2");
}

// A proxy that terminates TLS and whose task is not there: it accepts our certificate, then closes.
TEST_F(PeerProbeTest, APeerThatAcceptsOurCertificateAndThenClosesMayStillCome) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_server_method()),
                                                             SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate_file(context.get(), local_.certificate_file.c_str(),
                                         SSL_FILETYPE_PEM),
            1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), local_.key_file.c_str(), SSL_FILETYPE_PEM),
            1);
  ASSERT_EQ(SSL_CTX_load_verify_locations(context.get(), authority_.ca_file().c_str(), nullptr), 1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  std::atomic<int> taken{0};
  const auto serve = [&](int fd) {
    const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), fd);
    if (SSL_accept(ssl.get()) == 1) ++taken;
  };
  {
    const Listener proxy(serve);
    ExpectNoRefusal(LookAtPeer(proxy.address(), *Load(task_)), "");
  }  // the proxy has served its connection
  EXPECT_EQ(taken, 1);
  // It asks for a certificate and refuses a strange one with an alert, unlike gRPC.
  const TestCertificate unknown = stranger_.Sign("unknown2", "IP:127.0.0.1");
  {
    const Listener proxy(serve);
    ExpectRefusal(LookAtPeer(proxy.address(), *Load(Options(unknown))),
                  "it does not take this process's certificate");
  }
  EXPECT_EQ(taken, 1);
}

// A peer that ends while we look may stop after any byte.
TEST_F(PeerProbeTest, WhatIsSeenOnceOnlyIsNotSure) {
  std::atomic<int> connections{0};
  const Listener ends([&](int fd) {
    if (connections.fetch_add(1) == 0) Says(std::string("\0\0\0\4\0\0\0\0\0", 9))(fd);
  });
  ExpectNoRefusal(LookAtPeer(ends.address(), *Load(task_)), "like a proxy");
  EXPECT_EQ(connections, 2);
}

TEST_F(PeerProbeTest, TheProbeOfAChannelLooksOnceASecondAndMarksWhatIsSure) {
  std::atomic<int> connections{0};
  const Listener plain([&](int fd) {
    ++connections;
    Says(std::string("\0\0\0\4\0\0\0\0\0", 9))(fd);
  });
  const Status status = absl::UnavailableError("Task must be reachable, got: nothing");
  PeerProbe with_tls(plain.address(), Load(task_));
  for (int i = 0; i < 2; ++i) {
    const Status explained = with_tls.Explain(status);
    EXPECT_STATUS(explained, absl::StatusCode::kUnavailable,
                  "Task must be reachable, got: nothing; it speaks no TLS");
    EXPECT_TRUE(IsRefusal(explained));
  }
  PeerProbe without(plain.address(), Load({}));
  EXPECT_EQ(without.Explain(status), status);
}

TEST_F(PeerProbeTest, AHostWhoseNameIsSlowToFindTakesOneThread) {
  const Status status = absl::UnavailableError("Task must be reachable, got: nothing");
  Notification looks, found;
  std::atomic<int> looked{0};
  PeerProbe probe("slow.example:1", Load({}), [&](const std::string&, const Credentials&) {
    if (looked.fetch_add(1) == 0) looks.Notify();
    found.Wait();
    return PeerView{true, "it refuses"};
  });
  Status first;
  std::thread thread([&] { first = probe.Explain(status); });
  looks.Wait();
  EXPECT_EQ(probe.Explain(status), status);
  EXPECT_EQ(looked, 1);
  found.Notify();
  thread.join();
  EXPECT_TRUE(IsRefusal(first)) << first;
  EXPECT_TRUE(IsRefusal(probe.Explain(status)));
}

TEST_F(PeerProbeTest, ALookThatThrowsIsFollowedByAnother) {
  int looked = 0;
  PeerProbe probe("a.example:1", Load({}), [&](const std::string&, const Credentials&) -> PeerView {
    ++looked;
    throw std::bad_alloc();
  });
  const Status status = absl::UnavailableError("Task must be reachable, got: nothing");
  for (int i = 1; i <= 2; ++i) {
    EXPECT_THROW((void)probe.Explain(status), std::bad_alloc);
    EXPECT_EQ(looked, i);
  }
}

}  // namespace
}  // namespace millrace
