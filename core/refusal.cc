// SPDX-License-Identifier: Apache-2.0
#include "core/refusal.h"

#include "absl/strings/cord.h"
#include "core/status_kind.h"

namespace millrace {

bool IsRefusal(const Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         status.GetPayload(kRefusalKind).has_value();
}

Status AsRefusal(Status status) {
  status.SetPayload(kRefusalKind, absl::Cord());
  return status;
}

}  // namespace millrace
