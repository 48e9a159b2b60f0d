// SPDX-License-Identifier: Apache-2.0
#include "saver/table_saveable.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "ops/lookup/lookup_table.h"
#include "proto/meta_graph.pb.h"

namespace millrace {
namespace {

bool IsMutableTable(absl::string_view op) {
  constexpr std::array<absl::string_view, 6> kOps = {
      "MutableHashTableV2",        "MutableHashTable",        "MutableHashTableOfTensorsV2",
      "MutableHashTableOfTensors", "MutableDenseHashTableV2", "MutableDenseHashTable"};
  return std::find(kOps.begin(), kOps.end(), op) != kOps.end();
}

class TableSaveable final : public Saveable {
 public:
  TableSaveable(Output table, KeysAndValues content, std::string name)
      : table_(std::move(table)), content_(std::move(content)), name_(std::move(name)) {}

  std::vector<Spec> specs() const override {
    return {{absl::StrCat(name_, "-keys"), "", content_.keys},
            {absl::StrCat(name_, "-values"), "", content_.values}};
  }
  Operation Restore(const Scope& scope, absl::Span<const Output> restored) const override {
    if (IsRef(table_.dtype())) return LookupTableImport(scope, table_, restored[0], restored[1]);
    return LookupTableImportV2(scope, table_, restored[0], restored[1]);
  }

 private:
  const Output table_;
  const KeysAndValues content_;
  const std::string name_;
};

}  // namespace

StatusOr<std::shared_ptr<const Saveable>> MakeTableSaveable(ScopeAt at, const Output& table,
                                                            const std::string& name) {
  const Scope& scope = at.scope;
  if (!table.valid() || !IsMutableTable(table.node()->op())) {
    return InvalidArgument("Saver: '", table.name(),
                           "' must be a table that changes to be saved, got ",
                           table.valid() ? table.node()->op() : "an invalid output");
  }
  Node* const node = table.node();
  MR_ASSIGN_OR_RETURN(const DType key_dtype, GetAttr<DType>(*node, "key_dtype"));
  MR_ASSIGN_OR_RETURN(const DType value_dtype, GetAttr<DType>(*node, "value_dtype"));
  const bool is_reference = IsRef(table.dtype());
  const std::string export_name =
      absl::StrCat(node->name(), "_lookup_table_export_values/",
                   is_reference ? "LookupTableExport" : "LookupTableExportV2");
  KeysAndValues content;
  if (Node* const made = scope.graph()->FindNode(export_name)) {
    content = {Output(made, 0), Output(made, 1)};
  } else {
    const Scope here = at.here()
                           .WithRootPrefix()
                           .WithoutControlDependencies()
                           .ColocatedWith(table.op())
                           .WithName(export_name);
    content = is_reference ? LookupTableExport(here, table, key_dtype, value_dtype)
                           : LookupTableExportV2(here, table, key_dtype, value_dtype);
  }
  MR_RETURN_IF_ERROR(scope.status());
  return std::make_shared<TableSaveable>(table, std::move(content),
                                         name.empty() ? node->name() : name);
}

StatusOr<std::vector<std::shared_ptr<const Saveable>>> TableSaveablesOf(ScopeAt at) {
  const Scope& scope = at.scope;
  std::vector<std::shared_ptr<const Saveable>> saveables;
  const auto found = scope.collections()->find(kSaveableTables);
  if (found == scope.collections()->end()) return saveables;
  // A copy: the collections may grow meanwhile.
  const auto names = found->second.node_list().value();
  for (const std::string& name : names) {
    Node* const node = scope.graph()->FindNode(name);
    if (node == nullptr) {
      return InvalidArgument("Saver: collection '", kSaveableTables,
                             "' must name tables of the graph, got '", name, "'");
    }
    MR_ASSIGN_OR_RETURN(auto saveable, MakeTableSaveable(at, Output(node, 0)));
    saveables.push_back(std::move(saveable));
  }
  return saveables;
}

}  // namespace millrace
