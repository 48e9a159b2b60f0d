// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/monitored_training_session.h"

#include <utility>

#include "proto/meta_graph.pb.h"
#include "train/hooks/event_summary_writer.h"
#include "train/hooks/step_counter.h"
#include "train/hooks/summary_saver.h"

namespace millrace {
namespace {

Status Check(const MonitoredTrainingSessionOptions& options) {
  for (const auto& [name, every] :
       {std::pair<const char*, Every>{"save_checkpoint_every", options.save_checkpoint_every},
        {"log_step_count_every", options.log_step_count_every},
        {"save_summaries_every", options.save_summaries_every}}) {
    if (every.valid()) continue;
    return InvalidArgument(
        "MonitoredTrainingSession: ", name, " must be >= 0, got ",
        every.steps() < 0 ? absl::StrCat(every.steps()) : absl::FormatDuration(every.time()));
  }
  const bool saves = !options.checkpoint_dir.empty() && !options.save_checkpoint_every.never();
  if (!saves && !options.saving_listeners.empty()) {
    return InvalidArgument(
        "MonitoredTrainingSession: saving_listeners must come with checkpoint_dir and "
        "save_checkpoint_every, got ",
        options.saving_listeners.size(), " and no checkpoints; give them to one's own saver hook");
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<MonitoredSession>> MonitoredTrainingSession(
    const Scope& scope, const MonitoredTrainingSessionOptions& options) {
  MR_RETURN_IF_ERROR(Check(options));
  SessionCreatorOptions creator;
  creator.scaffold = options.scaffold;
  creator.target = options.target;
  creator.checkpoint_dir = options.checkpoint_dir;
  creator.directory_option = options.directory_option;
  creator.begin_from = options.is_chief ? options.begin_from : "";
  creator.recovery_wait = options.recovery_wait;
  creator.end_grace = options.end_grace;
  creator.max_wait = options.max_wait;
  creator.session = options.session;
  creator.saver = options.saver;
  creator.clock = options.clock;
  creator.file_system = options.file_system;

  MonitoredSessionOptions session;
  session.max_recoveries = options.max_recoveries;
  session.recovery_wait = options.recovery_wait;
  session.stop_grace = options.stop_grace;
  session.handle_signals = options.handle_signals;
  session.logs_end = true;
  session.await_trainers = options.await_trainers;
  session.num_trainers = options.num_trainers;
  session.trainers_grace = options.trainers_grace;
  session.clock = options.clock;
  if (!options.is_chief) {
    session.hooks = options.hooks;
    return MonitoredSession::Open(scope,
                                  std::make_unique<WorkerSessionCreator>(scope, std::move(creator)),
                                  std::move(session));
  }
  const auto add_own = [&session](std::unique_ptr<SessionRunHook> hook) {
    session.hooks.push_back(hook.get());
    session.own_hooks.push_back(std::move(hook));
  };
  session.hooks = options.chief_only_hooks;
  SummaryWriter* writer = options.writer;
  const std::string& summary_dir =
      options.summary_dir.empty() ? options.checkpoint_dir : options.summary_dir;
  if (writer == nullptr && !summary_dir.empty()) {
    auto events = EventSummaryWriter::Open(summary_dir, {.fs = options.file_system});
    MR_RETURN_IF_ERROR(Prefixed("MonitoredTrainingSession", events.status()));
    session.own_writer = *std::move(events);
    writer = session.own_writer.get();
  }
  if (!options.log_step_count_every.never()) {
    add_own(std::make_unique<StepCounterHook>(StepCounterOptions{
        .every = options.log_step_count_every, .writer = writer, .logs = options.logs_step_count}));
  }
  // Without a global step nothing says when.
  if (writer != nullptr && !options.save_summaries_every.never() &&
      scope.collections()->contains("global_step")) {
    add_own(std::make_unique<SummarySaverHook>(
        SummarySaverOptions{.every = options.save_summaries_every,
                            .summary_op = options.scaffold.summary_op,
                            .writer = writer}));
  }
  if (!options.checkpoint_dir.empty() && !options.save_checkpoint_every.never()) {
    add_own(std::make_unique<CheckpointSaverHook>(
        CheckpointSaverOptions{.checkpoint_dir = options.checkpoint_dir,
                               .every = options.save_checkpoint_every,
                               .listeners = options.saving_listeners,
                               .writer = writer,
                               .clock = options.clock,
                               .file_system = options.file_system}));
  }
  session.hooks.insert(session.hooks.end(), options.hooks.begin(), options.hooks.end());
  return MonitoredSession::Open(
      scope, std::make_unique<ChiefSessionCreator>(scope, std::move(creator)), std::move(session));
}

}  // namespace millrace
