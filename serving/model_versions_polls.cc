// SPDX-License-Identifier: Apache-2.0
// Polls.

#include "core/logging.h"
#include "core/mutex.h"
#include "serving/model_versions_core.h"
#include "serving/version_source.h"

namespace millrace {

void ModelVersions::Core::TakeFound(const std::string& name, const VersionSource* source,
                                    int64_t round, const StatusOr<FoundVersions>& found) {
  MutexLock lock(&mu);
  const auto entry = models.find(name);
  if (entry == models.end()) return;
  KnownModel& model = entry->second;
  // Of a reload that has begun meanwhile it is too old.
  if (reloading && round != num_lists) return;
  std::optional<Listed>& listed = reloading ? model.next : model.now;
  // The list may have changed meanwhile.
  if (!listed || listed->source.get() != source) return;
  listed->polled = true;
  if (found.ok()) {
    listed->incomplete = found->incomplete;
    listed->wanted = found->wanted;
  } else if (listed->source_status != found.status()) {
    // What it wanted it still wants.
    LogWarning(found.status().ToString());
  }
  listed->source_status = found.status();
  Want(&model);
  Proceed();
}

void ModelVersions::Core::PollAll() {
  struct Task {
    std::string name;
    std::shared_ptr<VersionSource> source;
    std::vector<int64_t> loaded;
  };
  MutexLock poll_lock(&poll_mu);
  std::vector<Task> tasks;
  int64_t round;
  {
    MutexLock lock(&mu);
    round = num_lists;
    for (const auto& [name, model] : models) {
      // While a reload runs, what the old list wants stays.
      const std::optional<Listed>& listed = reloading ? model.next : model.now;
      if (!listed) continue;
      std::vector<int64_t> loaded;
      for (const auto& [number, v] : model.versions) {
        if (v.state == State::kAvailable) loaded.push_back(number);
      }
      tasks.push_back({name, listed->source, std::move(loaded)});
    }
  }
  for (const Task& task : tasks) {
    TakeFound(task.name, task.source.get(), round,
              Guarded([&]() -> StatusOr<FoundVersions> { return task.source->Poll(task.loaded); }));
  }
}

void ModelVersions::Core::RunPolls() {
  const absl::Duration period = options.poll_period;
  if (period == absl::InfiniteDuration()) return;
  mu.Lock();
  while (!ending && !stopped) {
    must_poll = false;
    mu.Unlock();
    {
      const Busy busy(this);
      PollAll();
    }
    mu.Lock();
    const absl::Time begin = clock->Now();
    absl::Time next = begin + period;
    if (period <= absl::ZeroDuration()) {
      next = absl::InfiniteFuture();
      for (const auto& [name, model] : models) {
        for (const std::optional<Listed>* const listed : {&model.now, &model.next}) {
          if (!*listed) continue;
          for (const IncompleteVersion& v : (*listed)->incomplete) {
            if (v.settles) next = begin + options.source.settle_time;
          }
        }
      }
    }
    for (;;) {
      const absl::Time now = clock->Now();
      // A clock that went back must not hold up polls.
      if (ending || stopped || must_poll || now >= next || now < begin) break;
      clock->WaitUntil(&poll_wanted, &mu, next);
    }
  }
  mu.Unlock();
}

}  // namespace millrace
