// SPDX-License-Identifier: Apache-2.0
#include "train/stop_time.h"

#include <algorithm>
#include <utility>

#include "core/logging.h"

namespace millrace {
namespace {

// Waits are logged this often.
constexpr absl::Duration kReportPeriod = absl::Seconds(10);

}  // namespace

bool AwaitAloud(absl::string_view speaker, Clock* clock, BoundedCall* call, absl::Time deadline,
                absl::string_view what) {
  const absl::Time begin = clock->Now();
  while (true) {
    const absl::Time look = std::min(deadline, clock->Now() + kReportPeriod);
    if (call->WaitUntil(look)) return true;
    const absl::Time now = clock->Now();
    if (now >= deadline) return false;
    LogInfo(speaker, ": waits for ", what, " since ", absl::FormatDuration(now - begin),
            ", and for ", absl::FormatDuration(deadline - now), " more at most");
  }
}

void CloseInTime(absl::string_view speaker, Clock* clock, std::shared_ptr<Session> session) {
  BoundedCall closing(clock, [s = std::move(session)] { s->Close().IgnoreError(); });
  if (closing.WaitUntil(clock->Now() + kCloseTime)) return;
  LogWarning(speaker, ": the session did not close within ", absl::FormatDuration(kCloseTime),
             "; what it waits for is left behind");
}

}  // namespace millrace
