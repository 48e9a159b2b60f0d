// SPDX-License-Identifier: Apache-2.0
// The list of models, and how another one takes its place.

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "core/mutex.h"
#include "core/status.h"
#include "serving/model_versions.h"
#include "serving/model_versions_core.h"
#include "serving/version_source.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

Status CheckSettings(const std::vector<ModelSettings>& models) {
  std::set<std::string> names;
  for (const ModelSettings& model : models) {
    if (model.name.empty()) {
      return InvalidArgument("Model with base path '", model.base_path,
                             "': its name must not be empty");
    }
    // The texts of TensorFlow Serving.
    if (!names.insert(model.name).second) {
      return InvalidArgument("Illegal to list model ", model.name,
                             " multiple times in config list");
    }
    if (!absl::StartsWith(model.base_path, "/") && !absl::StrContains(model.base_path, "://")) {
      return InvalidArgument("Expected model ", model.name,
                             " to have an absolute path or URI; got base_path()=", model.base_path);
    }
  }
  return absl::OkStatus();
}

bool SameVersions(const VersionPolicy& a, const VersionPolicy& b) {
  return a.kind == b.kind && a.num_latest == b.num_latest && a.specific == b.specific;
}

Status ReloadRuns() {
  return absl::UnavailableError("The list of models is being reloaded; that must have ended");
}

}  // namespace

Status ModelVersions::Core::CheckLabels(const std::vector<ModelSettings>& list) const {
  for (const ModelSettings& settings : list) {
    const auto entry = models.find(settings.name);
    const KnownModel* const model = entry == models.end() ? nullptr : &entry->second;
    for (const auto& [label, number] : settings.labels) {
      bool is_moved = false, is_available = false;
      if (model != nullptr && model->now) {
        const auto old = model->now->settings.labels.find(label);
        is_moved = old != model->now->settings.labels.end() && old->second != number;
      }
      if (model != nullptr && (model->now || model->next)) {
        const auto version = model->versions.find(number);
        is_available = version != model->versions.end() &&
                       (version->second.state == State::kAvailable ||
                        // It is there for those that ask.
                        (MayRest() && !model->asked && version->second.wanted));
      }
      if (is_available || (options.allow_labels_of_unavailable && !is_moved)) continue;
      return FailedPrecondition("Request to assign label to version ", number, " of model ",
                                settings.name, ", which is not currently available for inference");
    }
  }
  return absl::OkStatus();
}

void ModelVersions::Core::SetNext(std::vector<ModelSettings> list) {
  ++num_lists;
  for (ModelSettings& settings : list) {
    KnownModel& model = models[settings.name];
    if (!model.now) model.asked = !options.load_on_demand;
    Listed& next = model.next.emplace();
    // What was wanted stays wanted until the new source has been polled.
    if (model.now) next.wanted = model.now->wanted;
    if (model.now && model.now->settings.base_path == settings.base_path &&
        SameVersions(model.now->settings.policy, settings.policy)) {
      next = *model.now;
    } else {
      next.source = std::make_shared<VersionSource>(settings.name, settings.base_path,
                                                    settings.policy, options.source);
    }
    next.settings = std::move(settings);
  }
}

void ModelVersions::Core::TakeNext() {
  for (auto& [name, model] : models) {
    model.now = std::exchange(model.next, std::nullopt);
    if (model.now) model.base_path = model.now->settings.base_path;
    Want(&model);
  }
  lists_taken.fetch_add(1, std::memory_order_release);
  must_publish = true;  // the labels
}

void ModelVersions::Core::DropNext() {
  for (auto& [name, model] : models) {
    model.next.reset();
    Want(&model);
  }
  std::erase_if(models, [](const auto& entry) {
    return !entry.second.now && entry.second.versions.empty() && entry.second.num_waiting == 0;
  });
}

