// SPDX-License-Identifier: Apache-2.0
//
// watched_task: a parameter server (TF_CONFIG) that says twenty times a second how many bytes of
// memory it uses: "watched <bytes> <most bytes of tensors so far> watched-end". It serves until
// SIGTERM. $MILLRACE_WATCHED_UNTAKEN_STEPS: ServerLimits::max_untaken_steps.
//
// Bytes are those of tensors, also of those that it shares with others, and of the heap that are in
// use. What allocators keep of memory that was freed is not: how much that is depends on the
// machine.

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/allocator.h"
#include "core/exit_code.h"
#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"

namespace millrace {
namespace {

void Say(const Server& server) {
  const struct mallinfo2 heap = mallinfo2();
  const AllocatorStats tensors = DefaultAllocatorStats();
  // Tensors are in blocks of the heap.
  const int64_t bytes = static_cast<int64_t>(heap.uordblks) + static_cast<int64_t>(heap.hblkhd) -
                        tensors.bytes_cached + CountsOf(server).pooled_bytes;
  std::printf("watched %lld %lld watched-end\n", static_cast<long long>(bytes),
              static_cast<long long>(tensors.peak_bytes_in_use));
  std::fflush(stdout);
}

Status Main() {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  ServerOptions options;
  const char* const untaken = std::getenv("MILLRACE_WATCHED_UNTAKEN_STEPS");
  if (untaken != nullptr && !absl::SimpleAtoi(untaken, &options.limits.max_untaken_steps)) {
    return InvalidArgument("MILLRACE_WATCHED_UNTAKEN_STEPS must be a number, got '", untaken, "'");
  }
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster, options));
  std::atomic<bool> stop{false};
  std::thread report([&stop, &server = *server] {
    while (!stop) {
      Say(server);
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
  const Status status = server->Join();
  stop = true;
  report.join();
  return status;
}

}  // namespace
}  // namespace millrace

int main(int, char** argv) { return millrace::ReportedExitCode(argv[0], millrace::Main()); }
