// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/step_limit.h"

#include <algorithm>
#include <cstdint>

#include "absl/time/clock.h"
#include "distributed/transport/transport.pb.h"
#include "google/protobuf/unknown_field_set.h"

namespace millrace {

void AddStepLimit(absl::Time deadline, MessageWriter* writer) {
  if (deadline == absl::InfiniteFuture()) return;
  wire::StepLimit limit;
  // A step whose time is over already has the shortest limit that says so.
  limit.set_timeout_in_us(std::max(int64_t{1}, absl::ToInt64Microseconds(deadline - absl::Now())));
  writer->AddMessage(limit);
}

absl::Time StepDeadlineOf(const google::protobuf::Message& request) {
  absl::Time deadline = absl::InfiniteFuture();
  const auto& fields = request.GetReflection()->GetUnknownFields(request);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() != wire::StepLimit::kTimeoutInUsFieldNumber ||
        field.type() != google::protobuf::UnknownField::TYPE_VARINT) {
      continue;
    }
    const auto timeout_us = static_cast<int64_t>(field.varint());
    if (timeout_us > 0) deadline = absl::Now() + absl::Microseconds(timeout_us);
  }
  return deadline;
}

}  // namespace millrace
