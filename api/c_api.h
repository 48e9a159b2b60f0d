// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_API_C_API_H_
#define MILLRACE_API_C_API_H_

// The C API: builds, trains, saves and runs models from C and from whatever calls C.
//
//   MillraceStatus* status = millrace_status_new();
//   MillraceGraph* graph = millrace_graph_new(status);
//   const char* x = millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, NULL, -1, status);
//   ...
//   const char* train = millrace_graph_minimize(graph, loss, &optimizer, status);
//   MillraceSession* session = millrace_session_new(graph, NULL, status);
//   millrace_session_initialize_variables(session, status);
//   ...
//   if (millrace_status_code(status) != MILLRACE_OK) puts(millrace_status_message(status));
//
// docs/c_api.md has the whole program. C11, C++17 and later.
//
// Names. Nodes and tensors are known by text and nothing else: "x" is a node, "x:1" its output 1,
// "x" where a tensor is asked for its output 0. What a function makes, it returns the name of (made
// unique: a second "x" is "x_1"); that text lives as long as any handle of its graph.
//
// Errors. A function that can fail takes a status as its last argument. A status keeps the first
// error: as long as it holds one, functions that are given it do nothing and return as if they had
// failed. So a program may make many calls and look once; millrace_status_clear goes on after an
// error. NULL for a status is allowed: then only what is returned tells of a failure. Functions
// that make something return NULL then, others a code other than MILLRACE_OK, or what they say. A
// call that fails has changed nothing: a graph is as it was, no handle has been made.
// NULL, a handle that was deleted or is of another kind, negative or wrong sizes, unknown dtypes
// and malformed bytes are errors; sizes larger than the arrays behind them cannot be seen. No C++
// exception leaves a function, no input ends the process.
//
// Handles. Every handle that a function returns is the caller's, who deletes it once, in any order:
// what a handle needs of others (a session of its graph) it keeps alive itself. Deleting NULL does
// nothing; deleting twice says so on stderr and does nothing, as long as the handle has not been
// given out again (dozens of others are first). What is passed into a function stays the
// caller's unless the function says otherwise, and is not needed after its return. Text and arrays
// that a function returns belong to the handle that it was asked of.
//
// Threads. Functions may be called from any thread. Graphs, sessions, savers, prepared steps and
// loaded models may be used by many threads at once; graphs and savers take turns, sessions run
// steps side by side. A status, a node builder, a signature and a tensor that is being written
// belong to one thread at a time. No handle may be deleted while a call uses it.
//
// ABI. Functions are added and never removed or changed while the major version stays;
// api/c_api_symbols.txt lists them. Structs of options begin with their size, as the caller knows
// it: {.struct_size = sizeof(MillraceRunOptions)}, the rest zeros, means the defaults, and so does
// NULL for the struct. They grow at the end; a library refuses fields that it does not know unless
// they are zero. Enumerations are int32_t with TensorFlow's numbers.

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MILLRACE_EXPORT
#else
#define MILLRACE_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MillraceStatus MillraceStatus;
typedef struct MillraceBuffer MillraceBuffer;    // bytes
typedef struct MillraceStrings MillraceStrings;  // a list of texts
typedef struct MillraceTensor MillraceTensor;
typedef struct MillraceGraph MillraceGraph;
typedef struct MillraceNodeBuilder MillraceNodeBuilder;
typedef struct MillraceSession MillraceSession;
typedef struct MillracePreparedStep MillracePreparedStep;
typedef struct MillraceSaver MillraceSaver;
typedef struct MillraceSignature MillraceSignature;
typedef struct MillraceSavedModel MillraceSavedModel;
typedef struct MillraceModelClient MillraceModelClient;

// The release of the library: "0.7.0". Never NULL.
MILLRACE_EXPORT const char* millrace_version(void);

// --- Status --------------------------------------------------------------------------------------

typedef int32_t MillraceCode;
enum {
  MILLRACE_OK = 0,
  MILLRACE_CANCELLED = 1,
  MILLRACE_UNKNOWN = 2,
  MILLRACE_INVALID_ARGUMENT = 3,
  MILLRACE_DEADLINE_EXCEEDED = 4,
  MILLRACE_NOT_FOUND = 5,
  MILLRACE_ALREADY_EXISTS = 6,
  MILLRACE_PERMISSION_DENIED = 7,
  MILLRACE_RESOURCE_EXHAUSTED = 8,
  MILLRACE_FAILED_PRECONDITION = 9,
  MILLRACE_ABORTED = 10,
  MILLRACE_OUT_OF_RANGE = 11,
  MILLRACE_UNIMPLEMENTED = 12,
  MILLRACE_INTERNAL = 13,
  MILLRACE_UNAVAILABLE = 14,
  MILLRACE_DATA_LOSS = 15,
  MILLRACE_UNAUTHENTICATED = 16
};

