// SPDX-License-Identifier: Apache-2.0
#include "distributed/leave_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// How often the log says which clients the server stays for.
constexpr absl::Duration kSayPeriod = absl::Seconds(10);
// How often each master is asked whether it is there.
constexpr absl::Duration kAskPeriod = absl::Seconds(1);
// A connection that breaks just then is no process that has ended.
constexpr int kUnreachable = 2;
// More would hide the rest of the line.
constexpr size_t kNamedMasters = 8;

}  // namespace

struct LeaveWatch::Masters {
  struct Master {
    bool asked = false;
    int unreachable = 0;       // times in a row
    uint64_t incarnation = 0;  // 0: has not said
  };
  Mutex mu;
  std::map<std::string, Master> by_task ABSL_GUARDED_BY(mu);
};

LeaveWatch::LeaveWatch(WatchedSessions* sessions, absl::Duration grace, Clock* clock)
    : sessions_(sessions),
      clock_(clock),
      begun_(clock->Now()),
      end_(begun_ + grace),
      next_say_(begun_),
      masters_(std::make_shared<Masters>()) {}
LeaveWatch::~LeaveWatch() = default;

bool LeaveWatch::IsDone() {
  const absl::Time now = clock_->Now();
  std::vector<Worker::OpenedSession> open = sessions_->OpenSessions();
  open.erase(std::remove_if(open.begin(), open.end(),
                            [this](const auto& session) { return IsGone(session); }),
             open.end());
  if (open.empty()) return true;
  if (now >= end_) {
    LogWarning("Server of ", sessions_->task(), " leaves although ", ForWhom(open));
    return true;
  }
  if (now >= next_say_) {
    next_say_ = now + kSayPeriod;
    LogInfo("Server of ", sessions_->task(), " was told to end ",
            absl::FormatDuration(absl::Trunc(now - begun_, absl::Seconds(1))),
            " ago and stays for ", absl::FormatDuration(absl::Ceil(end_ - now, absl::Seconds(1))),
            " at most, because ", ForWhom(open));
  }
  for (const Worker::OpenedSession& session : open) {
    if (!session.master_task.empty() && session.master_task != sessions_->task()) {
      Ask(session.master_task, now);
    }
  }
  return false;
}

bool LeaveWatch::IsGone(const Worker::OpenedSession& session) const {
  MutexLock lock(&masters_->mu);
  const auto it = masters_->by_task.find(session.master_task);
  if (it == masters_->by_task.end()) return false;
  const Masters::Master& master = it->second;
  return master.unreachable >= kUnreachable ||
         (master.incarnation != 0 && master.incarnation != session.incarnation);
}

void LeaveWatch::Ask(const std::string& task, absl::Time now) {
  absl::Time& next = next_ask_.try_emplace(task, absl::InfinitePast()).first->second;
  if (now < next) return;
  next = now + kAskPeriod;
  {
    MutexLock lock(&masters_->mu);
    if (std::exchange(masters_->by_task[task].asked, true)) return;
  }
  sessions_->Ask(task, [masters = masters_, task](const Status& status, uint64_t incarnation) {
    MutexLock lock(&masters->mu);
    Masters::Master& master = masters->by_task[task];
    MR_DCHECK(master.asked, "a master gets its next question after it has answered");
    master.asked = false;
    if (status.ok()) master.incarnation = incarnation;
    master.unreachable = absl::IsUnavailable(status) ? master.unreachable + 1 : 0;
  });
}

std::string LeaveWatch::ForWhom(const std::vector<Worker::OpenedSession>& open) const {
  struct Count {
    int sessions = 0, steps = 0;
  };
  std::map<std::string, Count> masters;
  for (const Worker::OpenedSession& session : open) {
    Count& count = masters[session.master_task];
    ++count.sessions;
    count.steps += session.running_steps;
  }
  std::vector<std::string> names;
  for (const auto& [task, count] : masters) {
    if (names.size() == kNamedMasters) {
      names.push_back(absl::StrCat("those of ", masters.size() - kNamedMasters, " more"));
      break;
    }
    names.push_back(absl::StrCat(
        count.sessions, " of ",
        task.empty() ? "a master that did not say who it is" : sessions_->Whereabouts(task),
        " (running steps: ", count.steps, ")"));
  }
  return absl::StrCat("these sessions are open: ", absl::StrJoin(names, ", "));
}

}  // namespace millrace
