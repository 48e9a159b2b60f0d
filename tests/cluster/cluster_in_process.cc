// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/cluster_in_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/tensor_testing.h"
#include "net/security.h"
#include "tests/cluster/process.h"

namespace millrace {

ClusterInProcessTest::ClusterInProcessTest(absl::string_view name, int num_ps)
    : dir_(JoinPath(::testing::TempDir(), absl::StrCat(name, "_", RandomHexName()))) {
  EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_));
  const std::string token = JoinPath(dir_, "token");
  const int fd = ::open(token.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const std::string text = RandomHexName() + RandomHexName();
  EXPECT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(fd);
  EXPECT_OK(SetClusterSecurity({.token_file = token}));
  ClusterPorts ports = FreeClusterPorts(num_ps, 1, 1);
  ports.host = "127.0.0.1";
  const auto start = [&](const std::string& name, const char* job, int task) {
    auto config = ClusterConfig::Parse(TfConfig(ports, job, task));
    EXPECT_OK(config.status());
    configs_[name] = *config;
    auto server = Server::Start(*config);
    EXPECT_OK(server.status());
    servers_[name] = *std::move(server);
  };
  for (int i = 0; i < num_ps; ++i) start(i == 0 ? "ps" : absl::StrCat("ps", i), "ps", i);
  start("master", "master", 0);
  start("worker", "worker", 0);
}

ClusterInProcessTest::~ClusterInProcessTest() {
  FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
}

}  // namespace millrace
