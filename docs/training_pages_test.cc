// SPDX-License-Identifier: Apache-2.0
//
// The programs of docs/control_flow.md, docs/hooks.md, docs/saving.md, docs/summaries.md,
// docs/tensors.md and layers/README.md, as they stand there.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "runtime/session.h"
#include "saver/event_reader.h"
#include "saver/event_writer.h"
#include "saver/export_model.h"
#include "saver/loaded_model.h"
#include "saver/saver.h"
#include "train/gradient_descent.h"
#include "train/hooks/hooks.h"
#include "train/hooks/monitored_training_session.h"
#include "train/summaries.h"

// covers: graphs: the program of the page on control flow: a loop with its gradient, a branch
// covers: training: the program of the page on hooks: an own hook ends the training, and its reason
//   is the session's
// covers: training: the program of the page on saving: checkpoints by hand, some variables under
//   other names, an exported model
// covers: values: the program of the page on tensors: what is written instead of what does not
//   compile, and what says "unknown" and "scalar"
// covers: events: the program of the page on summaries: those of the model, and curves by hand

namespace millrace {
namespace {

std::string NewDirectory() {
  const std::string directory = JoinPath(::testing::TempDir(), "page_" + RandomHexName());
  EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(directory));
  return directory;
}

#include "docs/control_flow_program.inc"

TEST(ControlFlowPageTest, ALoopAndABranchComputeAndTheLoopHasAGradient) {
  Scope root;
  const Output x = Placeholder(root, DT_FLOAT, PartialShape::Scalar());
  const Output n = Placeholder(root, DT_INT32, PartialShape::Scalar());
  const Output power = Power(root, x, n), absolute = Absolute(root, x);
  ASSERT_OK(root.status());
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(root, {power}, {x}));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       session->Run({{x, Tensor::Scalar(-2.0f)}, {n, Tensor::Scalar(5)}},
                                    {power, absolute, std::get<Output>(gradients[0])}));
  EXPECT_EQ(out[0].scalar<float>(), -32);
  EXPECT_EQ(out[1].scalar<float>(), 2);
  EXPECT_EQ(out[2].scalar<float>(), 80);  // 5 x^4
}

namespace hooks_page {

#include "docs/hooks_program.inc"

TEST(HooksPageTest, AnOwnHookEndsTheTrainingWithItsReason) {
  const std::string directory = NewDirectory();
  ASSERT_OK_AND_ASSIGN(const std::string why, TrainUntilSmall(directory, 1e-4f));
  EXPECT_TRUE(absl::StrContains(why, "is small enough")) << why;
  EXPECT_TRUE(LatestCheckpoint(FileSystem::Posix(), directory).has_value());
  ASSERT_OK_AND_ASSIGN(const std::string never, TrainUntilSmall(NewDirectory(), 0.0f));
  EXPECT_EQ(never, "reached step 1000 of 1000");
}

TEST(HooksPageTest, PatienceEndsAThousandStepsAfterTheBest) {
  const auto stops = [](std::vector<Evaluation> evaluations) {
    const EarlyStoppingOptions options = Patience(true, [=] { return evaluations; });
    return options.should_stop();
  };
  ASSERT_OK_AND_ASSIGN(const bool early, stops({{100, 0.5}, {1099, 0.6}}));
  EXPECT_FALSE(early);
  ASSERT_OK_AND_ASSIGN(const bool late, stops({{100, 0.5}, {1100, 0.6}}));
  EXPECT_TRUE(late);
}

}  // namespace hooks_page

namespace saving_page {

#include "docs/saving_program.inc"

TEST(SavingPageTest, WhatIsSavedIsRestoredAndExported) {
  const std::string directory = NewDirectory();
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint, SaveLine(directory));
  EXPECT_EQ(checkpoint, JoinPath(directory, "model.ckpt-7"));
  for (const char* file : {"model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001",
                           "model.ckpt-7.meta", "checkpoint"}) {
    EXPECT_TRUE(FileSystem::Posix()->FileExists(JoinPath(directory, file))) << file;
  }
  ASSERT_OK_AND_ASSIGN(const float restored, RestoredLine(directory));
  EXPECT_EQ(restored, 31);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> some, RestoredSlope(checkpoint));
  EXPECT_EQ(some[0].scalar<float>(), 3);
  EXPECT_EQ(some[1].scalar<float>(), 5);
  const std::string model = JoinPath(directory, "exported");
  ASSERT_OK(ExportLine(checkpoint, model));
  ASSERT_OK_AND_ASSIGN(const float predicted, Predicted(model));
  EXPECT_EQ(predicted, 31);
  EXPECT_FALSE(RestoredLine(NewDirectory()).ok()) << "there is no checkpoint";
}

}  // namespace saving_page

