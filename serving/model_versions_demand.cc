// SPDX-License-Identifier: Apache-2.0
// Models that load when a request asks for them, and rest when none does.

#include <algorithm>

#include "core/mutex.h"
#include "serving/available_versions.h"
#include "serving/model_versions_core.h"
#include "serving/step_bounds.h"

namespace millrace {

void ModelVersions::Core::CollectUses() {
  if (!MayRest()) return;
  const absl::Time now = clock->Now();
  for (auto& [name, model] : models) {
    for (auto& [number, v] : model.versions) {
      if (v.available != nullptr && v.available->TakeUsed()) model.last_use = now;
    }
  }
}

std::optional<int64_t> ModelVersions::Core::VersionOfLabel(absl::string_view name,
                                                           absl::string_view label) {
  MutexLock lock(&mu);
  const auto entry = models.find(name);
  if (entry == models.end() || !entry->second.now) return std::nullopt;
  const auto& labels = entry->second.now->settings.labels;
  const auto labelled = labels.find(std::string(label));
  return labelled == labels.end() ? std::nullopt : std::optional<int64_t>(labelled->second);
}

// Else a model that failed while nobody asked would never load again: its files do not change.
void ModelVersions::Core::TryFailedAgain(KnownModel* model, absl::Time now) {
  for (auto& [number, v] : model->versions) {
    const bool was_given_up = v.state == State::kFailed && v.num_tries > options.plan.max_retries;
    if (was_given_up && v.wanted && now - v.failed_at >= options.plan.retry_interval) {
      v.tried_fingerprint = v.fingerprint + 1;  // as if they had
    }
  }
}

StatusOr<std::shared_ptr<const AvailableVersion>> ModelVersions::Core::Ask(
    absl::string_view name, std::optional<int64_t> version, const StepBounds& bounds) {
  MutexLock lock(&mu);
  const auto entry = models.find(name);
  // What is not known is not there: the refusal of the look-up.
  if (entry == models.end() || !entry->second.now) return available.Find(name, version);
  KnownModel& model = entry->second;  // stays while a request waits
  const auto is_wanted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return std::any_of(model.versions.begin(), model.versions.end(), [&](const auto& one) {
      return one.second.wanted && (!version || one.first == *version);
    });
  };
  if (model.now->polled && !is_wanted()) return available.Find(name, version);
  if (waits_end) return absl::UnavailableError("the server stops");
  // A publication may have come since the look-up without the lock.
  if (StatusOr<std::shared_ptr<const AvailableVersion>> found = available.Find(name, version);
      found.ok()) {
    return found;
  }
  if (num_waiting >= options.most_waiting) {
    return absl::ResourceExhaustedError(absl::StrCat("Model '", name, "': at most ",
                                                     options.most_waiting,
                                                     " requests may wait for loads at a time"));
  }
  const absl::Time began = clock->Now();
  const absl::Time deadline = std::min(bounds.deadline, began + options.demand_patience);
  ++num_waiting;
  ++model.num_waiting;
  model.asked = true;
  model.last_use = began;
  // Whatever happens, it waits no more: then its model may rest, and another one load.
  struct End {
    Core* core;
    KnownModel* model;
    ~End() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      --core->num_waiting;
      --model->num_waiting;
      core->ProceedOrNot();
    }
  } end{this, &model};
  TryFailedAgain(&model, began);
  Proceed();
  for (;;) {
    StatusOr<std::shared_ptr<const AvailableVersion>> found = available.Find(name, version);
    if (found.ok() || !model.now) return found;
    if (model.now->polled && !is_wanted()) return found;
    if (version) {
      const auto one = model.versions.find(*version);
      const bool has_failed = one != model.versions.end() && (one->second.state == State::kFailed ||
                                                              one->second.state == State::kWaiting);
      if (has_failed) return one->second.error;
    } else if (!AnyOnItsWay(model, *model.now)) {
      return WhyNone(entry->first, model);
    }
    if (bounds.cancellation != nullptr && bounds.cancellation->IsCancelled()) {
      return absl::CancelledError(
          absl::StrCat("Model '", name, "': the request ended before its load did"));
    }
    if (waits_end) return absl::UnavailableError("the server stops");
    if (clock->Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("Model '", name, "': its load must end before the request's deadline"));
    }
    clock->WaitUntil(&changed, &mu, deadline);
  }
}

}  // namespace millrace
