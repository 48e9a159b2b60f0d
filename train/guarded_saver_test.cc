// SPDX-License-Identifier: Apache-2.0
#include "train/guarded_saver.h"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/saver.pb.h"
#include "run/training_run.h"

// covers: training: one Saver for all threads of a chief, with every option of a save; a failure
//   hides no later success, and a success no later failure

namespace millrace {
namespace {

using absl::StatusCode;

// Notes each call; saves fail with the errors in `failures`.
class NotingSaver : public Saver {
 public:
  StatusOr<std::string> Save(Session*, const std::string& prefix,
                             std::optional<int64_t> step) override {
    calls.push_back(absl::StrCat("Save ", prefix, " ", step.value_or(-1)));
    if (during_save) during_save();
    Status status;
    if (!failures.empty()) {
      status = failures.front();
      failures.pop_front();
    }
    if (!status.ok()) return status;
    return absl::StrCat(prefix, "-", step.value_or(-1));
  }
  StatusOr<std::string> SaveAs(Session*, const std::string& prefix, std::optional<int64_t> step,
                               const SaveOptions& options) override {
    calls.push_back(absl::StrCat("SaveAs ", options.meta_graph_suffix));
    return absl::StrCat(prefix, "-", step.value_or(-1));
  }
  Status Build() override {
    calls.push_back("Build");
    return absl::OkStatus();
  }
  Status Restore(Session*, const std::string& checkpoint) override {
    calls.push_back(absl::StrCat("Restore ", checkpoint));
    return absl::OkStatus();
  }
  StatusOr<CheckpointDifference> Compare(const std::string& checkpoint) override {
    calls.push_back(absl::StrCat("Compare ", checkpoint));
    return CheckpointDifference();
  }
  void SetRunId(const std::string& id) override { calls.push_back(absl::StrCat("SetRunId ", id)); }
  Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
    calls.push_back(absl::StrCat("RecoverLastCheckpoints ", absl::StrJoin(paths, ",")));
    return absl::OkStatus();
  }
  std::vector<std::string> last_checkpoints() const override { return {"one"}; }
  std::vector<TimedCheckpoint> last_checkpoints_with_time() const override { return {{"one", 7}}; }
  Status SetLastCheckpointsWithTime(std::vector<TimedCheckpoint> checkpoints) override {
    calls.push_back(absl::StrCat("SetLastCheckpointsWithTime ", checkpoints[0].path));
    return absl::OkStatus();
  }
  const tensorflow::SaverDef& def() const override { return def_; }

  std::vector<std::string> calls;
  std::deque<Status> failures;
  std::function<void()> during_save;

 private:
  tensorflow::SaverDef def_;
};

Status Always() { return absl::OkStatus(); }

StatusOr<std::optional<int64_t>> NoStep() { return std::optional<int64_t>(); }
Status AsItIs(const Status& status) { return status; }

TEST(GuardedSaverTest, EverythingOfASaverReachesTheOneUnderneath) {
  NotingSaver under;
  GuardedSaver saver("Test", &under, Always);
  EXPECT_OK(saver.Build());
  EXPECT_OK(saver.Save(nullptr, "m", 3).status());
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       saver.SaveAs(nullptr, "m", 4, {.meta_graph_suffix = "graph"}));
  EXPECT_EQ(path, "m-4");
  EXPECT_OK(saver.Restore(nullptr, "m-3"));
  EXPECT_OK(saver.Compare("m-3"));
  saver.SetRunId("id");
  EXPECT_OK(saver.RecoverLastCheckpoints({"a", "b"}));
  EXPECT_OK(saver.SetLastCheckpointsWithTime({{"c", 1}}));
  EXPECT_EQ(absl::StrJoin(under.calls, "; "),
            "Build; Save m 3; SaveAs graph; Restore m-3; Compare m-3; SetRunId id; "
            "RecoverLastCheckpoints a,b; SetLastCheckpointsWithTime c");
  EXPECT_EQ(saver.last_checkpoints(), std::vector<std::string>{"one"});
  ASSERT_EQ(saver.last_checkpoints_with_time().size(), 1u);
  EXPECT_EQ(saver.last_checkpoints_with_time()[0].time_s, 7);
  EXPECT_EQ(&saver.def(), &under.def());
}

TEST(GuardedSaverTest, SaveAndSaveAsAreRefusedWhereTheDirectoryIsAnothers) {
  NotingSaver under;
  GuardedSaver saver("Test", &under, [] { return FencedError("Test", {.name = "run"}, "other"); });
  for (const Status& refused : {saver.Save(nullptr, "m", 1).status(),
                                saver.SaveAs(nullptr, "m", 1, SaveOptions()).status()}) {
    EXPECT_TRUE(IsFenced(refused)) << refused;
  }
  EXPECT_TRUE(under.calls.empty());
}

TEST(GuardedSaverTest, ASaveThatFailsBecauseOfANewerChiefIsFenced) {
  NotingSaver under;
  bool has_come = false;
  under.during_save = [&] { has_come = true; };
  under.failures = {absl::NotFoundError("part-0 is gone")};
  GuardedSaver saver("Test", &under, [&] {
    return has_come ? FencedError("Test", {.name = "run"}, "other") : absl::OkStatus();
  });
  const Status failed = saver.Save(nullptr, "m", 1).status();
  EXPECT_TRUE(IsFenced(failed)) << failed;
}

