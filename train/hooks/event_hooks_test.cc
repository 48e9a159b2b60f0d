// SPDX-License-Identifier: Apache-2.0
//
// Hooks that write files for people: event files and traces.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "runtime/session.h"
#include "saver/event_reader.h"
#include "train/hooks/event_summary_writer.h"
#include "train/hooks/monitored_training_session.h"
#include "train/hooks/profiler.h"
#include "train/hooks/step_counter.h"
#include "train/hooks/stop_at_step.h"
#include "train/hooks/summary_saver.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/summaries.h"
#include "train/summary_writer.h"
#include "train/testing/hooked_model.h"

// covers: training: event hooks write summaries
// covers: training: a killed job has its curves up to its last checkpoint
// covers: training: an error of the disk of events is told once; the next checkpoint begins a file
// covers: training: summaries, traces and checkpoints of a loop are in event files and Chrome
//   traces

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

class EventHooksTest : public ::testing::Test {
 protected:
  EventHooksTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("event_hooks_", RandomHexName()))) {}
  ~EventHooksTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  StatusOr<std::unique_ptr<MonitoredSession>> Open(const Model& model,
                                                   std::vector<SessionRunHook*> hooks) {
    MonitoredSessionOptions options;
    options.hooks = std::move(hooks);
    return SingularMonitoredSession(model.root, {}, std::move(options));
  }
  void Train(MonitoredSession* session, const Model& model, int steps) {
    for (int i = 0; i < steps; ++i) {
      const Tensor x = Tensor::Scalar(static_cast<float>(++runs_));
      ASSERT_OK(session->Run({{model.x, x}}, {model.y}, {model.count}).status());
    }
  }
  // What the event files of the directory say: "START@1", "in=1@1", "checkpoint@3", "graph",
  // "step_4".
  std::string Events(const std::string& directory) const {
    std::vector<std::string> texts;
    auto reader = EventReader::Open(fs_, directory);
    if (!reader.ok()) return std::string(reader.status().message());
    while (true) {
      const auto event = (*reader)->Next();
      if (!event.ok()) break;
      const auto at = absl::StrCat("@", event->step());
      if (event->has_graph_def()) texts.push_back("graph");
      if (event->has_tagged_run_metadata()) texts.push_back(event->tagged_run_metadata().tag());
      if (event->has_session_log()) {
        texts.push_back(absl::StrCat(
            tensorflow::SessionLog::SessionStatus_Name(event->session_log().status()), at));
      }
      for (const auto& value : event->summary().value()) {
        const std::string shown =
            absl::EndsWith(value.tag(), "sec") || absl::EndsWith(value.tag(), "secs")
                ? ""
                : absl::StrCat("=", value.simple_value());
        texts.push_back(absl::StrCat(value.tag(), shown, at));
      }
    }
    return absl::StrJoin(texts, " ");
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
  int runs_ = 0;
};

// --- SummarySaver --------------------------------------------------------------------------------

TEST_F(EventHooksTest, SummariesAreWrittenOfTheFirstRunAndThenEachSoManySteps) {
  const Model model;
  AddScalarSummary(model.root, "in", model.y);
  SummarySaverHook hook({.every = 3, .output_dir = dir_});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  Train(session.get(), model, 8);
  EXPECT_OK(session->Close());
  // The step after the run, with what that run was fed.
  EXPECT_EQ(Events(dir_), "START@1 in=1@1 in=4@4 in=7@7");
}

TEST_F(EventHooksTest, AfterALossTheCurveGoesOnFromWhereTrainingDoes) {
  const Model model;
  AddScalarSummary(model.root, "in", model.y);
  SummarySaverHook hook({.every = 100, .output_dir = dir_});
  // Fails once, with what makes a new session.
  class LosesOne : public SessionRunHook {
   public:
    std::string name() const override { return "LosesOne"; }
    StatusOr<GroupMask> BeforeRun(RunContext* context) override {
      if (context->run_number() == 2 && !done_) {
        done_ = true;
        return absl::UnavailableError("gone");
      }
      return kNoGroups;
    }

   private:
    bool done_ = false;
  } loses;
  MonitoredSessionOptions options;
  options.hooks = {&hook, &loses};
  ASSERT_OK_AND_ASSIGN(
      const auto session,
      MonitoredSession::Open(
          model.root, std::make_unique<ChiefSessionCreator>(model.root, SessionCreatorOptions{}),
          std::move(options)));
  // In this process a lost session has lost its variables, too: training begins anew.
  Train(session.get(), model, 3);
  EXPECT_OK(session->Close());
  EXPECT_EQ(session->recoveries(), 1);
  EXPECT_EQ(Events(dir_), "START@1 in=1@1 START@1 in=3@1");
}