void ModelVersions::Core::Want(KnownModel* model) {
  for (auto& [number, v] : model->versions) v.wanted = false;
  for (const std::optional<Listed>* const listed : {&model->now, &model->next}) {
    if (!*listed) continue;
    for (const FoundVersion& one : (*listed)->wanted) {
      Version& v = model->versions[one.version];
      v.model = (*listed)->settings.name;
      v.number = one.version;
      v.wanted = true;
      // A source that has not looked into a loaded version knows nothing about it.
      if (v.num_bytes == 0 ||
          (one.fingerprint != 0 && one.fingerprint != v.fingerprint && !HoldsMemory(v.state))) {
        v.num_bytes = one.num_bytes;
      }
      v.directory = one.directory;
      v.fingerprint = one.fingerprint;
    }
  }
}

void ModelVersions::Core::WakePolls() {
  must_poll = true;
  poll_wanted.SignalAll();
}

Status ModelVersions::Core::SetModels(std::vector<ModelSettings> list) {
  MR_RETURN_IF_ERROR(CheckSettings(list));
  MutexLock lock(&mu);
  if (reloading) return ReloadRuns();
  MR_RETURN_IF_ERROR(CheckLabels(list));
  SetNext(std::move(list));
  TakeNext();
  WakePolls();
  Proceed();
  return absl::OkStatus();
}

bool ModelVersions::Core::IsSettled(const KnownModel& model) const {
  if (!model.next) return true;
  const Listed& next = *model.next;
  if (!model.now) {
    if (!IsTried(model, next)) return false;
  } else if (model.now->source != next.source && AnyOnItsWay(model, next)) {
    return false;
  }
  if (next.settings.labels.empty()) return true;
  if (!next.polled) return false;
  for (const auto& [label, number] : next.settings.labels) {
    const auto version = model.versions.find(number);
    if (model.asked && version != model.versions.end() && IsOnItsWay(version->second)) return false;
    for (const IncompleteVersion& v : next.incomplete) {
      if (v.version == number && v.settles) return false;
    }
  }
  return true;
}

Status ModelVersions::Core::Reload(std::vector<ModelSettings> list, absl::Time deadline) {
  MR_RETURN_IF_ERROR(CheckSettings(list));
  {
    MutexLock lock(&mu);
    if (reloading) return ReloadRuns();
    reloading = true;
  }
  // Whatever happens, an exception among it: the old list serves on, unless the new one was taken.
  struct End {
    Core* core;
    ~End() {
      MutexLock lock(&core->mu);
      core->reloading = false;
      core->DropNext();
      core->WakePolls();  // what the old list wants may have changed
      core->ProceedOrNot();
    }
  } end{this};
  {
    MutexLock lock(&mu);
    SetNext(list);
    // A label may name a version that came after the last poll.
    for (auto& [name, model] : models) {
      if (model.next && !model.next->settings.labels.empty()) model.next->polled = false;
      Want(&model);
    }
    WakePolls();
    Proceed();
  }
  if (options.poll_period == absl::InfiniteDuration()) PollAll();  // no thread does
  MutexLock lock(&mu);
  for (;;) {
    if (ending || waits_end) {
      return absl::UnavailableError("A reload must end before its server does");
    }
    const bool is_settled = std::all_of(models.begin(), models.end(),
                                        [&](const auto& entry) { return IsSettled(entry.second); });
    if (is_settled || clock->Now() >= deadline) break;
    clock->WaitUntil(&changed, &mu, deadline);
  }
  MR_RETURN_IF_ERROR(CheckLabels(list));
  TakeNext();
  Proceed();
  return absl::OkStatus();
}

void ModelVersions::Core::EndAll() {
  ending = waits_end = true;
  poll_wanted.SignalAll();
  for (auto& [name, model] : models) {
    model.now.reset();
    model.next.reset();
    Want(&model);
  }
  Proceed();
}

bool ModelVersions::Core::AllEnded() const {
  for (const auto& [name, model] : models) {
    for (const auto& [number, v] : model.versions) {
      if (v.state != State::kEnded) return false;
    }
  }
  return true;
}

}  // namespace millrace
