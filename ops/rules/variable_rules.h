// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_VARIABLE_RULES_H_
#define MILLRACE_OPS_RULES_VARIABLE_RULES_H_

// Which dtypes and shapes go together in the ops on variables (resource_variable, resource_rows,
// ref_variable). Shape functions and kernels call the same function, so that what one accepts
// the other accepts.
//
// Pure functions; InvalidArgument unless said otherwise. The shape of a variable may change
// between two calls: a kernel checks it under the variable's locks (runtime/variable_storage.h).

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/resource_handle.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/shape_inference.h"
#include "runtime/variable_storage.h"

namespace millrace {

// Element types of the ops that add and subtract, as in an OpDef's attr.
inline constexpr const char* kNumberTypes =
    "{float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, uint16, complex128, half, uint32, uint64}";

// The shape that gathered or scattered rows have: indices + row. The only place that knows it.
inline StatusOr<PartialShape> RowsShape(const PartialShape& indices, const PartialShape& table) {
  if (!table.has_rank()) return PartialShape();
  if (table.rank() < 1) {
    return absl::InvalidArgumentError("the variable must have rank >= 1, got shape []");
  }
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
    return absl::InvalidArgumentError(
        absl::StrCat("updates must be a scalar or have the shape of indices followed by a row ",
                     rows.ToString(), " (indices ", indices.ToString(), ", variable ",
                     table.ToString(), "), got shape ", updates.ToString()));
  }
  return absl::OkStatus();
}

// What the variable behind handle input i holds; unknown when the graph does not say.
inline HandleData HandleOf(InferenceContext* c, int i) {
  return c->input_handle(i) ? *c->input_handle(i) : HandleData();
}

// The dtype that a graph gives a handle and the one that an op asks for must be the same ...
inline Status CheckHandleDtype(const HandleData& handle, DType dtype) {
  if (handle.dtype != DT_INVALID && handle.dtype != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the variable has dtype ", DTypeName(handle.dtype), ", got attr dtype ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

// ... and so must the dtype of the variable that a step finds.
inline Status CheckStorageDtype(const VariableStorage& variable, DType dtype) {
  if (variable.dtype() != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("Trying to access resource ", variable.name(), " with dtype ",
                     DTypeName(dtype), ", but its dtype is ", DTypeName(variable.dtype())));
  }
  return absl::OkStatus();
}

// TensorFlow's text for reading a resource variable that has no value.
inline Status ReadError(const VariableStorage& variable, const ResourceHandle& handle) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Error while reading resource variable ", variable.name(),
      " from Container: ", handle.container,
      ". This could mean that the variable was uninitialized. Not found: Resource ",
      handle.container, "/", handle.name, "/", VariableStorage::kTypeName, " does not exist."));
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_VARIABLE_RULES_H_
