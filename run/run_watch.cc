// SPDX-License-Identifier: Apache-2.0
#include "run/run_watch.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/bounded_call.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "run/run_id_text.h"

namespace millrace {
namespace {

// How often the directory is read.
constexpr absl::Duration kLookPeriod = absl::Seconds(1);
// A reading that takes longer counts as one that failed.
constexpr absl::Duration kLookBound = absl::Seconds(10);
// A task that waits for a run asks once a second.
constexpr absl::Duration kLongestAsk = absl::Seconds(3);
// How often the log says what the server waits for: while it trains, and when only somebody else
// keeps it.
constexpr absl::Duration kSayTraining = absl::Minutes(10);
constexpr absl::Duration kSayLeaving = absl::Seconds(10);

std::function<bool()> OnThread(std::function<void()> work) {
  auto call = std::make_shared<BoundedCall>(Clock::Real(), std::move(work));
  return [call] { return call->WaitUntil(absl::InfinitePast()); };
}

}  // namespace

struct RunWatch::Reading {
  absl::Time begun;
  std::shared_ptr<Files> files;  // the thread's until `has_ended`
  std::function<bool()> has_ended;
};

RunWatch::RunWatch(WatchedRuns* runs, Options options)
    : runs_(runs), options_(std::move(options)), belief_({.grace = options_.stale_grace}) {}
RunWatch::~RunWatch() = default;

bool RunWatch::IsDone() {
  const absl::Time now = options_.clock->Now();
  HasLooked(now - kLookPeriod, now);
  const auto finished = runs_->FindFinishedRun();
  if (!finished.has_value()) {
    seen_ = absl::InfiniteFuture();
    Say(now, kSayTraining, "the end of a training run");
    return false;
  }
  if (seen_ == absl::InfiniteFuture()) SeeEnd(*finished, now);
  // Whose directory it was when the end was seen.
  if (!owner_at_end_.has_value()) {
    if (!HasLooked(seen_, now)) return false;
    owner_at_end_ = owner_;
  }
  if (AnotherOwns(now)) {
    Say(now, kSayLeaving,
        absl::StrCat("the chief that has taken ", options_.logdir, " over since run '",
                     finished->run.name, "' (", RunIdText(finished->run.id), ") ended"));
    return false;
  }
  if (!IsTime(*finished, now)) {
    wants_look_ = absl::InfiniteFuture();
    Say(now, kSayLeaving,
        finished->sessions > 0
            ? absl::StrCat(finished->sessions, " sessions of run '", finished->run.name, "' (",
                           RunIdText(finished->run.id), "), which has ended")
            : absl::StrCat("trainers of run '", finished->run.name, "' (",
                           RunIdText(finished->run.id), ") that ask how it ended"));
    return false;
  }
  // The directory may have got another owner since the last look.
  wants_look_ = std::min(wants_look_, now);
  return HasLooked(wants_look_, now) && !AnotherOwns(now);
}

void RunWatch::SeeEnd(const RunRegistry::Finished& finished, absl::Time now) {
  seen_ = now;
  owner_at_end_.reset();
  wants_look_ = absl::InfiniteFuture();
  ended_sessions_ = false;
  LogInfo("Server of ", runs_->task(), ": run '", finished.run.name, "' (",
          RunIdText(finished.run.id), ") has ended at step ", finished.end.global_step,
          finished.end.reason.empty() ? "" : absl::StrCat(": ", finished.end.reason),
          "; this server leaves when the ", finished.sessions,
          " sessions of the run have closed, in ", absl::FormatDuration(options_.grace),
          " at most");
}

bool RunWatch::IsTime(const RunRegistry::Finished& finished, absl::Time now) {
  const absl::Duration since = now - seen_;
  if (finished.sessions > 0) {
    if (since < options_.grace / 2) return false;
    runs_->EndSessionsOfRun(finished.run, finished.end);
    ended_sessions_ = true;
  }
  // A task that waits for the run asks once a second. One whose session was ended may be between
  // two steps.
  return since >= (ended_sessions_ ? options_.grace : std::min(kLongestAsk, options_.grace));
}

// A chief that has taken the directory over since the end was seen is on its way here. When its
// own end is there, that is the one that counts from then on.
bool RunWatch::AnotherOwns(absl::Time now) {
  MR_DCHECK(owner_at_end_.has_value(), "IsDone first notes whose the directory was at the end");
  if (owner_.empty() || owner_ == owner_at_end_) return false;
  if (owner_has_ended_) {
    seen_ = now;
    owner_at_end_ = owner_;
    ended_sessions_ = false;
  }
  return true;
}

bool RunWatch::HasLooked(absl::Time from, absl::Time now) {
  if (options_.logdir.empty()) return true;
  if (reading_ != nullptr && reading_->has_ended()) {
    looked_ = reading_->begun;
    const std::shared_ptr<Files> files = std::move(reading_->files);
    reading_ = nullptr;
    Take(*files, now);
  }
  if (looked_ >= from) return true;
  if (reading_ == nullptr) {
    return BeginLook(now) && HasLooked(from, now);
  }
  if (now - reading_->begun < kLookBound) return false;
  Warn(absl::UnavailableError(absl::StrCat(options_.logdir, " must be readable within ",
                                           absl::FormatDuration(kLookBound),
                                           ", got no answer; goes on without it")));
  return true;
}

bool RunWatch::BeginLook(absl::Time now) {
  auto files = std::make_shared<Files>();
  auto work = [files, fs = options_.file_system, logdir = options_.logdir] {
    files->status = NoExceptions("Reading of a run's directory", [&]() -> Status {
      MR_ASSIGN_OR_RETURN(files->run, ReadRunFile(fs, logdir));
      MR_ASSIGN_OR_RETURN(files->end, ReadRunEnd(fs, logdir));
      return absl::OkStatus();
    });
  };
  auto reading = std::make_unique<Reading>();
  reading->begun = now;
  reading->files = std::move(files);
  try {
    reading->has_ended =
        options_.background ? options_.background(std::move(work)) : OnThread(std::move(work));
  } catch (const std::system_error&) {
    return false;  // the next time
  }
  reading_ = std::move(reading);
  return true;
}

void RunWatch::Warn(const Status& status) {
  if (!std::exchange(warned_, true)) {
    LogWarning("Server of ", runs_->task(), ": ", status.message());
  }
}

void RunWatch::Take(const Files& files, absl::Time now) {
  if (!files.status.ok()) return Warn(files.status);
  const auto& [status, run, end] = files;
  const bool has_ended = run && end && run->id == end->id && run->token == end->token;
  owner_ = run ? run->token : std::string();
  owner_has_ended_ = has_ended;
  if (belief_.Hear(has_ended ? EndBelief::ToldBy(end) : std::nullopt, now)) {
    noted_ = false;
    claims_ = runs_->num_run_claims();
    if (belief_.is_doubted()) {
      LogInfo("Server of ", runs_->task(), ": ", options_.logdir, " says that run ",
              RunIdText(run->id), " has ended at step ", end->global_step,
              "; this server leaves unless its chief comes within ",
              absl::FormatDuration(options_.stale_grace), " to train further");
    }
  }
  if (noted_ || !belief_.is_believed(now)) return;
  MR_DCHECK(has_ended, "an end is believed only as long as both files tell of it");
  noted_ = true;
  // A chief that has come since, owns the directory from now on: its own end has another token.
  if (runs_->num_run_claims() != claims_) return;
  runs_->NoteRunEnd(
      {.name = run->name, .id = run->id, .chief = run->chief},
      {.global_step = end->global_step, .checkpoint = end->checkpoint, .reason = end->reason});
}

// When it is another thing than before, and every `period`.
void RunWatch::Say(absl::Time now, absl::Duration period, const std::string& what) {
  if (what == said_ && now < next_say_) return;
  said_ = what;
  next_say_ = now + period;
  LogInfo("Server of ", runs_->task(), " waits for ", what, " before it leaves");
}

}  // namespace millrace
