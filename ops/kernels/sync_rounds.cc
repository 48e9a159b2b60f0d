// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/sync_rounds.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/logging.h"

namespace millrace {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kSayEvery = absl::Seconds(10);

Status CancelledWait() {
  return absl::CancelledError("SyncReplicas: the wait for the other trainers was cancelled");
}

}  // namespace

Status SyncRoundsSpec::Check() const {
  if (replicas < 1) {
    return InvalidArgument("SyncReplicas '", name, "': replicas_to_aggregate must be >= 1, got ",
                           replicas);
  }
  if (start_wait < absl::ZeroDuration()) {
    return InvalidArgument("SyncReplicas '", name, "': start_wait must be >= 0, got ",
                           absl::FormatDuration(start_wait));
  }
  return absl::OkStatus();
}

SyncRounds::SyncRounds(SyncRoundsSpec spec, Clock* clock)
    : clock_(clock),
      spec_(std::move(spec)),
      round_(std::max<int64_t>(1, absl::ToUnixMicros(clock->Now()))),
      said_at_(clock->Now()) {}

SyncRounds::~SyncRounds() {
  std::thread thread;
  {
    MutexLock lock(&watch_->mu);
    watch_->stopped = true;
    watch_->changed.SignalAll();
    thread = std::move(thread_);
  }
  if (!thread.joinable()) return;
  // The last step that held this may have ended on it; it uses nothing of this any more.
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

Status SyncRounds::Agree(const SyncRoundsSpec& want) {
  MutexLock lock(&mu_);
  if (trainers_.empty()) spec_ = want;
  if (spec_.replicas == want.replicas) return absl::OkStatus();
  return InvalidArgument("SyncReplicas '", spec_.name,
                         "': replicas_to_aggregate must be the same for all trainers, got ",
                         want.replicas, " where others have ", spec_.replicas);
}

std::string SyncRounds::DebugString() const {
  MutexLock lock(&mu_);
  return absl::StrCat("synchronous training '", spec_.name, "': round ", round_, ", ",
                      trainers_.size(), " trainers of ", spec_.replicas, ", ", counts_.rounds,
                      " rounds over, ", counts_.given_up, " given up, ", counts_.late,
                      " gradients too late");
}

SyncRounds::Counts SyncRounds::counts() const {
  MutexLock lock(&mu_);
  Counts counts = counts_;
  counts.trainers = static_cast<int64_t>(trainers_.size());
  return counts;
}

// --- Trainers ------------------------------------------------------------------------------------

SyncRounds::Trainer* SyncRounds::Add(const std::string& session, absl::string_view name,
                                     CancellationManager* cancellation) {
  const auto [it, is_new] = trainers_.try_emplace(session);
  if (!is_new) return &it->second;
  if (cancellation != nullptr && cancellation->IsCancelled()) {
    // Steps are cancelled before their session is said to have ended; nobody would take it out.
    trainers_.erase(it);
    return nullptr;
  }
  it->second.name = name.empty() ? absl::StrCat("session ", session) : std::string(name);
  it->second.giver = name.empty() ? session : std::string(name);
  if (trainers_.size() == 1) {
    first_join_ = clock_->Now();
    TellWatch(true);
  }
  started_ = started_ || spec_.start_wait <= absl::ZeroDuration() ||
             static_cast<int64_t>(trainers_.size()) >= spec_.replicas;
  LogInfo("SyncReplicas '", spec_.name, "': ", it->second.name, " joins before round ", round_,
          ", ", trainers_.size(), " train, ", spec_.replicas, " are asked for");
  return &it->second;
}

void SyncRounds::Join(const std::string& session, absl::string_view name,
                      CancellationManager* cancellation, JoinedFn done) {
  const auto attempt = std::make_shared<Attempt>();
  attempt->session = session;
  attempt->joined = std::move(done);
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    GiveUpIfLedBy(session, ended);
    Trainer* const trainer = Add(session, name, cancellation);
    if (trainer != nullptr && !leader_.empty()) return Wait(attempt, cancellation, ended);
    if (trainer == nullptr) {
      attempt->result = CancelledWait();
    } else {
      if (!trainer->has_given) trainer->round = round_;
      attempt->result = Given{.leads = false, .next_round = trainer->round};
    }
    ended->push_back(attempt);
  });
}

StatusOr<int64_t> SyncRounds::RoundOf(const std::string& session, absl::string_view name,
                                      CancellationManager* cancellation) {
  StatusOr<int64_t> round = CancelledWait();
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    GiveUpIfLedBy(session, ended);
    const bool is_new = trainers_.find(session) == trainers_.end();
    const Trainer* const trainer = Add(session, name, cancellation);
    if (trainer == nullptr) return;
    round = trainer->round;
    if (!is_new) return;
    LogWarning("SyncReplicas '", spec_.name, "': the first gradient of ", trainer->name,
               " is not taken: run the local initialisers, or the optimizer's hook, before the "
               "first step");
  });
  return round;
}

