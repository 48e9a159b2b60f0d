// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/rest_lanes.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "core/cancellation.h"
#include "core/cores.h"
#include "core/exceptions.h"
#include "core/logging.h"

namespace millrace {
namespace {

constexpr int kThreadsPerCore = 4;

// Cancelled when the client has gone. Shared: what the server calls then may come late.
struct Departure {
  CancellationManager cancellation;
};

}  // namespace

RestLanes::RestLanes(const Options& options)
    : options_(options),
      num_threads_(options.num_threads > 0 ? options.num_threads : kThreadsPerCore * UsableCores()),
      pool_(std::make_unique<IoPool>(num_threads_)) {}

RestLanes::~RestLanes() { pool_.reset(); }

Status RestLanes::Run(std::unique_ptr<HttpRequest>* request, absl::string_view kind,
                      absl::Time deadline, Work work) {
  const size_t body = (*request)->body().size();
  std::atomic<int64_t>* const place = &ns_of_kind_[absl::HashOf(kind) % kPlaces];
  const int64_t known_ns = place->load(std::memory_order_relaxed);
  const absl::Time now = options_.clock->Now();
  if (known_ns > 0 && known_ns <= absl::ToInt64Nanoseconds(options_.short_time) &&
      body <= options_.short_body && !options_.hand_over_all) {
    num_on_loops_.fetch_add(1, std::memory_order_relaxed);
    const std::unique_ptr<HttpRequest> taken = std::move(*request);
    work(taken.get(), {.deadline = deadline});
    Learn(place, body, now);
    return absl::OkStatus();
  }
  const absl::Duration before_it =
      absl::Nanoseconds(waiting_ns_.load(std::memory_order_relaxed)) / num_threads_;
  if (before_it > absl::ZeroDuration() && now + before_it > deadline) {
    return absl::ResourceExhaustedError("The requests that wait would take all of its time");
  }
  if (num_waiting_.fetch_add(1, std::memory_order_relaxed) >= options_.max_waiting) {
    num_waiting_.fetch_sub(1, std::memory_order_relaxed);
    return absl::ResourceExhaustedError("Too many requests wait");
  }
  waiting_ns_.fetch_add(known_ns, std::memory_order_relaxed);
  num_handed_over_.fetch_add(1, std::memory_order_relaxed);
  pool_->Schedule(
      [this, place, body, known_ns, deadline, taken = std::move(*request), work = std::move(work)] {
        num_waiting_.fetch_sub(1, std::memory_order_relaxed);
        waiting_ns_.fetch_sub(known_ns, std::memory_order_relaxed);
        const auto departure = std::make_shared<Departure>();
        taken->OnDisconnect([departure] { departure->cancellation.StartCancel(); });
        const absl::Time began = options_.clock->Now();
        const Status status = NoExceptions("REST", [&] {
          work(taken.get(), {.deadline = deadline, .cancellation = &departure->cancellation});
          return absl::OkStatus();
        });
        if (!status.ok()) LogError(status.message());  // the request answers 500 when it goes
        Learn(place, body, began);
      });
  return absl::OkStatus();
}

void RestLanes::Learn(std::atomic<int64_t>* place, size_t body, absl::Time began) {
  if (body > options_.short_body) return;
  constexpr int64_t kFades = 8;
  const int64_t took =
      std::max<int64_t>(absl::ToInt64Nanoseconds(options_.clock->Now() - began), 1);
  const int64_t known = place->load(std::memory_order_relaxed);
  place->store(took >= known ? took : known - (known - took) / kFades, std::memory_order_relaxed);
}

}  // namespace millrace