TEST_F(EventHooksTest, AnErrorOfTheDiskIsToldOnceAndTheCurveGoesOnWithTheNextCheckpoint) {
  int64_t num_operations = 0;  // of the first step, of a disk that never fails
  for (int64_t k = 0; k <= num_operations; ++k) {
    SCOPED_TRACE(absl::StrCat("operation ", k));
    fs_->RecursivelyDelete(dir_).IgnoreError();
    FaultyFileSystem fs(fs_, dir_);
    if (k > 0) fs.FailOperation(k, absl::ResourceExhaustedError("disk full"));
    {
      const auto writer = EventSummaryWriter::Open(dir_, {.fs = &fs});
      if (!writer.ok()) continue;  // the directory could not be made
      std::vector<std::string> errors;
      const auto note = [&](const Status& status) {
        if (!status.ok()) errors.push_back(status.ToString());
      };
      for (int64_t step = 1; step <= 3; ++step) {
        note((*writer)->AddScalar("loss", static_cast<double>(step), step));
        note((*writer)->Flush());
        note((*writer)->AddScalar("loss", static_cast<double>(step), step));
        note((*writer)->AddSessionEvent(SessionEvent::kCheckpoint, step, "m"));
        note((*writer)->Flush());
        if (k == 0 && step == 1) num_operations = fs.num_operations();
      }
      EXPECT_EQ(errors.size(), k == 0 ? 0u : 1u) << absl::StrJoin(errors, "\n");
      // What is wrong with an event is told each time.
      EXPECT_FALSE((*writer)->AddSummary("no summary", 1).ok());
      EXPECT_FALSE((*writer)->AddSummary("no summary", 1).ok());
    }
    EXPECT_TRUE(absl::EndsWith(Events(dir_), "loss=3@3 loss=3@3 CHECKPOINT@3")) << Events(dir_);
    ASSERT_GT(num_operations, 2);
  }
}

TEST_F(EventHooksTest, AGraphWithoutSummariesGetsTheStartAlone) {
  const Model model;
  SummarySaverHook hook({.every = 3, .output_dir = dir_});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  Train(session.get(), model, 4);
  EXPECT_OK(session->Close());
  EXPECT_EQ(Events(dir_), "START@1");
}

TEST_F(EventHooksTest, TheSummaryOpIsTheOneOfTheOptionsOrOfTheCollection) {
  for (const bool named : {true, false}) {
    const Model model;
    const Output y = AddScalarSummary(model.root, "in", model.y);
    AddScalarSummary(model.root, "weight", model.w.value);
    if (!named) model.root.AddToNodeCollection("summary_op", y.name());
    const std::string dir = JoinPath(dir_, named ? "named" : "collected");
    SummarySaverHook hook({.every = 10, .summary_op = named ? y : Output(), .output_dir = dir});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
    Train(session.get(), model, 1);
    EXPECT_OK(session->Close());
    EXPECT_EQ(Events(dir), absl::StrCat("START@1 in=", runs_, "@1"));
  }
}

TEST_F(EventHooksTest, ASummaryHookThatCannotWorkIsRefused) {
  const auto open = [&](const SummarySaverOptions& options) {
    const Model model;
    SummarySaverHook hook(options);
    return Open(model, {&hook}).status();
  };
  EXPECT_STATUS(open({.every = 0, .output_dir = dir_}), StatusCode::kInvalidArgument,
                "every must be > 0, got 0 steps");
  EXPECT_STATUS(open({}), StatusCode::kInvalidArgument,
                "exactly one of writer and output_dir must be given, got neither");
  const Model model;
  SummarySaverHook numbers({.summary_op = model.y, .output_dir = dir_});
  EXPECT_STATUS(Open(model, {&numbers}).status(), StatusCode::kInvalidArgument,
                "summary_op 'y:0' must give strings, got float");
}

// Its files are full.
class FullWriter : public SummaryWriter {
 public:
  Status AddScalar(absl::string_view, double, int64_t) override { return Full(); }
  Status AddSummary(absl::string_view, int64_t) override { return Full(); }
  Status AddGraph(const tensorflow::GraphDef&) override { return Full(); }
  Status AddMetaGraph(absl::string_view) override { return Full(); }
  Status AddRunMetadata(absl::string_view, const tensorflow::RunMetadata&, int64_t) override {
    return Full();
  }
  Status AddSessionEvent(SessionEvent, int64_t, absl::string_view) override { return Full(); }
  Status Flush() override { return Full(); }

