// SPDX-License-Identifier: Apache-2.0
//
// Estimator::ExportSavedModel, ExportAllSavedModels: signatures of what a model offers, over what
// callers feed.

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "estimator/export_output.h"
#include "estimator/mode.h"
#include "estimator/model_fn.h"
#include "estimator/model_graph.h"
#include "estimator/model_tensors.h"
#include "estimator/said_once.h"
#include "estimator/serving_input.h"
#include "estimator/warm_start_saver.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "layers/variable.h"
#include "ops/array/identity.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "train/session_creator.h"

namespace millrace {
namespace {

// Of the number of an export: what readers of TensorFlow's directories take for one.
constexpr size_t kDigits = 10;
constexpr int64_t kLastNumber = 9'999'999'999;
constexpr char kAssetsExtra[] = "assets.extra";
// TensorFlow's, of graphs that train and evaluate.
constexpr char kTrainMethod[] = "tensorflow/supervised/training";
constexpr char kEvalMethod[] = "tensorflow/supervised/eval";
constexpr char kTrainOpCollection[] = "saved_model_train_op";

using Signatures = std::map<std::string, ModelSignature>;

// Those of one set of receivers, each key behind `prefix`. What cannot have a signature over them
// goes into `excluded` with the reason.
Status AddSignatures(const Scope& root, const std::map<std::string, ExportOutput>& outputs,
                     const Receivers& receivers, const std::string& prefix, Signatures* signatures,
                     std::vector<std::string>* excluded) {
  const bool takes_examples =
      receivers.map().size() == 1 && WithoutRef(receivers.single().dtype()) == DT_STRING;
  for (const auto& [name, output] : outputs) {
    const std::string key = absl::StrCat(prefix, name);
    if (output.kind == ExportOutput::Kind::kPredict) {
      MR_ASSIGN_OR_RETURN((*signatures)[key],
                          PredictSignatureDef(root, receivers.map(), output.outputs.map()));
      continue;
    }
    if (!takes_examples) {
      excluded->push_back(absl::StrCat("'", key, "'"));
      continue;
    }
    if (output.kind == ExportOutput::Kind::kClassification) {
      MR_ASSIGN_OR_RETURN((*signatures)[key], ClassifySignatureDef(root, receivers.single(),
                                                                   output.classes, output.scores));
    } else {
      MR_ASSIGN_OR_RETURN((*signatures)[key],
                          RegressSignatureDef(root, receivers.single(), output.value));
    }
  }
  return absl::OkStatus();
}

// Each exporter of a job exports the same model, again and again: once is enough.
void WarnOnce(const std::string& text, SaidOnce* said) {
  if (said->IsNew(text)) LogWarning(text);
}

// Callers that name no signature get the default one, which a classifier over several receivers
// does not have.
void WarnOfNoDefault(const std::map<std::string, ExportOutput>& outputs, const Receivers& receivers,
                     const Signatures& signatures, SaidOnce* said) {
  const auto quoted = [](std::string* out, const auto& pair) {
    absl::StrAppend(out, "'", pair.first, "'");
  };
  const auto found = outputs.find(kDefaultServingSignature);
  const bool classifies =
      found != outputs.end() && found->second.kind == ExportOutput::Kind::kClassification;
  WarnOnce(
      absl::StrCat("Estimator: the export has no signature '", kDefaultServingSignature,
                   "': it is a ", classifies ? "classification" : "regression",
                   ", which takes exactly one receiver, of strings, got ", receivers.map().size(),
                   " (", absl::StrJoin(receivers.map(), ", ", quoted),
                   "); callers must name another one: ", absl::StrJoin(signatures, ", ", quoted)),
      said);
}

// Placeholders that a signature needs and nobody feeds: the model is exported all the same, as
// TensorFlow does, and a call of it fails.
void WarnOfUnfedPlaceholders(const Scope& root, const std::string& key,
                             const ModelSignature& signature, SaidOnce* said) {
  std::set<std::string> fed;
  for (const auto& [name, tensor] : signature.inputs()) fed.insert(tensor.name());
  std::vector<const Node*> todo;
  std::set<const Node*> seen;
  const auto add = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) todo.push_back(node);
  };
  for (const auto& [name, tensor] : signature.outputs()) {
    const StatusOr<TensorName> parsed = ParseTensorName(tensor.name());
    if (parsed.ok() && fed.count(tensor.name()) == 0) add(root.graph()->FindNode(parsed->node));
  }
  while (!todo.empty()) {
    const Node* const node = todo.back();
    todo.pop_back();
    if (node->traits().feeding == Feeding::kRequired &&
        fed.count(absl::StrCat(node->name(), ":0")) == 0) {
      WarnOnce(
          absl::StrCat("Estimator: the export's signature '", key, "' needs placeholder '",
                       node->name(), "', which is no receiver (", absl::StrJoin(fed, ", "),
                       "): calls of it will fail with \"You must feed a value for placeholder\""),
          said);
    }
    for (const OutputRef& input : node->inputs()) {
      if (input.node == nullptr) continue;
      if (fed.count(absl::StrCat(input.node->name(), ":", input.index)) == 0) add(input.node);
    }
    for (const Node* control : node->control_inputs()) add(control);
  }
}

