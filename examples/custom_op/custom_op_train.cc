// SPDX-License-Identifier: Apache-2.0
// custom_op_train: fits a sine with a small network whose activation is an op of its own.
//
//   custom_op_train                        the op is linked into the program
//   custom_op_train --op_library=gelu.so   the op is loaded (a build without it:
//   custom_op_train_bare)

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "examples/custom_op/gelu.h"
#include "graph/scope.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "runtime/op_library.h"
#include "runtime/session.h"
#include "train/adam.h"

ABSL_FLAG(std::string, op_library, "", "shared library that has the op; empty: it is linked");
ABSL_FLAG(bool, approximate, false, "the tanh form of the op");
ABSL_FLAG(int, steps, 400, "of training");

namespace millrace {
namespace {

Status Train() {
  if (const std::string library = absl::GetFlag(FLAGS_op_library); !library.empty()) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> ops, LoadOpLibrary(library));
    for (const std::string& op : ops) std::fprintf(stderr, "Loaded op %s\n", op.c_str());
  }
  Scope root;
  root.SetGraphSeed(1);
  const custom_op::GeluAttrs form = {.approximate = absl::GetFlag(FLAGS_approximate)};
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 1});
  const Output y = Placeholder(root.WithName("y"), DT_FLOAT, {-1, 1});
  const Output hidden = custom_op::Gelu(root, Dense(root.WithName("hidden"), x, 32), form);
  const Output deeper = custom_op::Gelu(root, Dense(root.WithName("deeper"), hidden, 32), form);
  const Output predicted = Dense(root.WithName("output"), deeper, 1);
  const Output loss = ReduceMean(root.WithName("loss"), Square(root, Sub(root, predicted, y)));
  const Operation train = AdamOptimizer({.learning_rate = 0.01}).Minimize(root, loss);
  const Operation init = GlobalVariablesInitializer(root);

  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  constexpr int64_t kPoints = 128;
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({kPoints, 1}));
  std::vector<float> points, values;
  for (int64_t i = 0; i < kPoints; ++i) {
    points.push_back(2 * static_cast<float>(i) / (kPoints - 1) - 1);
    values.push_back(std::sin(3 * points.back()));
  }
  MR_ASSIGN_OR_RETURN(const Tensor inputs, Tensor::FromValues<float>(shape, points));
  MR_ASSIGN_OR_RETURN(const Tensor targets, Tensor::FromValues<float>(shape, values));
  const int steps = absl::GetFlag(FLAGS_steps);
  for (int step = 0; step <= steps; ++step) {
    MR_ASSIGN_OR_RETURN(const auto out, session->Run({{x, inputs}, {y, targets}}, {loss}, {train}));
    if (step % 100 == 0 || step == steps) {
      std::printf("Step: %d, loss: %.6f\n", step, static_cast<double>(out[0].scalar<float>()));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Fits a sine with a network whose activation is an op of its own.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  const millrace::Status status = millrace::Train();
  if (status.ok()) return 0;
  std::fprintf(stderr, "custom_op_train: %s\n", status.ToString().c_str());
  return millrace::ExitCode(status);
}