 private:
  static Status Full() { return absl::ResourceExhaustedError("no space left"); }
};

TEST_F(EventHooksTest, TrainingGoesOnWhereCurvesCannotBeWritten) {
  const Model model;
  AddScalarSummary(model.root, "in", model.y);
  FullWriter full;
  SummarySaverHook summaries({.every = 2, .writer = &full});
  ProfilerHook profiler({.every = 2, .output_dir = dir_, .writer = &full});
  StepCounterHook counter({.every = 2, .writer = &full});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&summaries, &profiler, &counter}));
  ASSERT_OK(fs_->RecursivelyDelete(dir_));
  ::testing::internal::CaptureStderr();
  Train(session.get(), model, 6);
  EXPECT_OK(session->Close());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(log, "SummarySaverHook: no space left")) << log;
  EXPECT_TRUE(absl::StrContains(log, "ProfilerHook: trace of step 3 not written")) << log;
}

// --- Profiler ------------------------------------------------------------------------------------

TEST_F(EventHooksTest, AStepIsTracedEachSoManyStepsButNotTheFirst) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto writer, EventSummaryWriter::Open(dir_));
  ProfilerHook hook({.every = 3, .output_dir = JoinPath(dir_, "traces"), .writer = writer.get()});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  Train(session.get(), model, 8);
  EXPECT_OK(session->Close());
  ASSERT_OK(writer->Flush());
  EXPECT_EQ(Events(dir_), "step_4 step_7");
  ASSERT_OK_AND_ASSIGN(std::vector<std::string> files, fs_->GetChildren(JoinPath(dir_, "traces")));
  std::sort(files.begin(), files.end());
  EXPECT_EQ(absl::StrJoin(files, " "), "timeline-4.json timeline-7.json");
  ASSERT_OK_AND_ASSIGN(const std::string trace,
                       ReadFileToString(fs_, JoinPath(dir_, "traces/timeline-4.json")));
  for (const char* part : {"\"traceEvents\"", "\"AssignAddVariableOp\"", "/device:CPU:0"}) {
    EXPECT_TRUE(absl::StrContains(trace, part)) << part << " is not in " << trace;
  }
}

// --- MonitoredTrainingSession --------------------------------------------------------------------

TEST_F(EventHooksTest, AMonitoredTrainingSessionWritesEventsBesideItsCheckpoints) {
  const Model model;
  AddScalarSummary(model.root, "in", model.y);
  StopAtStepHook stop({.last_step = 5});
  MonitoredTrainingSessionOptions options;
  options.checkpoint_dir = dir_;
  options.hooks = {&stop};
  options.save_summaries_every = 2;
  options.log_step_count_every = 4;
  ASSERT_OK_AND_ASSIGN(const auto session, MonitoredTrainingSession(model.root, options));
  EXPECT_OK(session->Loop([&] {
    const Tensor x = Tensor::Scalar(static_cast<float>(++runs_));
    return session->Run({{model.x, x}}, {model.y}, {model.count}).status();
  }));
  EXPECT_EQ(Events(dir_),
            "graph CHECKPOINT@0 checkpoint/save_secs@0 START@1 in=1@1 in=3@3 global_step/sec@4 "
            "in=5@5 CHECKPOINT@5 checkpoint/save_secs@5");
}

// Nothing is closed when the files are read, as after kill -9.
TEST_F(EventHooksTest, AKilledJobHasItsCurvesUpToItsLastCheckpoint) {
  const Model model;
  AddScalarSummary(model.root, "in", model.y);
  MonitoredTrainingSessionOptions options;
  options.checkpoint_dir = dir_;
  options.save_checkpoint_every = 3;
  options.save_summaries_every = 1;
  options.log_step_count_every = 0;
  ASSERT_OK_AND_ASSIGN(const auto session, MonitoredTrainingSession(model.root, options));
  Train(session.get(), model, 4);
  const std::string events = Events(dir_);
  EXPECT_TRUE(absl::StartsWith(events,
                               "graph CHECKPOINT@0 checkpoint/save_secs@0 START@1 in=1@1 in=2@2 "
                               "in=3@3 CHECKPOINT@3 checkpoint/save_secs@3"))
      << events;
  EXPECT_OK(session->Close());
}

}  // namespace
}  // namespace millrace