// Those of a graph that predicts.
StatusOr<Signatures> ServingSignatures(const ServingGraph& graph, SaidOnce* said) {
  const Scope& root = graph.model.root;
  const EstimatorSpec& spec = graph.model.spec;
  MR_ASSIGN_OR_RETURN(const auto outputs,
                      ResolveExportOutputs(spec.export_outputs, spec.predictions));
  Signatures signatures;
  std::vector<std::string> excluded;
  MR_RETURN_IF_ERROR(
      AddSignatures(root, outputs, graph.receiver.receivers, "", &signatures, &excluded));
  for (const auto& [name, receivers] : graph.receiver.receiver_alternatives) {
    MR_RETURN_IF_ERROR(
        AddSignatures(root, outputs, receivers, absl::StrCat(name, ":"), &signatures, &excluded));
  }
  if (!excluded.empty()) {
    const std::string text =
        absl::StrCat("Estimator: the export has no signature for ", absl::StrJoin(excluded, ", "),
                     ": Classify and Regress take exactly one receiver, of strings");
    if (said->IsNew(text)) LogInfo(text);
  }
  if (signatures.count(kDefaultServingSignature) == 0) {
    WarnOfNoDefault(outputs, graph.receiver.receivers, signatures, said);
  }
  return signatures;
}

// The one of a graph that trains or evaluates. Names that begin with the group's stay as they are.
StatusOr<Signatures> SupervisedSignatures(Mode mode, const ServingGraph& graph) {
  const EstimatorSpec& spec = graph.model.spec;
  const auto in_group = [](const char* group, const std::string& name) {
    return absl::StartsWith(name, group) ? name : absl::StrCat(group, "/", name);
  };
  NamedOutputs outputs = {{"loss", spec.loss}};
  if (spec.predictions.is_single()) {
    outputs["predictions"] = spec.predictions.single();
  } else {
    for (const auto& [name, tensor] : spec.predictions.map()) {
      outputs[in_group("predictions", name)] = tensor;
    }
  }
  for (const auto& [name, metric] : spec.eval_metric_ops) {
    const std::string key = in_group("metrics", name);
    outputs[absl::StrCat(key, "/value")] = metric.value;
    outputs[absl::StrCat(key, "/update_op")] = metric.update;
  }
  const bool trains = mode == Mode::kTrain;
  Signatures signatures;
  MR_ASSIGN_OR_RETURN(signatures[trains ? kSavedModelTagTrain : kSavedModelTagEval],
                      BuildSignatureDef(graph.model.root, graph.receiver.receivers.map(), outputs,
                                        trains ? kTrainMethod : kEvalMethod));
  return signatures;
}

// What a loader runs when the variables are restored: tables and local variables.
Operation MainOp(const Scope& root, const Scaffold& scaffold) {
  if (scaffold.local_init_op.valid()) return scaffold.local_init_op;
  std::vector<Operation> operations;
  for (const Variable& variable : VariablesOf(root, "local_variables")) {
    operations.push_back(variable.initializer);
  }
  const auto tables = root.collections()->find("table_initializer");
  if (tables != root.collections()->end()) {
    for (const std::string& name : tables->second.node_list().value()) {
      Node* const node = root.graph()->FindNode(name);
      if (node != nullptr) operations.emplace_back(node);
    }
  }
  if (operations.empty()) return Operation();
  return Group(root.WithName("init_at_load"), operations);
}

Status CopyExtraAssets(FileSystem* fs, const std::map<std::string, std::string>& assets,
                       const std::string& directory) {
  for (const auto& [name, source] : assets) {
    const std::string target = JoinPath(JoinPath(directory, kAssetsExtra), name);
    if (name.empty() || absl::StartsWith(name, "/") || absl::StrContains(name, "..")) {
      return InvalidArgument("Estimator: export: assets_extra must have relative names, got '",
                             name, "'");
    }
    MR_ASSIGN_OR_RETURN(const std::string content, ReadFileToString(fs, source));
    MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(Dirname(target)));
    MR_RETURN_IF_ERROR(WriteFileAtomically(fs, target, content));
  }
  return absl::OkStatus();
}

