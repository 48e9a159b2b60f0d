// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_LOOPBACK_CLUSTER_H_
#define MILLRACE_DISTRIBUTED_TESTING_LOOPBACK_CLUSTER_H_

// LoopbackCluster: the servers of one cluster in this process, over loopback; a test kills and
// starts them again.
//
// Thread-safety: one thread at a time. Failure: fails the test.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "runtime/session.h"

namespace millrace {

class LoopbackCluster {
 public:
  explicit LoopbackCluster(int num_ps = 1, int num_workers = 1, ServerOptions options = {})
      : options_(std::move(options)) {
    const std::vector<int> ports = FreePorts(num_ps + num_workers);
    const auto list = [&](int begin, int n) {
      std::string text;
      for (int i = 0; i < n; ++i) {
        absl::StrAppend(&text, i == 0 ? "" : ",",
                        "\"127.0.0.1:", ports[static_cast<size_t>(begin + i)], "\"");
      }
      return text;
    };
    cluster_ = absl::StrCat("{\"ps\": [", list(0, num_ps), "], \"worker\": [",
                            list(num_ps, num_workers), "]}");
    for (int i = 0; i < num_ps; ++i) Start("ps", i);
    for (int i = 0; i < num_workers; ++i) Start("worker", i);
  }
  ClusterConfig Config(const std::string& job, int task) const {
    const auto config =
        ClusterConfig::Parse(absl::StrCat("{\"cluster\": ", cluster_, ", \"task\": {\"type\": \"",
                                          job, "\", \"index\": ", task, "}}"));
    EXPECT_OK(config);
    return config.value_or(ClusterConfig());
  }
  void Start(const std::string& job, int task) {
    auto server = Server::Start(Config(job, task), options_);
    EXPECT_OK(server);
    if (server.ok()) servers_[Name(job, task)] = *std::move(server);
  }
  void Kill(const std::string& job, int task) { servers_.erase(Name(job, task)); }
  Server* server(const std::string& job, int task) { return servers_.at(Name(job, task)).get(); }
  std::unique_ptr<Session> NewSession(const Scope& scope, int worker = 0) {
    SessionOptions options;
    options.target = server("worker", worker)->target();
    options.creation_timeout = absl::Seconds(30);
    auto session = millrace::NewSession(options);
    EXPECT_OK(session);
    if (!session.ok()) return nullptr;
    EXPECT_OK((*session)->Extend(scope));
    return *std::move(session);
  }

 private:
  static std::string Name(const std::string& job, int task) { return absl::StrCat(job, task); }
  const ServerOptions options_;  // of each
  std::string cluster_;
  std::map<std::string, std::unique_ptr<Server>> servers_;
};

// gRPC's other name of the same address: the server is not taken for one of this process. (Not
// "localhost": Debian's c-ares leaks what it looks up.)
inline std::string RemoteTarget(const Server& server) {
  return absl::StrCat("grpc://ipv4:127.0.0.1:", server.port());
}

// Calls begun since `before`, without the addresses.
inline std::map<std::string, int64_t> CallsSince(const std::map<std::string, int64_t>& before) {
  std::map<std::string, int64_t> result;
  for (const auto& [name, count] : RpcCallsBegun()) {
    const auto it = before.find(name);
    const int64_t fresh = count - (it == before.end() ? 0 : it->second);
    if (absl::EndsWith(name, "/RenewSessions")) continue;  // by time, not by step
    if (fresh > 0) result[name.substr(name.find('/'))] += fresh;
  }
  return result;
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_LOOPBACK_CLUSTER_H_
