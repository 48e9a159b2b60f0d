// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_TABLE_SAVEABLE_H_
#define MILLRACE_SAVER_TABLE_SAVEABLE_H_

// Tables that change (layers/lookup.h: MutableTable) in checkpoints, as TensorFlow has them there:
// `<name>-keys` and `<name>-values`, both exported by one node on the table's device. A restore
// imports them: what the table had is gone.
//
// A Saver that is not told what to save takes the tables of the graph's collection
// "saveable_objects" besides the variables.
//
// Thread-safety: as Scope. Failure: InvalidArgument by the table's name, in the scope.

#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "graph/scope.h"
#include "saver/saver.h"

namespace millrace {

// The collection of the names of tables' nodes.
inline constexpr char kSaveableTables[] = "saveable_objects";

// `table`: the handle of a mutable table of the scope's graph. `name`: in the checkpoint, the
// node's own when empty. The node that exports is made once.
StatusOr<std::shared_ptr<const Saveable>> MakeTableSaveable(ScopeAt at, const Output& table,
                                                            const std::string& name = "");

// Of all tables in the graph's collection.
StatusOr<std::vector<std::shared_ptr<const Saveable>>> TableSaveablesOf(ScopeAt at);

}  // namespace millrace

#endif  // MILLRACE_SAVER_TABLE_SAVEABLE_H_
