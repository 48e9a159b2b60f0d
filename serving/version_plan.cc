// SPDX-License-Identifier: Apache-2.0
#include "serving/version_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace millrace {
namespace {

using State = VersionState;

// What the rules ask about a model as a whole.
struct Summary {
  bool wants_any = false;
  bool has_wanted_available = false;
  bool has_available = false;
  bool is_loading = false;
  bool unwanted_hold_memory = false;
  int64_t highest_unwanted_available = 0;  // meaningful when there is one

  explicit Summary(const PlannedModel& model) {
    bool has_unwanted_available = false;
    for (const PlannedVersion& v : model.versions) {
      const bool wanted = v.wanted && model.asked;
      wants_any |= wanted;
      const bool available = v.state == State::kAvailable;
      has_available |= available;
      has_wanted_available |= available && wanted;
      is_loading |= IsLoad(v.state);
      // One that drains is no longer of use, though it may be wanted again.
      const bool leaves = v.state == State::kDraining || v.state == State::kUnloading;
      unwanted_hold_memory |= HoldsMemory(v.state) && (!wanted || leaves || v.cancelled);
      if (available && !wanted) {
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
    const PlannedVersion& v = model.versions[i];
    if (v.wanted && model.asked && v.state == State::kQueued) queued.push_back(i);
  }
  std::sort(queued.begin(), queued.end(), [&](size_t a, size_t b) {
    return model.versions[a].version > model.versions[b].version;
  });
  for (size_t rank = 0; rank < queued.size(); ++rank) {
    candidates->push_back({summary.has_available, model.versions[queued[rank]].num_tries > 0, rank,
                           number, queued[rank]});
  }
}

// What the memory limit allows, and who makes room. Bytes that drain or unload are not there yet,
// but need nobody else to go.
class Memory {
 public:
  Memory(absl::Span<const PlannedModel> models, int64_t limit, Plan* plan)
      : models_(models), limit_(limit), plan_(plan), staying_(models.size()) {
    std::set<std::pair<size_t, size_t>> going;
    for (const PlanStep& step : plan->steps) {
      if (step.action == PlanAction::kDrain || step.action == PlanAction::kRest) {
        going.insert({step.model, step.version});
      }
    }
    for (size_t m = 0; m < models.size(); ++m) {
      for (size_t i = 0; i < models[m].versions.size(); ++i) {
        const PlannedVersion& v = models[m].versions[i];
        if (v.left_behind) {
          // Its thread may still load, and no one can make it go.
          used_ += v.num_bytes;
          all_staying_ += v.num_bytes;
          continue;
        }
        if (!HoldsMemory(v.state)) continue;
        used_ += v.num_bytes;
        if (IsLoad(v.state)) {
          all_staying_ += v.num_bytes;
          staying_[m].loading += v.num_bytes;
        } else if (v.state == State::kAvailable && !going.contains({m, i})) {
          all_staying_ += v.num_bytes;
          all_available_ += v.num_bytes;
          staying_[m].available += v.num_bytes;
          staying_[m].versions.push_back(i);
        }
      }
    }
  }

  // A model may turn out larger than was thought. The one that was used last stays.
  void KeepLimit() {
    const std::vector<size_t> order = LeastRecentlyUsed();
    for (size_t i = 0; i + 1 < order.size() && all_available_ > limit_; ++i) Rest(order[i]);
  }

  enum class Room { kIsThere, kComes, kNone };
  // For a version of `model`; the models that were used before it rest where that is enough.
  Room MakeRoom(size_t model, int64_t num_bytes) {
    const Staying& own = staying_[model];
    // Refused by its load. It takes no memory.
    if (own.available + own.loading + num_bytes > limit_) return Room::kIsThere;
    if (used_ + num_bytes <= limit_) {
      used_ += num_bytes;
      all_staying_ += num_bytes;
      staying_[model].loading += num_bytes;
      return Room::kIsThere;
    }
    std::vector<size_t> victims;
    int64_t left = all_staying_;
    for (const size_t other : LeastRecentlyUsed()) {
      if (left + num_bytes <= limit_) break;
      if (other == model || models_[other].last_use > models_[model].last_use) continue;
      victims.push_back(other);
      left -= staying_[other].available;
    }
    if (left + num_bytes > limit_) return Room::kNone;
    for (const size_t victim : victims) Rest(victim);
    return Room::kComes;
  }

 private:
  struct Staying {
    int64_t available = 0, loading = 0;
    std::vector<size_t> versions;  // the available ones
  };

  // Those that may rest.
  std::vector<size_t> LeastRecentlyUsed() const {
    std::vector<size_t> order;
    for (size_t m = 0; m < models_.size(); ++m) {
      if (!staying_[m].versions.empty() && !models_[m].has_waiting) order.push_back(m);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return models_[a].last_use < models_[b].last_use; });
    return order;
  }
  void Rest(size_t model) {
    Staying& staying = staying_[model];
    for (const size_t i : staying.versions) plan_->steps.push_back({model, i, PlanAction::kRest});
    all_staying_ -= staying.available;
    all_available_ -= std::exchange(staying.available, 0);
    staying.versions.clear();
  }

  const absl::Span<const PlannedModel> models_;
  const int64_t limit_;
  Plan* const plan_;
  int64_t used_ = 0;           // by all that holds memory
  int64_t all_staying_ = 0;    // by what does not go
  int64_t all_available_ = 0;  // of that, by what is loaded
  std::vector<Staying> staying_;
};

// What happens to one version, but for the choice among those that are queued. `wanted`: its model
// is asked for, too. `rests`: its model does.
std::optional<PlanAction> NextAction(const PlannedVersion& v, bool wanted, bool rests,
                                     const Summary& summary, const PlanOptions& options,
                                     absl::Time now, absl::Time* next_time) {
  switch (v.state) {
    case State::kFound:
      if (wanted || !v.wanted) return wanted ? PlanAction::kQueue : PlanAction::kEnd;
      break;
    case State::kQueued:
      if (!wanted) return PlanAction::kEnd;
      break;
    case State::kLoading:
    case State::kWarming:
      if (const absl::Time end = v.load_began + options.max_load_time; end <= now) {
        return PlanAction::kGiveUp;
      } else {
        *next_time = std::min(*next_time, end);
        if (!v.cancelled && !wanted && MayGo(summary, options.order)) {
          return PlanAction::kCancel;
        }
      }
      break;
    case State::kAvailable:
      if (rests) {
        return PlanAction::kRest;
      } else if (!wanted && (MayGo(summary, options.order) ||
                             v.version < summary.highest_unwanted_available)) {
        return PlanAction::kDrain;
      }
      break;
    case State::kDraining:
    case State::kUnloading:
      break;
    case State::kEnded:
      if (wanted && !v.left_behind) return PlanAction::kQueue;
      break;
    case State::kFailed:
      if (!wanted) {
        return PlanAction::kEnd;
      } else if (v.left_behind) {
        // It may still load.
      } else if (v.files_changed) {
        return PlanAction::kQueue;
      } else if (v.num_tries <= options.max_retries) {
        return PlanAction::kWait;
      }
      break;
    case State::kWaiting:
      if (!wanted) {
        return PlanAction::kEnd;
      } else if (v.files_changed) {
        return PlanAction::kQueue;
      } else if (const absl::Time time = RetryTime(v, options, now); time <= now) {
        return PlanAction::kRetry;
      } else {
        *next_time = std::min(*next_time, time);
      }
      break;
  }
  return std::nullopt;
}

}  // namespace

Plan NextSteps(absl::Span<const PlannedModel> models, const PlanOptions& options, absl::Time now) {
  Plan plan;
  std::vector<Candidate> candidates;
  int num_loads = 0, num_left_behind = 0;
  for (size_t m = 0; m < models.size(); ++m) {
    const PlannedModel& model = models[m];
    const Summary summary(model);
    bool rests = false;
    if (options.idle_unload < absl::InfiniteDuration() && model.asked && summary.has_available &&
        !summary.is_loading && !model.has_waiting) {
      const absl::Time end = model.last_use + options.idle_unload;
      rests = end <= now;
      if (!rests) plan.next_time = std::min(plan.next_time, end);
    }
    for (size_t i = 0; i < model.versions.size(); ++i) {
      const PlannedVersion& v = model.versions[i];
      num_left_behind += v.left_behind;
      num_loads += IsLoad(v.state);
      const auto action =
          NextAction(v, v.wanted && model.asked, rests, summary, options, now, &plan.next_time);
      if (action) plan.steps.push_back({m, i, *action});
    }
    if (options.order == LoadOrder::kAvailabilityFirst || !summary.unwanted_hold_memory) {
      AddCandidates(model, m, summary, &candidates);
    }
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.Key() < b.Key(); });
  std::optional<Memory> memory;
  if (options.memory_limit > 0) {
    memory.emplace(models, options.memory_limit, &plan);
    memory->KeepLimit();
  }
  for (const Candidate& next : candidates) {
    if (num_loads >= options.max_loads ||
        num_loads + num_left_behind >= options.max_loads + options.max_left_behind) {
      break;
    }
    if (memory) {
      const Memory::Room room =
          memory->MakeRoom(next.model, models[next.model].versions[next.version].num_bytes);
      // What comes is for this one: a smaller one that took it would keep it out for good.
      if (room == Memory::Room::kComes) break;
      if (room == Memory::Room::kNone) continue;
    }
    ++num_loads;
    plan.steps.push_back({next.model, next.version, PlanAction::kLoad});
  }
  return plan;
}

}  // namespace millrace
