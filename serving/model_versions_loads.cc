// SPDX-License-Identifier: Apache-2.0
// Loads and unloads, and the thread that waits for times.

#include <algorithm>

#include "core/cached_memory.h"
#include "core/cancellation.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/paced_thread.h"
#include "core/status.h"
#include "serving/available_versions.h"
#include "serving/model_versions.h"
#include "serving/model_versions_core.h"
#include "serving/servable.h"
#include "serving/version_source.h"
#include "serving/version_state.h"

namespace millrace {
Status ModelVersions::Core::CheckMemory(const Version& version) const {
  const int64_t limit = options.plan.memory_limit;
  if (limit <= 0) return absl::OkStatus();
  int64_t others = 0;
  for (const auto& [number, v] : models.find(version.model)->second.versions) {
    if (&v != &version && HoldsMemory(v.state)) others += v.num_bytes;
  }
  if (version.num_bytes <= limit - others) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("it must fit into the memory limit of ", limit,
                                                   " bytes, got ", version.num_bytes, " and ",
                                                   others, " of the model's other versions"));
}

Status ModelVersions::Core::CheckUnchanged(const VersionToLoad& version,
                                           uint64_t fingerprint) const {
  if (fingerprint == 0) return absl::OkStatus();
  return Guarded([&]() -> Status {
    const StatusOr<uint64_t> now =
        VersionSource::FingerprintOf(options.source.file_system, version.directory);
    // Files that come and go are changes; what else cannot be listed could not be before.
    if (absl::IsNotFound(now.status()) || (now.ok() && *now != fingerprint)) {
      return absl::UnavailableError(
          "its files must stay as they are, and changed while it was loaded");
    }
    return absl::OkStatus();
  });
}

Status ModelVersions::Core::LoadAndWarmUp(Version* version, const VersionToLoad& wanted,
                                          uint64_t fingerprint, CancellationManager* cancellation,
                                          std::shared_ptr<Servable>* servable) {
  {
    MutexLock lock(&mu);
    MR_RETURN_IF_ERROR(CheckMemory(*version));
  }
  MR_RETURN_IF_ERROR(Guarded([&]() -> Status {
    MR_ASSIGN_OR_RETURN(*servable, options.loader(wanted, cancellation));
    return *servable == nullptr ? Internal("the loader must return a model, got none")
                                : absl::OkStatus();
  }));
  {
    MutexLock lock(&mu);
    if (version->cancelled) return absl::CancelledError("no longer wanted");
    version->num_bytes = (*servable)->num_bytes();
    MR_RETURN_IF_ERROR(CheckMemory(*version));
    Move(version, State::kWarming);
    changed.SignalAll();
  }
  if (options.warm_up) {
    MR_RETURN_IF_ERROR(Prefixed("warm-up", Guarded([&]() -> Status {
                                  return options.warm_up(wanted, servable->get(), cancellation);
                                })));
  }
  return CheckUnchanged(wanted, fingerprint);
}

Status ModelVersions::Core::TryToLoad(Version* version, std::shared_ptr<Servable>* servable) {
  std::string text;
  VersionToLoad wanted;
  std::shared_ptr<CancellationManager> cancellation;
  uint64_t fingerprint;
  bool cancelled;
  {
    MutexLock lock(&mu);
    fingerprint = version->tried_fingerprint;
    text = TextOf(*version);
    wanted = {version->model, version->number, version->directory};
    const KnownModel& model = models.find(version->model)->second;
    const auto& listed = model.next ? model.next : model.now;
    if (listed) wanted.request_log_prefix = listed->settings.request_log.filename_prefix;
    cancellation = version->cancellation;
    cancelled = version->cancelled;
  }
  const PaceUntilCancelled pace(cancellation.get());
  // As they are now; the last poll may be long ago.
  if (fingerprint != 0) {
    const StatusOr<uint64_t> files = Guarded([&]() -> StatusOr<uint64_t> {
      return VersionSource::FingerprintOf(options.source.file_system, wanted.directory);
    });
    if (files.ok()) fingerprint = *files;
  }
  return Prefixed(
      text, cancelled ? absl::CancelledError("no longer wanted")
                      : LoadAndWarmUp(version, wanted, fingerprint, cancellation.get(), servable));
}

void ModelVersions::Core::Load(Version* version) {
  std::shared_ptr<Servable> servable;
  Status status = Guarded([&] { return TryToLoad(version, &servable); });
  if (status.ok()) {
    MutexLock lock(&mu);
    if (!version->cancelled) {
      status = Guarded([&]() -> Status {
        version->available =
            std::make_shared<const AvailableVersion>(version->number, servable, version, drained);
        return absl::OkStatus();
      });
      if (status.ok()) {
        version->servable = std::move(servable);
        version->error = absl::OkStatus();
        models.find(version->model)->second.last_use = clock->Now();
        Move(version, State::kAvailable);
        must_publish = true;
        ProceedOrNot();
        UnlessNoMemory([&] { LogInfo(TextOf(*version), ": available"); });
        return;
      }
    }
  }
  // Freed before a next try may begin.
  servable.reset();
  ReleaseCachedMemory();
  MutexLock lock(&mu);
  if (version->left_behind) {
    // It has failed already; now it may be tried again.
    version->left_behind = false;
    --num_left_behind;
    UnlessNoMemory([&] { LogInfo(TextOf(*version), ": the load that took too long has ended"); });
  } else if (version->cancelled) {
    Move(version, State::kEnded);
  } else {
    Fail(version, std::move(status));
  }
  ProceedOrNot();
}

void ModelVersions::Core::Unload(Version* version) {
  std::shared_ptr<Servable> servable;
  {
    MutexLock lock(&mu);
    Move(version, State::kUnloading);
    servable = std::move(version->servable);
    version->servable = nullptr;
    changed.SignalAll();
  }
  servable.reset();
  ReleaseCachedMemory();
  MutexLock lock(&mu);
  UnlessNoMemory([&] { LogInfo(TextOf(*version), ": unloaded"); });
  Move(version, State::kEnded);
  ProceedOrNot();
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
    } else if (const absl::Time now = clock->Now(); now >= next_time) {
      ProceedOrNot();
    } else {
      CollectUses();
      // Uses are as exact as this.
      const absl::Time next_look = MayRest() ? now + absl::Seconds(1) : absl::InfiniteFuture();
      clock->WaitUntil(&time_changed, &mu, std::min(next_time, next_look));
    }
  }
  mu.Unlock();
}

}  // namespace millrace
