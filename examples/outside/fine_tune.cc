// SPDX-License-Identifier: Apache-2.0
// fine_tune: goes on with a model that was trained before, on other data, and exports it.
//
//   fine_tune make old                         a model of y = 3 x, with reference variables
//   fine_tune train old/model.ckpt-7 new       trains it on y = 4 x + 1, exports it to new/
//
// The second command knows nothing of the program that made the model but the names of two tensors:
// its .meta file, or `saved_model_cli`, tells them. Programs of TensorFlow 1.x wrote such models.
#include <millrace/millrace.h>
#include <millrace/proto/meta_graph.pb.h>
#include <millrace/saver/meta_graph.h>

#include <cstdio>
#include <string>
#include <utility>

using namespace millrace;

Status Make(const std::string& directory) {
  Scope model;
  const Output x = Placeholder(model.WithName("x"), DT_FLOAT, {-1, 1});
  const Variable w = MakeVariable(model.WithName("w"), Const(model, 3.0f), {.use_resource = false});
  const Variable b = MakeVariable(model.WithName("b"), Const(model, 0.0f), {.use_resource = false});
  Identity(model.WithName("y"), Add(model, Mul(model, x, w.value), b.value));
  MR_ASSIGN_OR_RETURN(const auto saver, Saver::Make(model));
  const Operation init = GlobalVariablesInitializer(model);
  MR_RETURN_IF_ERROR(model.status());

  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(model));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  MR_RETURN_IF_ERROR(FileSystem::Default()->RecursivelyCreateDirectory(directory));
  MR_ASSIGN_OR_RETURN(const std::string checkpoint,
                      saver->Save(session.get(), JoinPath(directory, "model.ckpt"), 7));
  std::printf("saved %s\n", checkpoint.c_str());
  return absl::OkStatus();
}

Status TrainFurther(const std::string& checkpoint, const std::string& export_to) {
  MR_ASSIGN_OR_RETURN(auto meta, ReadMetaGraph(FileSystem::Default(), checkpoint + ".meta"));
  MR_ASSIGN_OR_RETURN(const Scope model, ImportMetaGraph(std::move(meta)));
  for (const Variable& variable : VariablesOf(model, "trainable_variables")) {
    std::printf("trains %s, %s\n", variable.name.c_str(),
                variable.is_reference() ? "a reference variable" : "a resource variable");
  }
  // Made before the optimizer: it restores what the checkpoint has, and no slots.
  MR_ASSIGN_OR_RETURN(const auto saver, Saver::Make(model));

  MR_ASSIGN_OR_RETURN(const Output x, model.Find("x"));
  MR_ASSIGN_OR_RETURN(const Output y, model.Find("y"));
  const Output wanted = Placeholder(model.WithName("wanted"), DT_FLOAT, {-1, 1});
  const Output loss = MeanSquaredError(model, wanted, y);
  const Operation step = AdamOptimizer({.learning_rate = 0.05}).Minimize(model, loss);
  const Operation init = GlobalVariablesInitializer(model);
  MR_RETURN_IF_ERROR(model.status());

  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(model));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  MR_RETURN_IF_ERROR(saver->Restore(session.get(), checkpoint));
  const Tensor xs = Tensor::Of<float>({{-1}, {0}, {1}, {2}});
  const Tensor ys = Tensor::Of<float>({{-3}, {1}, {5}, {9}});  // 4 x + 1
  for (int i = 0; i < 1000; ++i) {
    MR_RETURN_IF_ERROR(session->Run({{x, xs}, {wanted, ys}}, {}, {step}).status());
  }
  MR_RETURN_IF_ERROR(
      ExportModel(session.get(), model, {.inputs = {{"x", x}}, .outputs = {{"y", y}}}, export_to));

  MR_ASSIGN_OR_RETURN(const LoadedModel exported, LoadModel(export_to));
  MR_ASSIGN_OR_RETURN(const NamedTensors out, exported.Predict({{"x", Tensor::Of<float>({{10}})}}));
  std::printf("y(10) = %.1f\n", static_cast<double>(out.at("y").flat<float>()[0]));
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "make" && argc == 3) return ReportedExitCode(argv[0], Make(argv[2]));
  if (command == "train" && argc == 4)
    return ReportedExitCode(argv[0], TrainFurther(argv[2], argv[3]));
  std::fprintf(stderr, "usage: %s make DIRECTORY | train CHECKPOINT EXPORT_TO\n", argv[0]);
  return 2;
}
