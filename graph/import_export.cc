// SPDX-License-Identifier: Apache-2.0
#include "graph/import_export.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/deterministic_bytes.h"
#include "core/new_message.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/text_format.h"
#include "graph/graph_growth.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"
#include "proto/versions.pb.h"

namespace millrace {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;

class KeepFirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat("line ", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// `_class` names nodes of the message; they have other names now.
void RenameColocation(const HashMap<std::string, std::string>& names, const std::string& prefix,
                      tensorflow::AttrValue* classes) {
  for (std::string& group : *classes->mutable_list()->mutable_s()) {
    absl::string_view target = group;
    if (!absl::ConsumePrefix(&target, "loc:@")) continue;
    auto name = names.find(target);
    group =
        absl::StrCat("loc:@", name == names.end() ? absl::StrCat(prefix, target) : name->second);
  }
}

// Loops of the message stay apart from those that the graph has: what is imported twice under two
// names is two loops. `made` are the last nodes of the graph.
void RenameFrames(absl::Span<Node* const> made, const std::string& prefix, bool unique) {
  std::vector<Node*> enters;
  for (Node* node : made) {
    if (node->is_enter()) enters.push_back(node);
  }
  if (enters.empty()) return;
  HashSet<std::string> taken;
  if (unique) {
    for (const auto& node : made[0]->graph()->nodes()) {
      if (node.get() == made[0]) break;
      if (node == nullptr || !node->is_enter()) continue;
      const StatusOr<std::string> frame = GetAttr<std::string>(*node, "frame_name");
      if (frame.ok()) taken.insert(*frame);
    }
  }
  HashMap<std::string, std::string> renamed;
  for (Node* enter : enters) {
    const StatusOr<std::string> frame = GetAttr<std::string>(*enter, "frame_name");
    if (!frame.ok()) continue;
    const auto [name, is_new] = renamed.try_emplace(*frame, absl::StrCat(prefix, *frame));
    for (int i = 1; is_new && taken.contains(name->second); ++i) {
      name->second = absl::StrCat(prefix, *frame, "_", i);
    }
    if (is_new) taken.insert(name->second);
    if (name->second == *frame) continue;
    enter->EditAttr("frame_name", [&](tensorflow::AttrValue* attr) { attr->set_s(name->second); });
  }
}

// The graph's tensor for `input` when the caller maps it.
const OutputRef* FindMapped(const ImportOptions& options, const std::string& input,
                            const TensorName& name) {
  if (options.input_map.empty()) return nullptr;
  auto it = options.input_map.find(input);
  if (it == options.input_map.end() && name.index == 0) {
    // "x" and "x:0" are the same tensor.
    it = options.input_map.find(name.node);
    if (it == options.input_map.end()) {
      it = options.input_map.find(absl::StrCat(name.node, ":0"));
    }
  }
  return it == options.input_map.end() ? nullptr : &it->second;
}

IncomingNodes AllNodes(const GraphDef& def) {
  IncomingNodes nodes;
  nodes.def = &def;
  nodes.indices.resize(static_cast<size_t>(def.node_size()));
  std::iota(nodes.indices.begin(), nodes.indices.end(), 0);
  return nodes;
}

bool LooksLikeText(absl::string_view bytes) {
  // A binary GraphDef begins with the tag of field 1, 2, 3 or 4, which no text does, except that
  // 0x0a and 0x20 are blanks: what follows decides.
  const absl::string_view head = bytes.substr(0, 1024);
  return std::all_of(head.begin(), head.end(), [](char c) {
    const unsigned char u = static_cast<unsigned char>(c);
    return u == '\t' || u == '\n' || u == '\r' || (u >= 0x20 && u != 0x7f);
  });
}

// Gives the nodes that were made their edges.
Status ConnectNodes(const IncomingNodes& incoming, const ImportOptions& options,
                    absl::Span<Node* const> made, Graph* graph) {
  size_t at = 0;  // in incoming.sources
  for (size_t i = 0; i < made.size(); ++i) {
    const NodeDef& node = incoming.def->node(incoming.indices[i]);
    Node* dst = made[i];
    const auto where = [&] {
      return absl::StrCat("GraphDef node[", incoming.indices[i], "] '", node.name(), "'");
    };
    int slot = 0;
    bool has_imported_input = false;
    for (const std::string& input : node.input()) {
      const IncomingNodes::Source& source = incoming.sources[at++];
      const bool is_control = source.index == kControlSlot;
      const OutputRef* mapped = nullptr;
      if (!options.input_map.empty()) {
        MR_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName(input));
        mapped = FindMapped(options, input, name);
      }
      Node* src = nullptr;
      if (mapped != nullptr) {
        src = mapped->node;
      } else if (source.node >= 0) {
        src = made[static_cast<size_t>(source.node)];
        has_imported_input = true;
      }
      if (src == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            where(), ": ", is_control ? std::string("control input") : absl::StrCat("input ", slot),
            " refers to '", input, "', but neither the graph nor the input map has it"));
      }
      if (is_control) {
        graph->AddControlEdge(src, dst);
        continue;
      }
      const int output = mapped != nullptr ? mapped->index : source.index;
      if (Status s = graph->AddEdge(src, output, dst, slot); !s.ok()) return Prefixed(where(), s);
      ++slot;
    }
    if (!has_imported_input) {
      for (Node* src : options.control_dependencies) graph->AddControlEdge(src, dst);
    }
  }
  return absl::OkStatus();
}

}  // namespace

