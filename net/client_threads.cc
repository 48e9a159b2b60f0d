// SPDX-License-Identifier: Apache-2.0
#include "net/client_threads.h"

#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "core/status.h"
#include "net/call_threads.h"
#include "net/grpc_events.h"

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

// What a message to this client made ready.
class ClientVisit final : public LongCall {
 public:
  explicit ClientVisit(Visit::Work* work) : work_(work) {}
  void RunCall() override {
    if (Visit::Work* const work = std::exchange(work_, nullptr)) Visit::Run(work);
  }
  const std::string& call_name() const override {
    static const std::string* const name = new std::string("a step's work behind a message");
    return *name;
  }

 private:
  Visit::Work* work_;
};

}  // namespace

grpc::CompletionQueue* ClientQueue() { return &TheClient()->queue; }

void RunOnClient(Visit::Work* work) {
  std::shared_ptr<ClientVisit> visit;
  try {
    visit = std::make_shared<ClientVisit>(work);
    TheClient()->threads->Run(visit, CallThreads::Urgency::kNormal);
  } catch (...) {
    // No memory. Nobody else would run it, and steps wait for it.
    if (visit == nullptr) return Visit::Run(work);
    visit->RunCall();
  }
}

}  // namespace millrace
