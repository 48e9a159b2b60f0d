// SPDX-License-Identifier: Apache-2.0
#include "saver/freeze_tables.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/graph_def.h"

namespace millrace {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;

// How a table of this op is filled in a frozen graph; the op that it becomes.
struct TableOp {
  const char* op;
  const char* frozen_op;
  const char* fill;
  bool is_reference;
};
const TableOp* FindTableOp(absl::string_view op) {
  static constexpr TableOp kOps[] = {
      {"HashTableV2", "HashTableV2", "InitializeTableV2", false},
      {"HashTable", "HashTable", "InitializeTable", true},
      {"MutableHashTableV2", "HashTableV2", "InitializeTableV2", false},
      {"MutableHashTable", "HashTable", "InitializeTable", true},
      {"MutableHashTableOfTensorsV2", "MutableHashTableOfTensorsV2", "LookupTableImportV2", false},
      {"MutableHashTableOfTensors", "MutableHashTableOfTensors", "LookupTableImport", true},
      {"MutableDenseHashTableV2", "MutableDenseHashTableV2", "LookupTableImportV2", false},
      {"MutableDenseHashTable", "MutableDenseHashTable", "LookupTableImport", true},
  };
  for (const TableOp& one : kOps) {
    if (op == one.op) return &one;
  }
  return nullptr;
}

bool Initializes(absl::string_view op) {
  return absl::StartsWith(op, "InitializeTable") || absl::StartsWith(op, "LookupTableImport");
}
bool Changes(absl::string_view op) {
  return absl::StartsWith(op, "LookupTableInsert") || absl::StartsWith(op, "LookupTableRemove");
}

template <typename T>
void Set(const char* attr, const T& value, NodeDef* node) {
  SetAttr(value, &(*node->mutable_attr())[attr]);
}

NodeDef* AddConst(const std::string& name, const std::string& device, const Tensor& value,
                  GraphDef* graph) {
  NodeDef* const node = graph->add_node();
  node->set_name(name);
  node->set_op("Const");
  node->set_device(device);
  Set("dtype", value.dtype(), node);
  Set("value", value, node);
  return node;
}

struct Table {
  int node;  // in the frozen graph
  const TableOp* op;
  DType key_dtype, value_dtype;
};

struct Tables {
  std::map<std::string, Table> tables;
  std::map<std::string, std::vector<int>> users;  // nodes of the frozen graph that take them
};

// Those that get their content from outside of the frozen graph. InvalidArgument when a node of it
// changes one.
StatusOr<Tables> FindTables(const GraphDef& frozen) {
  Tables found;
  std::map<std::string, Table>& tables = found.tables;
  for (int i = 0; i < frozen.node_size(); ++i) {
    const NodeDef& node = frozen.node(i);
    const TableOp* const op = FindTableOp(node.op());
    if (op == nullptr) continue;
    Table table = {i, op, DT_INVALID, DT_INVALID};
    MR_ASSIGN_OR_RETURN(table.key_dtype, GetAttr<DType>(node, "key_dtype"));
    MR_ASSIGN_OR_RETURN(table.value_dtype, GetAttr<DType>(node, "value_dtype"));
    tables[node.name()] = table;
  }
  std::map<std::string, std::vector<int>>& users = found.users;
  for (int i = 0; i < frozen.node_size(); ++i) {
    const NodeDef& node = frozen.node(i);
    if (node.input_size() == 0) continue;
    for (const std::string& input : node.input()) {
      absl::string_view source;
      int index = 0;
      if (absl::StartsWith(input, "^") || !SplitTensorName(input, &source, &index)) continue;
      const auto table = tables.find(std::string(source));
      if (table == tables.end()) continue;
      if (Changes(node.op())) {
        return InvalidArgument("FreezeGraph: ", node.op(), " '", node.name(),
                               "' must only read table '", table->first,
                               "', which is to become constant; leave it out by other outputs");
      }
      users[table->first].push_back(i);
    }
  }
  for (auto it = tables.begin(); it != tables.end();) {
    const std::vector<int>& of_table = users[it->first];
    const bool has_own = std::any_of(of_table.begin(), of_table.end(),
                                     [&](int i) { return Initializes(frozen.node(i).op()); });
    it = has_own ? tables.erase(it) : std::next(it);
  }
  return found;
}

// Names that no node has.
class FreeNames {
 public:
  explicit FreeNames(const GraphDef& graph) {
    for (const NodeDef& node : graph.node()) taken_.insert(node.name());
  }
  std::string operator()(const std::string& wanted) {
    std::string name = wanted;
    for (int i = 1; !taken_.insert(name).second; ++i) name = absl::StrCat(wanted, "_", i);
    return name;
  }