Status ImportNodes(IncomingNodes* incoming, const ImportOptions& options, Graph* graph,
                   ImportedNodes* imported) {
  VerifyOptions verify;
  verify.unknown_ops = options.unknown_ops;
  verify.allow_internal_names = options.allow_internal_names;
  verify.allow_missing_inputs = !options.input_map.empty();
  const size_t n = incoming->indices.size();
  AddedNodes added_nodes(graph, n);
  incoming->library = graph->shared_library();
  MR_RETURN_IF_ERROR(VerifyNodes(verify, graph->bodies(), incoming));
  std::string prefix = options.prefix;
  if (!prefix.empty()) {
    if (prefix.back() != '/') prefix += '/';
    if (!IsLegalNodeName(prefix, options.allow_internal_names)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ImportGraphDef: prefix must be a legal node name, got '", options.prefix, "'"));
    }
  }
  const GraphDef& def = *incoming->def;
  const auto node_at = [&](size_t i) -> const NodeDef& { return def.node(incoming->indices[i]); };
  const bool was_empty = graph->num_nodes() == 0 && graph->library().empty();
  const bool had_loops = graph->has_loops();

  const bool renames = !prefix.empty() || options.uniquify_names;
  HashMap<std::string, std::string> names;
  std::vector<Node*> made;
  made.reserve(n);
  graph->ReserveNodes(static_cast<int>(n));
  for (size_t i = 0; i < n; ++i) {
    const NodeDef& node = node_at(i);
    std::string name = node.name();
    if (renames) {
      name = absl::StrCat(prefix, name);
      if (options.uniquify_names) name = graph->UniqueName(name);
      names[node.name()] = name;
    }
    MR_ASSIGN_OR_RETURN(Node * added, graph->AddNode(name, std::move(incoming->bodies[i])));
    added_nodes.Add(added);
    if (!node.device().empty()) added->set_requested_device(node.device());
    made.push_back(added);
  }
  if (renames) {
    for (Node* node : made) {
      if (!HasAttr(*node, "_class")) continue;
      node->EditAttr("_class", [&](tensorflow::AttrValue* classes) {
        RenameColocation(names, prefix, classes);
      });
    }
    if (incoming->has_loops) RenameFrames(made, prefix, options.uniquify_names);
  }
  MR_RETURN_IF_ERROR(ConnectNodes(*incoming, options, made, graph));
  // Edges into new nodes only: what the graph had can have got no cycle and no other frame, so it
  // is looked at again only where the new nodes may be in one of its loops.
  if (!options.input_map.empty()) {
    if (had_loops || incoming->has_loops) {
      MR_RETURN_IF_ERROR(VerifyGraph(*graph));
    } else {
      MR_RETURN_IF_ERROR(CheckInputsConnected(made));
    }
  }
  tensorflow::VersionDef versions =
      was_empty ? def.versions() : MergedVersions(graph->versions(), def.versions());
  if (imported != nullptr) {
    imported->clear();
    imported->reserve(n);
    for (size_t i = 0; i < n; ++i) imported->emplace(node_at(i).name(), made[i]);
  }
  // Nothing fails from here on.
  graph->set_library(std::move(incoming->library));
  graph->mutable_versions()->Swap(&versions);
  added_nodes.Keep();
  return absl::OkStatus();
}