// Holds MILLRACE_OK. NULL without memory (which all functions take for a status).
MILLRACE_EXPORT MillraceStatus* millrace_status_new(void);
MILLRACE_EXPORT void millrace_status_delete(MillraceStatus* status);
// MILLRACE_OK of NULL; MILLRACE_INVALID_ARGUMENT of a deleted one.
MILLRACE_EXPORT MillraceCode millrace_status_code(const MillraceStatus* status);
// "" when it holds no error; never NULL. Until the status changes.
MILLRACE_EXPORT const char* millrace_status_message(const MillraceStatus* status);
MILLRACE_EXPORT void millrace_status_clear(MillraceStatus* status);
// An error of the caller's own, instead of what it holds; MILLRACE_OK clears. NULL is "".
MILLRACE_EXPORT void millrace_status_set(MillraceStatus* status, MillraceCode code,
                                         const char* message);
// "INVALID_ARGUMENT"; NULL for a number that is no code. Static.
MILLRACE_EXPORT const char* millrace_code_name(MillraceCode code);

// --- Bytes and lists of texts --------------------------------------------------------------------

// A zero byte follows the last one, so text can be read as such. NULL and 0 of a handle that is
// none.
MILLRACE_EXPORT const void* millrace_buffer_data(const MillraceBuffer* buffer);
MILLRACE_EXPORT size_t millrace_buffer_size(const MillraceBuffer* buffer);
MILLRACE_EXPORT void millrace_buffer_delete(MillraceBuffer* buffer);

// 0 of a handle that is none.
MILLRACE_EXPORT int millrace_strings_count(const MillraceStrings* strings);
// NULL where there is none. Until the list is deleted.
MILLRACE_EXPORT const char* millrace_strings_get(const MillraceStrings* strings, int index);
MILLRACE_EXPORT void millrace_strings_delete(MillraceStrings* strings);

// --- Tensors -------------------------------------------------------------------------------------

typedef int32_t MillraceDType;
enum {
  MILLRACE_FLOAT = 1,
  MILLRACE_DOUBLE = 2,
  MILLRACE_INT32 = 3,
  MILLRACE_UINT8 = 4,
  MILLRACE_INT16 = 5,
  MILLRACE_INT8 = 6,
  MILLRACE_STRING = 7,
  MILLRACE_COMPLEX64 = 8,
  MILLRACE_INT64 = 9,
  MILLRACE_BOOL = 10,
  MILLRACE_QINT8 = 11,
  MILLRACE_QUINT8 = 12,
  MILLRACE_QINT32 = 13,
  MILLRACE_BFLOAT16 = 14,
  MILLRACE_QINT16 = 15,
  MILLRACE_QUINT16 = 16,
  MILLRACE_UINT16 = 17,
  MILLRACE_COMPLEX128 = 18,
  MILLRACE_HALF = 19,
  MILLRACE_RESOURCE = 20,
  MILLRACE_VARIANT = 21,
  MILLRACE_UINT32 = 22,
  MILLRACE_UINT64 = 23
};

// Bytes of an element; 0 for strings, resources, variants and numbers that are no dtype.
MILLRACE_EXPORT size_t millrace_dtype_size(MillraceDType dtype);
// "float"; NULL for a number that is no dtype. Static.
MILLRACE_EXPORT const char* millrace_dtype_name(MillraceDType dtype);

// Elements are in row-major order. `dims` has `num_dims` sizes; it may be NULL for a scalar (0).
//
// Zeros, false or "". Not of resources and variants (nor is any other function here).
MILLRACE_EXPORT MillraceTensor* millrace_tensor_new(MillraceDType dtype, const int64_t* dims,
                                                    int num_dims, MillraceStatus* status);
// A copy of the `size` bytes at `data`, which must be those of the elements: not of strings.
MILLRACE_EXPORT MillraceTensor* millrace_tensor_from_data(MillraceDType dtype, const int64_t* dims,
                                                          int num_dims, const void* data,
                                                          size_t size, MillraceStatus* status);
// The elements are the caller's memory itself, aligned for an element; nothing is copied. It must
// stay there and be left as it is until `release` is called: once, when nobody needs the elements
// any more (a variable may hold them longer than the handle), on whatever thread that happens.
// NULL for memory that stays as long as the process. After a failure the memory is the caller's
// and `release` is not called.
typedef void (*MillraceRelease)(void* data, size_t size, void* arg);
MILLRACE_EXPORT MillraceTensor* millrace_tensor_wrap(MillraceDType dtype, const int64_t* dims,
                                                     int num_dims, void* data, size_t size,
                                                     MillraceRelease release, void* arg,
                                                     MillraceStatus* status);
// A copy of `count` texts, as many as the shape has elements. `sizes` (bytes each) may be NULL when
// all end with a zero byte.
MILLRACE_EXPORT MillraceTensor* millrace_tensor_from_strings(const int64_t* dims, int num_dims,
                                                             const char* const* strings,
                                                             const size_t* sizes, int count,
                                                             MillraceStatus* status);
// A second handle to the same elements.
MILLRACE_EXPORT MillraceTensor* millrace_tensor_share(const MillraceTensor* tensor,
                                                      MillraceStatus* status);
MILLRACE_EXPORT void millrace_tensor_delete(MillraceTensor* tensor);

