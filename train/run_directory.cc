// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/logging.h"
#include "core/random_bits.h"

namespace millrace {
namespace {

// Longer ones are no names of tasks.
constexpr size_t kMaxTaskBytes = 100;

std::string HostName() {
  char name[65] = "";
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "an unknown host";
}

std::string InWords(const RunFile& run) {
  return absl::StrCat(run.chief, run.since.empty() ? "" : absl::StrCat(", since ", run.since));
}

}  // namespace

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
  StatusOr<std::optional<RunFile>> read = ReadRunFile(fs_, directory_);
  if (absl::IsDataLoss(read.status())) {
    LogWarning(speaker_, ": ", read.status().message(), "; another run begins in '", directory_,
               "'");
    read = std::optional<RunFile>();
  }
  MR_RETURN_IF_ERROR(read.status());
  const std::optional<RunFile> former = *read;
  RunFile mine = former.value_or(RunFile());
  const bool same_run = former && former->name == name_;
  if (!same_run) mine.id = NewRunId();
  mine.name = name_;
  mine.token = NewRunId();
  mine.chief = absl::StrCat(task.substr(0, kMaxTaskBytes), task.empty() ? "" : " on ", HostName(),
                            ", process ", ::getpid());
  mine.epoch = former ? former->epoch + 1 : 1;
  mine.since = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", clock_->Now(), absl::UTCTimeZone());
  if (!former) {
    LogInfo(speaker_, ": run ", mine.id, " begins in '", directory_, "'");
  } else if (!same_run) {
    LogInfo(speaker_, ": run ", mine.id, " begins in '", directory_, "', which was '", former->name,
            "' of run ", former->id, " before");
  } else {
    const auto ended = ReadRunEnd(fs_, directory_);
    LogInfo(speaker_, ": goes on with run ", mine.id, " of '", directory_, "', which ",
            ended.ok() && *ended ? absl::StrCat("had ended at global step ", (*ended)->global_step)
                                 : absl::StrCat("was that of ", InWords(*former)));
  }
  MR_RETURN_IF_ERROR(WriteRunFile(fs_, directory_, mine));
  TrainingRun run = {.name = name_,
                     .id = mine.id,
                     .is_chief = true,
                     .chief = absl::StrCat(mine.chief, " (", mine.token.substr(0, 8), ")"),
                     .epoch = mine.epoch};
  {
    MutexLock lock(&mu_);
    mine_ = std::move(mine);
    run_ = run;
  }
  // Two that began at once: the last one that wrote has it.
  MR_RETURN_IF_ERROR(Check());
  return run;
}

Status RunDirectory::Check() const {
  std::string token;
  TrainingRun run;
  {
    MutexLock lock(&mu_);
    if (!mine_) return absl::OkStatus();
    token = mine_->token;
    run = run_;
  }
  const StatusOr<std::optional<RunFile>> now = ReadRunFile(fs_, directory_);
  if (!now.ok() || !*now || (*now)->token == token) return absl::OkStatus();
  return FencedError(speaker_, run, InWords(**now));
}

Status RunDirectory::End(const RunEnd& end, int64_t goal) {
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
  return WriteRunEnd(fs_, directory_,
                     {.id = mine.id,
                      .token = mine.token,
                      .global_step = end.global_step,
                      .goal = goal,
                      .checkpoint = end.checkpoint,
                      .reason = end.reason});
}

}  // namespace millrace
