// SPDX-License-Identifier: Apache-2.0
// What others want to know.

#include <algorithm>

#include "serving/model_versions.h"
#include "serving/model_versions_core.h"
#include "serving/version_source.h"
#include "serving/version_state.h"

namespace millrace {

std::vector<VersionStatus> ModelVersions::Core::StatusOf(const KnownModel& model) const {
  std::vector<VersionStatus> statuses;
  for (const auto& [number, v] : model.versions) {
    statuses.push_back({number, v.state, v.error, v.servable ? v.servable->num_bytes() : 0});
  }
  // What a reload finds is of its next list, if that is taken.
  const std::vector<IncompleteVersion> none;
  for (const IncompleteVersion& v : model.now ? model.now->incomplete : none) {
    const auto known = model.versions.find(v.version);
    if (known == model.versions.end()) {
      statuses.push_back({v.version, State::kFound, v.reason, 0});
    } else if (known->second.state == State::kEnded) {
      for (VersionStatus& status : statuses) {
        if (status.version == v.version) status = {v.version, State::kFound, v.reason, 0};
      }
    }
  }
  std::sort(statuses.begin(), statuses.end(),
            [](const VersionStatus& a, const VersionStatus& b) { return a.version > b.version; });
  return statuses;
}

bool ModelVersions::Core::AllThreadsAreLeftBehind() const {
  return num_left_behind >= options.plan.max_loads + options.plan.max_left_behind;
}

bool ModelVersions::Core::IsOnItsWay(const Version& v) const {
  if (!v.wanted || v.left_behind) return false;
  switch (v.state) {
    case State::kFound:
    case State::kEnded:
    case State::kDraining:  // wanted again
    case State::kUnloading:
      return true;
    case State::kQueued:
      return v.num_tries == 0 && !AllThreadsAreLeftBehind();
    case State::kLoading:
    case State::kWarming:
      return v.cancelled || v.num_tries == 1;  // cancelled: it begins anew
    case State::kAvailable:
    case State::kFailed:
    case State::kWaiting:
      return false;
  }
  return false;
}

bool ModelVersions::Core::AnyOnItsWay(const KnownModel& model, const Listed& listed) const {
  if (!listed.polled) return true;
  // Of a model that rests nothing is on its way, though it may not be known yet.
  for (const FoundVersion& one : listed.wanted) {
    if (!model.asked) break;
    const auto version = model.versions.find(one.version);
    if (version != model.versions.end() && IsOnItsWay(version->second)) return true;
  }
  // Where the base path cannot be read nothing more is known.
  return listed.source_status.ok() &&
         std::any_of(listed.incomplete.begin(), listed.incomplete.end(),
                     [](const auto& v) { return v.settles; });
}

bool ModelVersions::Core::HasAvailable(const KnownModel& model) const {
  return std::any_of(model.versions.begin(), model.versions.end(),
                     [](const auto& entry) { return entry.second.state == State::kAvailable; });
}

bool ModelVersions::Core::IsTried(const KnownModel& model, const Listed& listed) const {
  return HasAvailable(model) || !AnyOnItsWay(model, listed);
}

Status ModelVersions::Core::WhyNone(const std::string& name, const KnownModel& model) const {
  const std::string where = absl::StrCat("Model '", name, "'");
  if (!model.now || !model.now->polled) {
    return absl::UnavailableError(absl::StrCat(where, ": not looked for yet"));
  }
  if (!model.now->source_status.ok()) return model.now->source_status;
  // The highest that has something to say.
  const std::vector<VersionStatus> statuses = StatusOf(model);
  for (const VersionStatus& v : statuses) {
    if (!v.status.ok() && v.state != State::kEnded) return v.status;
  }
  for (const VersionStatus& v : statuses) {
    if (v.state == State::kQueued && AllThreadsAreLeftBehind()) {
      return absl::UnavailableError(absl::StrCat(where, ": version ", v.version,
                                                 " waits until one of ", num_left_behind,
                                                 " loads that hang has ended"));
    }
    if (v.state != State::kEnded) {
      return absl::UnavailableError(
          absl::StrCat(where, ": version ", v.version, " is ", VersionStateName(v.state)));
    }
  }
  return absl::NotFoundError(
      absl::StrCat(where, ": its base path '", model.base_path, "' has no version"));
}

}  // namespace millrace
