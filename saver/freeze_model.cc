// SPDX-License-Identifier: Apache-2.0
#include "saver/freeze_model.h"

#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/freeze_graph.h"
#include "saver/saved_model.h"
#include "saver/saved_model_reader.h"

namespace millrace {

StatusOr<Model> FreezeModel(const Model& model, const FreezeModelOptions& options) {
  std::set<std::string> keys(options.signatures.begin(), options.signatures.end());
  if (keys.empty()) {
    for (const auto& [key, signature] : model.signatures()) keys.insert(key);
  }
  tensorflow::MetaGraphDef meta;
  *meta.mutable_meta_info_def() = model.meta_graph()->meta_info_def();
  FreezeOptions freeze;
  freeze.clear_devices = options.clear_devices;
  std::set<std::string> tensors;
  for (const std::string& key : keys) {
    const auto found = model.signatures().find(key);
    if (found == model.signatures().end()) {
      return InvalidArgument(
          "FreezeModel '", model.name(), "': signature '", key, "' must be one of the model's, ",
          model.signatures().empty()
              ? "none"
              : absl::StrJoin(model.signatures(), ", ", [](std::string* out, const auto& one) {
                  absl::StrAppend(out, "'", one.first, "'");
                }));
    }
    const tensorflow::SignatureDef& def = found->second.def();
    (*meta.mutable_signature_def())[key] = def;
    // An input that no output needs stays, too: the signature names it.
    for (const auto* infos : {&def.inputs(), &def.outputs()}) {
      for (const auto& [name, info] : *infos) {
        for (std::string& tensor : TensorsOf(info)) tensors.insert(std::move(tensor));
      }
    }
  }
  if (tensors.empty()) {
    return InvalidArgument("FreezeModel '", model.name(),
                           "': signatures must name tensors to freeze for, got none");
  }
  freeze.outputs.assign(tensors.begin(), tensors.end());
  MR_ASSIGN_OR_RETURN(const SavedModelBundle opened, OpenModel({}, model));
  StatusOr<FrozenGraph> frozen = FreezeGraph(opened.session.get(), model.graph(), freeze);
  MR_RETURN_IF_ERROR(OfSavedModel(model.name(), frozen.status()));
  meta.mutable_graph_def()->Swap(&frozen->graph);
  return Model::Make(model.name(), std::move(meta));
}

}  // namespace millrace
