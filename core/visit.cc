// SPDX-License-Identifier: Apache-2.0
#include "core/visit.h"

#include <utility>

#include "core/dcheck.h"

namespace millrace {
namespace {

// That collects; null: none does.
thread_local Visit* current = nullptr;

}  // namespace

Visit::Visit() : outer_(std::exchange(current, this)) {}

Visit::~Visit() {
  MR_DCHECK(work_ == nullptr, "what a visit took is run by whoever ends it");
  if (!ended_) current = outer_;
}

bool Visit::Offer(Work* work) {
  if (current == nullptr || current->work_ != nullptr) return false;
  current->work_ = work;
  return true;
}

Visit::Work* Visit::End() {
  if (!std::exchange(ended_, true)) current = outer_;
  return std::exchange(work_, nullptr);
}

}  // namespace millrace
