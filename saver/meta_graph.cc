// SPDX-License-Identifier: Apache-2.0
#include "saver/meta_graph.h"

#include <google/protobuf/text_format.h>

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "core/deterministic_bytes.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/graph_def.h"
#include "graph/import_export.h"
#include "graph/later_attrs.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"

namespace millrace {
namespace {

const tensorflow::OpDef::AttrDef* FindAttr(const tensorflow::OpDef& op, const std::string& name) {
  for (const auto& attr : op.attr()) {
    if (attr.name() == name) return &attr;
  }
  return nullptr;
}

bool HasDefault(const tensorflow::OpDef& op, const std::string& name,
                const tensorflow::AttrValue& value) {
  const tensorflow::OpDef::AttrDef* attr = FindAttr(op, name);
  return attr != nullptr && attr->has_default_value() &&
         DeterministicBytes(attr->default_value()) == DeterministicBytes(value);
}

// An OpDef as graphs carry it: without prose.
tensorflow::OpDef Stripped(tensorflow::OpDef op) {
  op.clear_summary();
  op.clear_description();
  for (auto& arg : *op.mutable_input_arg()) arg.clear_description();
  for (auto& arg : *op.mutable_output_arg()) arg.clear_description();
  for (auto& attr : *op.mutable_attr()) attr.clear_description();
  return op;
}

}  // namespace

StatusOr<tensorflow::MetaGraphDef> ExportMetaGraph(const Scope& scope,
                                                   const MetaGraphOptions& options) {
  tensorflow::MetaGraphDef meta;
  MR_ASSIGN_OR_RETURN(*meta.mutable_graph_def(), scope.ToGraphDef());
  std::map<std::string, const tensorflow::OpDef*> used;
  MR_RETURN_IF_ERROR(
      ForEachNode(meta.mutable_graph_def(), [&](tensorflow::NodeDef* node) -> Status {
        if (options.clear_devices) node->clear_device();
        const OpEntry* entry = LookUpOp(node->op());
        if (entry == nullptr) return absl::OkStatus();
        used[node->op()] = &entry->def;
        if (options.strip_default_attrs) {
          std::vector<std::string> removed;
          for (const auto& [name, value] : node->attr()) {
            if (HasDefault(entry->def, name, value)) removed.push_back(name);
          }
          for (const std::string& name : removed) node->mutable_attr()->erase(name);
        }
        return absl::OkStatus();
      }));
  tensorflow::MetaGraphDef::MetaInfoDef* info = meta.mutable_meta_info_def();
  for (const auto& [name, op] : used) *info->mutable_stripped_op_list()->add_op() = Stripped(*op);
  for (const std::string& tag : options.tags) info->add_tags(tag);
  info->set_tensorflow_version(kTensorFlowVersion);
  info->set_stripped_default_attrs(options.strip_default_attrs);
  if (options.saver_def) *meta.mutable_saver_def() = *options.saver_def;
  for (const auto& [key, collection] : *scope.collections()) {
    (*meta.mutable_collection_def())[key] = collection;
  }
  return meta;
}

Status RemoveUnknownDefaultAttrs(const tensorflow::OpDef& producer, tensorflow::NodeDef* node) {
  const OpEntry* entry = LookUpOp(node->op());
  if (entry == nullptr) return absl::OkStatus();
  std::vector<std::string> removed;
  for (const auto& [name, value] : node->attr()) {
    if (absl::StartsWith(name, "_") || FindAttr(entry->def, name) != nullptr ||
        FindAttr(producer, name) == nullptr) {
      continue;
    }
    if (!HasDefault(producer, name, value)) {
      if (HeedsLaterAttr(node->op(), name)) continue;
      return InvalidArgument(node->op(), " '", node->name(), "': attr '", name,
                             "' is unknown to this program and must have its default, got ",
                             AttrToString(value));
    }
    removed.push_back(name);
  }
  for (const std::string& name : removed) node->mutable_attr()->erase(name);
  return absl::OkStatus();
}

Status RemoveUnknownDefaultAttrs(tensorflow::MetaGraphDef* meta) {
  std::map<std::string, const tensorflow::OpDef*> producer;
  for (const auto& op : meta->meta_info_def().stripped_op_list().op()) producer[op.name()] = &op;
  return ForEachNode(meta->mutable_graph_def(), [&](tensorflow::NodeDef* node) -> Status {
    const auto theirs = producer.find(node->op());
    return theirs == producer.end() ? absl::OkStatus()
                                    : RemoveUnknownDefaultAttrs(*theirs->second, node);
  });
}

StatusOr<Scope> ImportMetaGraph(tensorflow::MetaGraphDef meta, ConstantEvaluator* evaluator) {
  MR_RETURN_IF_ERROR(RemoveUnknownDefaultAttrs(&meta));
  auto graph = std::make_unique<Graph>();
  MR_RETURN_IF_ERROR(ImportGraphDef(meta.graph_def(), {}, graph.get()));
  MR_ASSIGN_OR_RETURN(Scope scope, Scope::ForGraph(std::move(graph), evaluator));
  for (const auto& [key, collection] : meta.collection_def()) {
    (*scope.collections())[key] = collection;
  }
  return scope;
}

Status WriteMetaGraph(FileSystem* fs, const std::string& path,
                      const tensorflow::MetaGraphDef& meta) {
  if (meta.ByteSizeLong() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return InvalidArgument("Meta graph '", path, "' must have less than 2 GiB, got ",
                           meta.ByteSizeLong(), " bytes");
  }
  std::string bytes;
  if (absl::EndsWith(path, "txt")) {
    google::protobuf::TextFormat::PrintToString(meta, &bytes);
  } else {
    bytes = DeterministicBytes(meta);
  }
  return WriteFileAtomically(fs, path, bytes);
}

StatusOr<tensorflow::MetaGraphDef> ReadMetaGraph(FileSystem* fs, const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs, path));
  tensorflow::MetaGraphDef meta;
  MR_RETURN_IF_ERROR(absl::EndsWith(path, "txt") ? ParseText(bytes, path, "MetaGraphDef", &meta)
                                                 : ParseBytes(bytes, path, "MetaGraphDef", &meta));
  return meta;
}

}  // namespace millrace
