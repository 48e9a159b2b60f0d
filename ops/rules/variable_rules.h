// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_VARIABLE_RULES_H_
#define MILLRACE_OPS_RULES_VARIABLE_RULES_H_

// Which dtypes and shapes go together in the ops on variables (resource_variable, resource_rows,
// ref_variable, training). Shape functions and kernels call the same function, so that what one
// accepts the other accepts.
//
// Pure functions; InvalidArgument unless said otherwise. The shape of a variable may change
// between two calls: a kernel checks it under the variable's locks (runtime/variable_storage.h).

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/resource_handle.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/shape_inference.h"
#include "runtime/variable_storage.h"

namespace millrace {

// The shape that gathered or scattered rows have: indices + row. The only place that knows it.
inline StatusOr<PartialShape> RowsShape(const PartialShape& indices, const PartialShape& table) {
  if (!table.has_rank()) return PartialShape();
  if (table.rank() < 1) return InvalidArgument("the variable must have rank >= 1, got shape []");
  if (!indices.has_rank()) return PartialShape();
  std::vector<int64_t> dims(indices.dims().begin(), indices.dims().end());
  dims.insert(dims.end(), table.dims().begin() + 1, table.dims().end());
  return PartialShape::Make(dims);
}

// `updates` is either a scalar or shaped like the rows.
inline Status CheckUpdates(const PartialShape& updates, const PartialShape& indices,
                           const PartialShape& table) {
  MR_ASSIGN_OR_RETURN(const PartialShape rows, RowsShape(indices, table));
  if (updates.has_rank() && updates.rank() == 0) return absl::OkStatus();
  if (!updates.IsCompatibleWith(rows)) {
    return InvalidArgument(
        "updates must be a scalar or have the shape of indices followed by a row ", rows,
        " (indices ", indices, ", variable ", table, "), got shape ", updates);
  }
  return absl::OkStatus();
}

// What the variable behind handle input i holds; unknown when the graph does not say.
inline HandleData HandleOf(InferenceContext* c, int i) {
  return c->input_handle(i).value_or(HandleData());
}

// The shape of the variable behind input 0. The dtype that the graph gives the handle must be the
// one that the op asks for (its attr `dtype`) ...
inline StatusOr<PartialShape> ShapeOfHandle(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  if (handle.dtype != DT_INVALID && handle.dtype != dtype) {
    return InvalidArgument("the variable has dtype ", handle.dtype, ", got attr dtype ", dtype);
  }
  return handle.shape;
}

// ... and so must the dtype of the variable that a step finds.
inline Status CheckStorageDtype(const VariableStorage& variable, DType dtype) {
  if (variable.dtype() == dtype) return absl::OkStatus();
  return InvalidArgument("Trying to access resource ", variable.name(), " with dtype ", dtype,
                         ", but its dtype is ", variable.dtype());
}

// TensorFlow's text for reading a resource variable that has no value.
inline Status ReadError(const VariableStorage& variable, const ResourceHandle& handle) {
  return FailedPrecondition(
      "Error while reading resource variable ", variable.name(),
      " from Container: ", handle.container,
      ". This could mean that the variable was uninitialized. Not found: ", "Resource ",
      handle.container, "/", handle.name, "/", VariableStorage::kTypeName, " does not exist.");
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_VARIABLE_RULES_H_
