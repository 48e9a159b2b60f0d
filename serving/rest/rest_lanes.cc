// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/rest_lanes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/hash/hash.h"
#include "core/cancellation.h"
#include "core/cores.h"
#include "core/exceptions.h"
#include "core/logging.h"

namespace millrace {
namespace {

// Cancelled when the client has gone. Shared: what the server calls then may come late.
struct Departure {
  CancellationManager cancellation;
};

}  // namespace

int RestLanes::DefaultThreads() {
  constexpr int kThreadsPerCore = 4;
  return kThreadsPerCore * UsableCores();
}

RestLanes::RestLanes(const Options& options)
    : options_(options),
      num_threads_(options.num_threads > 0 ? options.num_threads : DefaultThreads()),
      pool_(std::make_unique<IoPool>(num_threads_)) {}

RestLanes::~RestLanes() { pool_.reset(); }

// What is counted of a request from the hand-over to its end, whatever happens in between.
struct RestLanes::HandedOver {
  HandedOver(RestLanes* owner, int64_t known) : lanes(owner), known_ns(known) {
    lanes->num_waiting_->fetch_add(1, std::memory_order_relaxed);
    lanes->waiting_ns_.fetch_add(known_ns, std::memory_order_relaxed);
  }
  ~HandedOver() {
    Begin();
    lanes->num_taken_.fetch_sub(1, std::memory_order_relaxed);
  }
  HandedOver(const HandedOver&) = delete;
  HandedOver& operator=(const HandedOver&) = delete;
  void Begin() {
    if (!std::exchange(waits, false)) return;
    lanes->num_waiting_->fetch_sub(1, std::memory_order_relaxed);
    lanes->waiting_ns_.fetch_sub(known_ns, std::memory_order_relaxed);
  }

  RestLanes* const lanes;
  const int64_t known_ns;
  bool waits = true;
};

Status RestLanes::Run(std::unique_ptr<HttpRequest>* request, absl::string_view kind,
                      absl::Time deadline, Work work) {
  const size_t body = (*request)->body().size();
  const bool is_packed = (*request)->is_packed();
  std::atomic<int64_t>* const place = PlaceOf(kind, body, is_packed);
  const int64_t known_ns = place->load(std::memory_order_relaxed);
  const absl::Time now = options_.clock->Now();
  if (known_ns > 0 && known_ns <= absl::ToInt64Nanoseconds(options_.short_time) &&
      body <= options_.short_body && !is_packed && !options_.hand_over_all) {
    num_on_loops_.fetch_add(1, std::memory_order_relaxed);
    const std::unique_ptr<HttpRequest> taken = std::move(*request);
    Learn(place, work(taken.get(), {.deadline = deadline}), now);
    return absl::OkStatus();
  }
  const absl::Duration before_it =
      absl::Nanoseconds(waiting_ns_.load(std::memory_order_relaxed)) / num_threads_;
  if (before_it > absl::ZeroDuration() && now + before_it > deadline) {
    return absl::ResourceExhaustedError("The requests that wait would take all of its time");
  }
  if (num_taken_.fetch_add(1, std::memory_order_relaxed) - num_threads_ >= options_.max_waiting) {
    num_taken_.fetch_sub(1, std::memory_order_relaxed);
    return absl::ResourceExhaustedError("Too many requests wait");
  }
  std::unique_ptr<HandedOver> counted;
  try {
    counted = std::make_unique<HandedOver>(this, known_ns);
  } catch (...) {
    num_taken_.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
  num_handed_over_.fetch_add(1, std::memory_order_relaxed);
  pool_->Schedule([this, place, deadline, counted = std::move(counted), taken = std::move(*request),
                   work = std::move(work)]() mutable {
    const Status status = NoExceptions("REST", [&] {
      counted->Begin();
      const auto departure = std::make_shared<Departure>();
      taken->OnDisconnect([departure] { departure->cancellation.StartCancel(); });
      const absl::Time began = options_.clock->Now();
      const bool succeeded =
          taken->Unpack() &&
          work(taken.get(), {.deadline = deadline, .cancellation = &departure->cancellation});
      Learn(place, succeeded, began);
      return absl::OkStatus();
    });
    if (!status.ok()) LogError(status.message());  // the request answers 500 when it goes
    counted.reset();
  });
  return absl::OkStatus();
}

std::atomic<int64_t>* RestLanes::PlaceOf(absl::string_view kind, size_t body, bool is_packed) {
  const auto size_class = std::bit_width(body / std::max<size_t>(options_.short_body, 1));
  return &ns_of_kind_[absl::HashOf(kind, size_class, is_packed) % kPlaces];
}

void RestLanes::Learn(std::atomic<int64_t>* place, bool succeeded, absl::Time began) {
  if (options_.hand_over_all) return;  // it may have waited for its model
  constexpr int64_t kFades = 8;
  const int64_t took =
      std::max<int64_t>(absl::ToInt64Nanoseconds(options_.clock->Now() - began), 1);
  const int64_t known = place->load(std::memory_order_relaxed);
  if (!succeeded && took <= std::max(known, absl::ToInt64Nanoseconds(options_.short_time))) return;
  place->store(took >= known ? took : known - (known - took) / kFades, std::memory_order_relaxed);
}

}  // namespace millrace
