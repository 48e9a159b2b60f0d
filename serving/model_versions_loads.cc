// SPDX-License-Identifier: Apache-2.0
// Loads and unloads, and the thread that waits for times.

#include "core/cached_memory.h"
#include "core/logging.h"
#include "serving/model_versions_core.h"

namespace millrace {
namespace {

std::string VersionText(absl::string_view model, int64_t version) {
  return absl::StrCat("Model '", model, "' version ", version);
}

}  // namespace

void ModelVersions::Core::Load(Version* version) {
  std::string text;
  VersionToLoad wanted;
  std::shared_ptr<CancellationManager> cancellation;
  bool cancelled;
  {
    MutexLock lock(&mu);
    text = VersionText(version->model, version->number);
    wanted = {version->model, version->number, version->directory};
    cancellation = version->cancellation;
    cancelled = version->cancelled;
  }
  std::shared_ptr<Servable> servable;
  Status status = absl::CancelledError("no longer wanted");
  if (!cancelled) {
    status = Guarded([&]() -> Status {
      MR_ASSIGN_OR_RETURN(servable, options.loader(wanted, cancellation.get()));
      return servable == nullptr ? Internal("the loader must return a model, got none")
                                 : absl::OkStatus();
    });
  }
  if (status.ok()) {
    {
      MutexLock lock(&mu);
      Move(version, State::kWarming);
      cancelled = version->cancelled;
      changed.SignalAll();
    }
    if (options.warm_up && !cancelled) {
      status = Prefixed("warm-up", Guarded([&]() -> Status {
                          return options.warm_up(wanted, servable.get(), cancellation.get());
                        }));
    }
  }
  if (status.ok()) {
    MutexLock lock(&mu);
    if (!version->cancelled) {
      version->available =
          std::make_shared<const AvailableVersion>(version->number, servable, version, drained);
      version->servable = std::move(servable);
      version->error = absl::OkStatus();
      Move(version, State::kAvailable);
      must_publish = true;
      Proceed();
      LogInfo(text, ": available");
      return;
    }
  }
  // Freed before a next try may begin.
  servable.reset();
  ReleaseCachedMemory();
  status = Prefixed(text, status);
  MutexLock lock(&mu);
  if (version->took_too_long) {
    status = absl::DeadlineExceededError(
        absl::StrCat(text, ": a load must end within ",
                     absl::FormatDuration(options.plan.max_load_time), "; it was told to end"));
  }
  if (version->cancelled && !version->took_too_long) {
    Move(version, State::kEnded);
  } else {
    LogWarning("Loading failed: ", status.ToString());
    version->error = status;
    version->failed_at = clock->Now();
    Move(version, State::kFailed);
  }
  Proceed();
}

void ModelVersions::Core::Unload(Version* version) {
  std::shared_ptr<Servable> servable;
  std::string text;
  {
    MutexLock lock(&mu);
    Move(version, State::kUnloading);
    servable = std::move(version->servable);
    version->servable = nullptr;
    text = VersionText(version->model, version->number);
    changed.SignalAll();
  }
  servable.reset();
  ReleaseCachedMemory();
  LogInfo(text, ": unloaded");
  MutexLock lock(&mu);
  Move(version, State::kEnded);
  Proceed();
}

void ModelVersions::Core::RunLoads() {
  for (;;) {
    Version* version;
    {
      MutexLock lock(&mu);
      while (loads.empty() && !stopped) load_queued.Wait(&mu);
      if (loads.empty()) return;
      version = loads.front();
      loads.pop_front();
    }
    const Busy busy(this);
    Load(version);
  }
}

void ModelVersions::Core::RunUnloads() {
  while (void* const version = drained->Next()) {
    const Busy busy(this);
    Unload(static_cast<Version*>(version));
  }
}

void ModelVersions::Core::RunTimes() {
  mu.Lock();
  while (!stopped || !to_cancel.empty()) {
    if (!to_cancel.empty()) {
      const auto loads_to_end = std::exchange(to_cancel, {});
      mu.Unlock();
      {
        const Busy busy(this);
        for (const auto& cancellation : loads_to_end) cancellation->StartCancel();
      }
      mu.Lock();
    } else if (clock->Now() >= next_time) {
      Proceed();
    } else {
      clock->WaitUntil(&time_changed, &mu, next_time);
    }
  }
  mu.Unlock();
}

}  // namespace millrace
