// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/lease_keeper.h"

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <utility>

#include "core/dcheck.h"
#include "core/logging.h"
#include "run/tell_again.h"

namespace millrace {

namespace {

// How often a task that does not answer is asked in a period: a lease is a few periods long.
constexpr int kCallsWithoutAnswer = 4;
// After RenewNow: longer than a doubt lasts (distributed/worker/worker.cc).
constexpr absl::Duration kInDoubt = absl::Seconds(6);
constexpr absl::Duration kInDoubtEvery = absl::Seconds(1);
// Sessions that are to be ended on tasks that do not answer; the lease of one more ends it. Clients
// may open and close sessions as fast as they like while a task is away.
constexpr size_t kMaxEndings = 10'000;

}  // namespace

struct LeaseKeeper::Shared : std::enable_shared_from_this<LeaseKeeper::Shared> {
  struct Host {
    std::shared_ptr<SessionHost> host;
    std::map<std::string, Lost> handles;
    bool asked = false;                        // and has not answered yet
    absl::Time next = absl::InfiniteFuture();  // when it is asked, if before the next period
    absl::Time in_doubt_until = absl::InfinitePast();
  };
  struct Ending {
    std::shared_ptr<SessionHost> host;
    std::string handle;
    TellAgain again = {};
    absl::Time next = absl::InfiniteFuture();  // while a call is under way
  };
  struct Call {
    std::shared_ptr<SessionHost> host;
    std::vector<std::string> handles;  // to renew
    int64_t ending = 0;                // or the one to end
  };

  Shared(Clock* c, absl::Duration p) : clock(c), period(p) {}

  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Run();
  std::vector<Call> TakeDue(absl::Time now, absl::Time* wake) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Begin(const Call& call);
  void Renewed(const std::string& name, const Status& status,
               const std::vector<std::string>& unknown);
  void TellLater(std::shared_ptr<SessionHost> host, const std::string& handle);
  void Told(int64_t id, const Status& status);
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return hosts.empty() && endings.empty(); }

  Clock* const clock;
  const absl::Duration period;
  mutable Mutex mu;
  CondVar changed;
  std::map<std::string, Host> hosts ABSL_GUARDED_BY(mu);
  std::map<int64_t, Ending> endings ABSL_GUARDED_BY(mu);
  int64_t last_ending ABSL_GUARDED_BY(mu) = 0;
  absl::Time next_renewal ABSL_GUARDED_BY(mu) = absl::InfinitePast();
  bool stopped ABSL_GUARDED_BY(mu) = false;
  bool running ABSL_GUARDED_BY(mu) = false;  // set false by the thread as the last thing it does
  std::thread thread ABSL_GUARDED_BY(mu);
};

LeaseKeeper::LeaseKeeper(Clock* clock, absl::Duration period)
    : period_(period), shared_(std::make_shared<Shared>(clock, period)) {}

LeaseKeeper::~LeaseKeeper() { Stop(); }

void LeaseKeeper::Keep(std::shared_ptr<SessionHost> host, const std::string& handle, Lost lost) {
  MutexLock lock(&shared_->mu);
  if (shared_->stopped) return;
  if (shared_->hosts.empty()) shared_->next_renewal = shared_->clock->Now() + period_;
  Shared::Host& entry = shared_->hosts[host->name()];
  entry.host = std::move(host);
  entry.handles[handle] = std::move(lost);
  shared_->StartThread();
}

void LeaseKeeper::RenewNow() {
  MutexLock lock(&shared_->mu);
  const absl::Time now = shared_->clock->Now();
  for (auto& [name, host] : shared_->hosts) {
    host.in_doubt_until = now + kInDoubt;
    host.next = now;
  }
  shared_->changed.SignalAll();
}

void LeaseKeeper::Forget(const std::string& host, const std::string& handle) {
  MutexLock lock(&shared_->mu);
  const auto it = shared_->hosts.find(host);
  if (it == shared_->hosts.end()) return;
  it->second.handles.erase(handle);
  if (!it->second.handles.empty()) return;
  shared_->hosts.erase(it);
  shared_->changed.SignalAll();
}

void LeaseKeeper::End(std::shared_ptr<SessionHost> host, const std::string& handle,
                      SessionHost::Done told) {
  Forget(host->name(), handle);
  SessionHost* const to = host.get();
  to->End(handle, kTellTimeout,
          [shared = shared_, host = std::move(host), handle,
           told = std::move(told)](const Status& status) mutable {
            if (IsUnanswered(status)) {
              shared->TellLater(std::move(host), handle);
            } else if (!status.ok()) {
              LogWarning("Session ", handle, " on ", host->name(),
                         " could not be ended there: ", status.ToString());
            }
            if (told != nullptr) told(status);
          });
}

void LeaseKeeper::EndLater(std::shared_ptr<SessionHost> host, const std::string& handle) {
  shared_->TellLater(std::move(host), handle);
}

void LeaseKeeper::Stop() {
  std::thread thread;
  {
    MutexLock lock(&shared_->mu);
    shared_->stopped = true;
    shared_->hosts.clear();
    for (const auto& [id, ending] : shared_->endings) {
      LogInfo("Session ", ending.handle, " on ", ending.host->name(),
              " could not be ended there yet, it is left to its lease");
    }
    shared_->endings.clear();
    shared_->changed.SignalAll();
    thread = std::move(shared_->thread);
  }
  if (thread.joinable()) thread.join();
}

bool LeaseKeeper::has_thread() const {
  MutexLock lock(&shared_->mu);
  return shared_->running;
}

// --- The thread ----------------------------------------------------------------------------------