 private:
  HashSet<std::string> taken_;
};

// The keys and the values of each table, one table after the other.
StatusOr<std::vector<Tensor>> ReadTables(Session* session, const GraphDef& graph,
                                         const std::map<std::string, Table>& tables,
                                         FreeNames* free_name) {
  GraphDef readers;
  *readers.mutable_versions() = graph.versions();
  std::vector<FetchName> fetches;
  for (const auto& [name, table] : tables) {
    NodeDef* const node = readers.add_node();
    node->set_name((*free_name)(absl::StrCat("freeze_graph/", name)));
    node->set_op(table.op->is_reference ? "LookupTableExport" : "LookupTableExportV2");
    node->add_input(name);
    Set("Tkeys", table.key_dtype, node);
    Set("Tvalues", table.value_dtype, node);
    fetches.emplace_back(absl::StrCat(node->name(), ":0"));
    fetches.emplace_back(absl::StrCat(node->name(), ":1"));
  }
  // A graph and a checkpoint have no tables yet; a table that has content keeps it.
  std::vector<FetchName> fills;
  for (const NodeDef& node : graph.node()) {
    if (node.input_size() == 0 || !Initializes(node.op())) continue;
    const auto table = tables.find(node.input(0));
    if (table == tables.end()) continue;
    if (absl::StartsWith(table->second.op->op, "HashTable")) fills.emplace_back(node.name());
  }
  if (!fills.empty()) {
    MR_RETURN_IF_ERROR(Prefixed("FreezeGraph", session->Run({}, {}, fills).status()));
  }
  MR_RETURN_IF_ERROR(session->Extend(readers));
  StatusOr<std::vector<Tensor>> content = session->Run({}, fetches);
  if (!content.ok()) return Prefixed("FreezeGraph", content.status());
  return content;
}

}  // namespace

StatusOr<std::vector<std::string>> FreezeTables(Session* session, const GraphDef& graph,
                                                GraphDef* frozen) {
  MR_ASSIGN_OR_RETURN(Tables found, FindTables(*frozen));
  const std::map<std::string, Table>& tables = found.tables;
  if (tables.empty()) return std::vector<std::string>();
  FreeNames free_name(graph);
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> content,
                      ReadTables(session, graph, tables, &free_name));
  std::vector<std::string> names;
  size_t next = 0;
  for (const auto& [name, table] : tables) {
    const std::string device = frozen->node(table.node).device();
    const std::string keys = free_name(absl::StrCat(name, "/frozen_keys"));
    const std::string values = free_name(absl::StrCat(name, "/frozen_values"));
    const std::string fill = free_name(absl::StrCat(name, "/frozen_init"));
    AddConst(keys, device, content[next], frozen);
    AddConst(values, device, content[next + 1], frozen);
    next += 2;
    frozen->mutable_node(table.node)->set_op(table.op->frozen_op);
    NodeDef* const node = frozen->add_node();
    node->set_name(fill);
    node->set_op(table.op->fill);
    node->set_device(device);
    for (const std::string* input : {&name, &keys, &values}) node->add_input(*input);
    const bool imports = absl::StartsWith(table.op->fill, "LookupTableImport");
    Set(imports ? "Tin" : "Tkey", table.key_dtype, node);
    Set(imports ? "Tout" : "Tval", table.value_dtype, node);
    for (const int user : found.users[name]) {
      NodeDef* const waits = frozen->mutable_node(user);
      const std::string input = absl::StrCat("^", fill);
      if (waits->input().empty() || waits->input(waits->input_size() - 1) != input) {
        waits->add_input(input);
      }
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace millrace
