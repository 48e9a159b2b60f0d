// SPDX-License-Identifier: Apache-2.0
#include "train/job_recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/logging.h"

namespace millrace {
namespace {

// The pause before a second session after losses in a row; it doubles with each.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);

}  // namespace

void JobRecovery::SessionBegan(int64_t global_step, int64_t own_steps) {
  if (global_step <= furthest_ || own_steps <= own_steps_) return;
  furthest_ = global_step;
  own_steps_ = own_steps;
  losses_ = 0;
}

Status JobRecovery::NoteLoss(const Status& why) {
  if (losses_ >= options_.max_losses) {
    return Suffixed(
        why, absl::StrCat("; gave up after ", options_.max_losses, " new sessions in a row"));
  }
  ++losses_;
  if (losses_ == 1) {
    pause_ = absl::ZeroDuration();
  } else {
    pause_ = std::min(losses_ == 2 ? kFirstPause : 2 * pause_, options_.longest_pause);
  }
  LogWarning(options_.speaker, ": The session was lost, making a new one (", losses_,
             " of at most ", options_.max_losses, " in a row): ", why.message());
  return absl::OkStatus();
}

}  // namespace millrace
