// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_TWO_SERVERS_H_
#define MILLRACE_DISTRIBUTED_TESTING_TWO_SERVERS_H_

// TwoServers: a ps and a worker of one cluster in this process, over loopback, with options of the
// test's own.
//
// Thread-safety: one thread at a time. Failure: fails the test.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "runtime/session.h"

namespace millrace {

class TwoServers {
 public:
  explicit TwoServers(const ServerOptions& ps = {}, const ServerOptions& worker = {})
      : ports_(FreePorts(2)) {
    ps_ = Start("ps", ps);
    worker_ = Start("worker", worker);
  }

  Server& ps() { return *ps_; }
  Server& worker() { return *worker_; }
  std::string ps_address() const { return absl::StrCat("127.0.0.1:", ports_[0]); }
  std::string worker_address() const { return absl::StrCat("127.0.0.1:", ports_[1]); }

  ClusterConfig Config(const std::string& job) const {
    const auto config = ClusterConfig::Parse(
        absl::StrCat("{\"cluster\": {\"ps\": [\"", ps_address(), "\"], \"worker\": [\"",
                     worker_address(), "\"]}, \"task\": {\"type\": \"", job, "\", \"index\": 0}}"));
    EXPECT_OK(config);
    return config.value_or(ClusterConfig());
  }

  // A session on the worker's master, which is in this process, or reached over the network.
  StatusOr<std::unique_ptr<Session>> NewSession(const Scope& scope, bool over_network = false,
                                                absl::Duration timeout = absl::Seconds(30)) {
    SessionOptions options;
    // gRPC's other name of the address: the server is not taken for one of this process.
    options.target = absl::StrCat("grpc://", over_network ? "ipv4:" : "", worker_address());
    options.creation_timeout = timeout;
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, millrace::NewSession(options));
    MR_RETURN_IF_ERROR(session->Extend(scope));
    return session;
  }

 private:
  std::unique_ptr<Server> Start(const std::string& job, const ServerOptions& options) {
    auto server = Server::Start(Config(job), options);
    EXPECT_OK(server);
    return server.ok() ? *std::move(server) : nullptr;
  }

  const std::vector<int> ports_;
  std::unique_ptr<Server> ps_, worker_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_TWO_SERVERS_H_