// The directory of an export, and where it is written until it is whole: that one is there, and
// nobody else writes to it.
struct ExportPlace {
  std::string path, unfinished;
};
// Its number is the present second or, when that is not above the newest export's, one more than
// that: the largest number is the newest export, and none waits for a second of its own.
StatusOr<ExportPlace> NewPlace(const EstimatorParts& parts, const std::string& base) {
  FileSystem* const fs = parts.file_system;
  int64_t number = absl::ToUnixSeconds(parts.clock->Now());
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->GetChildren(base));
  for (const std::string& name : names) {
    if (const auto newest = ExportNumber(name)) number = std::max(number, *newest + 1);
  }
  for (; number <= kLastNumber; ++number) {
    ExportPlace place = {JoinPath(base, absl::StrCat(number)),
                         JoinPath(base, absl::StrCat("temp-", number))};
    // Of two exports at a time one finds it there. One that was killed has left its own.
    const Status made = fs->CreateDirectory(place.unfinished);
    if (absl::IsAlreadyExists(made)) continue;
    MR_RETURN_IF_ERROR(Prefixed("Estimator: export", made));
    // Another one may have become whole since the names were read.
    if (!fs->FileExists(place.path)) return place;
    MR_RETURN_IF_ERROR(fs->DeleteDirectory(place.unfinished));
  }
  return FailedPrecondition("Estimator: export: numbers of exports in '", base,
                            "' must be at most ", kLastNumber, ", got ", number);
}

StatusOr<std::string> CheckpointToExport(const EstimatorParts& parts, const std::string& asked) {
  MR_ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointToUse(parts, asked));
  if (!checkpoint.empty()) return checkpoint;
  if (parts.warm_start) {
    return WarmStartCheckpoint(parts.file_system, parts.warm_start->checkpoint);
  }
  return FailedPrecondition("Estimator: export: model_dir '", parts.model_dir,
                            "' must have a checkpoint, got none; train first");
}

// One graph of an export.
struct ExportedGraph {
  ServingGraph graph;
  SavedModelOptions options;
  std::unique_ptr<Saver> own_saver;
  Saver* saver = nullptr;            // the scaffold's or the own one; null: there are no variables
  std::unique_ptr<Session> session;  // with the values of the checkpoint
};

const char* TagOf(Mode mode) {
  switch (mode) {
    case Mode::kTrain:
      return kSavedModelTagTrain;
    case Mode::kEval:
      return kSavedModelTagEval;
    case Mode::kPredict:
      break;
  }
  return kSavedModelTagServe;
}

StatusOr<ExportedGraph> MakeGraph(const EstimatorParts& parts, Mode mode,
                                  const ServingInputReceiverFn& receiver_fn,
                                  const std::string& checkpoint, const ExportCall& call) {
  ExportedGraph exported;
  MR_ASSIGN_OR_RETURN(exported.graph, BuildServingGraph(parts, mode, receiver_fn));
  const Scope& root = exported.graph.model.root;
  const EstimatorSpec& spec = exported.graph.model.spec;

  SavedModelOptions& options = exported.options;
  options.tags = {TagOf(mode)};
  MR_ASSIGN_OR_RETURN(options.signatures, mode == Mode::kPredict
                                              ? ServingSignatures(exported.graph, parts.said.get())
                                              : SupervisedSignatures(mode, exported.graph));
  for (const auto& [key, signature] : options.signatures) {
    WarnOfUnfedPlaceholders(root, key, signature, parts.said.get());
  }
  if (mode == Mode::kTrain) {
    (*root.collections())[kTrainOpCollection].mutable_node_list()->add_value(
        spec.train_op.node()->name());
  }
  options.main_op = MainOp(root, spec.scaffold);
  StatusOr<std::vector<Asset>> assets = AssetsOf(root);
  MR_RETURN_IF_ERROR(Prefixed("Estimator: export", assets.status()));
  options.assets = *std::move(assets);
  options.strip_default_attrs = call.strip_default_attrs;

  exported.saver = spec.scaffold.saver;
  if (exported.saver == nullptr && !VariablesOf(root).empty()) {
    MR_ASSIGN_OR_RETURN(exported.own_saver, Saver::Make(root, {.file_system = parts.file_system}));
    exported.saver = exported.own_saver.get();
  }
  MR_RETURN_IF_ERROR(root.status());
  SessionOptions session_options;
  session_options.config = parts.config.session_config();
  session_options.config.device_filters.clear();
  MR_ASSIGN_OR_RETURN(exported.session, NewSession(session_options));
  MR_RETURN_IF_ERROR(exported.session->Extend(root));
  if (exported.saver != nullptr) {
    MR_RETURN_IF_ERROR(Prefixed(
        absl::StrCat("Estimator: export in mode ", ModeName(mode), " from '", checkpoint, "'"),
        exported.saver->Restore(exported.session.get(), checkpoint)));
  }
  return exported;
}

