// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/checkpoint_saver.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/bounded_call.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "graph/import_export.h"
#include "proto/graph.pb.h"
#include "saver/tensor_bundle.h"
#include "train/session_manager.h"

namespace millrace {
namespace {

constexpr absl::Duration kFirstRetryWait = absl::Seconds(1);
// A save whose session was lost should return at once.
constexpr absl::Duration kLostSaveTime = absl::Seconds(5);

// Without "." and ".."; as it is when the current directory is gone.
std::string AbsolutePath(const std::string& directory) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(directory, error);
  if (error) path = directory;
  // "run/" and "run" are one.
  path = (path / ".").lexically_normal();
  std::string text = path.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace

// The thread holds what it uses; the hook looks at the rest when it has ended.
struct CheckpointSaverHook::Writing {
  struct Result {
    StatusOr<std::string> path = absl::UnknownError("not ended");
    absl::Duration took;
    // Release by the thread when all is written, acquire by the hook.
    std::atomic<bool> ended = false;
  };
  int64_t step = 0;
  std::shared_ptr<Result> result;
  std::unique_ptr<BoundedCall> call;

  bool ended() const { return result->ended.load(std::memory_order_acquire); }
};

CheckpointSaverHook::CheckpointSaverHook(CheckpointSaverOptions options)
    : options_(std::move(options)), retry_(kFirstRetryWait) {}

CheckpointSaverHook::~CheckpointSaverHook() = default;

Status CheckpointSaverListener::Begin(HookSetup*) { return absl::OkStatus(); }
Status CheckpointSaverListener::BeforeSave(Session*, int64_t) { return absl::OkStatus(); }
StatusOr<bool> CheckpointSaverListener::AfterSave(Session*, int64_t, const std::string&) {
  return false;
}
Status CheckpointSaverListener::End(Session*, int64_t) { return absl::OkStatus(); }

std::string CheckpointSaverHook::save_path() const {
  return JoinPath(options_.checkpoint_dir, options_.checkpoint_basename);
}

Status CheckpointSaverHook::Begin(HookSetup* setup) {
  if (options_.checkpoint_dir.empty()) {
    return InvalidArgument("checkpoint_dir must be a directory, got ''");
  }
  MR_RETURN_IF_ERROR(CheckEvery("every", options_.every));
  // The state file there has one writer, whatever the checkpoints are called, and the directory.
  MR_RETURN_IF_ERROR(setup->Claim(
      absl::StrCat("the checkpoints in '", AbsolutePath(options_.checkpoint_dir), "'")));
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  group_ = setup->AddGroup({.fetches = {global_step_.value}});
  scope_ = setup->scope();
  timer_ = StepTimer(options_.every);
  saved_step_ = -1;
  failure_ = absl::OkStatus();
  retry_.Reset();
  writing_ = nullptr;  // of a loop that ended with an error
  stats_ = {};
  for (CheckpointSaverListener* listener : options_.listeners) {
    MR_RETURN_IF_ERROR(listener->Begin(setup));
  }
  return absl::OkStatus();
}

StatusOr<int64_t> CheckpointSaverHook::ReadStep(Session* session) const {
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, session->Run({}, {global_step_.value}));
  return StepIn(out[0]);
}

Status CheckpointSaverHook::AfterCreateSession(RunContext* context, const CreatedSession& created) {
  session_ = created.session;
  saver_ = created.saver;
  if (options_.saver != nullptr) {
    saver_ = std::shared_ptr<Saver>(std::shared_ptr<Saver>(), options_.saver);
  }
  if (saver_ == nullptr) {
    return FailedPrecondition(
        "there must be a Saver, got none; only the chief has one, and a graph with variables");
  }
  MR_ASSIGN_OR_RETURN(const int64_t step, ReadStep(created.session.get()));
  if (!created.is_recovery) {
    FileSystem* const fs = options_.file_system;
    MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(options_.checkpoint_dir));
    MR_ASSIGN_OR_RETURN(const tensorflow::GraphDef graph, scope_.ToGraphDef());
    const Status written = WriteGraphDef(fs, JoinPath(options_.checkpoint_dir, "graph.pbtxt"),
                                         graph, GraphFormat::kText);
    // For people; the checkpoints do not need it.
    if (!written.ok()) LogWarning(name(), ": graph.pbtxt not written: ", written.message());
    if (options_.writer != nullptr) {
      const Status added = options_.writer->AddGraph(graph);
      if (!added.ok()) LogWarning(name(), ": ", added.message());
    }
  }
  if (created.start == SessionManager::Start::kRestored &&
      absl::StartsWith(created.restored_checkpoint, absl::StrCat(save_path(), "-"))) {
    // What is in it decides, not its name: others count while a checkpoint is written.
    const auto reader = BundleReader::Open(options_.file_system, created.restored_checkpoint);
    const StatusOr<Tensor> stored =
        reader.ok() ? (*reader)->Read(global_step_.name) : reader.status();
    if (stored.ok() && StepIn(*stored) == step) saved_step_ = step;
  }
  timer_.Done(step, context->now());
  // One of the former session that still waits for its storage: one at a time.
  if (writing_ != nullptr && !writing_->call->WaitUntil(options_.clock->Now() + kLostSaveTime)) {
    return absl::OkStatus();
  }
  if (writing_ != nullptr) MR_RETURN_IF_ERROR(FinishOrPutOff(context, std::move(writing_)));
  if (saved_step_ == step) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(auto writing, Start(context->session(), step));
  return FinishOrPutOff(context, std::move(writing));
}