// Of a handle that is none: dtype 0, -1 dimensions and elements, size 0, NULL.
MILLRACE_EXPORT MillraceDType millrace_tensor_dtype(const MillraceTensor* tensor);
MILLRACE_EXPORT int millrace_tensor_num_dims(const MillraceTensor* tensor);
// -1 for a dimension that there is not.
MILLRACE_EXPORT int64_t millrace_tensor_dim(const MillraceTensor* tensor, int i);
MILLRACE_EXPORT int64_t millrace_tensor_num_elements(const MillraceTensor* tensor);
// Bytes of the elements; 0 for strings.
MILLRACE_EXPORT size_t millrace_tensor_size(const MillraceTensor* tensor);
// The elements, to be read; NULL for strings and without elements. Until the tensor is deleted or
// written.
MILLRACE_EXPORT const void* millrace_tensor_data(const MillraceTensor* tensor);
// The same, to be written until the tensor is passed to a function. Elements that somebody else
// holds too (another handle, a variable, a constant, a step) are copied before. Fails for strings;
// NULL without a failure when there are no elements.
MILLRACE_EXPORT void* millrace_tensor_mutable_data(MillraceTensor* tensor, MillraceStatus* status);
// Element `index` of a string tensor in row-major order; its bytes are in *size (may be NULL), a
// zero byte follows. Until the tensor is deleted.
MILLRACE_EXPORT const char* millrace_tensor_string(const MillraceTensor* tensor, int64_t index,
                                                   size_t* size, MillraceStatus* status);

// --- Graphs --------------------------------------------------------------------------------------

MILLRACE_EXPORT MillraceGraph* millrace_graph_new(MillraceStatus* status);
MILLRACE_EXPORT void millrace_graph_delete(MillraceGraph* graph);

typedef struct MillraceImportOptions {
  size_t struct_size;
  const char* prefix;  // "a" makes node "n" into "a/n"; NULL: none
  // Tensors of the message ("x", "x:1") -> tensors of the graph that take their place; the message
  // need not have their nodes. Both arrays have num_mapped elements.
  const char* const* mapped_from;
  const char* const* mapped_to;
  int32_t num_mapped;
  int32_t uniquify_names;  // 1: a node whose name is taken gets the next free one
  // Nodes of the graph that the imported ones wait for.
  const char* const* control_inputs;
  int32_t num_control_inputs;
} MillraceImportOptions;

// Adds the nodes of a serialized GraphDef. A name that the graph has already is an error, unless
// the options say otherwise.
MILLRACE_EXPORT MillraceCode millrace_graph_import(MillraceGraph* graph, const void* graph_def,
                                                   size_t size,
                                                   const MillraceImportOptions* options,
                                                   MillraceStatus* status);
// The graph and its collections, variables before all, of a serialized MetaGraphDef (a
// checkpoint's .meta), into a graph without nodes.
MILLRACE_EXPORT MillraceCode millrace_graph_import_meta(MillraceGraph* graph,
                                                        const void* meta_graph_def, size_t size,
                                                        MillraceStatus* status);
// Serialized GraphDef and MetaGraphDef.
MILLRACE_EXPORT MillraceBuffer* millrace_graph_export(MillraceGraph* graph, MillraceStatus* status);
MILLRACE_EXPORT MillraceBuffer* millrace_graph_export_meta(MillraceGraph* graph,
                                                           MillraceStatus* status);

// The names of all nodes, in the order in which they were made.
MILLRACE_EXPORT MillraceStrings* millrace_graph_nodes(MillraceGraph* graph, MillraceStatus* status);
// "MatMul".
MILLRACE_EXPORT const char* millrace_graph_node_op(MillraceGraph* graph, const char* node,
                                                   MillraceStatus* status);
// What it takes, as a GraphDef says it: "x" or "x:1", then control inputs as "^n".
MILLRACE_EXPORT MillraceStrings* millrace_graph_node_inputs(MillraceGraph* graph, const char* node,
                                                            MillraceStatus* status);
// The whole of it, attrs included, as a serialized NodeDef.
MILLRACE_EXPORT MillraceBuffer* millrace_graph_node_def(MillraceGraph* graph, const char* node,
                                                        MillraceStatus* status);
// -1 after a failure.
MILLRACE_EXPORT int millrace_graph_node_num_outputs(MillraceGraph* graph, const char* node,
                                                    MillraceStatus* status);
// Of a tensor; 0 when it is not known (an op kind that this library lacks) and after a failure.
MILLRACE_EXPORT MillraceDType millrace_graph_dtype(MillraceGraph* graph, const char* tensor,
                                                   MillraceStatus* status);
// What is known of a tensor's shape. Returns the number of dimensions and writes as many of them as
// `dims`, of `max_dims` places (0: may be NULL), has room for; -1 is one that is not known. Returns
// -1 when not even their number is known, and after a failure.
MILLRACE_EXPORT int millrace_graph_shape(MillraceGraph* graph, const char* tensor, int64_t* dims,
                                         int max_dims, MillraceStatus* status);
// Adds what the caller knows; -1 stands for what is not known, also as num_dims. A contradiction is
// an error.
MILLRACE_EXPORT MillraceCode millrace_graph_set_shape(MillraceGraph* graph, const char* tensor,
                                                      const int64_t* dims, int num_dims,
                                                      MillraceStatus* status);

