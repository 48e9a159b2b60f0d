// SPDX-License-Identifier: Apache-2.0
#include "tools/local_model.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/tensor.h"
#include "formats/json_nesting.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "nlohmann/json.hpp"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/meta_graph.h"
#include "saver/saver.h"
#include "tools/saved_model_show.h"

namespace millrace {
namespace {

constexpr char kLegacyPrefix[] = "export";

// --- SavedModels ---------------------------------------------------------------------------------

StatusOr<LocalModel> OpenSavedModel(FileSystem* fs, const std::string& directory,
                                    const LocalModelOptions& options) {
  MR_ASSIGN_OR_RETURN(const Model read,
                      ReadModel(directory, {.tags = options.tags, .file_system = fs}));
  MR_ASSIGN_OR_RETURN(
      const std::string signature,
      ChosenSignature(read.signatures(), options.signature, options.signature_flag));
  MR_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(read, {}, {signature}));
  const ModelSignature& chosen = loaded.signatures().at(signature);
  LocalModel model = {.inputs = chosen.inputs(), .outputs = chosen.outputs()};
  model.predict = [shared = std::make_shared<LoadedModel>(std::move(loaded)),
                   signature](const NamedTensors& inputs) {
    return shared->Predict(inputs, {.signature = signature});
  };
  return model;
}

// --- The older form ------------------------------------------------------------------------------

// The tensors that a collection of one JSON object names.
StatusOr<std::map<std::string, SignatureTensor>> TensorsIn(const tensorflow::MetaGraphDef& meta,
                                                           const Scope& scope,
                                                           const std::string& collection) {
  const auto found = meta.collection_def().find(collection);
  nlohmann::json names;
  if (found != meta.collection_def().end() && found->second.bytes_list().value_size() > 0) {
    const std::string& text = found->second.bytes_list().value(0);
    if (JsonNesting(text) <= kMaxJsonNesting) {
      names = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    }
  }
  if (!names.is_object() || names.empty()) {
    return InvalidArgument("collection '", collection,
                           "' must have a JSON object, alias -> tensor, got none");
  }
  std::map<std::string, SignatureTensor> tensors;
  for (const auto& [alias, name] : names.items()) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    MR_ASSIGN_OR_RETURN(const TensorName parsed, ParseTensorName(text));
    Node* const node = scope.graph()->FindNode(parsed.node);
    if (node == nullptr || parsed.index < 0 || parsed.index >= node->num_outputs()) {
      return InvalidArgument("collection '", collection, "': '", alias,
                             "' must be a tensor of the graph, got '", text, "'");
    }
    MR_ASSIGN_OR_RETURN(const tensorflow::TensorInfo info,
                        MakeTensorInfo(scope, Output(node, parsed.index)));
    tensors.emplace(alias, SignatureTensor(info));
  }
  return tensors;
}

StatusOr<LocalModel> OpenLegacy(FileSystem* fs, const std::string& directory) {
  const std::string prefix = JoinPath(directory, kLegacyPrefix);
  MR_ASSIGN_OR_RETURN(tensorflow::MetaGraphDef meta, ReadMetaGraph(fs, prefix + ".meta"));
  const std::unique_ptr<Saver> saver = Saver::FromDef(meta.saver_def(), fs);
  MR_ASSIGN_OR_RETURN(const Scope scope, ImportMetaGraph(meta));
  LocalModel model;
  MR_ASSIGN_OR_RETURN(model.inputs, TensorsIn(meta, scope, "inputs"));
  MR_ASSIGN_OR_RETURN(model.outputs, TensorsIn(meta, scope, "outputs"));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Session> made, NewSession());
  const std::shared_ptr<Session> session = std::move(made);
  MR_RETURN_IF_ERROR(session->Extend(scope));
  MR_RETURN_IF_ERROR(saver->Restore(session.get(), prefix));
  model.predict = [session, tensors = std::make_pair(model.inputs, model.outputs)](
                      const NamedTensors& inputs) -> StatusOr<NamedTensors> {
    std::vector<Feed> feeds;
    for (const auto& [alias, value] : inputs) {
      feeds.emplace_back(tensors.first.at(alias).name(), value);
    }
    std::vector<FetchName> fetches;
    for (const auto& [alias, tensor] : tensors.second) fetches.emplace_back(tensor.name());
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> values, session->Run(feeds, fetches));
    NamedTensors outputs;
    size_t i = 0;
    for (const auto& [alias, tensor] : tensors.second) outputs[alias] = std::move(values[i++]);
    return outputs;
  };
  return model;
}

}  // namespace

StatusOr<std::string> ChosenSignature(const std::map<std::string, ModelSignature>& signatures,
                                      const std::string& asked, const std::string& flag) {
  const std::string wanted = asked.empty() ? kDefaultServingSignature : asked;
  if (signatures.count(wanted) > 0) return wanted;
  if (asked.empty() && signatures.size() == 1) return signatures.begin()->first;
  const std::string names =
      signatures.empty() ? "none"
                         : absl::StrJoin(signatures, ", ", [](std::string* out, const auto& one) {
                             absl::StrAppend(out, "'", one.first, "'");
                           });
  if (asked.empty()) {
    return InvalidArgument(flag, " must be given: the model has no '", kDefaultServingSignature,
                           "', but ", names);
  }
  return InvalidArgument(flag, " must be one of ", names, ", got '", asked, "'");
}

StatusOr<LocalModel> OpenLocalModel(FileSystem* fs, const std::string& directory,
                                    const LocalModelOptions& options, std::ostream& note) {
  const std::string meta = absl::StrCat(JoinPath(directory, kLegacyPrefix), ".meta");
  if (fs->FileExists(meta)) {
    if (!options.signature.empty()) {
      return InvalidArgument(options.signature_flag, " must not be given for '", meta,
                             "', which has no signatures, got '", options.signature, "'");
    }
    StatusOr<LocalModel> model = OpenLegacy(fs, directory);
    if (!model.ok()) return Prefixed(absl::StrCat("'", meta, "'"), model.status());
    return model;
  }
  return OpenSavedModel(fs, ModelDirectory(fs, directory, options.program, note), options);
}

}  // namespace millrace