StatusOr<GroupMask> CheckpointSaverHook::BeforeRun(RunContext*) { return MaskOf(group_); }

Status CheckpointSaverHook::AfterRun(RunContext* context, const RunValues& values) {
  // What was fetched may not have this run's own update yet.
  return SaveIfDue(context, StepIn(values.value(group_)) + 1);
}

Status CheckpointSaverHook::WhileOthersTrain(RunContext* context) {
  return SaveIfDue(context, std::numeric_limits<int64_t>::max());
}

Status CheckpointSaverHook::SaveIfDue(RunContext* context, int64_t at_most) {
  if (writing_ != nullptr) {
    return writing_->ended() ? FinishOrPutOff(context, std::move(writing_)) : absl::OkStatus();
  }
  if (context->nothing_to_save()) return absl::OkStatus();
  if (failure_.ok()) {
    if (!timer_.IsDue(at_most, timer_.by_time() ? context->now() : absl::InfinitePast())) {
      return absl::OkStatus();
    }
  } else if (context->now() < retry_at_) {
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const int64_t step, ReadStep(context->session()));
  if (failure_.ok() && !timer_.IsDue(step, context->now())) return absl::OkStatus();
  if (failure_.ok()) timer_.Done(step, context->now());
  MR_ASSIGN_OR_RETURN(auto writing, Start(context->session(), step));
  if (!timer_.by_time()) return FinishOrPutOff(context, std::move(writing));
  writing_ = std::move(writing);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<CheckpointSaverHook::Writing>> CheckpointSaverHook::Start(Session* session,
                                                                                   int64_t step) {
  for (CheckpointSaverListener* listener : options_.listeners) {
    MR_RETURN_IF_ERROR(listener->BeforeSave(session, step));
  }
  auto writing = std::make_unique<Writing>();
  writing->step = step;
  writing->result = std::make_shared<Writing::Result>();
  writing->call = std::make_unique<BoundedCall>(
      options_.clock, [result = writing->result, saver = saver_, session = session_.lock(),
                       clock = options_.clock, path = save_path(), step] {
        const absl::Time begin = clock->Now();
        result->path = saver->Save(session.get(), path, step);
        result->took = clock->Now() - begin;
        result->ended.store(true, std::memory_order_release);
      });
  return writing;
}

Status CheckpointSaverHook::FinishOrPutOff(RunContext* context, std::unique_ptr<Writing> writing) {
  writing->call->WaitUntil(absl::InfiniteFuture());
  MR_ASSIGN_OR_RETURN(const Outcome outcome, Finish(context->session(), *writing));
  if (outcome == Outcome::kStop) context->RequestStop("a listener of checkpoints asked to");
  if (outcome != Outcome::kFailed) return absl::OkStatus();
  const absl::Duration pause = retry_.NextPause();
  retry_at_ = context->now() + pause;
  LogWarning(name(), ": checkpoint not written: ", failure_.message(), "; it is tried again in ",
             absl::FormatDuration(pause));
  return absl::OkStatus();
}

Status CheckpointSaverHook::FinishInTime(Session* session, std::unique_ptr<Writing> writing) {
  if (!writing->call->WaitUntil(options_.clock->Now() + options_.stop_grace)) {
    return absl::DeadlineExceededError(absl::StrCat("a checkpoint did not end within ",
                                                    absl::FormatDuration(options_.stop_grace),
                                                    ", and is left behind"));
  }
  MR_ASSIGN_OR_RETURN(const Outcome outcome, Finish(session, *writing));
  return outcome == Outcome::kFailed ? failure_ : absl::OkStatus();
}

StatusOr<CheckpointSaverHook::Outcome> CheckpointSaverHook::Finish(Session* session,
                                                                   const Writing& writing) {
  const StatusOr<std::string>& path = writing.result->path;
  const absl::Duration took = writing.result->took;
  const int64_t step = writing.step;
  if (!path.ok()) {
    ++stats_.failures;
    const Status& status = path.status();
    // Storage that is away looks like a task that is: the session tells which it was.
    if (IsSessionLost(status)) MR_RETURN_IF_ERROR(ReadStep(session).status());
    if (!MayTryAgain(status)) return status;
    failure_ = status;
    return Outcome::kFailed;
  }
  failure_ = absl::OkStatus();
  retry_.Reset();
  saved_step_ = step;
  ++stats_.saves;
  stats_.last = took;
  stats_.longest = std::max(stats_.longest, took);
  stats_.total += took;
  stats_.last_checkpoint = *path;
  LogInfo(name(), ": saved ", *path, " in ",
          absl::FormatDuration(absl::Trunc(took, absl::Milliseconds(1))));
  if (options_.writer != nullptr) {
    Status told = options_.writer->AddSessionEvent(SessionEvent::kCheckpoint, step, *path);
    told.Update(
        options_.writer->AddScalar("checkpoint/save_secs", absl::ToDoubleSeconds(took), step));
    // A job that is killed goes on from here: its curves must reach as far.
    told.Update(options_.writer->Flush());
    if (!told.ok()) LogWarning(name(), ": ", told.message());
  }
  bool stop = false;
  for (CheckpointSaverListener* listener : options_.listeners) {
    MR_ASSIGN_OR_RETURN(const bool asks, listener->AfterSave(session, step, *path));
    stop = stop || asks;
  }
  return stop ? Outcome::kStop : Outcome::kSaved;
}

Status CheckpointSaverHook::End(const LoopEnd& end) {
  // What was begun counts when it ends well; else the last one is to make up for it.
  if (writing_ != nullptr) {
    const Status ended = FinishInTime(end.session, std::move(writing_));
    if (absl::IsDeadlineExceeded(ended) || !failure_.ok()) {
      LogWarning(name(), ": checkpoint not written: ", ended.message());
    } else {
      MR_RETURN_IF_ERROR(ended);
    }
    if (absl::IsDeadlineExceeded(ended)) return Prefixed("last checkpoint not written", ended);
  }
  MR_ASSIGN_OR_RETURN(const int64_t step, ReadStep(end.session));
  if (!end.nothing_to_save && (step != saved_step_ || !failure_.ok())) {
    MR_ASSIGN_OR_RETURN(auto writing, Start(end.session, step));
    MR_RETURN_IF_ERROR(
        Prefixed("last checkpoint not written", FinishInTime(end.session, std::move(writing))));
  }
  for (CheckpointSaverListener* listener : options_.listeners) {
    MR_RETURN_IF_ERROR(listener->End(end.session, step));
  }
  if (options_.writer != nullptr) {
    const Status flushed = options_.writer->Flush();
    if (!flushed.ok()) LogWarning(name(), ": ", flushed.message());
  }
  return absl::OkStatus();
}

}  // namespace millrace
