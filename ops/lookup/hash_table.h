// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOKUP_HASH_TABLE_H_
#define MILLRACE_OPS_LOOKUP_HASH_TABLE_H_

// Tables: values by key, kept between steps. Made here, filled by ops/lookup/table_initializer.h or
// changed, and asked, by ops/lookup/lookup_table.h; layers/lookup.h makes whole ones.
//
//   table               values                    changes
//   HashTableV2         scalars                   never again once it is initialised
//   MutableHashTable... scalars, or tensors of    at any time: insert, remove, import
//                       one shape
//   MutableDense...     the same; keys may be     at any time; two keys are reserved
//                       vectors
//
// Keys are int32, int64 or string, values bool, int32, int64, float, double or string.
//
// Tables outlive steps; those of one container and shared_name on one device are one table and must
// agree in kind, types and shapes. Without a shared_name a table is named by its node, and is its
// session's alone unless use_node_name_sharing is set.
//
// A handle is a resource; in the old forms (names without V2) a reference to a string vector,
// container and name. No gradients.

#include <cstdint>
#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct HashTableAttrs {
  std::string container = "";
  std::string shared_name = "";  // the node's name when empty
  // All sessions of the device share the table of this node's name.
  bool use_node_name_sharing = false;
};
inline Output HashTableV2(ScopeAt at, DType key_dtype, DType value_dtype,
                          const HashTableAttrs& attrs = {}) {
  return BuildOp(at, "HashTableV2", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name, "use_node_name_sharing", attrs.use_node_name_sharing,
                 "key_dtype", key_dtype, "value_dtype", value_dtype);
}
// The old form.
inline Output HashTableV1(ScopeAt at, DType key_dtype, DType value_dtype,
                          const HashTableAttrs& attrs = {}) {
  return BuildOp(at, "HashTable", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name, "use_node_name_sharing", attrs.use_node_name_sharing,
                 "key_dtype", key_dtype, "value_dtype", value_dtype);
}

inline Output MutableHashTableV2(ScopeAt at, DType key_dtype, DType value_dtype,
                                 const HashTableAttrs& attrs = {}) {
  return BuildOp(at, "MutableHashTableV2", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name, "use_node_name_sharing", attrs.use_node_name_sharing,
                 "key_dtype", key_dtype, "value_dtype", value_dtype);
}
// The old form.
inline Output MutableHashTableV1(ScopeAt at, DType key_dtype, DType value_dtype,
                                 const HashTableAttrs& attrs = {}) {
  return BuildOp(at, "MutableHashTable", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name, "use_node_name_sharing", attrs.use_node_name_sharing,
                 "key_dtype", key_dtype, "value_dtype", value_dtype);
}

// Values of shape `value_shape`, which must be a vector: TensorFlow's default, a scalar, is
// InvalidArgument.
inline Output MutableHashTableOfTensorsV2(ScopeAt at, DType key_dtype, DType value_dtype,
                                          const PartialShape& value_shape,
                                          const HashTableAttrs& attrs = {}) {
  return BuildOp(at, "MutableHashTableOfTensorsV2", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name, "use_node_name_sharing", attrs.use_node_name_sharing,
                 "key_dtype", key_dtype, "value_dtype", value_dtype, "value_shape", value_shape);
}
// The old form.
inline Output MutableHashTableOfTensorsV1(ScopeAt at, DType key_dtype, DType value_dtype,
                                          const PartialShape& value_shape,
                                          const HashTableAttrs& attrs = {}) {
  return BuildOp(at, "MutableHashTableOfTensors", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name, "use_node_name_sharing", attrs.use_node_name_sharing,
                 "key_dtype", key_dtype, "value_dtype", value_dtype, "value_shape", value_shape);
}

struct MutableDenseHashTableAttrs {
  PartialShape value_shape = PartialShape::Scalar();  // or a vector
  int64_t initial_num_buckets = int64_t{1} << 17;     // a power of two, at least 4
  float max_load_factor = 0.8f;                       // in (0, 1)
  std::string container = "";
  std::string shared_name = "";
  bool use_node_name_sharing = false;
};
// Open addressing, laid out as TensorFlow's: what is exported, and saved, is the buckets.
// `empty_key` and `deleted_key` (scalars or vectors of one shape, which is that of a key; they must
// differ) mark buckets, and may not be used as keys.
inline Output MutableDenseHashTableV2(ScopeAt at, Output empty_key, Output deleted_key,
                                      DType value_dtype,
                                      const MutableDenseHashTableAttrs& attrs = {}) {
  return BuildOp(at, "MutableDenseHashTableV2", {empty_key, deleted_key}, "container",
                 attrs.container, "shared_name", attrs.shared_name, "use_node_name_sharing",
                 attrs.use_node_name_sharing, "value_dtype", value_dtype, "value_shape",
                 attrs.value_shape, "initial_num_buckets", attrs.initial_num_buckets,
                 "max_load_factor", attrs.max_load_factor);
}
// The old form: nothing can be removed from it.
inline Output MutableDenseHashTableV1(ScopeAt at, Output empty_key, DType value_dtype,
                                      const MutableDenseHashTableAttrs& attrs = {}) {
  return BuildOp(at, "MutableDenseHashTable", {empty_key}, "container", attrs.container,
                 "shared_name", attrs.shared_name, "use_node_name_sharing",
                 attrs.use_node_name_sharing, "value_dtype", value_dtype, "value_shape",
                 attrs.value_shape, "initial_num_buckets", attrs.initial_num_buckets,
                 "max_load_factor", attrs.max_load_factor);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_LOOKUP_HASH_TABLE_H_
