// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/profiler.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "proto/config.pb.h"
#include "runtime/step_stats.h"

namespace millrace {

Status ProfilerHook::Begin(HookSetup* setup) {
  MR_RETURN_IF_ERROR(CheckEvery("every", options_.every));
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  if (!options_.output_dir.empty()) {
    MR_RETURN_IF_ERROR(options_.file_system->RecursivelyCreateDirectory(options_.output_dir));
  }
  group_ = setup->AddGroup({.fetches = {global_step_.value}});
  timer_ = StepTimer(options_.every);
  next_step_ = -1;
  return absl::OkStatus();
}

Status ProfilerHook::AfterCreateSession(RunContext*, const CreatedSession&) {
  next_step_ = -1;
  return absl::OkStatus();
}

StatusOr<GroupMask> ProfilerHook::BeforeRun(RunContext* context) {
  traced_ = next_step_ >= 0 &&
            timer_.IsDue(next_step_, timer_.by_time() ? context->now() : absl::InfinitePast());
  if (traced_) {
    tensorflow::RunOptions options;
    options.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
    context->MergeOptions(options);
  }
  return MaskOf(group_);
}

Status ProfilerHook::AfterRun(RunContext* context, const RunValues& values) {
  // What was fetched may not have this run's own update yet.
  int64_t step = StepIn(values.value(group_)) + 1;
  if (next_step_ < 0) timer_.Done(step, context->now());
  if (traced_ && values.metadata() != nullptr) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> now,
                        context->session()->Run({}, {global_step_.value}));
    step = StepIn(now[0]);
    timer_.Done(step, context->now());
    const std::string path =
        JoinPath(options_.output_dir, absl::StrCat("timeline-", step, ".json"));
    const Status written = WriteFileAtomically(options_.file_system, path,
                                               WriteChromeTrace(values.metadata()->step_stats()));
    if (written.ok()) {
      LogInfo(name(), ": traced step ", step, " to ", path);
    } else {
      LogWarning(name(), ": trace of step ", step, " not written: ", written.message());
    }
    if (options_.writer != nullptr) {
      const Status added =
          options_.writer->AddRunMetadata(absl::StrCat("step_", step), *values.metadata(), step);
      if (!added.ok()) LogWarning(name(), ": ", added.message());
    }
  }
  next_step_ = step + 1;
  return absl::OkStatus();
}

}  // namespace millrace
