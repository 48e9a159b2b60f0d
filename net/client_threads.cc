// SPDX-License-Identifier: Apache-2.0
#include "net/client_threads.h"

#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "core/status.h"
#include "net/call_threads.h"
#include "net/grpc_events.h"
#include "net/visit_call.h"

namespace millrace {
namespace {

// Threads that wait for answers.
constexpr int kClientPollers = 2;

struct Client {
  grpc::CompletionQueue queue;
  std::unique_ptr<CallThreads> threads;
};
Client* TheClient() {
  static Client* const client = [] {
    auto made = std::make_unique<Client>();
    CallThreads::Options options;
    options.owner = "Client";
    options.num_pollers = kClientPollers;
    options.poll_one = [queue = &made->queue] {
      void* tag;
      bool ok;
      if (!queue->Next(&tag, &ok)) return false;
      HandleEvent(tag, ok);
      return true;
    };
    StatusOr<std::unique_ptr<CallThreads>> threads = CallThreads::Start(std::move(options));
    if (!threads.ok()) {
      // Of `made` nothing is in use: no thread was started. The next call tries again.
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again),
                              std::string(threads.status().message()));
    }
    made->threads = *std::move(threads);
    return made.release();
  }();
  return client;
}

}  // namespace

grpc::CompletionQueue* ClientQueue() { return &TheClient()->queue; }

void RunOnClient(Visit::Work* work) { RunVisitOn(TheClient()->threads.get(), work); }

}  // namespace millrace
