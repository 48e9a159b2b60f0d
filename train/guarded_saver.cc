// SPDX-License-Identifier: Apache-2.0
#include "train/guarded_saver.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/bounded_call.h"
#include "core/logging.h"
#include "run/training_run.h"
#include "train/training_metrics.h"

namespace millrace {
namespace {

// Waits are logged this often.
constexpr absl::Duration kReportPeriod = absl::Seconds(10);

Status NotKept(const Status&) { return absl::OkStatus(); }

std::string PathOf(const std::string& prefix, std::optional<int64_t> step) {
  return step ? absl::StrCat(prefix, "-", *step) : prefix;
}

}  // namespace

GuardedSaver::GuardedSaver(std::string speaker, std::unique_ptr<Saver> saver,
                           std::function<Status()> may_save, Clock* clock)
    : speaker_(std::move(speaker)),
      owned_(std::move(saver)),
      saver_(owned_.get()),
      may_save_(std::move(may_save)),
      clock_(clock) {}

GuardedSaver::GuardedSaver(std::string speaker, Saver* saver, std::function<Status()> may_save,
                           Clock* clock)
    : speaker_(std::move(speaker)), saver_(saver), may_save_(std::move(may_save)), clock_(clock) {}

struct GuardedSaver::Asked {
  using Step = StatusOr<std::optional<int64_t>>;

  const std::string& prefix;
  absl::FunctionRef<Step()> step;
  absl::FunctionRef<StatusOr<std::string>(std::optional<int64_t> step)> save;
  bool counts = true;  // is the latest checkpoint afterwards
  absl::FunctionRef<Status(const Status&)> as_kept = NotKept;
};

StatusOr<std::string> GuardedSaver::Save(Session* session, const std::string& prefix,
                                         std::optional<int64_t> global_step) {
  return Guarded(
      {.prefix = prefix,
       .step = [&] { return Asked::Step(global_step); },
       .save = [&](std::optional<int64_t> step) { return saver_->Save(session, prefix, step); }});
}

StatusOr<std::string> GuardedSaver::SaveAs(Session* session, const std::string& prefix,
                                           std::optional<int64_t> global_step,
                                           const SaveOptions& options) {
  return Guarded(
      {.prefix = prefix,
       .step = [&] { return Asked::Step(global_step); },
       .save =
           [&](std::optional<int64_t> step) {
             return saver_->SaveAs(session, prefix, step, options);
           },
       .counts = options.write_state && options.latest_filename == SaveOptions().latest_filename});
}

StatusOr<std::string> GuardedSaver::SaveAndKeepFailure(
    Session* session, const std::string& prefix,
    absl::FunctionRef<StatusOr<std::optional<int64_t>>()> step,
    absl::FunctionRef<Status(const Status&)> as_kept) {
  return Guarded(
      {.prefix = prefix,
       .step = step,
       .save = [&](std::optional<int64_t> now) { return saver_->Save(session, prefix, now); },
       .as_kept = as_kept});
}

StatusOr<std::string> GuardedSaver::Guarded(const Asked& asked) {
  MutexLock one_at_a_time(&save_mu_);
  absl::Time begin;
  std::optional<int64_t> step;
  bool is_observed = false;
  const StatusOr<std::string> path = [&]() -> StatusOr<std::string> {
    MR_RETURN_IF_ERROR(may_save_());
    MR_ASSIGN_OR_RETURN(step, asked.step());
    is_observed = asked.counts;
    if (is_observed && observer_.begins) {
      observer_.begins(PathOf(asked.prefix, step), saver_->last_checkpoints());
    }
    begin = clock_->Now();
    StatusOr<std::string> saved = Aloud(asked, step);
    if (saved.ok()) return saved;
    const Status may_save = may_save_();
    if (IsFenced(may_save)) return may_save;
    return saved;
  }();
  const Status kept = path.ok() ? absl::OkStatus() : asked.as_kept(path.status());
  const absl::Duration took = path.ok() ? clock_->Now() - begin : absl::ZeroDuration();
  const bool counts = path.ok() && asked.counts;
  {
    MutexLock lock(&mu_);
    if (!kept.ok()) {
      failure_ = kept;
      ++failures_;
    }
    if (counts) {
      last_saved_ = *path;
      last_took_ = took;
      failure_ = absl::OkStatus();
    }
  }
  if (begin != absl::Time()) CountSave(path.ok(), took);
  if (is_observed && observer_.ended) {
    observer_.ended(path.ok() ? *path : PathOf(asked.prefix, step), step.value_or(-1),
                    path.status());
  }
  return path;
}

StatusOr<std::string> GuardedSaver::Aloud(const Asked& asked, std::optional<int64_t> step) const {
  StatusOr<std::string> path = absl::UnknownError("not ended");
  std::optional<BoundedCall> call;
  try {
    call.emplace(Clock::Real(), [&] { path = asked.save(step); });
  } catch (const std::system_error&) {  // no thread is left
    return asked.save(step);
  }
  const absl::Time begin = absl::Now();
  while (!call->WaitUntil(absl::Now() + kReportPeriod)) {
    LogInfo(speaker_, ": waits for the checkpoint '", PathOf(asked.prefix, step),
            "', which is being written since ",
            absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Seconds(1))));
  }
  return path;
}

Status GuardedSaver::Build() {
  MutexLock one_at_a_time(&save_mu_);
  return saver_->Build();
}

Status GuardedSaver::Restore(Session* session, const std::string& checkpoint) {
  MutexLock one_at_a_time(&save_mu_);
  return saver_->Restore(session, checkpoint);
}

StatusOr<CheckpointDifference> GuardedSaver::Compare(const std::string& checkpoint) {
  MutexLock one_at_a_time(&save_mu_);
  return saver_->Compare(checkpoint);
}

void GuardedSaver::SetRunId(const std::string& id) {
  MutexLock one_at_a_time(&save_mu_);
  saver_->SetRunId(id);
}

Status GuardedSaver::RecoverLastCheckpoints(const std::vector<std::string>& paths) {
  MutexLock one_at_a_time(&save_mu_);
  return saver_->RecoverLastCheckpoints(paths);
}

std::vector<std::string> GuardedSaver::last_checkpoints() const {
  MutexLock one_at_a_time(&save_mu_);
  return saver_->last_checkpoints();
}

std::vector<TimedCheckpoint> GuardedSaver::last_checkpoints_with_time() const {
  MutexLock one_at_a_time(&save_mu_);
  return saver_->last_checkpoints_with_time();
}

Status GuardedSaver::SetLastCheckpointsWithTime(std::vector<TimedCheckpoint> checkpoints) {
  MutexLock one_at_a_time(&save_mu_);
  return saver_->SetLastCheckpointsWithTime(std::move(checkpoints));
}

const tensorflow::SaverDef& GuardedSaver::def() const { return saver_->def(); }

Status GuardedSaver::failure() const {
  MutexLock lock(&mu_);
  return failure_;
}

int64_t GuardedSaver::failures() const {
  MutexLock lock(&mu_);
  return failures_;
}

void GuardedSaver::ForgetFailures(int64_t failures) {
  MutexLock lock(&mu_);
  if (failures_ <= failures) failure_ = absl::OkStatus();
}

std::string GuardedSaver::last_saved() const {
  MutexLock lock(&mu_);
  return last_saved_;
}

absl::Duration GuardedSaver::last_took() const {
  MutexLock lock(&mu_);
  return last_took_;
}

}  // namespace millrace