Status ImportGraphDef(const GraphDef& def, const ImportOptions& options, Graph* graph,
                      ImportedNodes* imported) {
  IncomingNodes nodes = AllNodes(def);
  return ImportNodes(&nodes, options, graph, imported);
}

Status ImportGraphDef(GraphDef&& def, const ImportOptions& options, Graph* graph,
                      ImportedNodes* imported) {
  IncomingNodes nodes = AllNodes(def);
  nodes.taken = &def;
  return ImportNodes(&nodes, options, graph, imported);
}

StatusOr<GraphDef> ParseGraphDefText(absl::string_view text) {
  google::protobuf::TextFormat::Parser parser;
  KeepFirstError errors;
  parser.RecordErrorsTo(&errors);
  // Deeper nesting than verification allows must not overflow the stack here.
  parser.SetRecursionLimit(4 * kMaxAttrNesting + 64);
  GraphDef def;
  google::protobuf::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  if (!parser.Parse(&stream, &def)) {
    return absl::DataLossError(
        absl::StrCat("must be a GraphDef in text form, got ", errors.text()));
  }
  return def;
}

StatusOr<GraphDef> ReadGraphDef(FileSystem* fs, const std::string& path) {
  // protobuf counts bytes in an int.
  constexpr uint64_t kMaxBytes = (uint64_t{1} << 31) - 1;
  MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs, path, kMaxBytes));
  const std::string where = absl::StrCat("GraphDef '", path, "'");
  const bool named_text = absl::EndsWith(path, ".pbtxt") || absl::EndsWith(path, ".txt");
  const bool text = named_text || (!absl::EndsWith(path, ".pb") && LooksLikeText(bytes));
  if (text) {
    StatusOr<GraphDef> def = ParseGraphDefText(bytes);
    if (!def.ok()) return Prefixed(where, def.status());
    return def;
  }
  GraphDef def;
  if (!def.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrCat(where, ": must be a GraphDef in binary form, got ",
                                            bytes.size(), " bytes that are none"));
  }
  return def;
}

Status WriteGraphDef(FileSystem* fs, const std::string& path, const GraphDef& def,
                     GraphFormat format) {
  std::string bytes;
  if (format == GraphFormat::kText) {
    if (!google::protobuf::TextFormat::PrintToString(def, &bytes)) {
      return absl::InternalError(absl::StrCat("GraphDef '", path, "': text could not be made"));
    }
  } else {
    if (def.ByteSizeLong() >= (size_t{1} << 31)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "GraphDef '", path, "': must be smaller than 2 GiB, got ", def.ByteSizeLong(), " bytes"));
    }
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    if (!def.SerializeToCodedStream(&coded)) {
      return absl::InternalError(absl::StrCat("GraphDef '", path, "': bytes could not be made"));
    }
  }
  return WriteFileAtomically(fs, path, bytes);
}

}  // namespace millrace
