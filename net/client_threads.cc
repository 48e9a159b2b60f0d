// SPDX-License-Identifier: Apache-2.0
#include "net/client_threads.h"

#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/time/time.h"
#include "core/network_seat.h"
#include "core/status.h"
#include "net/call_threads.h"
#include "net/grpc_events.h"
#include "net/poll_turns.h"
#include "net/visit_call.h"

namespace millrace {
namespace {

// Threads that wait for answers. With a second one each event would wake both: gRPC lets one thread
// poll, and when that leaves with an event it wakes the next one.
constexpr int kClientPollers = 1;

struct Client {
  grpc::CompletionQueue queue;
  PolledQueue polled{&queue, /*has_seat=*/true};
  QueueSeat seat{polled};
  std::unique_ptr<CallThreads> threads;
};
Client* TheClient() {
  static Client* const client = [] {
    auto made = std::make_unique<Client>();
    CallThreads::Options options;
    options.owner = "Client";
    options.num_pollers = kClientPollers;
    options.poll_one = [polled = &made->polled] {
      void* tag;
      bool ok;
      const auto next = polled->Next(&tag, &ok, absl::InfiniteFuture());
      if (next == grpc::CompletionQueue::GOT_EVENT) HandleEvent(tag, ok);
      return next != grpc::CompletionQueue::SHUTDOWN;
    };
    StatusOr<std::unique_ptr<CallThreads>> threads = CallThreads::Start(std::move(options));
    if (!threads.ok()) {
      // Of `made` nothing is in use: no thread was started. The next call tries again.
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again),
                              std::string(threads.status().message()));
    }
    made->threads = *std::move(threads);
    NetworkSeat::SetOfProcess(&made->seat, NetworkSeat::kNetwork);
    return made.release();
  }();
  return client;
}

}  // namespace

grpc::CompletionQueue* ClientQueue() { return &TheClient()->queue; }

const PolledQueue& PolledClientQueue() { return TheClient()->polled; }

void RunOnClient(Visit::Work* work) {
  // Another step's: this one waits for its own.
  if (QueueSeat::IsThisThread()) return RunVisitApart(work);
  RunVisitOn(TheClient()->threads.get(), work);
}

}  // namespace millrace
