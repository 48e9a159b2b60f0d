// SPDX-License-Identifier: Apache-2.0
#include "core/visit.h"

#include <atomic>
#include <utility>

#include "core/dcheck.h"
#include "core/visiting.h"

namespace millrace {
namespace {

// That collects; null: none does.
thread_local Visit* current = nullptr;

// Pieces of work between Offer and the end of Run. Relaxed: a bound, orders nothing.
std::atomic<int> taken{0};

}  // namespace

bool IsVisiting() { return current != nullptr; }

Visit::Visit() : outer_(std::exchange(current, this)) {}

Visit::~Visit() {
  MR_DCHECK(work_ == nullptr, "what a visit took is run by whoever ends it");
  if (!ended_) current = outer_;
}

bool Visit::Offer(Work* work, int limit) {
  if (current == nullptr || current->work_ != nullptr) return false;
  if (taken.fetch_add(1, std::memory_order_relaxed) >= limit) {
    taken.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  current->work_ = work;
  return true;
}

Visit::Work* Visit::End() {
  if (!std::exchange(ended_, true)) current = outer_;
  return std::exchange(work_, nullptr);
}

void Visit::Run(Work* work) noexcept {
  work->RunVisit();
  const int before = taken.fetch_sub(1, std::memory_order_relaxed);
  MR_DCHECK(before > 0, "work is run once, after a visit took it");
  static_cast<void>(before);
}

}  // namespace millrace
