// SPDX-License-Identifier: Apache-2.0
// The list of models, and how another one takes its place.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"
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
    if (!IsAbsolutePath(model.base_path)) {
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
  std::vector<std::pair<KnownModel*, Listed>> nexts;
  for (ModelSettings& settings : list) {
    KnownModel& model = models[settings.name];
    Listed next;
    if (model.now && model.now->settings.base_path == settings.base_path &&
        SameVersions(model.now->settings.policy, settings.policy)) {
      next = *model.now;
    } else {
      // What was wanted stays wanted until the new source has been polled.
      if (model.now) next.wanted = model.now->wanted;
      next.source = std::make_shared<VersionSource>(settings.name, settings.base_path,
                                                    settings.policy, options.source);
    }
    next.settings = std::move(settings);
    nexts.emplace_back(&model, std::move(next));
  }
  ++num_lists;
  for (auto& [model, next] : nexts) {
    if (!model->now) model->asked = !options.load_on_demand;
    model->next = std::move(next);
  }
}

void ModelVersions::Core::TakeNext() {
  struct Taken {
    KnownModel* model;
    std::string base_path;
    Wants wants;
  };
  std::vector<Taken> all;
  for (auto& [name, model] : models) {
    all.push_back(
        {&model, model.next ? model.next->settings.base_path : "",
         PrepareWants(name, &model, nullptr, model.next ? &model.next->wanted : nullptr)});
  }
  for (Taken& one : all) {
    one.model->now = std::exchange(one.model->next, std::nullopt);
    if (one.model->now) one.model->base_path = std::move(one.base_path);
    TakeWants(one.model, std::move(one.wants));
  }
  lists_taken.fetch_add(1, std::memory_order_release);
  must_publish = true;  // the labels
}

void ModelVersions::Core::DropNext() noexcept {
  for (auto& [name, model] : models) model.next.reset();
  must_want = true;
  std::erase_if(models, [](const auto& entry) {
    return !entry.second.now && entry.second.versions.empty() && entry.second.num_waiting == 0;
  });
}

ModelVersions::Core::Wants ModelVersions::Core::PrepareWants(
    const std::string& name, KnownModel* model, const std::vector<FoundVersion>* now,
    const std::vector<FoundVersion>* next) {
  Wants wants;
  for (const std::vector<FoundVersion>* const found : {now, next}) {
    if (found == nullptr) continue;
    for (const FoundVersion& one : *found) {
      Version& v = model->versions[one.version];
      v.number = one.version;
      if (v.model.empty()) v.model = name;
      wants.push_back({&v, one.directory, one.fingerprint, one.num_bytes});
    }
  }
  return wants;
}

void ModelVersions::Core::TakeWants(KnownModel* model, Wants wants) noexcept {
  for (auto& [number, v] : model->versions) v.wanted = false;
  for (WantedVersion& one : wants) {
    Version& v = *one.version;
    v.wanted = true;
    // A source that has not looked into a loaded version knows nothing about it.
    const bool is_in_memory = HoldsMemory(v.state) || v.left_behind;
    if (v.num_bytes == 0 ||
        (one.fingerprint != 0 && one.fingerprint != v.fingerprint && !is_in_memory)) {
      v.num_bytes = one.num_bytes;
    }
    v.directory = std::move(one.directory);
    v.fingerprint = one.fingerprint;
  }
}

void ModelVersions::Core::WantAll() {
  for (auto& [name, model] : models) {
    TakeWants(&model, PrepareWants(name, &model, model.now ? &model.now->wanted : nullptr,
                                   model.next ? &model.next->wanted : nullptr));
  }
  must_want = false;
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
  struct Drop {
    Core* core;
    bool is_taken = false;
    ~Drop() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (!is_taken) core->DropNext();
    }
  } drop{this};
  SetNext(std::move(list));
  TakeNext();
  drop.is_taken = true;
  WakePolls();
  ProceedOrNot();
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

Status ModelVersions::Core::Reload(std::vector<ModelSettings> list, absl::Time deadline,
                                   std::optional<uint64_t> after) {
  MR_RETURN_IF_ERROR(CheckSettings(list));
  {
    MutexLock lock(&mu);
    while (after && reloading && !waits_end && clock->Now() < deadline) {
      clock->WaitUntil(&changed, &mu, deadline);
    }
    if (reloading) return ReloadRuns();
    // Only a reload that has ended, or SetModels, makes another number.
    if (after && *after != lists_taken.load(std::memory_order_relaxed)) {
      return absl::AbortedError("Another list of models has been taken since");
    }
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
      core->changed.SignalAll();  // who waits for the end of this
    }
  } end{this};
  {
    MutexLock lock(&mu);
    SetNext(list);
    // A label may name a version that came after the last poll.
    for (auto& [name, model] : models) {
      if (model.next && !model.next->settings.labels.empty()) model.next->polled = false;
    }
    WantAll();
    WakePolls();
    Proceed();
  }
  if (options.poll_period == absl::InfiniteDuration()) PollAll();  // no thread does
  absl::Time looked = clock->Now();
  MutexLock lock(&mu);
  for (;;) {
    if (ending || waits_end) {
      return absl::UnavailableError("A reload must end before its server does");
    }
    const bool is_settled = std::all_of(models.begin(), models.end(),
                                        [&](const auto& entry) { return IsSettled(entry.second); });
    if (is_settled || clock->Now() >= deadline) break;
    WaitForChange(deadline, &looked);
  }
  MR_RETURN_IF_ERROR(CheckLabels(list));
  TakeNext();
  ProceedOrNot();  // the new list serves, whatever comes now
  return absl::OkStatus();
}

void ModelVersions::Core::EndAll() noexcept {
  ending = waits_end = true;
  poll_wanted.SignalAll();
  for (auto& [name, model] : models) {
    model.now.reset();
    model.next.reset();
    TakeWants(&model, {});
  }
  ProceedOrNot();
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
