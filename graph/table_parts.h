// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_TABLE_PARTS_H_
#define MILLRACE_GRAPH_TABLE_PARTS_H_

// TablesInParts: into how many parts large tables are cut where the program says nothing about the
// one table (layers/partitioner.h).
//
//   root.WithDevice(ReplicaDeviceSetter(cluster))  one for each ps, of tables above 64 MiB
//   scope.WithDevice(TablesInParts{.max_parts = 4, .min_part_bytes = 1 << 20})
//   scope.WithDevice(TablesInParts{})              none
//
// It is a device function, because what knows the devices of variables also knows how many may
// share one. It changes no device itself; `places` chooses them, where it is given. Of several in
// a scope the innermost counts.
//
// A scope that names a task inside of it has whole tables: all parts would stand on that task.
//
// A value; thread-safe as `places` is. Nothing fails here: numbers that make no parts are refused
// where a variable is made.

#include <cstdint>
#include <string>

#include "graph/scope.h"

namespace millrace {

inline constexpr int64_t kTablePartBytes = int64_t{64} << 20;

struct TablesInParts {
  int64_t max_parts = 1;
  // A table has at most one part for each so many bytes that it begins: of no more bytes it is
  // whole.
  int64_t min_part_bytes = kTablePartBytes;
  DeviceFunction places = {};

  // Shared by so many parameter servers; `above` 0: never cut.
  static TablesInParts On(int num_ps, int64_t above, DeviceFunction places);

  std::string operator()(const tensorflow::NodeDef& node) const;
};

// What holds for variables that are made with the scope; `places` is left out. Never more than one
// part where nothing is said.
TablesInParts TablesInPartsOf(const Scope& scope);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_TABLE_PARTS_H_
