// SPDX-License-Identifier: Apache-2.0
//
// A trainer that a task of its cluster refuses ends at once, with what that task says, and does not
// wait for it as for one that may come.

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/refusal.h"
#include "core/testing/tensor_testing.h"
#include "distributed/server.h"
#include "distributed/testing/two_servers.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "net/security.h"
#include "net/testing/test_certificates.h"
#include "ops/array/constant.h"
#include "train/supervisor.h"

// covers: training: a trainer that a task refuses for good (CA, TLS, token; version of its
//   master) ends at once with its message and exit code 1

namespace millrace {
namespace {

using absl::StatusCode;

ServerOptions With(const SecurityOptions& security) {
  ServerOptions options;
  options.security = security;
  return options;
}

class RefusedTrainerTest : public ::testing::Test {
 protected:
  RefusedTrainerTest()
      : authority_(::testing::TempDir(), absl::StrCat("ca", ::getpid())),
        stranger_(::testing::TempDir(), absl::StrCat("stranger", ::getpid())) {}
  // What this process shows as a client is the whole process's.
  ~RefusedTrainerTest() override { EXPECT_OK(SetClusterSecurity({})); }

  SecurityOptions Tls(bool asks_callers = true) {
    const TestCertificate local = authority_.Sign("local", "IP:127.0.0.1");
    return {.ca_file = authority_.ca_file(),
            .certificate_file = local.certificate_file,
            .key_file = local.key_file,
            .require_client_certificate = asks_callers};
  }
  SecurityOptions Token(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/token", ::getpid(), name);
    WriteTestFile(path, text, 0600);
    return {.token_file = path};
  }

  // What a chief and a worker end with that use the worker's master, in this process or over the
  // network.
  void ExpectRefused(const SecurityOptions& ps, const SecurityOptions& worker,
                     const SecurityOptions& trainer, bool over_network, StatusCode code,
                     const std::string& text) {
    TwoServers servers(With(ps), With(worker));
    ASSERT_OK(SetClusterSecurity(trainer));
    for (const bool is_chief : {true, false}) {
      SCOPED_TRACE(absl::StrCat(text, is_chief ? " chief" : " worker"));
      Scope root;
      MakeVariable(root.WithDevice("/job:ps/task:0").WithName("w"), Const(root, 1.f));
      SupervisorOptions options;
      options.is_chief = is_chief;
      options.max_wait = absl::Seconds(40);
      Supervisor supervisor(root, options);
      const Status heard = supervisor
                               .ManagedSession(absl::StrCat("grpc://", over_network ? "ipv4:" : "",
                                                            servers.worker_address()))
                               .status();
      EXPECT_STATUS(heard, code, text);
      EXPECT_TRUE(IsRefusal(heard)) << heard;
      EXPECT_EQ(ExitCode(heard), kExitError);
    }
  }

  TestAuthority authority_, stranger_;
};

TEST_F(RefusedTrainerTest, ByAPsThatSpeaksNoTls) {
  ExpectRefused({}, Tls(), {}, false, StatusCode::kUnavailable, "it speaks no TLS");
}

TEST_F(RefusedTrainerTest, ByAPsThatWantsTls) {
  ExpectRefused(Tls(), {}, {}, false, StatusCode::kUnavailable, "it speaks TLS");
}

TEST_F(RefusedTrainerTest, ByAPsOfAMasterThatIsElsewhere) {
  ExpectRefused(Tls(), {}, {}, true, StatusCode::kUnavailable, "it speaks TLS");
}

TEST_F(RefusedTrainerTest, ByAMasterOfAnotherAuthority) {
  const SecurityOptions tls = Tls(/*asks_callers=*/false);
  ExpectRefused(tls, tls, {.ca_file = stranger_.ca_file()}, true, StatusCode::kUnavailable,
                "is not signed by the CA of MILLRACE_CA_FILE here");
}

TEST_F(RefusedTrainerTest, ByAPsOfAnotherToken) {
  ExpectRefused(Token("a", "the-token-of-this-cluster-0123456789"),
                Token("b", "the-token-of-another-cluster-0123456"), {}, false,
                StatusCode::kUnauthenticated, "token");
}

}  // namespace
}  // namespace millrace
