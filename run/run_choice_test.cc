// SPDX-License-Identifier: Apache-2.0
#include "run/run_choice.h"

#include <utility>

#include "gtest/gtest.h"
#include "run/training_run.h"

namespace millrace {
namespace {

struct Options {
  int before = 0;
  RunChoice run = {};
};

TEST(RunChoiceTest, NoRunIsAnEmptyOne) {
  const RunChoice none;
  EXPECT_TRUE(none->empty());
  EXPECT_EQ(none->name, "");
}

TEST(RunChoiceTest, OptionsTakeARunAndItsFields) {
  const TrainingRun given = {.name = "a", .id = "1"};
  const Options options = {.run = given};
  EXPECT_EQ(options.run->id, "1");
  Options named;
  named.run = {.name = "job7"};
  EXPECT_EQ(named.run->name, "job7");
  named.run->id = "2";
  EXPECT_EQ((*named.run).id, "2");
}

TEST(RunChoiceTest, ACopyIsARunOfItsOwnAndAMovedChoiceIsNone) {
  RunChoice first = TrainingRun{.name = "a"};
  RunChoice copy = first;
  copy->name = "b";
  EXPECT_EQ(first->name, "a");
  first = copy;
  copy->name = "c";
  EXPECT_EQ(first->name, "b");
  const RunChoice moved = std::move(first);
  EXPECT_EQ(moved->name, "b");
  first = RunChoice();
  EXPECT_TRUE(first->empty());
  RunChoice& same = copy;
  copy = same;
  EXPECT_EQ(copy->name, "c");
}

}  // namespace
}  // namespace millrace
