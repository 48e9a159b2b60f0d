// SPDX-License-Identifier: Apache-2.0
#include "net/client_threads.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"
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

// Relaxed: who sees it late waits as without a seat, or sits there once for nothing.
std::atomic<int> num_links{0};

thread_local bool is_in_seat = false;

class ClientSeat final : public NetworkSeat {
 public:
  explicit ClientSeat(grpc::CompletionQueue* queue) : queue_(queue) {}

  bool has_links() const override { return num_links.load(std::memory_order_relaxed) > 0; }
  bool Take() override {
    MutexLock lock(&mu_);
    return !std::exchange(is_taken_, true);
  }
  void Serve(absl::Time limit) noexcept override {
    void* tag;
    bool ok;
    PollTurns::Begin();
    const auto next = queue_->AsyncNext(&tag, &ok, absl::ToChronoTime(limit));
    PollTurns::End();
    if (next != grpc::CompletionQueue::GOT_EVENT) return;
    is_in_seat = true;
    HandleEvent(tag, ok);
    is_in_seat = false;
  }
  void Leave() override {
    PollTurns::End();
    MutexLock lock(&mu_);
    is_taken_ = false;
  }
  void Wake() noexcept override {
    auto* const event = new (std::nothrow) WakeUp(this);
    // Without memory it wakes at its limit.
    if (event != nullptr) event->Set();
  }

 private:
  class WakeUp final : public QueueEvent {
   public:
    explicit WakeUp(ClientSeat* seat) : seat_(seat) {}
    void Set() {
      alarm_.Set(seat_->queue_, absl::ToChronoTime(absl::Now()), static_cast<QueueEvent*>(this));
    }
    void Proceed(bool) override {
      // Another thread took it, and stands aside when it has handed it on. Whom it was meant for
      // has left, or looks at its condition before it sleeps again.
      if (!is_in_seat && PollTurns::IsOn()) seat_->Wake();
      delete this;
    }

   private:
    ClientSeat* const seat_;
    grpc::Alarm alarm_;
  };

  grpc::CompletionQueue* const queue_;
  Mutex mu_;
  bool is_taken_ ABSL_GUARDED_BY(mu_) = false;
};

struct Client {
  grpc::CompletionQueue queue;
  PolledQueue polled{&queue, /*has_seat=*/true};
  ClientSeat seat{&queue};
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
      if (polled->Next(&tag, &ok, absl::InfiniteFuture()) == grpc::CompletionQueue::SHUTDOWN) {
        return false;
      }
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
    NetworkSeat::SetOfProcess(&made->seat, NetworkSeat::kNetwork);
    return made.release();
  }();
  return client;
}

}  // namespace

grpc::CompletionQueue* ClientQueue() { return &TheClient()->queue; }

ClientLink::ClientLink() { num_links.fetch_add(1, std::memory_order_relaxed); }
ClientLink::~ClientLink() { num_links.fetch_sub(1, std::memory_order_relaxed); }

void RunOnClient(Visit::Work* work) {
  // Another step's: this one waits for its own.
  if (is_in_seat) return RunVisitApart(work);
  RunVisitOn(TheClient()->threads.get(), work);
}

}  // namespace millrace
