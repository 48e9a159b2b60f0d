// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/fine_tuning.md, as it stands there.

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
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/loaded_model.h"
#include "saver/meta_graph.h"
#include "saver/saver.h"
#include "train/adam.h"

// covers: values: the page on fine-tuning: a model with reference variables goes on from its
//   checkpoint and is exported

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
}

}  // namespace
}  // namespace millrace
