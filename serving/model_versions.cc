// SPDX-License-Identifier: Apache-2.0
#include "serving/model_versions.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/arena_threads.h"
#include "core/background_thread.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/paced_thread.h"
#include "serving/model_versions_core.h"

namespace millrace {
namespace {

using State = VersionState;

// With less a load would sleep for seconds after each piece.
constexpr double kLeastCpuShare = 0.01;

// Fails where the priority is this low already.
void LowerPriority(pid_t thread, int nice) {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice);
}

}  // namespace

void ModelVersions::Core::NoteThread() {
  // A load reads its files on other threads.
  if (is_paced()) {
    BecomePacedThread();
  } else {
    BecomeBackgroundThread();
  }
  MutexLock lock(&mu);
  thread_ids.push_back(::gettid());
  if (is_nice) LowerPriority(thread_ids.back(), options.nice);
}

void ModelVersions::Core::BeNice() {
  if (is_paced() || std::exchange(is_nice, true)) return;
  for (const pid_t thread : thread_ids) LowerPriority(thread, options.nice);
}

void ModelVersions::Core::NoteServing() {
  const bool now_serves = num_available > 0 && !nobody_asks && is_paced();
  if (std::exchange(serves, now_serves) == now_serves) return;
  LoadPace::OfProcess()->AddServing(now_serves ? 1 : -1);
}

ModelVersions::Core::~Core() {
  if (serves) LoadPace::OfProcess()->AddServing(-1);
}

ModelVersions::ModelVersions(std::shared_ptr<Core> core) : core_(std::move(core)) {}

StatusOr<std::unique_ptr<ModelVersions>> ModelVersions::Create(Options options) {
  return Guarded([&] { return CreateOrThrow(std::move(options)); });
}

StatusOr<std::unique_ptr<ModelVersions>> ModelVersions::CreateOrThrow(Options options) {
  if (!options.loader) return InvalidArgument("ModelVersions: loader must not be null");
  if (options.plan.memory_limit > 0 && !options.load_on_demand) {
    return InvalidArgument("ModelVersions: memory_limit must come with load_on_demand, got ",
                           options.plan.memory_limit, " without");
  }
  if (!(options.load_cpu_share >= kLeastCpuShare && options.load_cpu_share <= 1)) {
    return InvalidArgument("ModelVersions: load_cpu_share must be ", kLeastCpuShare, " to 1, got ",
                           options.load_cpu_share);
  }
  if (options.load_cpu_share < 1) LoadPace::OfProcess()->SetShare(options.load_cpu_share);
  options.plan.max_loads = std::max(options.plan.max_loads, 1);
  options.plan.max_left_behind = std::max(options.plan.max_left_behind, 0);
  std::unique_ptr<ModelVersions> versions(
      new ModelVersions(std::make_shared<Core>(std::move(options))));
  MR_RETURN_IF_ERROR(versions->StartThreads());
  return versions;
}

Status ModelVersions::StartThreads() {
  const auto start = [this](void (Core::*run)()) {
    {
      MutexLock lock(&core_->mu);
      core_->thread_ids.reserve(static_cast<size_t>(core_->num_threads) + 1);
      ++core_->num_threads;
    }
    const auto end = [](Core* core) {
      MutexLock lock(&core->mu);
      --core->num_threads;
      std::erase(core->thread_ids, ::gettid());
      core->changed.SignalAll();
    };
    try {
      threads_.emplace_back([core = core_, run, end] {
        core->NoteThread();
        (core.get()->*run)();
        end(core.get());
      });
    } catch (...) {
      end(core_.get());
      throw;
    }
  };
  // Before there is a thread of low priority whose work could start them.
  StartArenaThreads(Arena::Default());
  const PlanOptions& plan = core_->options.plan;
  try {
    start(&Core::RunPolls);
    start(&Core::RunTimes);
    start(&Core::RunUnloads);
    for (int i = 0; i < plan.max_loads + plan.max_left_behind; ++i) start(&Core::RunLoads);
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ModelVersions: the system must give threads, got ", e.what()));
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
  return absl::OkStatus();
}

ModelVersions::~ModelVersions() {
  bool all_ended, no_threads;
  {
    Core& core = *core_;
    MutexLock lock(&core.mu);
    const absl::Time deadline = core.clock->Now() + core.options.patience;
    const auto wait = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core.mu) {
      return core.clock->Now() < deadline &&
             !core.clock->WaitUntil(&core.changed, &core.mu, deadline);
    };
    core.EndAll();
    while (!core.AllEnded() && wait()) {
    }
    all_ended = core.AllEnded();
    core.stopped = true;
    core.poll_wanted.SignalAll();
    core.time_changed.SignalAll();
    core.load_queued.SignalAll();
    core.drained->Stop();
    // The others end by themselves.
    while (core.num_threads > core.num_busy) core.changed.Wait(&core.mu);
    while (core.num_threads > 0 && wait()) {
    }
    no_threads = core.num_threads == 0;
  }
  if (!all_ended || !no_threads) {
    LogWarning("ModelVersions: after ", absl::FormatDuration(core_->options.patience),
               " requests, loads or unloads still run; they are left behind");
  }
  for (std::thread& thread : threads_) no_threads ? thread.join() : thread.detach();
}