// Nodes. `name` may be NULL everywhere: then the op kind is the name.
//
// An op without attrs other than those that its inputs determine (T, N, ...). One tensor per input.
MILLRACE_EXPORT const char* millrace_graph_add_node(MillraceGraph* graph, const char* op,
                                                    const char* name, const char* const* inputs,
                                                    int num_inputs, MillraceStatus* status);
// A Const; the elements are shared, not copied.
MILLRACE_EXPORT const char* millrace_graph_add_constant(MillraceGraph* graph, const char* name,
                                                        const MillraceTensor* value,
                                                        MillraceStatus* status);
// A tensor that steps are fed. num_dims -1: of any shape; a dimension of -1 may vary.
MILLRACE_EXPORT const char* millrace_graph_add_placeholder(MillraceGraph* graph, const char* name,
                                                           MillraceDType dtype, const int64_t* dims,
                                                           int num_dims, MillraceStatus* status);

// Any node: a builder takes its description and Finish adds it.
//
// Attrs that inputs determine, and those with defaults, need not be set. A builder keeps its first
// error, which Finish gives again; inputs and control inputs are looked up by Finish.
MILLRACE_EXPORT MillraceNodeBuilder* millrace_node_builder_new(MillraceGraph* graph, const char* op,
                                                               const char* name,
                                                               MillraceStatus* status);
// Only for one that has not been finished.
MILLRACE_EXPORT void millrace_node_builder_delete(MillraceNodeBuilder* builder);
// The next input, in the order of the op's definition.
MILLRACE_EXPORT MillraceCode millrace_node_builder_add_input(MillraceNodeBuilder* builder,
                                                             const char* tensor,
                                                             MillraceStatus* status);
// The next input where it is a list (AddN's "inputs").
MILLRACE_EXPORT MillraceCode millrace_node_builder_add_input_list(MillraceNodeBuilder* builder,
                                                                  const char* const* tensors,
                                                                  int count,
                                                                  MillraceStatus* status);
// The node runs after `node`.
MILLRACE_EXPORT MillraceCode millrace_node_builder_add_control_input(MillraceNodeBuilder* builder,
                                                                     const char* node,
                                                                     MillraceStatus* status);