void LeaseKeeper::Shared::StartThread() {
  changed.SignalAll();
  if (running) return;
  MR_DCHECK(thread.get_id() != std::this_thread::get_id(),
            "the keeper's thread says that it runs until the last thing that it does");
  if (thread.joinable()) thread.join();  // it has let go of the lock for good
  try {
    thread = std::thread([self = shared_from_this()] { self->Run(); });
    running = true;
  } catch (const std::system_error&) {
    LogWarning("The system gives no thread that keeps sessions on other tasks alive");
  }
}

void LeaseKeeper::Shared::TellLater(std::shared_ptr<SessionHost> host, const std::string& handle) {
  MutexLock lock(&mu);
  if (stopped) return;
  if (endings.size() >= kMaxEndings) {
    LogInfo("Session ", handle, " on ", host->name(), " is left to its lease: ", kMaxEndings,
            " others are to be ended before it");
    return;
  }
  Ending& ending = endings[++last_ending];
  ending.host = std::move(host);
  ending.handle = handle;
  ending.next = clock->Now() + *ending.again.NextPause();
  StartThread();
}

void LeaseKeeper::Shared::Run() {
  for (;;) {
    std::vector<Call> due;
    {
      MutexLock lock(&mu);
      if (stopped || idle()) {
        running = false;
        return;
      }
      absl::Time wake = absl::InfiniteFuture();
      due = TakeDue(clock->Now(), &wake);
      if (due.empty()) {
        clock->WaitUntil(&changed, &mu, wake);
        continue;
      }
    }
    // Without the lock: an answer may come in this thread.
    for (const Call& call : due) Begin(call);
  }
}

std::vector<LeaseKeeper::Shared::Call> LeaseKeeper::Shared::TakeDue(absl::Time now,
                                                                    absl::Time* wake) {
  std::vector<Call> due;
  if (!hosts.empty()) {
    next_renewal = std::min(next_renewal, now + period);  // the clock may have been set back
    if (now >= next_renewal) {
      next_renewal = now + period;
      for (auto& [name, host] : hosts) host.next = now;
    }
    *wake = std::min(*wake, next_renewal);
    for (auto& [name, host] : hosts) {
      if (now < host.next) {
        *wake = std::min(*wake, host.next);
        continue;
      }
      host.next = absl::InfiniteFuture();
      if (now < host.in_doubt_until) {
        // Whatever is answered: it may have been so before the doubt.
        host.in_doubt_until = std::min(host.in_doubt_until, now + kInDoubt);
        host.next = now + kInDoubtEvery;
        host.asked = false;
        *wake = std::min(*wake, host.next);
      }
      if (std::exchange(host.asked, true)) continue;
      Call& call = due.emplace_back();
      call.host = host.host;
      for (const auto& [handle, lost] : host.handles) call.handles.push_back(handle);
    }
  }
  for (auto& [id, ending] : endings) {
    if (now >= ending.next) {
      ending.next = absl::InfiniteFuture();
      due.push_back({ending.host, {ending.handle}, id});
    }
    *wake = std::min(*wake, ending.next);
  }
  return due;
}

void LeaseKeeper::Shared::Begin(const Call& call) {
  const std::shared_ptr<Shared> self = shared_from_this();
  if (call.ending != 0) {
    call.host->End(call.handles.front(), kTellTimeout,
                   [self, id = call.ending, host = call.host](const Status& status) {
                     self->Told(id, status);
                   });
    return;
  }
  call.host->Renew(
      call.handles, period / 2,
      [self, host = call.host](const Status& status, const std::vector<std::string>& unknown) {
        self->Renewed(host->name(), status, unknown);
      });
}

void LeaseKeeper::Shared::Renewed(const std::string& name, const Status& status,
                                  const std::vector<std::string>& unknown) {
  std::vector<Lost> lost;
  {
    MutexLock lock(&mu);
    const auto it = hosts.find(name);
    if (it == hosts.end()) return;
    Host& host = it->second;
    // Perhaps of an earlier entry of this name: then its next question may come before the answer
    // to the last one, and handles that are unknown are no longer here.
    host.asked = false;
    // Unimplemented: each task has leases, so something else has its place for a while.
    if (IsUnanswered(status) || absl::IsUnimplemented(status)) {
      host.next = clock->Now() + period / kCallsWithoutAnswer;
      changed.SignalAll();
    }
    if (!status.ok()) return;
    for (const std::string& handle : unknown) {
      const auto kept = host.handles.find(handle);
      if (kept == host.handles.end()) continue;  // forgotten meanwhile
      lost.push_back(std::move(kept->second));
      host.handles.erase(kept);
    }
    if (host.handles.empty()) {
      hosts.erase(it);
      changed.SignalAll();
    }
  }
  for (Lost& tell : lost) {
    if (tell != nullptr) tell();
  }
}

void LeaseKeeper::Shared::Told(int64_t id, const Status& status) {
  MutexLock lock(&mu);
  const auto it = endings.find(id);
  if (it == endings.end()) return;
  Ending& ending = it->second;
  MR_DCHECK(ending.next == absl::InfiniteFuture(), "while a call is under way no other is due");
  const std::optional<absl::Duration> pause =
      IsUnanswered(status) ? ending.again.NextPause() : std::nullopt;
  if (pause) {
    ending.next = clock->Now() + *pause;
  } else {
    if (!status.ok()) {
      LogInfo("Session ", ending.handle, " on ", ending.host->name(),
              " could not be ended there, it is left to its lease: ", status.message());
    }
    endings.erase(it);
  }
  changed.SignalAll();
}

}  // namespace millrace
