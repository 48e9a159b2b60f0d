// SPDX-License-Identifier: Apache-2.0
//
// soak_task: one task of a cluster (TF_CONFIG) that says five times a second how many bytes of its
// heap are in use, and how many steps it has trained: "soak <bytes> <steps> soak-end". The ps
// serves until SIGTERM; the worker trains a small model until a step fails.
//
// $MILLRACE_SOAK_LINGER_MS: how long it leaves alone what nobody uses.

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "distributed/testing/small_model.h"
#include "runtime/session.h"

namespace millrace {
namespace {

// What malloc keeps of memory that was freed depends on the threads that happened to free it.
int64_t HeapInUse() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks) + static_cast<int64_t>(heap.hblkhd);
}

// Says so until it goes.
class Report {
 public:
  Report()
      : thread_([this] {
          while (!stop_) {
            std::printf("soak %lld %lld soak-end\n", static_cast<long long>(HeapInUse()),
                        static_cast<long long>(steps.load()));
            std::fflush(stdout);
            absl::SleepFor(absl::Milliseconds(200));
          }
        }) {}
  ~Report() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<int64_t> steps{0};

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses the others
};

Status Train(Server* server, std::atomic<int64_t>* steps) {
  const SmallModel model = MakeSmallModel();
  MR_ASSIGN_OR_RETURN(const auto session, NewSession({.target = server->target()}));
  MR_RETURN_IF_ERROR(session->Extend(model.root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {model.init}).status());
  for (;;) {
    MR_RETURN_IF_ERROR(session
                           ->Run({{model.x, Tensor::Vector<float>({-1, 0, 1})},
                                  {model.y, Tensor::Vector<float>({-2, 1, 4})}},
                                 {}, {model.train})
                           .status());
    steps->fetch_add(1);
  }
}

Status Main() {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  ServerOptions options;
  const char* const linger = std::getenv("MILLRACE_SOAK_LINGER_MS");
  int64_t linger_ms = 0;
  if (linger != nullptr && absl::SimpleAtoi(linger, &linger_ms)) {
    options.limits.idle_session_time = absl::Milliseconds(linger_ms);
    options.run_linger = absl::Milliseconds(linger_ms);
  }
  // Strangers may ask for leases of a day: what these hold is bounded by their number.
  options.limits.max_sessions = 1000;
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster, options));
  Report report;
  if (cluster.job() == "ps") return server->Join();
  return Train(server.get(), &report.steps);
}

}  // namespace
}  // namespace millrace

int main(int, char** argv) { return millrace::ReportedExitCode(argv[0], millrace::Main()); }
