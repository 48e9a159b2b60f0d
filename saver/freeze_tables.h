// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_FREEZE_TABLES_H_
#define MILLRACE_SAVER_FREEZE_TABLES_H_

// The tables of a frozen graph (saver/freeze_graph.h): what a session's tables have becomes
// constants of the graph, from which each table is filled before anybody asks it. No file is read
// any more, and no initialiser has to be run.
//
//   hash_table -> hash_table/frozen_init (keys, values: Const) -^-> LookupTableFindV2, ...
//
// Tables of the session that are empty still are filled by the initialisers of its graph. A table
// whose own initialiser is in the frozen graph (an output needs it) stays as it is.
//
// Failure: InvalidArgument for a table that changes in the graph; the session's error for a table
// without content, which is named.

#include <string>
#include <vector>

#include "core/status.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"

namespace millrace {

// `graph` is the session's, `frozen` a part of it. Returns the names of the tables, sorted. Nodes
// that read tables are added to the session's graph.
StatusOr<std::vector<std::string>> FreezeTables(Session* session, const tensorflow::GraphDef& graph,
                                                tensorflow::GraphDef* frozen);

}  // namespace millrace

#endif  // MILLRACE_SAVER_FREEZE_TABLES_H_