// What is exported has no ops but TensorFlow's, also where it trains: by itself, of course.
StatusOr<EstimatorParts> Portable(const EstimatorParts& parts) {
  EstimatorParts portable = parts;
  MR_ASSIGN_OR_RETURN(portable.config,
                      parts.config.Replace({.portable_graph = true, .sync = kNoValue}));
  return portable;
}

}  // namespace

std::optional<int64_t> ExportNumber(absl::string_view name) {
  int64_t number = 0;
  const bool is_number = name.size() == kDigits &&
                         name.find_first_not_of("0123456789") == name.npos &&
                         absl::SimpleAtoi(name, &number);
  return is_number ? std::optional<int64_t>(number) : std::nullopt;
}

Status CheckExport(const EstimatorParts& parts, const ServingInputReceiverFn& receiver_fn) {
  MR_ASSIGN_OR_RETURN(const EstimatorParts portable, Portable(parts));
  MR_ASSIGN_OR_RETURN(const ServingGraph graph,
                      BuildServingGraph(portable, Mode::kPredict, receiver_fn));
  MR_ASSIGN_OR_RETURN(const Signatures signatures, ServingSignatures(graph, parts.said.get()));
  for (const auto& [key, signature] : signatures) {
    WarnOfUnfedPlaceholders(graph.model.root, key, signature, parts.said.get());
  }
  return graph.model.root.status();
}

StatusOr<std::string> ExportWithReceivers(const EstimatorParts& parts, const std::string& base,
                                          const ExportReceivers& receivers,
                                          const ExportCall& call) {
  if (base.empty()) {
    return InvalidArgument("Estimator: export: export_dir_base must be a directory, got ''");
  }
  MR_ASSIGN_OR_RETURN(const std::string checkpoint,
                      CheckpointToExport(parts, call.checkpoint_path));
  MR_ASSIGN_OR_RETURN(const EstimatorParts portable, Portable(parts));
  std::vector<ExportedGraph> graphs;
  for (const auto& [mode, receiver_fn] :
       {std::pair(Mode::kTrain, &receivers.train), std::pair(Mode::kEval, &receivers.eval),
        std::pair(Mode::kPredict, &receivers.predict)}) {
    if (!receiver_fn->valid()) continue;
    MR_ASSIGN_OR_RETURN(ExportedGraph graph,
                        MakeGraph(portable, mode, *receiver_fn, checkpoint, call));
    // The first one saves the variables; the others have shown that they find theirs.
    if (!graphs.empty()) graph.session.reset();
    graphs.push_back(std::move(graph));
  }
  if (graphs.empty()) {
    return InvalidArgument(
        "Estimator: export: a receiver function must be given to train, evaluate or predict, got "
        "none");
  }

  FileSystem* const fs = parts.file_system;
  MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(base));
  MR_ASSIGN_OR_RETURN(const ExportPlace place, NewPlace(parts, base));
  const auto write = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const auto builder, SavedModelBuilder::Open(place.unfinished, fs));
    for (const ExportedGraph& graph : graphs) {
      const Scope& root = graph.graph.model.root;
      MR_RETURN_IF_ERROR(graph.session != nullptr
                             ? builder->AddMetaGraphAndVariables(graph.session.get(), root,
                                                                 graph.saver, graph.options)
                             : builder->AddMetaGraph(root, graph.saver, graph.options));
    }
    MR_RETURN_IF_ERROR(CopyExtraAssets(fs, call.assets_extra, place.unfinished));
    MR_RETURN_IF_ERROR(builder->Save(call.as_text));
    MR_RETURN_IF_ERROR(fs->RenameFile(place.unfinished, place.path));
    return fs->SyncDirectory(base);
  };
  const Status written = write();
  if (!written.ok()) {
    fs->RecursivelyDelete(place.unfinished).IgnoreError();
    return Prefixed("Estimator: export", written);
  }
  LogInfo("Estimator: exported '", place.path, "' from '", checkpoint, "'");
  return place.path;
}

}  // namespace millrace