// "/job:ps/task:0", "/cpu:0", ...
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_device(MillraceNodeBuilder* builder,
                                                              const char* device,
                                                              MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_int(MillraceNodeBuilder* builder,
                                                           const char* attr, int64_t value,
                                                           MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_float(MillraceNodeBuilder* builder,
                                                             const char* attr, float value,
                                                             MillraceStatus* status);
// 0 is false, anything else true.
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_bool(MillraceNodeBuilder* builder,
                                                            const char* attr, int value,
                                                            MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_string(MillraceNodeBuilder* builder,
                                                              const char* attr, const char* value,
                                                              size_t size, MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_type(MillraceNodeBuilder* builder,
                                                            const char* attr, MillraceDType value,
                                                            MillraceStatus* status);
// num_dims -1: of unknown rank; a dimension of -1 is unknown.
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_shape(MillraceNodeBuilder* builder,
                                                             const char* attr, const int64_t* dims,
                                                             int num_dims, MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_tensor(MillraceNodeBuilder* builder,
                                                              const char* attr,
                                                              const MillraceTensor* value,
                                                              MillraceStatus* status);
// A function of the graph's library, by name.
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_function(MillraceNodeBuilder* builder,
                                                                const char* attr,
                                                                const char* function,
                                                                MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_int_list(MillraceNodeBuilder* builder,
                                                                const char* attr,
                                                                const int64_t* values, int count,
                                                                MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_float_list(MillraceNodeBuilder* builder,
                                                                  const char* attr,
                                                                  const float* values, int count,
                                                                  MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_bool_list(MillraceNodeBuilder* builder,
                                                                 const char* attr,
                                                                 const unsigned char* values,
                                                                 int count, MillraceStatus* status);
// `sizes` may be NULL when all end with a zero byte.
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_string_list(MillraceNodeBuilder* builder,
                                                                   const char* attr,
                                                                   const char* const* values,
                                                                   const size_t* sizes, int count,
                                                                   MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_type_list(MillraceNodeBuilder* builder,
                                                                 const char* attr,
                                                                 const MillraceDType* values,
                                                                 int count, MillraceStatus* status);
// Shape i has num_dims[i] dimensions at dims[i], as in set_shape.
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_shape_list(MillraceNodeBuilder* builder,
                                                                  const char* attr,
                                                                  const int64_t* const* dims,
                                                                  const int* num_dims, int count,
                                                                  MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_tensor_list(MillraceNodeBuilder* builder,
                                                                   const char* attr,
                                                                   MillraceTensor* const* values,
                                                                   int count,
                                                                   MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_function_list(MillraceNodeBuilder* builder,
                                                                     const char* attr,
                                                                     const char* const* functions,
                                                                     int count,
                                                                     MillraceStatus* status);
// A serialized AttrValue: functions with attrs of their own, say.
MILLRACE_EXPORT MillraceCode millrace_node_builder_set_attr_value(MillraceNodeBuilder* builder,
                                                                  const char* attr,
                                                                  const void* attr_value,
                                                                  size_t size,
                                                                  MillraceStatus* status);
// Adds the node and deletes the builder, in any case. Returns the node's name.
MILLRACE_EXPORT const char* millrace_node_builder_finish(MillraceNodeBuilder* builder,
                                                         MillraceStatus* status);

// --- Variables and training ----------------------------------------------------------------------

typedef struct MillraceVariableOptions {
  size_t struct_size;
  const char* device;     // where it is; NULL: anywhere
  const char* container;  // NULL: the default one
  int32_t not_trainable;  // 1: optimizers leave it alone unless they are told
  int32_t local;          // 1: of this task, not saved
} MillraceVariableOptions;

// A variable that starts with the value of the tensor `initial_value`, whose shape must be known.
// The name returned stands for the variable in the functions below, and as a tensor for its handle
// (for AssignVariableOp and other ops on resources).
MILLRACE_EXPORT const char* millrace_graph_add_variable(MillraceGraph* graph, const char* name,
                                                        const char* initial_value,
                                                        const MillraceVariableOptions* options,
                                                        MillraceStatus* status);
// The tensor that reads it: an input of other nodes, something to fetch.
MILLRACE_EXPORT const char* millrace_graph_variable_value(MillraceGraph* graph,
                                                          const char* variable,
                                                          MillraceStatus* status);
// The tensor that is the variable's value where it has one, else its initial value: what the
// initial value of another variable is made of. (millrace_graph_add_variable does this by itself
// for values that read variables, but not for local variables.)
MILLRACE_EXPORT const char* millrace_graph_initialized_value(MillraceGraph* graph,
                                                             const char* variable,
                                                             MillraceStatus* status);
// The variables of the graph that are saved, in the order in which they were made.
MILLRACE_EXPORT MillraceStrings* millrace_graph_variables(MillraceGraph* graph,
                                                          MillraceStatus* status);
// A node that gives all variables that there are, local ones with the others, their initial values,
// in no order: a local variable that begins with what another variable holds needs
// millrace_graph_initialized_value of that one, or millrace_session_initialize_variables, which
// needs no node and takes local variables after the others.
MILLRACE_EXPORT const char* millrace_graph_add_initializer(MillraceGraph* graph, const char* name,
                                                           MillraceStatus* status);
// The variable "global_step", an int64 that counts updates; made at the first call.
MILLRACE_EXPORT const char* millrace_graph_global_step(MillraceGraph* graph,
                                                       MillraceStatus* status);

// Symbolic gradients: gradients[i] becomes the name of d(ys[0] + ys[1] + ...)/d(xs[i]), a dense
// tensor, or NULL where no y depends on it. xs are tensors or variables. `grad_ys`: the gradients
// of the ys, NULL for ones (as is any NULL in it). After a failure all of `gradients` is NULL.
// MILLRACE_NOT_FOUND names an op on the way that has no gradient.
MILLRACE_EXPORT MillraceCode millrace_graph_add_gradients(
    MillraceGraph* graph, const char* const* ys, int num_ys, const char* const* xs, int num_xs,
    const char* const* grad_ys, const char** gradients, MillraceStatus* status);

// The numbers of MillraceOptimizerOptions.
enum {
  MILLRACE_LEARNING_RATE = 1 << 0,
  MILLRACE_BETA1 = 1 << 1,
  MILLRACE_BETA2 = 1 << 2,
  MILLRACE_EPSILON = 1 << 3,
  MILLRACE_INITIAL_ACCUMULATOR_VALUE = 1 << 4,
  MILLRACE_MOMENTUM = 1 << 5,
  MILLRACE_DECAY = 1 << 6
};

// A number that is 0 means the default after the semicolon, unless `given` has its bit: then it is
// 0. A number that the optimizer does not have must be neither given nor set; all must be finite.
typedef struct MillraceOptimizerOptions {
  size_t struct_size;
  const char* optimizer;             // "GradientDescent", "Momentum", "Adam", "Adagrad", "RMSProp"
  const char* name;                  // prefix of the nodes that are made; NULL: the optimizer's
  double learning_rate;              // TensorFlow's default for the optimizer
  double beta1, beta2, epsilon;      // Adam; 0.9, 0.999, 1e-8. RMSProp's epsilon; 1e-10
  double initial_accumulator_value;  // Adagrad; 0.1
  const char* global_step;           // a variable that counts the updates; NULL: none
  const char* const* variables;      // those to change; NULL: all trainable ones (minimize only)
  int32_t num_variables;
  int32_t use_locking;  // 1: updates of a variable exclude each other
  // A floating scalar of the graph instead of learning_rate: a schedule, or what steps are fed.
  const char* learning_rate_tensor;
  double momentum;       // Momentum; 0.9. RMSProp; 0
  double decay;          // RMSProp; 0.9
  int32_t use_nesterov;  // Momentum
  int32_t centered;      // RMSProp
  uint32_t given;        // MILLRACE_MOMENTUM | ...: numbers that are meant when they are 0, too
} MillraceOptimizerOptions;

// Makes the node that runs one step of training: gradients of the tensor `loss` by the variables,
// and their update. Sparse gradients stay sparse. Returns the node's name, a target of Run.
MILLRACE_EXPORT const char* millrace_graph_minimize(MillraceGraph* graph, const char* loss,
                                                    const MillraceOptimizerOptions* options,
                                                    MillraceStatus* status);
// The update alone, by gradients that the caller has made (clipped ones, say): gradients[i], a
// dense tensor, changes variables[i].
MILLRACE_EXPORT const char* millrace_graph_apply_gradients(MillraceGraph* graph,
                                                           const char* const* gradients,
                                                           const char* const* variables, int count,
                                                           const MillraceOptimizerOptions* options,
                                                           MillraceStatus* status);

typedef struct MillraceMovingAverageOptions {
  size_t struct_size;
  double decay;             // in [0, 1]; 0: 0.999
  const char* num_updates;  // a scalar n: the decay is at most (1 + n) / (10 + n); NULL: none
  const char* name;         // last part of the averages' names; NULL: "ExponentialMovingAverage"
  const char* after;        // the node that changes the variables before; NULL: none
} MillraceMovingAverageOptions;

// Makes a variable "<variable>/ExponentialMovingAverage" for each of `variables` (count 0: all that
// are trainable) and the node that moves them once: average -= (1 - decay) * (average - variable).
// It runs `after`; returned is its name, a target of Run. A saver restores variables from their
// averages with MillraceSaverOptions.moving_average. An average that a node of the graph moves
// already is an error, which names both: steps would move it twice.
MILLRACE_EXPORT const char* millrace_graph_add_moving_average(
    MillraceGraph* graph, const char* const* variables, int count,
    const MillraceMovingAverageOptions* options, MillraceStatus* status);

// --- Sessions ------------------------------------------------------------------------------------

typedef struct MillraceSessionOptions {
  size_t struct_size;
  const char* target;            // NULL and "": in this process; "grpc://host:port"
  const void* config;            // a serialized ConfigProto; NULL: its defaults
  size_t config_size;            // bytes of it
  int64_t timeout_ms;            // of each step that sets none; 0: the config's, or no limit
  int64_t creation_timeout_ms;   // how long to wait for other tasks; 0: two hours
  int64_t max_step_bytes;        // what a step may hold in this process; 0: no limit
  int32_t num_threads;           // that compute; 0: the config's, or one per core
  int32_t allow_soft_placement;  // 1: nodes whose device is not there go to one that is
} MillraceSessionOptions;

typedef struct MillraceRunOptions {
  size_t struct_size;
  int64_t timeout_ms;         // MILLRACE_DEADLINE_EXCEEDED after that; 0: the session's
  const void* run_options;    // a serialized RunOptions; NULL: its defaults
  size_t run_options_size;    // bytes of it
  MillraceBuffer** metadata;  // not NULL: gets a serialized RunMetadata with the trace of the step
} MillraceRunOptions;

// Runs steps of the graph, which may go on growing: nodes that are new come in with the next call.
MILLRACE_EXPORT MillraceSession* millrace_session_new(MillraceGraph* graph,
                                                      const MillraceSessionOptions* options,
                                                      MillraceStatus* status);
// The session is closed when its prepared steps are deleted, too.
MILLRACE_EXPORT void millrace_session_delete(MillraceSession* session);
// Cancels the steps that run, which end with MILLRACE_CANCELLED on their threads, and waits for
// them. Later steps fail.
MILLRACE_EXPORT MillraceCode millrace_session_close(MillraceSession* session,
                                                    MillraceStatus* status);
// One step: tensor feed_names[i] has the value feeds[i]; results[i] becomes a handle to the value
// of fetch_names[i]; nodes `targets` run, too. `results` need not be initialised; after a failure
// all of it is NULL. A fetched name must be a tensor (a node without outputs is a target).
MILLRACE_EXPORT MillraceCode
millrace_session_run(MillraceSession* session, const char* const* feed_names,
                     MillraceTensor* const* feeds, int num_feeds, const char* const* fetch_names,
                     MillraceTensor** results, int num_fetches, const char* const* targets,
                     int num_targets, const MillraceRunOptions* options, MillraceStatus* status);
// The same step many times, without names. It keeps the session open; after millrace_session_close
// it fails.
MILLRACE_EXPORT MillracePreparedStep* millrace_session_prepare(
    MillraceSession* session, const char* const* feed_names, int num_feeds,
    const char* const* fetch_names, int num_fetches, const char* const* targets, int num_targets,
    MillraceStatus* status);
// Feeds and results in the order of the names; their numbers must be those of the names.
MILLRACE_EXPORT MillraceCode millrace_prepared_step_run(MillracePreparedStep* step,
                                                        MillraceTensor* const* feeds, int num_feeds,
                                                        MillraceTensor** results, int num_results,
                                                        const MillraceRunOptions* options,
                                                        MillraceStatus* status);
MILLRACE_EXPORT void millrace_prepared_step_delete(MillracePreparedStep* step);
// Gives all variables of the graph their initial values, the local ones, too.
MILLRACE_EXPORT MillraceCode millrace_session_initialize_variables(MillraceSession* session,
                                                                   MillraceStatus* status);
// "/job:localhost/replica:0/task:0/device:CPU:0", ...
MILLRACE_EXPORT MillraceStrings* millrace_session_devices(MillraceSession* session,
                                                          MillraceStatus* status);

// --- Checkpoints ---------------------------------------------------------------------------------

typedef struct MillraceSaverOptions {
  size_t struct_size;
  const char* const* variables;  // NULL: all variables of the graph
  int32_t num_variables;
  int32_t max_to_keep;  // older checkpoints are deleted; 0: 5 are kept, -1: all
  // The last part of the averages' names ("ExponentialMovingAverage"): variables that have a moving
  // average stand for it, under its name in the checkpoint (to evaluate and export with averages).
  // Those are `variables` where they are given; all others have their own names. NULL: none.
  const char* moving_average;
} MillraceSaverOptions;

// Checkpoints in TensorFlow's format. Adds nodes to the graph; variables that are made later are
// not saved.
MILLRACE_EXPORT MillraceSaver* millrace_saver_new(MillraceGraph* graph,
                                                  const MillraceSaverOptions* options,
                                                  MillraceStatus* status);
MILLRACE_EXPORT void millrace_saver_delete(MillraceSaver* saver);
// Writes `<prefix>-<global_step>`, or `<prefix>` when the step is negative, and the directory's
// `checkpoint` file. Atomic and durable. Returns the checkpoint's path, until the saver is deleted.
// The session is one of the saver's graph.
MILLRACE_EXPORT const char* millrace_saver_save(MillraceSaver* saver, MillraceSession* session,
                                                const char* prefix, int64_t global_step,
                                                MillraceStatus* status);
// Gives the saved variables the values of a checkpoint; nothing else need have initialised them.
// `checkpoint`: its path as millrace_saver_save returned it, that of one of its files, or the
// directory, whose newest whole one is taken.
MILLRACE_EXPORT MillraceCode millrace_saver_restore(MillraceSaver* saver, MillraceSession* session,
                                                    const char* checkpoint, MillraceStatus* status);
// The path of the newest whole checkpoint of a directory; MILLRACE_NOT_FOUND when it has none.
MILLRACE_EXPORT MillraceBuffer* millrace_latest_checkpoint(const char* directory,
                                                           MillraceStatus* status);

// --- SavedModels ---------------------------------------------------------------------------------

// What callers of an exported model may feed and fetch under names of their own. `key` NULL:
// "serving_default"; `method` NULL: "tensorflow/serving/predict".
MILLRACE_EXPORT MillraceSignature* millrace_signature_new(const char* key, const char* method,
                                                          MillraceStatus* status);
MILLRACE_EXPORT void millrace_signature_delete(MillraceSignature* signature);
MILLRACE_EXPORT MillraceCode millrace_signature_add_input(MillraceSignature* signature,
                                                          const char* name, const char* tensor,
                                                          MillraceStatus* status);
MILLRACE_EXPORT MillraceCode millrace_signature_add_output(MillraceSignature* signature,
                                                           const char* name, const char* tensor,
                                                           MillraceStatus* status);

typedef struct MillraceExportOptions {
  size_t struct_size;
  const char* const* tags;  // NULL: "serve"
  int32_t num_tags;
  const char* main_op;  // a node to run once the variables are restored; NULL: none
} MillraceExportOptions;

// Writes a model to a directory, which must be new or empty: what the outputs of the signatures are
// computed from, with the values of the variables that they read, and the signatures. No gradients,
// optimizers or devices. An input that is no placeholder becomes one; what makes it is left behind.
// There must be at least one signature; its outputs must need no placeholder but its inputs. The
// directory is there whole or not at all.
MILLRACE_EXPORT MillraceCode millrace_session_export(
    MillraceSession* session, const char* directory, MillraceSignature* const* signatures,
    int num_signatures, const MillraceExportOptions* options, MillraceStatus* status);

// Restores a model and runs its init op. `tags` NULL: "serve"; `options` may be NULL. A signature
// that needs an op which nobody has registered is an error, unless the model runs on a server: its
// library is to be loaded before (millrace_load_op_library).
MILLRACE_EXPORT MillraceSavedModel* millrace_saved_model_load(const char* directory,
                                                              const char* const* tags, int num_tags,
                                                              const MillraceSessionOptions* options,
                                                              MillraceStatus* status);
MILLRACE_EXPORT void millrace_saved_model_delete(MillraceSavedModel* model);
// The keys of its signatures; the names of a signature's inputs and outputs. Sorted. Here and below
// `signature` NULL is "serving_default", as it is for millrace_signature_new.
MILLRACE_EXPORT MillraceStrings* millrace_saved_model_signatures(const MillraceSavedModel* model,
                                                                 MillraceStatus* status);
MILLRACE_EXPORT MillraceStrings* millrace_saved_model_inputs(const MillraceSavedModel* model,
                                                             const char* signature,
                                                             MillraceStatus* status);
MILLRACE_EXPORT MillraceStrings* millrace_saved_model_outputs(const MillraceSavedModel* model,
                                                              const char* signature,
                                                              MillraceStatus* status);
// The tensor that an input or output is, for runs and prepared steps of the model's session ("" for
// a sparse one). dtype, dims (of `max_dims` places) and num_dims may be NULL; they get what the
// file says, as millrace_graph_shape does.
MILLRACE_EXPORT const char* millrace_saved_model_input(const MillraceSavedModel* model,
                                                       const char* signature, const char* name,
                                                       MillraceDType* dtype, int64_t* dims,
                                                       int max_dims, int* num_dims,
                                                       MillraceStatus* status);
MILLRACE_EXPORT const char* millrace_saved_model_output(const MillraceSavedModel* model,
                                                        const char* signature, const char* name,
                                                        MillraceDType* dtype, int64_t* dims,
                                                        int max_dims, int* num_dims,
                                                        MillraceStatus* status);
// One step by a signature's names; results as in millrace_session_run.
MILLRACE_EXPORT MillraceCode millrace_saved_model_run(
    MillraceSavedModel* model, const char* signature, const char* const* input_names,
    MillraceTensor* const* inputs, int num_inputs, const char* const* output_names,
    MillraceTensor** results, int num_outputs, const MillraceRunOptions* options,
    MillraceStatus* status);
// The session that holds the model: a handle of its own, to be deleted, too. It may outlive the
// model; deleting it does not close the session.
MILLRACE_EXPORT MillraceSession* millrace_saved_model_session(MillraceSavedModel* model,
                                                              MillraceStatus* status);

// --- Model servers -------------------------------------------------------------------------------

typedef struct MillraceModelClientOptions {
  size_t struct_size;
  // What is shown to the server, and checked of it (docs/security.md): paths of files. Without any
  // of them what the environment says (MILLRACE_TOKEN_FILE, ...), which may be nothing.
  const char* token_file;
  const char* ca_file;
  const char* certificate_file;
  const char* key_file;
  double timeout_seconds;  // of a call that has none of its own; 0: 60
  int32_t max_retries;     // of a call that surely did not run; 0: 5, -1: none
} MillraceModelClientOptions;

// Asks a model server over gRPC, this library's or another one of TensorFlow Serving's API.
// `address`: "host:port" or "unix:/path". Waits for nothing: the server may start later. Many
// threads may use a client at once. Calls block, each until its deadline, which travels with it.
MILLRACE_EXPORT MillraceModelClient* millrace_model_client_new(
    const char* address, const MillraceModelClientOptions* options, MillraceStatus* status);
MILLRACE_EXPORT void millrace_model_client_delete(MillraceModelClient* client);

typedef struct MillracePredictOptions {
  size_t struct_size;
  const char* signature;  // NULL: "serving_default"
  const char* label;      // of a version; NULL: none
  // With has_version 1: this one. Without it and without a label: the newest that is available.
  int64_t version;
  int32_t has_version;
  double timeout_seconds;  // 0: the client's
} MillracePredictOptions;

// Inputs and outputs by a signature's names; results as in millrace_session_run. `version` (may be
// NULL) gets the one that answered. Errors are the server's.
MILLRACE_EXPORT MillraceCode millrace_model_client_predict(
    MillraceModelClient* client, const char* model, const char* const* input_names,
    MillraceTensor* const* inputs, int num_inputs, const char* const* output_names,
    MillraceTensor** results, int num_outputs, const MillracePredictOptions* options,
    int64_t* version, MillraceStatus* status);

// TensorFlow Serving's.
typedef int32_t MillraceVersionState;
enum {
  MILLRACE_VERSION_UNKNOWN = 0,
  MILLRACE_VERSION_START = 10,
  MILLRACE_VERSION_LOADING = 20,
  MILLRACE_VERSION_AVAILABLE = 30,
  MILLRACE_VERSION_UNLOADING = 40,
  MILLRACE_VERSION_END = 50
};

// The versions of a model, the highest first, and their states: as many as the arrays, of
// `max_versions` places each (0: may be NULL), have room for. Returns their number; -1 after a
// failure.
MILLRACE_EXPORT int millrace_model_client_versions(MillraceModelClient* client, const char* model,
                                                   int64_t* versions, MillraceVersionState* states,
                                                   int max_versions, MillraceStatus* status);
// The keys of the signatures of the newest version that is available. Sorted.
MILLRACE_EXPORT MillraceStrings* millrace_model_client_signatures(MillraceModelClient* client,
                                                                  const char* model,
                                                                  MillraceStatus* status);

// --- What the library has ------------------------------------------------------------------------

// The names of all ops, sorted.
MILLRACE_EXPORT MillraceStrings* millrace_op_names(MillraceStatus* status);
// A serialized OpDef: inputs, outputs, attrs and defaults, for programs that generate wrappers.
MILLRACE_EXPORT MillraceBuffer* millrace_op_def(const char* op, MillraceStatus* status);

// Loads a shared library of ops and kernels (docs/adding_an_op.md) and returns the op kinds that it
// brings. It stays loaded; sessions that are open see what it brings in nodes that are added later.
MILLRACE_EXPORT MillraceStrings* millrace_load_op_library(const char* path, MillraceStatus* status);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MILLRACE_API_C_API_H_
