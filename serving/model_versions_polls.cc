// SPDX-License-Identifier: Apache-2.0
// Polls.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "serving/model_versions_core.h"
#include "serving/version_source.h"

namespace millrace {

void ModelVersions::Core::TakeFound(const std::string& name, const VersionSource* source,
                                    int64_t round, StatusOr<FoundVersions> found) {
  MutexLock lock(&mu);
  const auto entry = models.find(name);
  if (entry == models.end()) return;
  KnownModel& model = entry->second;
  // Of a reload that has begun meanwhile it is too old.
  if (reloading && round != num_lists) return;
  std::optional<Listed>& listed = reloading ? model.next : model.now;
  // The list may have changed meanwhile.
  if (!listed || listed->source.get() != source) return;
  const std::optional<Listed>& other = reloading ? model.now : model.next;
  const auto* const found_now = found.ok() ? &found->wanted : &listed->wanted;
  const auto* const found_before = other ? &other->wanted : nullptr;
  // The list that a reload tries has the last word.
  Wants wants = PrepareWants(name, &model, reloading ? found_before : found_now,
                             reloading ? found_now : found_before);
  if (!found.ok() && listed->source_status != found.status()) {
    // What it wanted it still wants.
    LogWarning(found.status().ToString());
  }
  listed->polled = true;
  listed->source_status = found.status();
  if (found.ok()) {
    listed->incomplete = std::move(found->incomplete);
    listed->wanted = std::move(found->wanted);
  }
  TakeWants(&model, std::move(wants));
  ProceedOrNot();
}

// Without memory the next poll finds it.
void ModelVersions::Core::PollAll() {
  bool has_failed = true;
  UnlessNoMemory([&] { has_failed = !PollSources(); });
  MutexLock lock(&mu);
  poll_failed = has_failed;
}

// Says whether there was memory for all.
bool ModelVersions::Core::PollSources() {
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
  bool all = true;
  for (const Task& task : tasks) {
    bool is_taken = false;
    UnlessNoMemory([&] {
      StatusOr<FoundVersions> found =
          Guarded([&]() -> StatusOr<FoundVersions> { return task.source->Poll(task.loaded); });
      const bool had_memory = found.status() != OutOfMemory();
      TakeFound(task.name, task.source.get(), round, std::move(found));
      is_taken = had_memory;
    });
    all &= is_taken;
  }
  return all;
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
    if (poll_failed) next = std::min(next, begin + absl::Seconds(1));
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