void SyncRounds::SessionEnded(absl::string_view session_handle) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = trainers_.find(session_handle);
    if (it == trainers_.end()) return;
    const std::string name = it->second.name;
    trainers_.erase(it);
    LogInfo("SyncReplicas '", spec_.name, "': ", name, " has left, ", trainers_.size(), " train");
    // Its steps are cancelled; they get nothing more.
    for (auto a = waiting_.begin(); a != waiting_.end();) {
      const auto next = std::next(a);
      if ((*a)->session == session_handle) {
        (*a)->result = CancelledWait();
        ended->splice(ended->end(), waiting_, a);
      }
      a = next;
    }
    if (leader_ == session_handle) GiveUp(absl::StrCat(name, " has left in its update"), ended);
    if (trainers_.empty()) {
      // Whoever comes then begins anew. What is there of this round is of nobody's next one.
      started_ = false;
      first_join_ = absl::InfiniteFuture();
      TellWatch(false);
      if (!givers_.empty()) GiveUp("all trainers have left", ended);
    }
  });
}

// --- Rounds --------------------------------------------------------------------------------------

void SyncRounds::Change(absl::FunctionRef<void(Line* ended)> change) {
  Line ended;
  {
    MutexLock lock(&mu_);
    change(&ended);
    LeadIfComplete(&ended);
  }
  for (const std::shared_ptr<Attempt>& a : ended) {
    // When its callback has begun, it finds that the attempt has left the line.
    if (a->cancellation != nullptr) a->cancellation->Deregister(a->token);
    if (a->given) {
      a->given(std::move(a->result));
    } else if (a->result.ok()) {
      a->joined(a->result->next_round);
    } else {
      a->joined(a->result.status());
    }
  }
}

void SyncRounds::Wait(std::shared_ptr<Attempt> attempt, CancellationManager* cancellation,
                      Line* ended) {
  if (cancellation != nullptr) {
    const bool waits = cancellation->Register(
        &attempt->token, [rounds = shared_from_this(), attempt] { rounds->Cancel(attempt); });
    if (!waits) {
      attempt->result = CancelledWait();
      ended->push_back(std::move(attempt));
      return;
    }
    attempt->cancellation = cancellation;
  }
  waiting_.push_back(std::move(attempt));
}

void SyncRounds::Cancel(const std::shared_ptr<Attempt>& attempt) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = std::find(waiting_.begin(), waiting_.end(), attempt);
    if (found == waiting_.end()) return;  // ended by somebody else
    attempt->result = CancelledWait();
    ended->splice(ended->end(), waiting_, found);
  });
}

void SyncRounds::Give(const std::string& session, int64_t round, CancellationManager* cancellation,
                      GivenFn done) {
  const auto attempt = std::make_shared<Attempt>();
  attempt->session = session;
  attempt->given = std::move(done);
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    GiveUpIfLedBy(session, ended);
    const auto it = trainers_.find(session);
    if (it == trainers_.end()) {
      attempt->result = absl::FailedPreconditionError(
          absl::StrCat("SyncReplicas '", spec_.name,
                       "': a session that gives must have joined, got one that has not or is over; "
                       "run the local initialisers"));
      ended->push_back(attempt);
      return;
    }
    Trainer& trainer = it->second;
    const bool is_late = round != round_ || !leader_.empty();
    if (!is_late) {
      trainer.has_given = true;
      givers_.insert(trainer.giver);
      attempt->counts = true;
      return Wait(attempt, cancellation, ended);
    }
    ++counts_.late;
    if (!leader_.empty()) return Wait(attempt, cancellation, ended);
    trainer.round = round_;
    attempt->result = Given{.leads = false, .next_round = round_};
    ended->push_back(attempt);
  });
}

int64_t SyncRounds::Needed() const {
  return std::min<int64_t>(spec_.replicas, static_cast<int64_t>(trainers_.size()));
}

void SyncRounds::LeadIfComplete(Line* ended) {
  const auto gradients = static_cast<int64_t>(givers_.size());
  if (!started_ || !leader_.empty() || gradients < Needed()) return;
  // The last that came: its step is the warmest.
  for (auto a = waiting_.rbegin(); a != waiting_.rend(); ++a) {
    Attempt* const attempt = a->get();
    if (!attempt->counts) continue;
    if (attempt->cancellation != nullptr) {
      // For as long as its step lives: nothing takes it back, after the update it changes nothing.
      CancellationManager::Token unused = 0;
      const bool lives = attempt->cancellation->Register(
          &unused, [weak = weak_from_this(), session = attempt->session, round = round_] {
            if (const auto rounds = weak.lock()) rounds->UpdateCancelled(session, round);
          });
      if (!lives) continue;  // it leaves the line soon
    }
    leader_ = attempt->session;
    attempt->result = Given{.leads = true, .next_round = round_ + 1, .gradients = gradients};
    ended->splice(ended->end(), waiting_, std::next(a).base());
    return;
  }
}

