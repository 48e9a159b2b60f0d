// SPDX-License-Identifier: Apache-2.0
#include "core/network_seat.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/time/clock.h"

namespace millrace {
namespace {

// Release by who made it, acquire by who uses it.
std::atomic<NetworkSeat*> of_process[NetworkSeat::kNumRanks] = {};

// Its address tells threads apart, too.
thread_local bool wishes = false;

}  // namespace

NetworkSeat* NetworkSeat::OfProcess() {
  for (const std::atomic<NetworkSeat*>& of_rank : of_process) {
    NetworkSeat* const seat = of_rank.load(std::memory_order_acquire);
    if (seat != nullptr && seat->has_links()) return seat;
  }
  return nullptr;
}

void NetworkSeat::SetOfProcess(NetworkSeat* seat, Rank rank) {
  NetworkSeat* none = nullptr;
  of_process[rank].compare_exchange_strong(none, seat, std::memory_order_acq_rel,
                                           std::memory_order_acquire);
}

SeatWish::SeatWish() : outer_(wishes) { wishes = true; }
SeatWish::~SeatWish() { wishes = outer_; }

void SeatedCondVar::Wait(Mutex* mu, absl::Time limit) {
  NetworkSeat* const seat = wishes ? NetworkSeat::OfProcess() : nullptr;
  const absl::Time now = absl::Now();
  if (sits_until_ == absl::InfinitePast()) sits_until_ = now + max_sitting_;
  if (seat == nullptr || now >= sits_until_ || !seat->Take()) {
    cv_.WaitWithTimeout(mu, limit - now);
    return;
  }
  seat_ = seat;
  sitter_ = &wishes;
  mu->Unlock();
  seat->Serve(std::min(limit, sits_until_));
  seat->Leave();
  mu->Lock();
  seat_ = nullptr;
}

void SeatedCondVar::Signal() {
  if (seat_ == nullptr) return cv_.Signal();
  // The thread itself, while it serves, sees the condition as it returns.
  if (sitter_ == &wishes) return;
  // One is enough: it looks at the condition before it sleeps again.
  std::exchange(seat_, nullptr)->Wake();
}

}  // namespace millrace
