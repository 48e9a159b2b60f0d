// SPDX-License-Identifier: Apache-2.0
#include "core/before_wait.h"

#include <utility>

#include "core/dcheck.h"

namespace millrace {
namespace {

thread_local BeforeWait* innermost = nullptr;

}  // namespace

BeforeWait::BeforeWait() noexcept : outer_(std::exchange(innermost, this)) {}

BeforeWait::~BeforeWait() {
  MR_DCHECK(innermost == this, "they live on the stack: the innermost of a thread ends first");
  innermost = outer_;
}

void BeforeWait::Run() noexcept {
  for (BeforeWait* each = innermost; each != nullptr; each = each->outer_) each->Do();
}

}  // namespace millrace
