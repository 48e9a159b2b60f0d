// SPDX-License-Identifier: Apache-2.0
#include "core/refusal.h"

#include <utility>

#include "absl/strings/cord.h"
#include "core/exit_code.h"

namespace millrace {
namespace {

constexpr char kRefusal[] = "millrace.run/refusal";

}  // namespace

bool IsRefusal(const Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         status.GetPayload(kRefusal).has_value();
}

Status AsRefusal(Status status) {
  status.SetPayload(kRefusal, absl::Cord());
  return WithExitCode(std::move(status), kExitError);
}

}  // namespace millrace