void SyncRounds::UpdateCancelled(const std::string& session, int64_t round) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (leader_ == session && round == round_) GiveUp("its update was cancelled", ended);
  });
}

int64_t SyncRounds::Done(const std::string& session, int64_t round) {
  int64_t next = 0;
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (leader_ == session && round == round_) {
      ++counts_.rounds;
      NextRound(ended);
    }
    next = round_;
  });
  return next;
}

void SyncRounds::NextRound(Line* ended) {
  ++round_;
  givers_.clear();
  said_at_ = clock_->Now();
  for (auto& [session, trainer] : trainers_) {
    // Who is at work on an old round keeps its number: what it gives is too late. Those that wait
    // have done their work.
    if (session == leader_) trainer.round = round_;
    trainer.has_given = false;
  }
  leader_.clear();
  for (const std::shared_ptr<Attempt>& a : waiting_) {
    if (const auto it = trainers_.find(a->session); it != trainers_.end()) {
      it->second.round = round_;
    }
    a->result = Given{.leads = false, .next_round = round_};
  }
  ended->splice(ended->end(), waiting_);
}

void SyncRounds::GiveUp(absl::string_view why, Line* ended) {
  LogWarning("SyncReplicas '", spec_.name, "': round ", round_, " is given up: ", why);
  ++counts_.given_up;
  NextRound(ended);
}

void SyncRounds::GiveUpIfLedBy(const std::string& session, Line* ended) {
  if (leader_ != session || leader_.empty()) return;
  GiveUp("the step that did its update has failed", ended);
}

// --- What it waits for ---------------------------------------------------------------------------

std::string SyncRounds::WaitsForLocked() const {
  if (waiting_.empty()) return "";
  if (!started_) {
    return absl::StrCat("waits at its start for ", spec_.replicas, " trainers, ", trainers_.size(),
                        " have joined");
  }
  if (!leader_.empty()) {
    const auto it = trainers_.find(leader_);
    return absl::StrCat("waits for the update of ",
                        it == trainers_.end() ? "a trainer" : it->second.name);
  }
  std::vector<std::string> names;
  for (const auto& [session, trainer] : trainers_) {
    if (!trainer.has_given) names.push_back(trainer.name);
  }
  std::sort(names.begin(), names.end());
  constexpr size_t kMost = 10;
  const size_t more = names.size() > kMost ? names.size() - kMost : 0;
  names.resize(names.size() - more);
  return absl::StrCat("has ", givers_.size(), " of ", Needed(), " gradients, waits for ",
                      absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more) : "");
}

std::string SyncRounds::WaitsFor() const {
  MutexLock lock(&mu_);
  return WaitsForLocked();
}

void SyncRounds::Look() {
  Change([&](Line*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Time now = clock_->Now();
    first_join_ = std::min(first_join_, now);  // the clock may have been set back
    said_at_ = std::min(said_at_, now);
    if (!started_ && !trainers_.empty() && now >= first_join_ + spec_.start_wait) {
      LogInfo("SyncReplicas '", spec_.name, "': goes on with ", trainers_.size(), " trainers of ",
              spec_.replicas, " after a wait of ", absl::FormatDuration(spec_.start_wait));
      started_ = true;
    }
    if (now < said_at_ + kSayEvery) return;
    said_at_ = now;
    if (const std::string what = WaitsForLocked(); !what.empty()) {
      LogInfo("SyncReplicas '", spec_.name, "': round ", round_, " ", what);
    }
  });
}

void SyncRounds::TellWatch(bool has_trainers) {
  MutexLock lock(&watch_->mu);
  watch_->has_trainers = has_trainers;
  if (!has_trainers) return;
  watch_->changed.SignalAll();
  if (thread_.joinable()) return;
  thread_ = std::thread([watch = watch_, clock = clock_, weak = weak_from_this()] {
    for (;;) {
      {
        MutexLock lock(&watch->mu);
        const absl::Time until = clock->Now() + kLookEvery;
        bool is_time = false;
        while (!watch->stopped && !(is_time && watch->has_trainers)) {
          if (!watch->has_trainers) {
            watch->changed.Wait(&watch->mu);
          } else {
            is_time = clock->WaitUntil(&watch->changed, &watch->mu, until);
          }
        }
        if (watch->stopped) return;
      }
      const std::shared_ptr<SyncRounds> rounds = weak.lock();
      if (rounds == nullptr) return;
      rounds->Look();
    }
  });
}

}  // namespace millrace