StatusOr<ModelVersions::Pin> ModelVersions::Get(absl::string_view model,
                                                std::optional<int64_t> version,
                                                const StepBounds& bounds) const {
  StatusOr<std::shared_ptr<const AvailableVersion>> found = core_->available.Find(model, version);
  if (!found.ok() && core_->MayRest()) found = core_->Ask(model, version, bounds);
  MR_RETURN_IF_ERROR(found.status());
  (*found)->Use();
  return Pin(*std::move(found));
}

StatusOr<ModelVersions::Pin> ModelVersions::GetLabelled(absl::string_view model,
                                                        absl::string_view label,
                                                        const StepBounds& bounds) const {
  StatusOr<std::shared_ptr<const AvailableVersion>> found =
      core_->available.FindLabelled(model, label);
  if (absl::IsNotFound(found.status()) && core_->MayRest()) {
    const std::optional<int64_t> version = core_->VersionOfLabel(model, label);
    if (version) found = core_->Ask(model, version, bounds);
  }
  MR_RETURN_IF_ERROR(found.status());
  (*found)->Use();
  return Pin(*std::move(found));
}

Status ModelVersions::SetModels(std::vector<ModelSettings> models) {
  return Guarded([&] { return core_->SetModels(std::move(models)); });
}

Status ModelVersions::Reload(std::vector<ModelSettings> models, absl::Time deadline) {
  return Guarded([&] { return core_->Reload(std::move(models), deadline); });
}

Status ModelVersions::ReloadAfter(uint64_t num_lists, std::vector<ModelSettings> models,
                                  absl::Time deadline) {
  return Guarded([&] { return core_->Reload(std::move(models), deadline, num_lists); });
}

std::vector<ModelSettings> ModelVersions::models() const {
  MutexLock lock(&core_->mu);
  std::vector<ModelSettings> list;
  for (const auto& [name, model] : core_->models) {
    if (model.now) list.push_back(model.now->settings);
  }
  return list;
}

uint64_t ModelVersions::num_lists() const {
  return core_->lists_taken.load(std::memory_order_acquire);
}

void ModelVersions::EndAll() {
  MutexLock lock(&core_->mu);
  core_->EndAll();
}

void ModelVersions::EndWaits() {
  MutexLock lock(&core_->mu);
  core_->waits_end = true;
  core_->changed.SignalAll();
}

void ModelVersions::SetNobodyAsks(bool nobody_asks) {
  MutexLock lock(&core_->mu);
  core_->nobody_asks = nobody_asks;
  core_->NoteServing();
}

void ModelVersions::Poll() { core_->PollAll(); }

StatusOr<std::vector<VersionStatus>> ModelVersions::GetStatus(
    absl::string_view model, std::optional<int64_t> version) const {
  std::vector<VersionStatus> statuses;
  {
    MutexLock lock(&core_->mu);
    const auto entry = core_->models.find(model);
    if (entry != core_->models.end()) statuses = core_->StatusOf(entry->second);
  }
  if (version) {
    std::erase_if(statuses, [&](const VersionStatus& v) { return v.version != *version; });
    if (statuses.empty()) {
      return absl::NotFoundError(
          absl::StrCat("Could not find version ", *version, " of model ", model));
    }
  }
  if (statuses.empty()) {
    return absl::NotFoundError(absl::StrCat("Could not find any versions of model ", model));
  }
  return statuses;
}

std::vector<ModelStatus> ModelVersions::GetStatuses() const {
  MutexLock lock(&core_->mu);
  std::vector<ModelStatus> statuses;
  for (const auto& [name, model] : core_->models) {
    statuses.push_back(
        {.name = name,
         .base_path = model.base_path,
         .is_listed = model.now.has_value(),
         .source = model.now ? model.now->source_status : Status(),
         .versions = core_->StatusOf(model),
         .num_forgotten = model.num_forgotten,
         .labels = model.now ? model.now->settings.labels : std::map<std::string, int64_t>()});
  }
  return statuses;
}

std::vector<std::pair<std::string, Status>> ModelVersions::WaitUntilTried(
    absl::Time deadline) const {
  MutexLock lock(&core_->mu);
  absl::Time looked = core_->clock->Now();
  for (;;) {
    bool all = true;
    for (const auto& [name, model] : core_->models) {
      all &= !model.now || core_->IsTried(model, *model.now);
    }
    if (all || core_->waits_end || core_->clock->Now() >= deadline) break;
    core_->WaitForChange(deadline, &looked);
  }
  std::vector<std::pair<std::string, Status>> missing;
  for (const auto& [name, model] : core_->models) {
    // One that rests is there for those that ask.
    const bool rests =
        !model.asked && std::any_of(model.versions.begin(), model.versions.end(),
                                    [](const auto& one) { return one.second.wanted; });
    if (model.now && !rests && !core_->HasAvailable(model)) {
      missing.push_back({name, core_->WhyNone(name, model)});
    }
  }
  return missing;
}

bool ModelVersions::WaitFor(absl::string_view model,
                            absl::FunctionRef<bool(absl::Span<const VersionStatus>)> reached,
                            absl::Time deadline) const {
  MutexLock lock(&core_->mu);
  for (;;) {
    const auto entry = core_->models.find(model);
    if (reached(entry == core_->models.end() ? std::vector<VersionStatus>()
                                             : core_->StatusOf(entry->second))) {
      return true;
    }
    if (core_->clock->Now() >= deadline) return false;
    core_->clock->WaitUntil(&core_->changed, &core_->mu, deadline);
  }
}

}  // namespace millrace
