// SPDX-License-Identifier: Apache-2.0
#include "run/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/logging.h"
#include "core/process_name.h"
#include "core/random_bits.h"
#include "run/run_id_text.h"

namespace millrace {
namespace {

// Longer ones are no names of tasks.
constexpr size_t kMaxTaskBytes = 100;
// Each has lost against another chief, which has the directory then.
constexpr int kMaxTries = 1000;

std::string InWords(const RunFile& run) {
  return absl::StrCat(run.chief, run.since.empty() ? "" : absl::StrCat(", since ", run.since));
}

}  // namespace

std::string RunNameOf(absl::string_view directory) {
  while (directory.size() > 1 && absl::ConsumeSuffix(&directory, "/")) {
  }
  return std::string(directory);
}

void BeginRunWithoutDirectory(TrainingRun* run) {
  if (run->name.empty() || !run->id.empty()) return;
  run->id = NewRunId();
  run->is_chief = true;
}

void WarnOfNoRun(absl::string_view speaker, absl::Duration max_wait) {
  static std::once_flag once;
  std::call_once(once, [&] {
    LogWarning(speaker, ": this task has no logdir, and session.run has no name: nobody hears of ",
               "the end of the job. Tasks that wait for variables, when a parameter server was ",
               "started again, do so for ", absl::FormatDuration(max_wait),
               ", and parameter servers do not leave by themselves; give all tasks one logdir, or ",
               "one name");
  });
}

RunDirectory::RunDirectory(FileSystem* fs, Clock* clock, std::string speaker, std::string directory,
                           std::string name)
    : fs_(fs),
      clock_(clock),
      speaker_(std::move(speaker)),
      directory_(std::move(directory)),
      name_(std::move(name)) {}

StatusOr<TrainingRun> RunDirectory::TakeOver(const std::string& task) {
  std::optional<TrainingRun> held;
  {
    MutexLock lock(&mu_);
    if (mine_) held = run_;
  }
  if (held) {
    MR_RETURN_IF_ERROR(Check());
    return *held;
  }
  for (int tries = 0; tries < kMaxTries; ++tries) {
    MR_ASSIGN_OR_RETURN(const std::optional<TrainingRun> run, TryTakeOver(task));
    if (run) return *run;
  }
  return absl::AbortedError(absl::StrCat(speaker_, ": '", directory_,
                                         "' must be taken over by fewer chiefs at a time, got ",
                                         kMaxTries, " others while this one tried"));
}

StatusOr<std::optional<TrainingRun>> RunDirectory::TryTakeOver(const std::string& task) {
  StatusOr<std::optional<RunFile>> read = ReadRunFile(fs_, directory_);
  const Status unreadable = absl::IsDataLoss(read.status()) ? read.status() : absl::OkStatus();
  if (!unreadable.ok()) read = std::optional<RunFile>();
  MR_RETURN_IF_ERROR(read.status());
  std::optional<RunFile> former = *std::move(read);
  MR_ASSIGN_OR_RETURN(const int64_t newest, NewestRunEpoch(fs_, directory_));
  if (newest > (former ? former->epoch : 0)) {
    // Of one that has not written run.json yet, or died before it could.
    const auto claimed = ReadRunEpoch(fs_, directory_, newest);
    if (claimed.ok() && *claimed) former = *claimed;
  }
  if (!unreadable.ok()) {
    LogWarning(speaker_, ": ", unreadable.message(),
               former ? "; its last owner's epoch says whose run it was"
                      : absl::StrCat("; another run begins in '", directory_, "'"));
  }
  RunFile mine = former.value_or(RunFile());
  const bool same_run = former && former->name == name_;
  if (!same_run) mine.id = NewRunId();
  mine.name = name_;
  mine.token = NewRunId();
  mine.chief = absl::StrCat(task.substr(0, kMaxTaskBytes), task.empty() ? "" : " on ", HostName(),
                            ", process ", ::getpid());
  mine.epoch = std::max(newest, former ? former->epoch : 0) + 1;
  mine.since = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", clock_->Now(), absl::UTCTimeZone());
  const Status claimed = ClaimRunEpoch(fs_, directory_, mine);
  if (absl::IsAlreadyExists(claimed)) return std::optional<TrainingRun>();
  MR_RETURN_IF_ERROR(claimed);
  const TrainingRun run = {.name = name_,
                           .id = mine.id,
                           .is_chief = true,
                           .chief = absl::StrCat(mine.chief, " (", mine.token.substr(0, 8), ")"),
                           .epoch = mine.epoch};
  {
    MutexLock lock(&mu_);
    mine_ = mine;
    run_ = run;
  }
  // One that began with this one may have come after it, or, when this process was stopped for
  // long, have come and gone.
  MR_RETURN_IF_ERROR(CheckEpoch(Unseen::kPasses));
  if (!former) {
    LogInfo(speaker_, ": run ", RunIdText(mine.id), " begins in '", directory_, "'");
  } else if (!same_run) {
    LogInfo(speaker_, ": run ", RunIdText(mine.id), " begins in '", directory_, "', which was '",
            former->name, "' of run ", RunIdText(former->id), " before");
  } else {
    const auto ended = ReadRunEnd(fs_, directory_);
    LogInfo(speaker_, ": goes on with run ", RunIdText(mine.id), " of '", directory_, "', which ",
            ended.ok() && *ended ? absl::StrCat("had ended at global step ", (*ended)->global_step)
                                 : absl::StrCat("was that of ", InWords(*former)));
  }
  MR_RETURN_IF_ERROR(WriteRunFile(fs_, directory_, mine));
  MR_RETURN_IF_ERROR(Check());
  SweepRunFiles(fs_, directory_, mine.epoch, mine.token);
  return std::optional<TrainingRun>(run);
}

Status RunDirectory::Judged(Unseen unseen, const Status& error) const {
  if (unseen == Unseen::kPasses || absl::IsNotFound(error) || absl::IsDataLoss(error)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(speaker_, ": '", directory_,
                                             "' must say whose it is before it is changed, got ",
                                             error.message()));
}

Status RunDirectory::CheckEpoch(Unseen unseen) const {
  TrainingRun run;
  {
    MutexLock lock(&mu_);
    if (!mine_) return absl::OkStatus();
    run = run_;
  }
  const StatusOr<int64_t> newest = NewestRunEpoch(fs_, directory_);
  if (!newest.ok()) return Judged(unseen, newest.status());
  if (*newest <= run.epoch) return absl::OkStatus();
  return FencedError(speaker_, run, InWords(PutNewest(*newest)));
}

Status RunDirectory::Check() const { return Look(Unseen::kPasses); }

Status RunDirectory::MayCommit() const { return Look(Unseen::kRefused); }

Status RunDirectory::Look(Unseen unseen) const {
  MR_RETURN_IF_ERROR(CheckEpoch(unseen));
  RunFile mine;
  TrainingRun run;
  {
    MutexLock lock(&mu_);
    if (!mine_) return absl::OkStatus();
    mine = *mine_;
    run = run_;
  }
  const StatusOr<std::optional<RunFile>> now = ReadRunFile(fs_, directory_);
  if (!now.ok()) return Judged(unseen, now.status());
  if (!*now || (*now)->token == mine.token) return absl::OkStatus();
  if ((*now)->epoch < mine.epoch) {
    const auto claimed = ReadRunEpoch(fs_, directory_, mine.epoch);
    // An older one was late. Where the epoch is not ours any more another has cleared the
    // directory.
    if (claimed.ok() && *claimed && (*claimed)->token == mine.token) {
      return WriteRunFile(fs_, directory_, mine);
    }
  }
  return FencedError(speaker_, run, InWords(**now));
}

RunFile RunDirectory::PutNewest(int64_t newest) const {
  RunFile last = {.chief = "a chief that has just come"};
  // Until nobody has come while it was written.
  for (int tries = 0; tries < kMaxTries; ++tries) {
    const auto claimed = ReadRunEpoch(fs_, directory_, newest);
    if (!claimed.ok() || !*claimed) return last;  // about to write run.json itself
    last = **claimed;
    const auto now = ReadRunFile(fs_, directory_);
    if (now.ok() && *now && (*now)->epoch >= newest) return last;
    if (!WriteRunFile(fs_, directory_, last).ok()) return last;
    const int64_t then = NewestRunEpoch(fs_, directory_).value_or(newest);
    if (then <= newest) return last;
    newest = then;
  }
  return last;
}

Status RunDirectory::End(const RunEnd& end, int64_t goal, int64_t updates_after_checkpoint) {
  MR_RETURN_IF_ERROR(Check());
  RunFile mine;
  {
    MutexLock lock(&mu_);
    if (!mine_) return absl::OkStatus();
    mine = *mine_;
  }
  // Somebody has cleared the directory.
  if (!fs_->FileExists(RunFilePath(directory_))) {
    MR_RETURN_IF_ERROR(WriteRunFile(fs_, directory_, mine));
  }
  MR_RETURN_IF_ERROR(WriteRunEnd(fs_, directory_,
                                 {.id = mine.id,
                                  .token = mine.token,
                                  .global_step = end.global_step,
                                  .goal = goal,
                                  .checkpoint = end.checkpoint,
                                  .updates_after_checkpoint = updates_after_checkpoint,
                                  .reason = end.reason}));
  // It counts for nobody when another has come meanwhile.
  return Check();
}

}  // namespace millrace
