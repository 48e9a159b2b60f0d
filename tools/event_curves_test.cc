// SPDX-License-Identifier: Apache-2.0
#include "tools/event_curves.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/histogram.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "saver/event_writer.h"

// covers: events: the curve of a tag in all runs below a directory, as CSV, JSON, a table and a
//   picture; a tag that is not there, or has no scalars, names those that there are

namespace millrace {
namespace {

class EventCurvesTest : public ::testing::Test {
 protected:
  EventCurvesTest()
      : fs_(FileSystem::Posix()),
        dir_(JoinPath(::testing::TempDir(), absl::StrCat("event_curves_", RandomHexName()))) {
    EXPECT_OK(fs_->RecursivelyCreateDirectory(dir_));
  }
  ~EventCurvesTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  void Write(const std::string& run, const std::string& tag,
             const std::vector<std::pair<int64_t, float>>& values) const {
    ASSERT_OK_AND_ASSIGN(const auto writer, EventWriter::Open(JoinPath(dir_, run)));
    for (const auto& [step, value] : values) ASSERT_OK(writer->AddScalar(tag, value, step));
    ASSERT_OK(writer->Close());
  }

  FileSystem* const fs_;
  const std::string dir_;
};

// ".: 1=0.5 2=0.25; eval: 2=0.3".
std::string InWords(const EventCurves& curves) {
  return absl::StrJoin(curves.runs, "; ", [](std::string* out, const RunCurve& curve) {
    absl::StrAppend(out, curve.run, ":");
    for (const CurveEvent& event : curve.events) {
      absl::StrAppend(out, " ", event.step, "=", event.value);
    }
  });
}

TEST_F(EventCurvesTest, EachDirectoryWithTheTagIsARun) {
  Write("", "loss", {{1, 0.5f}, {2, 0.25f}});
  Write("eval", "loss", {{2, 0.75f}});
  Write("eval", "auc", {{2, 0.9f}});
  Write("a/b", "loss", {{7, 2}});
  std::error_code error;
  std::filesystem::create_directory_symlink(dir_, JoinPath(dir_, "a/loop"), error);
  ASSERT_FALSE(error) << error.message();
  ASSERT_OK_AND_ASSIGN(const EventCurves curves, ReadEventCurves(fs_, dir_, "loss"));
  EXPECT_EQ(InWords(curves), ".: 1=0.5 2=0.25; a/b: 7=2; eval: 2=0.75");
  EXPECT_TRUE(curves.damage.empty());
  ASSERT_OK_AND_ASSIGN(const auto names, fs_->GetChildren(JoinPath(dir_, "a/b")));
  ASSERT_OK_AND_ASSIGN(const EventCurves file,
                       ReadEventCurves(fs_, JoinPath(JoinPath(dir_, "a/b"), names[0]), "loss"));
  EXPECT_EQ(InWords(file), ".: 7=2");
}

TEST_F(EventCurvesTest, CsvHasEachEventAndQuotesWhatMustBe) {
  EventCurves curves = {
      .tag = "loss",
      .runs = {{".", {{1, 1500000000.25, static_cast<double>(0.1f)}, {2, 1500000001, 0.1}}},
               {"a,\"b\"", {{-3, 0, std::nan("")}, {4, 0, -HUGE_VAL}, {5, 0, 1e300}}}},
      .damage = {}};
  EXPECT_EQ(CurvesCsv(curves),
            "run,step,wall_time,value\n"
            ".,1,1500000000.250000,0.1\n"
            ".,2,1500000001.000000,0.1\n"
            "\"a,\"\"b\"\"\",-3,0.000000,nan\n"
            "\"a,\"\"b\"\"\",4,0.000000,-inf\n"
            "\"a,\"\"b\"\"\",5,0.000000,1e+300\n");
}

TEST_F(EventCurvesTest, ATableAndJsonHaveTheRuns) {
  const EventCurves curves = {.tag = "loss",
                              .runs = {{"eval", {{10, 5, 2}, {20, 6, 0.5}, {30, 7, std::nan("")}}}},
                              .damage = {}};
  EXPECT_EQ(
      CurvesText(curves),
      "loss\n"
      "run    count  steps           first         last          lowest              highest\n"
      "eval       3  10..30          2             nan           0.5@20              2@10\n");
  const nlohmann::ordered_json want = {{"tag", "loss"},
                                       {"runs",
                                        {{"eval",
                                          {{"steps", {10, 20, 30}},
                                           {"wall_times", {5.0, 6.0, 7.0}},
                                           {"values", {2.0, 0.5, "nan"}}}}}}};
  EXPECT_EQ(CurvesJson(curves), want) << CurvesJson(curves).dump();
}

TEST_F(EventCurvesTest, APictureShowsTheLastPass) {
  const std::vector<CurveEvent> events = {{1, 0, 5}, {2, 0, 4}, {3, 0, 9}, {2, 0, 3}, {3, 0, 2}};
  std::vector<std::string> steps;
  for (const CurveEvent& event : LastPass(events)) {
    steps.push_back(absl::StrCat(event.step, "=", event.value));
  }
  EXPECT_EQ(absl::StrJoin(steps, " "), "1=5 2=3 3=2");
  const EventCurves curves = {.tag = "loss", .runs = {{".", events}}, .damage = {}};
  const std::string svg = CurvesSvg(curves, "loss in <run>");
  EXPECT_NE(svg.find("loss in &lt;run&gt;"), std::string::npos) << svg;
  EXPECT_NE(svg.find("points=\"80.0,40.0 380.0,240.0 680.0,340.0\""), std::string::npos) << svg;
}

TEST_F(EventCurvesTest, ATagThatIsNotThereNamesThoseThatAre) {
  EXPECT_STATUS(ReadEventCurves(fs_, JoinPath(dir_, "nothing"), "loss"),
                absl::StatusCode::kNotFound, "nothing");
  EXPECT_STATUS(ReadEventCurves(fs_, dir_, "loss"), absl::StatusCode::kNotFound,
                "must have event files");
  Write("", "loss", {{1, 2}});
  Write("eval", "auc", {{1, 0.5f}});
  EXPECT_STATUS(
      ReadEventCurves(fs_, dir_, "los"), absl::StatusCode::kNotFound,
      absl::StrCat("'", dir_,
                   "': tag must be one of its scalars, got 'los'; there are 'auc', 'loss'"));
  {
    ASSERT_OK_AND_ASSIGN(const auto writer, EventWriter::Open(JoinPath(dir_, "w")));
    Histogram histogram;
    histogram.Add(1);
    ASSERT_OK(writer->AddHistogram("weights", histogram, 1));
    ASSERT_OK(writer->Close());
  }
  EXPECT_STATUS(ReadEventCurves(fs_, dir_, "weights"), absl::StatusCode::kInvalidArgument,
                "a curve must be of scalars, got 'weights', which has other values; of scalars "
                "there are 'auc', 'loss'");
  for (int i = 0; i < 30; ++i) Write("many", absl::StrCat("tag", i), {{1, 1}});
  EXPECT_STATUS(ReadEventCurves(fs_, dir_, "los"), absl::StatusCode::kNotFound, " and 12 more");
}

TEST_F(EventCurvesTest, DamageIsToldNextToWhatWasRead) {
  Write("", "loss", {{1, 2}});
  ASSERT_OK(WriteFileAtomically(fs_, JoinPath(dir_, "0.tfevents"), "no records, only some text"));
  ASSERT_OK_AND_ASSIGN(const EventCurves curves, ReadEventCurves(fs_, dir_, "loss"));
  EXPECT_EQ(InWords(curves), ".: 1=2");
  ASSERT_EQ(curves.damage.size(), 1u);
  EXPECT_STATUS(curves.damage[0], absl::StatusCode::kDataLoss, "0.tfevents");
  ASSERT_OK(fs_->RecursivelyCreateDirectory(JoinPath(dir_, "bad")));
  ASSERT_OK(
      WriteFileAtomically(fs_, JoinPath(dir_, "bad/0.tfevents"), "no records, only some text"));
  EXPECT_STATUS(ReadEventCurves(fs_, JoinPath(dir_, "bad"), "loss"), absl::StatusCode::kDataLoss,
                "bad/0.tfevents");
}

}  // namespace
}  // namespace millrace
