// SPDX-License-Identifier: Apache-2.0
#include "serving/version_plan.h"

#include <algorithm>
#include <tuple>

namespace millrace {
namespace {

using State = VersionState;

// What the rules ask about a model as a whole.
struct Summary {
  bool wants_any = false;
  bool has_wanted_available = false;
  bool has_available = false;
  bool unwanted_hold_memory = false;
  int64_t highest_unwanted_available = 0;  // meaningful when there is one

  explicit Summary(const PlannedModel& model) {
    bool has_unwanted_available = false;
    for (const PlannedVersion& v : model.versions) {
      wants_any |= v.wanted;
      const bool available = v.state == State::kAvailable;
      has_available |= available;
      has_wanted_available |= available && v.wanted;
      // One that drains is no longer of use, though it may be wanted again.
      const bool leaves = v.state == State::kDraining || v.state == State::kUnloading;
      unwanted_hold_memory |= HoldsMemory(v.state) && (!v.wanted || leaves || v.cancelled);
      if (available && !v.wanted) {
        highest_unwanted_available =
            has_unwanted_available ? std::max(highest_unwanted_available, v.version) : v.version;
        has_unwanted_available = true;
      }
    }
  }
};

// Is an unwanted version, loaded or loading, of no more use to its model?
bool MayGo(const Summary& model, LoadOrder order) {
  return order == LoadOrder::kResourcesFirst || !model.wants_any || model.has_wanted_available;
}

// When a failed version may be tried again. A clock that went back before the failure knows nothing
// about it: at once.
absl::Time RetryTime(const PlannedVersion& v, const PlanOptions& options, absl::Time now) {
  return now < v.failed_at ? now : v.failed_at + options.retry_interval;
}

struct Candidate {
  bool model_has_available, is_retry;
  size_t rank;  // among those of its model, the highest version first
  size_t model, version;

  auto Key() const { return std::tie(is_retry, model_has_available, rank, model); }
};

// The queued versions of a model, which may load now.
void AddCandidates(const PlannedModel& model, size_t number, const Summary& summary,
                   std::vector<Candidate>* candidates) {
  std::vector<size_t> queued;
  for (size_t i = 0; i < model.versions.size(); ++i) {
    if (model.versions[i].wanted && model.versions[i].state == State::kQueued) queued.push_back(i);
  }
  std::sort(queued.begin(), queued.end(), [&](size_t a, size_t b) {
    return model.versions[a].version > model.versions[b].version;
  });
  for (size_t rank = 0; rank < queued.size(); ++rank) {
    candidates->push_back({summary.has_available, model.versions[queued[rank]].num_tries > 0, rank,
                           number, queued[rank]});
  }
}

}  // namespace

Plan NextSteps(absl::Span<const PlannedModel> models, const PlanOptions& options, absl::Time now) {
  Plan plan;
  std::vector<Candidate> candidates;
  int num_loads = 0, num_left_behind = 0;
  for (size_t m = 0; m < models.size(); ++m) {
    const PlannedModel& model = models[m];
    const Summary summary(model);
    for (size_t i = 0; i < model.versions.size(); ++i) {
      const PlannedVersion& v = model.versions[i];
      num_left_behind += v.left_behind;
      const auto add = [&](PlanAction action) { plan.steps.push_back({m, i, action}); };
      switch (v.state) {
        case State::kFound:
          add(v.wanted ? PlanAction::kQueue : PlanAction::kEnd);
          break;
        case State::kQueued:
          if (!v.wanted) add(PlanAction::kEnd);
          break;
        case State::kLoading:
        case State::kWarming:
          ++num_loads;
          if (const absl::Time end = v.load_began + options.max_load_time; end <= now) {
            add(PlanAction::kGiveUp);
          } else {
            plan.next_time = std::min(plan.next_time, end);
            if (!v.cancelled && !v.wanted && MayGo(summary, options.order)) {
              add(PlanAction::kCancel);
            }
          }
          break;
        case State::kAvailable:
          if (!v.wanted &&
              (MayGo(summary, options.order) || v.version < summary.highest_unwanted_available)) {
            add(PlanAction::kDrain);
          }
          break;
        case State::kDraining:
        case State::kUnloading:
          break;
        case State::kEnded:
          if (v.wanted && !v.left_behind) add(PlanAction::kQueue);
          break;
        case State::kFailed:
          if (!v.wanted) {
            add(PlanAction::kEnd);
          } else if (v.left_behind) {
            // It may still load.
          } else if (v.files_changed) {
            add(PlanAction::kQueue);
          } else if (v.num_tries <= options.max_retries) {
            add(PlanAction::kWait);
          }
          break;
        case State::kWaiting:
          if (!v.wanted) {
            add(PlanAction::kEnd);
          } else if (v.files_changed) {
            add(PlanAction::kQueue);
          } else if (const absl::Time time = RetryTime(v, options, now); time <= now) {
            add(PlanAction::kRetry);
          } else {
            plan.next_time = std::min(plan.next_time, time);
          }
          break;
      }
    }
    if (options.order == LoadOrder::kAvailabilityFirst || !summary.unwanted_hold_memory) {
      AddCandidates(model, m, summary, &candidates);
    }
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.Key() < b.Key(); });
  for (const Candidate& next : candidates) {
    if (num_loads >= options.max_loads ||
        num_loads + num_left_behind >= options.max_loads + options.max_left_behind) {
      break;
    }
    ++num_loads;
    plan.steps.push_back({next.model, next.version, PlanAction::kLoad});
  }
  return plan;
}

}  // namespace millrace
