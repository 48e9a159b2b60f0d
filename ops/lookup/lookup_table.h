// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOKUP_LOOKUP_TABLE_H_
#define MILLRACE_OPS_LOOKUP_LOOKUP_TABLE_H_

// What is done with tables (ops/lookup/hash_table.h). `table_handle` is a resource; in the old
// forms, whose names have no V2, a reference.
//
// In shapes below `key` and `value` stand for the shapes of one key and one value: [] unless the
// table says otherwise.
//
// Errors: FailedPrecondition "Table not initialized. ..." for a HashTable that is not; it names the
// table. InvalidArgument for keys or values of other types or shapes than the table's, and for what
// a HashTable does not do (insert, remove). No gradients.

#include "graph/node_builder.h"

namespace millrace {

// values[..., value] of keys[..., key]: what the table has, else `default_value` (of shape value).
inline Output LookupTableFindV2(ScopeAt at, Output table_handle, Output keys,
                                Output default_value) {
  return BuildOp(at, "LookupTableFindV2", {table_handle, keys, default_value});
}
inline Output LookupTableFind(ScopeAt at, Output table_handle, Output keys, Output default_value) {
  return BuildOp(at, "LookupTableFind", {table_handle, keys, default_value});
}

// values[..., value] for keys[..., key], new or in place of what the keys had; of equal keys the
// last one counts.
inline Operation LookupTableInsertV2(ScopeAt at, Output table_handle, Output keys, Output values) {
  return BuildOp(at, "LookupTableInsertV2", {table_handle, keys, values});
}
inline Operation LookupTableInsert(ScopeAt at, Output table_handle, Output keys, Output values) {
  return BuildOp(at, "LookupTableInsert", {table_handle, keys, values});
}

// Keys that are not there are no error.
inline Operation LookupTableRemoveV2(ScopeAt at, Output table_handle, Output keys) {
  return BuildOp(at, "LookupTableRemoveV2", {table_handle, keys});
}

// How many keys there are: an int64 scalar.
inline Output LookupTableSizeV2(ScopeAt at, Output table_handle) {
  return BuildOp(at, "LookupTableSizeV2", {table_handle});
}
inline Output LookupTableSize(ScopeAt at, Output table_handle) {
  return BuildOp(at, "LookupTableSize", {table_handle});
}

struct KeysAndValues {
  Output keys, values;
};
// keys[n, key] and values[n, value], in an order that only changes to the table change. A
// MutableDenseHashTable gives its buckets, empty ones too.
inline KeysAndValues LookupTableExportV2(ScopeAt at, Output table_handle, DType key_dtype,
                                         DType value_dtype) {
  const BuiltNode node = BuildOp(at, "LookupTableExportV2", {table_handle}, "Tkeys", key_dtype,
                                 "Tvalues", value_dtype);
  return {node.output(0), node.output(1)};
}
inline KeysAndValues LookupTableExport(ScopeAt at, Output table_handle, DType key_dtype,
                                       DType value_dtype) {
  const BuiltNode node =
      BuildOp(at, "LookupTableExport", {table_handle}, "Tkeys", key_dtype, "Tvalues", value_dtype);
  return {node.output(0), node.output(1)};
}

// The table has these keys and values, as they were exported, and no others. A HashTable is
// initialised with them (ops/lookup/table_initializer.h).
inline Operation LookupTableImportV2(ScopeAt at, Output table_handle, Output keys, Output values) {
  return BuildOp(at, "LookupTableImportV2", {table_handle, keys, values});
}
inline Operation LookupTableImport(ScopeAt at, Output table_handle, Output keys, Output values) {
  return BuildOp(at, "LookupTableImport", {table_handle, keys, values});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_LOOKUP_LOOKUP_TABLE_H_
