// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_WATCHED_CLUSTER_H_
#define MILLRACE_TESTS_CLUSTER_WATCHED_CLUSTER_H_

// WatchedCluster: two parameter servers as processes of their own (watched_task), which a test
// stops and kills, and the worker in the test's process, whose master makes steps in which ps 0
// sends a large tensor to ps 1.
//
// Threads: one at a time; Move from any. Failure: fails the test.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"

namespace millrace {

class WatchedCluster {
 public:
  static constexpr int kSender = 0;
  static constexpr int kReceiver = 1;
  // How tensors travel between the two: over gRPC; through a Unix socket; in memory that both
  // share, with room for those of the tests.
  enum class Way { kGrpc, kUnix, kShared };

  // Starts all three. `max_untaken_steps`: of each ps (ServerLimits); 0: as any server.
  explicit WatchedCluster(Way way, int64_t max_untaken_steps = 0);
  ~WatchedCluster();
  WatchedCluster(const WatchedCluster&) = delete;
  WatchedCluster& operator=(const WatchedCluster&) = delete;

  // The process of a ps, which has begun to serve.
  Process* ps(int task) { return ps_.at(task).get(); }
  // Another life of it, when it has ended.
  void StartPs(int task);
  // Opens a session; the one before is closed.
  void OpenSession();
  void CloseSession();
  // One step: a tensor of so many bytes (a multiple of 4) goes from ps 0 to ps 1, which returns its
  // first element to the test: `value` if it is OK. No time limit when it is zero.
  Status Move(int64_t bytes, float value, absl::Duration limit = absl::ZeroDuration());

  // Bytes of memory that a ps has in use, tensors that it shares too, as it says itself later than
  // this call.
  int64_t UsedBytes(int task);
  // The most that its own tensors had, so far.
  int64_t PeakTensorBytes(int task);
  // Until `is_so`, for two minutes at most; false when that was not enough.
  static bool Await(absl::FunctionRef<bool()> is_so);
  // "Grpc", "Unix", "Shared": for names of tests.
  static std::string Name(Way way);
  // Empty, of this cluster alone: where its processes put temporary files.
  const std::string& tmp_dir() const { return tmp_dir_; }

 private:
  struct Said {
    int64_t used = 0, peak = 0;
  };
  Said AwaitSaid(int task);

  const Way way_;
  const int64_t max_untaken_steps_;
  ClusterPorts ports_;
  const std::string tmp_dir_;
  std::map<int, std::unique_ptr<Process>> ps_;
  std::unique_ptr<Server> worker_;
  Scope root_;
  Output elements_, value_, moved_;
  std::unique_ptr<Session> session_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_WATCHED_CLUSTER_H_
