// SPDX-License-Identifier: Apache-2.0
#include "tests/serving/served_models.h"

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/file_system.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/control_flow.h"
#include "layers/initializers.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/saved_model.h"

namespace millrace {
namespace {

// So long that it is seen, so short that nobody waits for it: some tenths of a second.
constexpr int32_t kLongInitTurns = 200'000;

// How often its loop went round.
Output Turns(const Scope& root, const Output& n) {
  const std::vector<Output> out = WhileLoop(
      root, {Const(root, int32_t{0})},
      [&](const Scope& condition, const std::vector<Output>& v) {
        return Less(condition, v[0], n);
      },
      [&](const Scope& body, const std::vector<Output>& v) -> std::vector<Output> {
        return {Add(body, v[0], Const(body, int32_t{1}))};
      },
      {.back_prop = false});
  return out.empty() ? Output() : out[0];
}

Operation InitOf(const Scope& root, ScalingModel::Init init) {
  switch (init) {
    case ScalingModel::Init::kNone:
      break;
    case ScalingModel::Init::kFails:
      return Assert(root.WithName("init"), Const(root, Tensor::Scalar(false)),
                    {Const(root, Tensor::Scalar<std::string>("it is not my day"))});
    case ScalingModel::Init::kNan:
      return CheckNumerics(root.WithName("init"),
                           Const(root, std::numeric_limits<float>::quiet_NaN()), "the weights")
          .op();
    case ScalingModel::Init::kTakesLong:
      return Identity(root.WithName("init"), Turns(root, Const(root, kLongInitTurns))).op();
    case ScalingModel::Init::kHangs: {
      // An element that nobody puts there.
      const Output queue = FIFOQueueV2(root.WithName("queue"), {DT_INT32});
      return QueueDequeueV2(root.WithName("init"), queue, {DT_INT32})[0].op();
    }
  }
  return {};
}

Status Export(const std::string& directory, const ScalingModel& model, bool with_loop) {
  const Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 2});
  const Output w = Placeholder(root.WithName("w"), DT_STRING, {-1});
  const Variable scale = MakeVariable(root.WithName("scale"), Const(root, model.scale));
  std::vector<Operation> initializers = {scale.initializer};
  Output y = Mul(root.WithName("y"), x, scale.value);
  if (model.ballast > 0) {
    Output ballast;
    if (model.is_frozen) {
      MR_ASSIGN_OR_RETURN(const Tensor zeros, Tensor::Zeros(DT_FLOAT, Shape{model.ballast}));
      ballast = Const(root.WithName("ballast"), zeros);
    } else {
      const Variable variable = MakeVariable(root.WithName("ballast"), Shape{model.ballast},
                                             DT_FLOAT, ZerosInitializer());
      initializers.push_back(variable.initializer);
      ballast = variable.value;
    }
    y = Add(root.WithName("y_of_all"), y,
            Slice(root, ballast, Tensor::Vector<int64_t>({0}), Tensor::Vector<int64_t>({1})));
  }
  const Output s = Identity(root.WithName("s"), w);
  std::vector<ServingSignature> signatures = {
      {.inputs = {{"x", x}, {"w", w}}, .outputs = {{"y", y}, {"s", s}}}};
  if (with_loop) {
    const Output n = Placeholder(root.WithName("n"), DT_INT32, PartialShape::Scalar());
    const Output steps = Identity(root.WithName("steps"), Turns(root, n));
    signatures.push_back({.inputs = {{"n", n}}, .outputs = {{"steps", steps}}, .key = "loop"});
  }
  const Operation init = InitOf(root, model.init);
  MR_RETURN_IF_ERROR(root.status());
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, initializers).status());
  return ExportModel(session.get(), root, signatures, directory, {.main_op = init});
}

}  // namespace

Status ExportScaling(const std::string& directory, const ScalingModel& model) {
  return Export(directory, model, /*with_loop=*/false);
}

Status ExportLooping(const std::string& directory, float scale) {
  return Export(directory, {.scale = scale}, /*with_loop=*/true);
}

Status ExportWords(const std::string& directory) {
  FileSystem* const fs = FileSystem::Posix();
  // A folder of its own, so that the asset has this name.
  const std::string folder = directory + ".vocabulary";
  const std::string file = JoinPath(folder, "words.txt");
  MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(folder));
  MR_RETURN_IF_ERROR(WriteFileAtomically(fs, file, "tea\ncoffee\nmilk\n"));
  const Scope root;
  const Output words = Placeholder(root.WithName("words"), DT_STRING, {-1});
  const IndexTable table = IndexTableFromFile(root.WithName("table"), file);
  const Output ids = Lookup(root.WithName("ids"), table, words);
  const Operation init = TablesInitializer(root);
  MR_RETURN_IF_ERROR(root.status());
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  MR_RETURN_IF_ERROR(ExportModel(
      session.get(), root, {.inputs = {{"words", words}}, .outputs = {{"ids", ids}}}, directory));
  return fs->RecursivelyDelete(folder);
}

Status CopyModel(const std::string& from, const std::string& to) {
  FileSystem* const fs = FileSystem::Posix();
  MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(to));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->GetChildren(from));
  for (const std::string& name : names) {
    const std::string path = JoinPath(from, name);
    MR_ASSIGN_OR_RETURN(const bool is_directory, fs->IsDirectory(path));
    if (is_directory) {
      MR_RETURN_IF_ERROR(CopyModel(path, JoinPath(to, name)));
      continue;
    }
    MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs, path));
    MR_RETURN_IF_ERROR(WriteFileAtomically(fs, JoinPath(to, name), bytes));
  }
  return absl::OkStatus();
}

Status ChangeGraph(const std::string& directory,
                   const std::function<void(tensorflow::MetaGraphDef*)>& change) {
  FileSystem* const fs = FileSystem::Posix();
  const std::string path = JoinPath(directory, "saved_model.pb");
  MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs, path));
  tensorflow::SavedModel saved;
  if (!saved.ParseFromString(bytes) || saved.meta_graphs().empty()) {
    return absl::DataLossError("'" + path + "' must be a SavedModel with a meta graph");
  }
  change(saved.mutable_meta_graphs(0));
  return WriteFileAtomically(fs, path, saved.SerializeAsString());
}

}  // namespace millrace
