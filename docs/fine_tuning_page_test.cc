// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/fine_tuning.md, as it stands there.

#include <cstdint>
#include <string>
#include <utility>

#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "runtime/session.h"
#include "saver/asset_paths.h"
#include "saver/export_model.h"
#include "saver/load_plan.h"
#include "saver/loaded_model.h"
#include "saver/meta_graph.h"
#include "saver/saved_model_reader.h"
#include "saver/saver.h"
#include "saver/signature_outputs.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/train.h"

// covers: values: the page on fine-tuning: a model with reference variables goes on from its
//   checkpoint and is exported
// covers: values: the page on fine-tuning: a SavedModel with a vocabulary, moved elsewhere, is
//   trained on by Train, goes on from the run's own checkpoint, and is exported

namespace millrace {
namespace {

#include "docs/fine_tuning_program.inc"

TEST(FineTuningPageTest, AModelGoesOnFromItsCheckpoint) {
  const std::string dir = JoinPath(::testing::TempDir(), "fine_tuning_" + RandomHexName());
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir));
  std::string checkpoint;
  {
    // y = 3 x, as a program of TensorFlow 1.x would have it.
    Scope root;
    const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 1});
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 3.0f), {.use_resource = false});
    const Variable b = MakeVariable(root.WithName("b"), Const(root, 0.0f), {.use_resource = false});
    Identity(root.WithName("y"), Add(root, Mul(root, x, w.value), b.value));
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(root));
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}));
    ASSERT_OK_AND_ASSIGN(checkpoint, saver->Save(session.get(), JoinPath(dir, "model.ckpt"), 7));
  }
  const Tensor xs = Tensor::Of<float>({{-1}, {0}, {1}, {2}});
  const Tensor ys = Tensor::Of<float>({{-3}, {1}, {5}, {9}});  // 4 x + 1
  const std::string model = JoinPath(dir, "model");
  const auto predicted = [&](int steps) -> StatusOr<float> {
    const std::string to = model + std::to_string(steps);
    MR_RETURN_IF_ERROR(FineTune(checkpoint, xs, ys, steps, to));
    MR_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(to));
    MR_ASSIGN_OR_RETURN(NamedTensors out, loaded.Predict({{"x", Tensor::Of<float>({{10}})}}));
    return out.at("y").flat<float>()[0];
  };
  ASSERT_OK_AND_ASSIGN(const float before, predicted(0));
  EXPECT_EQ(before, 30) << "what was restored";
  ASSERT_OK_AND_ASSIGN(const float after, predicted(1000));
  EXPECT_NEAR(after, 41, 0.5f);
  EXPECT_STATUS(FineTune("no checkpoint", xs, ys, 1, model + "0"),
                absl::StatusCode::kFailedPrecondition, "must be new or empty")
      << "the export is looked at first";
}

TEST(FineTuningPageTest, ASavedModelGoesOnWithItsTables) {
  const std::string dir = JoinPath(::testing::TempDir(), "saved_model_" + RandomHexName());
  FileSystem* const files = FileSystem::Posix();
  ASSERT_OK(files->RecursivelyCreateDirectory(dir));
  const std::string model = JoinPath(dir, "model"), run = JoinPath(dir, "run");
  {
    const std::string vocabulary = JoinPath(dir, "colours.txt");
    ASSERT_OK(WriteFileAtomically(files, vocabulary, "red\ngreen\nblue\n"));
    Scope root;
    const Output words = Placeholder(root.WithName("words"), DT_STRING, {-1});
    const IndexTable ids = IndexTableFromFile(root, vocabulary);
    const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 2, 7}));
    const Output scores = Gather(root.WithName("scores"), w.value, Lookup(root, ids, words));
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}));
    const std::string made = JoinPath(dir, "made");
    ASSERT_OK(ExportModel(session.get(), root,
                          {.inputs = {{"words", words}}, .outputs = {{"scores", scores}}}, made));
    // The model is all that is left, and elsewhere.
    ASSERT_OK(files->RenameFile(made, model));
    ASSERT_OK(files->DeleteFile(vocabulary));
  }
  const Tensor words = Tensor::Vector<std::string>({"red", "green"});
  const Tensor wanted = Tensor::Of<float>({5, -1});
  ASSERT_OK_AND_ASSIGN(const float error, ErrorOf(model, words, wanted));
  EXPECT_EQ(error, 12.5f) << "((1 - 5)^2 + (2 + 1)^2) / 2";

  // A step takes a tenth of the way to the wanted scores: 4 * 0.9^n and 3 * 0.9^n are left.
  const struct {
    int64_t steps, own_steps;
    float red, green;
  } kRuns[] = {{10, 10, 3.605286f, 0.046035f}, {30, 20, 4.830435f, -0.872827f}};
  for (const auto& [steps, own_steps, red, green] : kRuns) {
    const std::string to = JoinPath(dir, "after" + std::to_string(steps));
    ASSERT_OK_AND_ASSIGN(const TrainResult trained, TrainOn(model, words, wanted, steps, run, to));
    EXPECT_EQ(trained.own_steps, own_steps) << "the second one goes on from the first one's end";
    ASSERT_OK_AND_ASSIGN(const LoadedModel loaded, LoadModel(to));
    ASSERT_OK_AND_ASSIGN(
        NamedTensors out,
        loaded.Predict({{"words", Tensor::Vector<std::string>({"blue", "red", "green"})}}));
    const auto scores = out.at("scores").flat<float>();
    EXPECT_EQ(scores[0], 7) << "what was restored, and no row of the training";
    EXPECT_NEAR(scores[1], red, 1e-4f);
    EXPECT_NEAR(scores[2], green, 1e-4f);
  }
}

}  // namespace
}  // namespace millrace
