// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TESTING_RECORDING_HOOK_H_
#define MILLRACE_TRAIN_TESTING_RECORDING_HOOK_H_

// RecordingHook: writes down which of its methods are called, as "<name>.begin", ".created",
// ".before", ".after", ".others", ".end", and then does what the test's function of that method
// says.
//
// Thread-safety: none. Lifetime: `calls` outlives the hook.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "train/session_run_hook.h"

namespace millrace {

class RecordingHook : public SessionRunHook {
 public:
  RecordingHook(std::string who, std::vector<std::string>* calls)
      : who_(std::move(who)), calls_(calls) {}
  std::string name() const override { return who_; }
  Status Begin(HookSetup* setup) override {
    Note("begin");
    if (on_begin) return on_begin(setup);
    return absl::OkStatus();
  }
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override {
    Note("created");
    if (on_created) return on_created(context, created);
    return absl::OkStatus();
  }
  StatusOr<GroupMask> BeforeRun(RunContext* context) override {
    Note("before");
    if (on_before) return on_before(context);
    return kNoGroups;
  }
  Status AfterRun(RunContext* context, const RunValues& values) override {
    Note("after");
    if (on_after) return on_after(context, values);
    return absl::OkStatus();
  }
  Status WhileOthersTrain(RunContext* context) override {
    Note("others");
    if (on_others) return on_others(context);
    return absl::OkStatus();
  }
  Status End(const LoopEnd& end) override {
    Note("end");
    if (on_end) return on_end(end);
    return absl::OkStatus();
  }

  std::function<Status(HookSetup*)> on_begin;
  std::function<Status(RunContext*, const CreatedSession&)> on_created;
  std::function<StatusOr<GroupMask>(RunContext*)> on_before;
  std::function<Status(RunContext*, const RunValues&)> on_after;
  std::function<Status(RunContext*)> on_others;
  std::function<Status(const LoopEnd&)> on_end;

 private:
  void Note(const char* what) { calls_->push_back(absl::StrCat(who_, ".", what)); }

  const std::string who_;
  std::vector<std::string>* const calls_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TESTING_RECORDING_HOOK_H_
