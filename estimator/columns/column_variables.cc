// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/column_variables.h"

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/status.h"
#include "estimator/columns/restored_initializer.h"
#include "layers/initializers.h"

namespace millrace {
namespace {

StatusOr<Initializer> InitializerOf(const TablePlan& table) {
  if (table.ckpt_to_load_from.empty()) return table.initializer;
  StatusOr<Initializer> restored = RestoredInitializer(
      table.ckpt_to_load_from, table.tensor_name_in_ckpt, table.shape, DT_FLOAT);
  if (restored.ok()) return restored;
  return OfColumn(
      *table.column,
      Prefixed(absl::StrCat("EmbeddingColumn '", table.column->name, "'"), restored.status()));
}

}  // namespace

std::vector<PartitionedVariable> MakeColumnVariables(ScopeAt at, const LayerPlan& layer,
                                                     const ColumnVariablesOptions& options) {
  // Names are absolute: where the nodes of the layer stand does not matter.
  const Scope root = at.scope.WithRootPrefix().WithoutControlDependencies();
  std::vector<PartitionedVariable> variables;
  for (const TablePlan& table : layer.tables) {
    const std::string name = absl::StrCat(options.variable_scope, "/", table.name);
    const StatusOr<Initializer> initializer = InitializerOf(table);
    if (!initializer.ok()) {
      at.scope.UpdateStatus(initializer.status(), at.where);
      return {};
    }
    variables.push_back(MakeVariableInParts(ScopeAt(root.WithName(name), at.where), table.shape,
                                            DT_FLOAT, options.partitioner, *initializer,
                                            {.trainable = options.trainable && table.trainable}));
    if (!at.scope.ok()) return {};
    if (variables.back().name != name) {
      at.scope.UpdateStatus(absl::AlreadyExistsError(absl::StrCat(
                                "Variable '", name,
                                "' must not exist before its column makes it, got one that does; "
                                "layers of one graph need different variable scopes")),
                            at.where);
      return {};
    }
  }
  return variables;
}

}  // namespace millrace