TEST(GuardedSaverTest, LastSavedIsTheCheckpointThatTheStateFileNames) {
  NotingSaver under;
  FakeClock clock;
  under.during_save = [&] { clock.Advance(absl::Seconds(3)); };
  GuardedSaver saver("Test", &under, Always, &clock);
  EXPECT_EQ(saver.last_saved(), "");
  EXPECT_OK(saver.Save(nullptr, "m", 1).status());
  EXPECT_EQ(saver.last_saved(), "m-1");
  EXPECT_EQ(saver.last_took(), absl::Seconds(3));
  EXPECT_OK(saver.SaveAs(nullptr, "m", 2, {.write_state = false}).status());
  EXPECT_OK(saver.SaveAs(nullptr, "m", 3, {.latest_filename = "best"}).status());
  EXPECT_EQ(saver.last_saved(), "m-1");
  EXPECT_OK(saver.SaveAs(nullptr, "m", 4, {.write_meta_graph = false}).status());
  EXPECT_EQ(saver.last_saved(), "m-4");
}

TEST(GuardedSaverTest, AFailureIsKeptUntilASaveThatComesAfterIt) {
  NotingSaver under;
  GuardedSaver saver("Test", &under, Always);
  under.failures = {absl::UnavailableError("first"), absl::UnavailableError("second"),
                    absl::UnavailableError("third")};
  // Save reports its failure to the caller and does not keep it.
  EXPECT_STATUS(saver.Save(nullptr, "m", 1).status(), StatusCode::kUnavailable, "first");
  EXPECT_OK(saver.failure());
  EXPECT_STATUS(saver.SaveAndKeepFailure(nullptr, "m", NoStep, AsItIs).status(),
                StatusCode::kUnavailable, "second");
  EXPECT_STATUS(saver.failure(), StatusCode::kUnavailable, "second");
  EXPECT_EQ(saver.failures(), 1);
  // A save without a state file is not the latest checkpoint: the failure stays.
  EXPECT_OK(saver.SaveAs(nullptr, "m", 1, {.write_state = false}).status());
  EXPECT_STATUS(saver.failure(), StatusCode::kUnavailable, "second");
  EXPECT_STATUS(
      saver.SaveAndKeepFailure(nullptr, "m", NoStep, [](const Status&) { return absl::OkStatus(); })
          .status(),
      StatusCode::kUnavailable, "third");
  EXPECT_STATUS(saver.failure(), StatusCode::kUnavailable, "second");
  saver.ForgetFailures(0);
  EXPECT_STATUS(saver.failure(), StatusCode::kUnavailable, "second");
  saver.ForgetFailures(1);
  EXPECT_OK(saver.failure());
  EXPECT_STATUS(saver
                    .SaveAndKeepFailure(
                        nullptr, "m",
                        []() -> StatusOr<std::optional<int64_t>> {
                          return absl::UnavailableError("no step");
                        },
                        AsItIs)
                    .status(),
                StatusCode::kUnavailable, "no step");
  EXPECT_STATUS(saver.failure(), StatusCode::kUnavailable, "no step");
  EXPECT_OK(saver.Save(nullptr, "m", 2).status());
  EXPECT_OK(saver.failure());
}

// A save waits behind one that fails. It finds that failure kept, and its own success comes later.
TEST(GuardedSaverTest, AFailureIsKeptBeforeTheNextSaveBegins) {
  NotingSaver under;
  GuardedSaver saver("Test", &under, Always);
  under.failures = {absl::UnavailableError("full")};
  Status seen;  // by the second save
  std::thread second;
  Notification second_ended;
  EXPECT_FALSE(saver
                   .SaveAndKeepFailure(nullptr, "m", NoStep,
                                       [&](const Status& why) {
                                         under.during_save = [&] { seen = saver.failure(); };
                                         second = std::thread([&] {
                                           EXPECT_OK(saver.Save(nullptr, "m", 2).status());
                                           second_ended.Notify();
                                         });
                                         // Time for the second save to overtake, if it could.
                                         second_ended.WaitFor(absl::Milliseconds(50));
                                         return why;
                                       })
                   .ok());
  second.join();
  EXPECT_STATUS(seen, StatusCode::kUnavailable, "full");
  EXPECT_OK(saver.failure());
}

TEST(GuardedSaverTest, AnObserverHearsOfTheSavesThatCountAndOfNoOthers) {
  NotingSaver under;
  GuardedSaver saver("Test", &under, Always);
  std::vector<std::string> heard;
  saver.Observe(
      {.begins =
           [&](const std::string& path, const std::vector<std::string>& kept) {
             heard.push_back(absl::StrCat("begins ", path, " after ", absl::StrJoin(kept, ",")));
           },
       .ended =
           [&](const std::string& path, int64_t step, const Status& status) {
             // It may ask the saver what was written.
             if (status.ok()) {
               EXPECT_EQ(saver.last_saved(), path);
             }
             heard.push_back(absl::StrCat(status.ok() ? "wrote " : "lost ", path, " ", step));
           }});
  ASSERT_OK(saver.Save(nullptr, "m", 3).status());
  under.failures = {absl::UnavailableError("full")};
  EXPECT_FALSE(saver.Save(nullptr, "m", 4).ok());
  ASSERT_OK(saver.SaveAs(nullptr, "own", 5, {.write_state = false}).status());
  ASSERT_OK(saver.SaveAs(nullptr, "other", 6, {.latest_filename = "best"}).status());
  ASSERT_OK(saver.SaveAs(nullptr, "m", 7, SaveOptions()).status());
  EXPECT_EQ(absl::StrJoin(heard, ", "),
            "begins m-3 after one, wrote m-3 3, begins m-4 after one, lost m-4 4, "
            "begins m-7 after one, wrote m-7 7");
}

}  // namespace
}  // namespace millrace
