// SPDX-License-Identifier: Apache-2.0
//
// The commands of docs/security.md, as they stand there: what they make guards a server.

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "net/security.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: clusters: the page on security: token, authority and certificate that its commands make
//   let members in and nobody else

namespace millrace {
namespace {

// A step of a session on the server, over the network: by gRPC's other name of the address the
// server is not taken for one of this process.
Status RunAStep(const std::string& address) {
  Scope root;
  const Output two = Const(root, 2.0f);
  MR_ASSIGN_OR_RETURN(const auto session,
                      NewSession({.target = absl::StrCat("grpc://ipv4:", address)}));
  MR_RETURN_IF_ERROR(session->Extend(root));
  return session->Run({}, {two}).status();
}

TEST(SecurityPageTest, WhatTheCommandsMakeGuardsAServer) {
  if (std::system("command -v openssl > /dev/null") != 0) {
    GTEST_SKIP() << "openssl must be there, got none; tools/install_deps.sh installs it";
  }
  FileSystem* const files = FileSystem::Posix();
  const std::string dir = JoinPath(::testing::TempDir(), "security_" + RandomHexName());
  ASSERT_OK(files->RecursivelyCreateDirectory(dir));
  ASSERT_OK_AND_ASSIGN(const std::string commands,
                       ReadFileToString(files, "docs/security_page.sh"));
  // The task of the page listens elsewhere.
  ASSERT_OK(WriteFileAtomically(files, JoinPath(dir, "commands.sh"),
                                absl::StrReplaceAll(commands, {{"10.0.0.7", "127.0.0.1"}})));
  const std::string call =
      absl::StrCat("cd '", dir, "' && bash -euo pipefail commands.sh > log 2>&1");
  ASSERT_EQ(std::system(call.c_str()), 0)
      << ReadFileToString(files, JoinPath(dir, "log")).value_or("no log");

  const SecurityOptions member = {.token_file = JoinPath(dir, "token"),
                                  .ca_file = JoinPath(dir, "ca.pem"),
                                  .certificate_file = JoinPath(dir, "ps-0.pem"),
                                  .key_file = JoinPath(dir, "ps-0.key")};
  const std::string address = absl::StrCat("127.0.0.1:", FreePort());
  ASSERT_OK_AND_ASSIGN(
      const ClusterConfig cluster,
      ClusterConfig::Parse(absl::StrCat(R"({"cluster": {"worker": [")", address,
                                        R"("]}, "task": {"type": "worker", "index": 0}})")));
  ServerOptions options;
  options.security = member;
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start(cluster, options));

  ASSERT_OK(SetClusterSecurity(member));
  EXPECT_OK(RunAStep(address));
  SecurityOptions stranger = member;
  stranger.token_file = "";
  ASSERT_OK(SetClusterSecurity(stranger));
  EXPECT_STATUS(RunAStep(address), absl::StatusCode::kUnauthenticated, "got none");
  ASSERT_OK(SetClusterSecurity({}));
  EXPECT_EQ(RunAStep(address).code(), absl::StatusCode::kUnavailable) << "without TLS";
}

}  // namespace
}  // namespace millrace
