// SPDX-License-Identifier: Apache-2.0
//
// Lists of models and their labels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "serving/model_versions.h"
#include "serving/servable.h"
#include "serving/testing/model_versions_testing.h"
#include "serving/version_source.h"

namespace millrace {
namespace {

// covers: serving: a new list of models is taken as a whole or not at all
TEST_F(ModelVersionsTest, ListOfModelsIsTakenAsAWholeOrNotAtAll) {
  StartWithOne();
  Write("n", 5);
  ModelSettings relative = Settings("n");
  relative.base_path = "models/n";
  ModelSettings labelled = Settings("n");
  labelled.labels = {{"stable", 5}};
  const struct {
    std::vector<ModelSettings> list;
    absl::StatusCode code;
    std::string text;
  } rows[] = {
      {{Settings("n"), Settings("n")},
       absl::StatusCode::kInvalidArgument,
       "Illegal to list model n multiple times in config list"},
      {{Settings("n"), relative},
       absl::StatusCode::kInvalidArgument,
       "Illegal to list model n multiple times in config list"},
      {{relative},
       absl::StatusCode::kInvalidArgument,
       "Expected model n to have an absolute path or URI; got base_path()=models/n"},
      {{Settings("o"), labelled},
       absl::StatusCode::kFailedPrecondition,
       "Request to assign label to version 5 of model n, which is not currently available for "
       "inference"},
      {{Settings("n"), Settings("")}, absl::StatusCode::kInvalidArgument, ""},
  };
  for (const auto& row : rows) {
    const Status status = versions_->SetModels(row.list);
    EXPECT_EQ(status.code(), row.code);
    if (!row.text.empty()) {
      EXPECT_EQ(status.message(), row.text);
    }
    versions_->Poll();
    ASSERT_EQ(versions_->models().size(), 1u);
    EXPECT_EQ(versions_->models()[0].name, "m");
    EXPECT_EQ(Latest("m"), 1);
    EXPECT_EQ(versions_->GetStatuses().size(), 1u);
  }
  EXPECT_EQ(world_->num_loads("n/5"), 0);

  EXPECT_OK(versions_->SetModels({Settings("n")}));
  AwaitVersion("m", 1, State::kEnded);
  EXPECT_EQ(Latest("m"), 0);
  versions_->Poll();
  AwaitVersion("n", 5, State::kAvailable);
  // What ended is still in the status.
  EXPECT_EQ(StatusOf("m", 1).state, State::kEnded);
  ASSERT_EQ(versions_->GetStatuses().size(), 2u);
  EXPECT_FALSE(versions_->GetStatuses()[0].is_listed);
  EXPECT_TRUE(versions_->GetStatuses()[1].is_listed);
}

// covers: serving: labels name available versions; a label moves only to one
TEST_F(ModelVersionsTest, LabelsNameAvailableVersions) {
  Write("m", 1);
  Write("m", 2);
  Start();
  ModelSettings settings = AllOf("m");
  EXPECT_OK(versions_->SetModels({settings}));
  versions_->Poll();
  AwaitVersion("m", 1, State::kAvailable);
  AwaitVersion("m", 2, State::kAvailable);
  const auto labelled = [&](absl::string_view label) -> int64_t {
    const StatusOr<ModelVersions::Pin> pin = versions_->GetLabelled("m", label);
    return pin.ok() ? pin->version() : 0;
  };
  settings.labels = {{"stable", 1}, {"canary", 2}};
  EXPECT_OK(versions_->SetModels({settings}));
  EXPECT_EQ(labelled("stable"), 1);
  EXPECT_EQ(labelled("canary"), 2);

  settings.labels = {{"stable", 2}, {"canary", 3}};
  EXPECT_STATUS(versions_->SetModels({settings}), absl::StatusCode::kFailedPrecondition,
                "Request to assign label to version 3 of model m");
  EXPECT_EQ(labelled("stable"), 1);
  EXPECT_EQ(labelled("canary"), 2);

  settings.labels = {{"stable", 2}};
  EXPECT_OK(versions_->SetModels({settings}));
  EXPECT_EQ(labelled("stable"), 2);
  EXPECT_STATUS(versions_->GetLabelled("m", "canary").status(), absl::StatusCode::kInvalidArgument,
                "Unrecognized servable version label: canary");
  // Both versions are still the ones that were loaded first.
  EXPECT_EQ(world_->num_loads("m/1"), 1);
  EXPECT_EQ(world_->num_loads("m/2"), 1);
}

// covers: serving: a reload is one operation: labelled versions of the old list serve until those
// of
//   the new one do, and after an error the old list is as before
TEST_F(ModelVersionsTest, ReloadKeepsLabelledVersionsUntilTheNewOnesServe) {
  StartWithOne();
  const auto label = [&]() -> int64_t {
    const StatusOr<ModelVersions::Pin> pin = versions_->GetLabelled("m", "stable");
    return pin.ok() ? pin->version() : 0;
  };
  ModelSettings before = Settings("m");
  before.labels = {{"stable", 1}};
  EXPECT_OK(versions_->SetModels({before}));
  const auto door = std::make_shared<Door>();
  world_->Set("m/3", {.at_load = door});
  Write("m", 3);
  ModelSettings after = Settings("m", VersionPolicy::Kind::kSpecific);
  after.policy.specific = {3};
  after.labels = {{"stable", 3}};
  Status reloaded = absl::UnknownError("");
  std::thread reload([&] {
    reloaded = versions_->Reload({after, Settings("n")}, absl::InfiniteFuture());
  });
  door->AwaitVisitor();
  EXPECT_EQ(label(), 1);
  // The old list until then; nothing else changes it.
  ASSERT_EQ(versions_->models().size(), 1u);
  EXPECT_EQ(versions_->models()[0].policy.kind, VersionPolicy::Kind::kLatest);
  EXPECT_STATUS(versions_->Reload({}, absl::InfiniteFuture()), absl::StatusCode::kUnavailable,
                "is being reloaded");
  EXPECT_STATUS(versions_->SetModels({}), absl::StatusCode::kUnavailable, "is being reloaded");
  door->Open();
  reload.join();
  // That "n" has no base path is no error of the list.
  EXPECT_OK(reloaded);
  EXPECT_EQ(label(), 3);
  EXPECT_EQ(versions_->models().size(), 2u);
  AwaitVersion("m", 1, State::kEnded);
}

TEST_F(ModelVersionsTest, RefusedReloadLeavesEverythingAsItWas) {
  StartWithOne();
  ModelSettings before = Settings("m");
  before.labels = {{"stable", 1}};
  EXPECT_OK(versions_->SetModels({before}));
  Write("n", 7);
  ModelSettings other = Settings("m", VersionPolicy::Kind::kSpecific);
  other.policy.specific = {2};
  ModelSettings labelled = Settings("n");
  labelled.labels = {{"stable", 9}};
  EXPECT_STATUS(versions_->Reload({other, labelled}, absl::InfiniteFuture()),
                absl::StatusCode::kFailedPrecondition,
                "Request to assign label to version 9 of model n, which is not currently");
  EXPECT_STATUS(versions_->Reload({other, other}, absl::InfiniteFuture()),
                absl::StatusCode::kInvalidArgument, "multiple times");
  // What it brought goes; what was there never went.
  AwaitVersion("n", 7, State::kEnded);
  EXPECT_EQ(world_->num_loads("n/7"), 1);
  EXPECT_EQ(world_->num_loads("m/1"), 1);
  ASSERT_OK_AND_ASSIGN(const ModelVersions::Pin pin, versions_->GetLabelled("m", "stable"));
  EXPECT_EQ(pin.version(), 1);
  ASSERT_EQ(versions_->models().size(), 1u);
  EXPECT_EQ(versions_->models()[0].policy.kind, VersionPolicy::Kind::kLatest);

  // At the deadline the labels must be right.
  const auto door = std::make_shared<Door>();
  world_->Set("n/7", {.at_load = door});
  labelled.labels = {{"stable", 7}};
  EXPECT_STATUS(versions_->Reload({other, labelled}, clock_.Now()),
                absl::StatusCode::kFailedPrecondition, "version 7 of model n");
  AwaitVersion("n", 7, State::kEnded);
  EXPECT_EQ(Latest("m"), 1);
}

TEST_F(ModelVersionsTest, NewLabelsMayNameVersionsThatAreNotAvailableWhereAllowed) {
  ModelVersions::Options options = Options();
  options.allow_labels_of_unavailable = true;
  StartWithOne(std::move(options));
  ModelSettings settings = Settings("m");
  settings.labels = {{"next", 2}};
  EXPECT_OK(versions_->SetModels({settings}));
  EXPECT_STATUS(versions_->GetLabelled("m", "next").status(), absl::StatusCode::kNotFound,
                "Servable not found for request: Specific(m, 2)");
  settings.labels = {{"next", 3}};
  EXPECT_STATUS(versions_->SetModels({settings}), absl::StatusCode::kFailedPrecondition,
                "version 3 of model m");
  Write("m", 2);
  versions_->Poll();
  AwaitVersion("m", 2, State::kAvailable);
  ASSERT_OK_AND_ASSIGN(const ModelVersions::Pin pin, versions_->GetLabelled("m", "next"));
  EXPECT_EQ(pin.version(), 2);
}

}  // namespace
}  // namespace millrace
