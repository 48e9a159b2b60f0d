// SPDX-License-Identifier: Apache-2.0
// The plan carried out.

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "serving/available_versions.h"
#include "serving/model_versions_core.h"
#include "serving/version_plan.h"
#include "serving/version_state.h"

namespace millrace {

namespace {

// After which what had no memory is tried again.
constexpr absl::Duration kAgain = absl::Seconds(1);

}  // namespace

void ModelVersions::Core::Move(Version* version, State to) noexcept {
  MR_DCHECK(IsLegalTransition(version->state, to),
            "a version goes along the arrows of version_state.h only");
  num_available += (to == State::kAvailable) - (version->state == State::kAvailable);
  version->state = to;
  NoteServing();
  if (to == State::kAvailable) BeNice();
}

// Each case is carried out whole or, by an exception, not at all: the plan comes to it again.
void ModelVersions::Core::Carry(PlanAction action, Version* version) {
  switch (action) {
    case PlanAction::kQueue:
      version->num_tries = 0;
      version->error = absl::OkStatus();
      Move(version, State::kQueued);
      break;
    case PlanAction::kRetry:
      Move(version, State::kQueued);
      break;
    case PlanAction::kLoad: {
      MR_DCHECK(version->servable == nullptr, "a version is loaded once at a time");
      auto cancellation = std::make_shared<CancellationManager>();
      loads.push_back(version);
      ++version->num_tries;
      version->tried_fingerprint = version->fingerprint;
      version->cancelled = false;
      version->load_began = clock->Now();
      version->cancellation = std::move(cancellation);
      Move(version, State::kLoading);
      load_queued.Signal();
      break;
    }
    case PlanAction::kWait:
      Move(version, State::kWaiting);
      break;
    case PlanAction::kCancel:
      Cancel(version);
      break;
    case PlanAction::kGiveUp: {
      Status why = absl::DeadlineExceededError(
          absl::StrCat(TextOf(*version), ": its load takes longer than ",
                       absl::FormatDuration(options.plan.max_load_time), " and was told to end"));
      Cancel(version);
      version->left_behind = true;
      ++num_left_behind;
      Fail(version, std::move(why));
      break;
    }
    case PlanAction::kRest:
      LogInfo(TextOf(*version), ": rests until a request asks for its model");
      models.find(version->model)->second.asked = false;
      [[fallthrough]];
    case PlanAction::kDrain:
      Move(version, State::kDraining);
      version->available.reset();
      must_publish = true;
      break;
    case PlanAction::kEnd:
      Move(version, State::kEnded);
      break;
  }
}

// By the thread of the times, without the lock: callbacks are the loader's.
void ModelVersions::Core::Cancel(Version* version) {
  if (version->cancelled) return;
  to_cancel.push_back(version->cancellation);
  version->cancelled = true;
  time_changed.SignalAll();
}

void ModelVersions::Core::Fail(Version* version, Status status) noexcept {
  UnlessNoMemory([&] { LogWarning("Loading failed: ", status.ToString()); });
  version->error = std::move(status);
  version->failed_at = clock->Now();
  Move(version, State::kFailed);
}

bool ModelVersions::Core::ProceedOnce() {
  CollectUses();
  std::vector<PlannedModel> planned;
  std::vector<std::vector<Version*>> places;
  for (auto& [name, model] : models) {
    planned.push_back({.versions = {},
                       .asked = model.asked,
                       .has_waiting = model.num_waiting > 0,
                       // A request that waits uses it all the time.
                       .last_use = model.num_waiting > 0 ? clock->Now() : model.last_use});
    places.emplace_back();
    for (auto& [number, v] : model.versions) {
      planned.back().versions.push_back({.version = number,
                                         .state = v.state,
                                         .wanted = v.wanted,
                                         .cancelled = v.cancelled,
                                         .load_began = v.load_began,
                                         .num_tries = v.num_tries,
                                         .failed_at = v.failed_at,
                                         .files_changed = v.fingerprint != v.tried_fingerprint,
                                         .left_behind = v.left_behind,
                                         .num_bytes = v.num_bytes});
      places.back().push_back(&v);
    }
  }
  const Plan plan = NextSteps(planned, options.plan, clock->Now());
  for (const PlanStep& step : plan.steps) Carry(step.action, places[step.model][step.version]);
  if (next_time != plan.next_time) {
    next_time = plan.next_time;
    time_changed.SignalAll();
  }
  return !plan.steps.empty();
}

void ModelVersions::Core::Proceed() {
  if (must_want) WantAll();
  while (ProceedOnce()) {
  }
  // What is new and what is old change at once.
  if (must_publish) Publish();
  Forget();
  changed.SignalAll();
  if (options.on_change) options.on_change();
}

void ModelVersions::Core::ProceedOrNot() noexcept {
  try {
    Proceed();
  } catch (const std::bad_alloc&) {
    const absl::Time now = clock->Now();
    next_time = next_time > now ? std::min(next_time, now + kAgain) : now + kAgain;
    time_changed.SignalAll();
    changed.SignalAll();
  }
}

void ModelVersions::Core::Publish() {
  auto table = std::make_shared<AvailableVersions::Table>();
  for (const auto& [name, model] : models) {
    AvailableVersions::Model entry;
    for (const auto& [number, v] : model.versions) {
      if (v.available != nullptr) entry.versions[number] = v.available;
    }
    if (model.now) {
      entry.labels.insert(model.now->settings.labels.begin(), model.now->settings.labels.end());
    }
    if (!entry.versions.empty() || !entry.labels.empty()) (*table)[name] = std::move(entry);
  }
  available.Publish(std::move(table));
  must_publish = false;  // not before it is there
}

void ModelVersions::Core::Forget() {
  const auto is_over = [](const auto& entry) {
    const Version& v = entry.second;
    return v.state == State::kEnded && !v.wanted && !v.left_behind;
  };
  size_t num_gone = 0;
  for (auto& [name, model] : models) {
    auto& versions = model.versions;
    auto num_over = static_cast<size_t>(std::count_if(versions.begin(), versions.end(), is_over));
    if (!model.now && !model.next && model.num_waiting == 0 && num_over == versions.size())
      ++num_gone;
    for (auto it = versions.begin(); num_over > options.most_ended;) {
      if (!is_over(*it)) {
        ++it;
        continue;
      }
      it = versions.erase(it);
      ++model.num_forgotten;
      --num_over;
    }
  }
  for (auto it = models.begin(); num_gone > options.most_ended;) {
    const KnownModel& model = it->second;
    const bool is_gone = !model.now && !model.next && model.num_waiting == 0 &&
                         std::all_of(model.versions.begin(), model.versions.end(), is_over);
    it = is_gone ? models.erase(it) : std::next(it);
    num_gone -= is_gone;
  }
}

}  // namespace millrace
