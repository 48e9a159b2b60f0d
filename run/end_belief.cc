// SPDX-License-Identifier: Apache-2.0
#include "run/end_belief.h"

namespace millrace {

bool EndBelief::Hear(const std::optional<Told>& end, absl::Time now) {
  const bool is_news = end.has_value() && (!end_.has_value() || end_->token != end->token);
  if (is_news) {
    since_ = now;
    from_first_hearing_ = !was_heard_;
  }
  was_heard_ = true;
  end_ = end;
  return is_news;
}

std::optional<EndBelief::Told> EndBelief::ToldBy(const std::optional<RunEndFile>& end) {
  if (!end.has_value()) return std::nullopt;
  return Told{.token = end->token, .global_step = end->global_step};
}

void EndBelief::Forget() {
  was_heard_ = false;
  end_.reset();
}

bool EndBelief::is_doubted() const {
  if (!end_.has_value()) return false;
  if (rule_.last_step && end_->global_step >= *rule_.last_step) return false;
  return rule_.goal > 0 ? end_->global_step < rule_.goal : from_first_hearing_;
}

absl::Time EndBelief::believed_from() const {
  if (!end_.has_value()) return absl::InfiniteFuture();
  return is_doubted() ? since_ + rule_.grace : since_;
}

}  // namespace millrace
