// SPDX-License-Identifier: Apache-2.0
#include "net/not_sent.h"

#include "absl/strings/cord.h"

namespace millrace {
namespace {

// Not one of core/status_kind.h: it says nothing to another task.
constexpr char kPayload[] = "millrace/not_sent";

}  // namespace

bool WasNotSent(const Status& status) { return status.GetPayload(kPayload).has_value(); }

Status AsNotSent(Status status) {
  status.SetPayload(kPayload, absl::Cord());
  return status;
}

}  // namespace millrace