namespace summaries_page {

#include "docs/summaries_program.inc"

// Of each tag, how many values there are.
std::map<std::string, int> TagsIn(const std::string& directory) {
  std::map<std::string, int> tags;
  auto reader = EventReader::Open(FileSystem::Posix(), directory);
  EXPECT_OK(reader.status());
  while (reader.ok()) {
    const StatusOr<tensorflow::Event> event = (*reader)->Next();
    if (!event.ok()) break;
    for (const auto& value : event->summary().value()) ++tags[value.tag()];
  }
  return tags;
}

TEST(SummariesPageTest, ASessionWritesWhatTheModelShows) {
  const std::string directory = NewDirectory();
  ASSERT_OK(TrainWithCurves(directory));
  std::map<std::string, int> tags = TagsIn(directory);
  EXPECT_GE(tags["error"], 10);
  EXPECT_EQ(tags["weights"], tags["error"]);
}

TEST(SummariesPageTest, ALoopOfOnesOwnWritesThemByHand) {
  const std::string directory = NewDirectory();
  ASSERT_OK(TrainByHand(directory));
  EXPECT_EQ(TagsIn(directory),
            (std::map<std::string, int>{{"error", 50}, {"loss_by_hand", 50}, {"weights", 50}}));
}

}  // namespace summaries_page

namespace tensors_page {

#include "docs/tensors_program.inc"

TEST(TensorsPageTest, TensorsHaveTheShapesThatThePageSays) {
  EXPECT_EQ(kRate.shape(), Shape());
  EXPECT_EQ(kWords.flat<std::string>()[1], "shoes");
  EXPECT_EQ(kTable.at<float>(1, 2), 0.3f);
  ASSERT_OK_AND_ASSIGN(const Tensor rows, Rows(2));
  ExpectTensorEqual(rows, TensorOf<float>({2, 3}, {0, 0.5f, 1, 1.5f, 2, 2.5f}));
  ASSERT_OK_AND_ASSIGN(const Tensor column, ColumnOf({4, 5}));
  ExpectTensorEqual(column, TensorOf<float>({2, 1}, {4, 5}));
}

TEST(TensorsPageTest, BracesOfNothingAreUnknownAndAScalarIsSaid) {
  Scope model;
  const Inputs made = MakeInputs(model, 3, 2);
  ASSERT_OK(model.status());
  EXPECT_EQ(model.shape(made.batch).ToString(), "[?,3]");
  EXPECT_EQ(model.shape(made.rate).ToString(), "[]");
  EXPECT_EQ(model.shape(made.anything).ToString(), "<unknown>");
  EXPECT_EQ(model.shape(made.weights.value).ToString(), "[3,2]");
  // What the table says does not compile.
  EXPECT_FALSE((std::is_convertible_v<std::initializer_list<int64_t>, Shape>));
  EXPECT_TRUE((std::is_convertible_v<std::initializer_list<int64_t>, PartialShape>));
}

}  // namespace tensors_page

#include "docs/layers_program.inc"

TEST(LayersPageTest, ALayerKnowsItsVariables) {
  Scope model;
  Output penalty;
  const Output logits = SmallNetwork(model, Placeholder(model, DT_FLOAT, {-1, 4, 4}), &penalty);
  ASSERT_OK(model.status());
  EXPECT_EQ(model.shape(logits).ToString(), "[?,10]");
  EXPECT_EQ(model.shape(penalty).ToString(), "[]");
  std::vector<std::string> names;
  for (const Variable& variable : VariablesOf(model)) names.push_back(variable.name);
  EXPECT_EQ(names, (std::vector<std::string>{"dense/kernel", "dense/bias", "logits/kernel",
                                             "logits/bias"}));
}

}  // namespace
}  // namespace millrace
