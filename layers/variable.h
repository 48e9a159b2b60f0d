// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_VARIABLE_H_
#define MILLRACE_LAYERS_VARIABLE_H_

// Variable: a tensor that steps read and training changes.
//
//   Variable w = MakeVariable(scope.WithName("w"), Shape{3, 1}, DT_FLOAT, ZerosInitializer());
//   Output y = MatMul(scope, x, w.value);
//
// Makes a resource variable as TensorFlow 1.15's tf.get_variable(use_resource=True)
// does: `<name>` (VarHandleOp, shared_name = <name>), `<name>/Initializer/...` or the given
// initial value, `<name>/IsInitialized/VarIsInitializedOp`, `<name>/Assign` (AssignVariableOp) and
// `<name>/Read/ReadVariableOp`. The device function of the scope sees the VarHandleOp, which
// decides the device of all of them (they are colocated with the handle).
//
// With use_resource off it is a reference variable, as graphs before resource variables have them:
// `<name>` (VariableV2), its initial value, `<name>/IsVariableInitialized`, `<name>/Assign` and
// `<name>/read` (Identity). What reads and changes either kind is in layers/variable_update.h.
// Graphs that are read have both.
//
// An initial value that reads other variables takes their initial values where they have no value
// yet (layers/initialized_value.h): in one step with their initialisers, and once. (But for local
// variables, which are initialised after the others.)
//
// Each variable is entered, as a serialized VariableDef, into the collections "variables" (or
// "local_variables") and, when trainable, "trainable_variables".

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "graph/scope.h"
#include "layers/initializers.h"

namespace millrace {

// Which part of a larger variable one is: `var_shape` elements from `var_offset` on, one number per
// dimension of `full_shape`. Whole variables have an empty full_name. (TensorFlow's
// SaveSliceInfoDef.)
struct VariableSlice {
  std::string full_name;
  std::vector<int64_t> full_shape, var_offset, var_shape;
};

struct VariableAttrs {
  bool trainable = true;
  // Into "local_variables" instead of "variables": not saved.
  bool local = false;
  std::string container = "";
  bool use_resource = true;  // false: a reference variable
  // Which part of a larger variable this is; set by MakePartitionedVariable and for the slots of
  // its parts. Checkpoints hold the parts as slices of `full_name`.
  VariableSlice slice = {};
};

struct Variable {
  std::string name;       // "w": the name of the handle's node and of the tensor in checkpoints
  Output handle;          // DT_RESOURCE; the reference of a reference variable
  Output value;           // a read on the variable's device, made once
  Operation initializer;  // assigns the initial value
  Output is_initialized;  // bool scalar
  DType dtype = DT_INVALID;
  PartialShape shape;
  VariableSlice slice;
  bool valid() const { return handle.valid(); }
  bool is_reference() const { return handle.valid() && IsRef(handle.dtype()); }
};

// The scope's WithName gives the name ("Variable" otherwise). The shape of `initial_value` must be
// fully defined: InvalidArgument otherwise.
Variable MakeVariable(ScopeAt at, Output initial_value, const VariableAttrs& attrs = {});
// The initial value is made on the variable's device, in `<name>/Initializer`. InvalidArgument for
// an initialiser that gives another shape or dtype.
Variable MakeVariable(ScopeAt at, const Shape& shape, DType dtype, const Initializer& initializer,
                      const VariableAttrs& attrs = {});

// A variable whose handle is in the graph already (of a model that was read): it is entered into
// the collections as others are, and has no initializer: its value is restored, or assigned.
// InvalidArgument for a handle that is no VarHandleOp.
Variable AdoptVariable(ScopeAt at, Output handle, const VariableAttrs& attrs = {});

// Parts of one large variable along one dimension: `<name>/part_0`, ... of nearly equal size (the
// first ones are larger by one). The initialiser is called for each part, with its shape and place
// in the whole (InitialShape); one with a seed gives parts of one shape the same random numbers, as
// TensorFlow's does. (layers/partitioner.h chooses the numbers of parts.)
struct PartitionedVariable {
  std::string name;
  std::vector<Variable> parts;
  Shape full_shape;
};
// `partitions`: the number of parts along each dimension, such as {1, 4}. InvalidArgument for a
// scalar, another number of partitions than dimensions, a number < 1 or larger than the dimension,
// and more than one dimension that is cut.
PartitionedVariable MakePartitionedVariable(ScopeAt at, const Shape& full_shape, DType dtype,
                                            const std::vector<int64_t>& partitions,
                                            const Initializer& initializer,
                                            const VariableAttrs& attrs = {});
// Rows: parts along dimension 0.
PartitionedVariable MakePartitionedVariable(ScopeAt at, const Shape& full_shape, DType dtype,
                                            int num_parts, const Initializer& initializer,
                                            const VariableAttrs& attrs = {});
// The dimension along which the parts of one variable are cut, as their slices say: 0 for rows, for
// a single part, and for variables that are no slices.
int CutDimension(const std::vector<Variable>& parts);

// All variables of the graph's collection ("variables", "trainable_variables", "local_variables"),
// in the order in which they were made.
std::vector<Variable> VariablesOf(const Scope& scope, const std::string& collection = "variables");

// Enters variables of the graph into one more collection.
void AddToCollection(const Scope& scope, const std::vector<Variable>& variables,
                     const std::string& collection);

// One operation that initialises all of them.
Operation GlobalVariablesInitializer(ScopeAt at);
Operation LocalVariablesInitializer(ScopeAt at);
// Whether the variable has a value: `is_initialized`, or a new bool scalar on its device for a
// variable of a graph that was read without one.
Output IsInitialized(ScopeAt at, const Variable& variable);
// A string vector: the names of variables that are not initialised.
Output ReportUninitializedVariables(ScopeAt at, const std::vector<Variable>& variables);

// The scalar int64 variable "global_step", made at the first call (in the scope's root name scope).
Variable GlobalStep(ScopeAt at);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_VARIABLE_H_
