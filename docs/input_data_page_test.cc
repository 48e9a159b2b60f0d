// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/input_data.md, as it stands there.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/initializable_iterator.h"
#include "estimator/run_config.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/clip_gradients.h"
#include "train/gradient_descent.h"
#include "train/hooks/hooks.h"
#include "train/hooks/monitored_training_session.h"

// covers: input: the page's program: rows of a CSV file by an iterator and in steps of a graph; bad
//   rows are left out and counted; each session of a training begins the data; each trainer of
//   TF_CONFIG reads its own part

namespace millrace {
namespace {

#include "docs/input_data_program.inc"

// Four rows, one of them bad. An age that is missing is 40; "old" is none.
std::string FileOfVisits() {
  const std::string file = JoinPath(::testing::TempDir(), RandomHexName() + ".csv");
  EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), file,
                                "age,city,clicked\n20,Rome,1\n,Oslo,0\nold,Rome,0\n41,Bern,1\n"));
  return file;
}

TEST(InputDataPageTest, RowsOfAFileAreReadByAnIteratorAndInAGraph) {
  const std::string file = FileOfVisits();
  int64_t bad = 0;
  ASSERT_OK_AND_ASSIGN(const float by_hand, SumOfAges(Visits(file), &bad));
  EXPECT_EQ(by_hand, 101);
  EXPECT_EQ(bad, 1);
  ASSERT_OK_AND_ASSIGN(const float in_graph, SumInSteps(Visits(file)));
  EXPECT_EQ(in_graph, 101);
}

TEST(InputDataPageTest, EachSessionBeginsTheData) {
  const std::string directory = JoinPath(::testing::TempDir(), "visits_" + RandomHexName());
  // 12 rows by twos, each time.
  const data::Dataset visits = Visits(FileOfVisits()).Repeat(4);
  for (const char* end : {"-6", "-12"}) {
    ASSERT_OK(TrainOnVisits(visits, directory));
    const auto last = LatestCheckpoint(FileSystem::Posix(), directory);
    ASSERT_TRUE(last.has_value());
    EXPECT_TRUE(absl::EndsWith(*last, end)) << *last;
  }
}

TEST(InputDataPageTest, EachTrainerReadsItsOwnPart) {
  using Names = std::vector<std::string>;
  const Names files = {"a", "b", "c", "d", "e"};
  const data::Dataset visits = Visits(FileOfVisits());
  const std::string cluster =
      R"({"cluster": {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}, "task": )";
  const std::string alone = "";
  const struct {
    std::string tf_config;
    Names files;
    float sum_of_ages;
  } kTasks[] = {
      {alone, files, 101},
      {cluster + R"({"type": "chief", "index": 0}})", {"a", "d"}, 20},
      {cluster + R"({"type": "worker", "index": 0}})", {"b", "e"}, 40},
      {cluster + R"({"type": "worker", "index": 1}})", {"c"}, 41},
      {cluster + R"({"type": "evaluator", "index": 0}})", files, 101},
  };
  for (const auto& task : kTasks) {
    ASSERT_OK_AND_ASSIGN(const RunConfig config, RunConfig::Make({}, task.tf_config));
    EXPECT_EQ(FilesOf(files, config), task.files) << task.tf_config;
    int64_t bad = 0;
    ASSERT_OK_AND_ASSIGN(const float sum, SumOfAges(RowsOf(visits, config), &bad));
    EXPECT_EQ(sum, task.sum_of_ages) << task.tf_config;
  }
}

}  // namespace
}  // namespace millrace
