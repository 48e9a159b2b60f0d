// SPDX-License-Identifier: Apache-2.0
//
// The C API in plain C11: what a C program does with it, and what it may rely on. Training from
// nothing to a served model stands in docs/c_api.md; bad input in c_api_test.cc.
#include "api/c_api.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// covers: c api: C programs build, train, save, restore, export and predict; the page's program
//   runs as it stands
// covers: c api: a call that fails leaves the graph byte for byte as it was, a half of a gradient
//   included; the next one works
// covers: c api: the caller's memory is fed, fetched and read in place, and released once
// covers: c api: no function goes away, no field of a struct moves; programs of other versions are
//   taken or refused by name
// covers: article 4-23: a C ABI for other languages

static int failures = 0;
static const char* current_test = "";

#define EXPECT(condition)                                                               \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      printf("%s:%d: %s: expected %s\n", __FILE__, __LINE__, current_test, #condition); \
      ++failures;                                                                       \
    }                                                                                   \
  } while (0)

#define EXPECT_OK(status)                                         \
  do {                                                            \
    if (millrace_status_code(status) != MILLRACE_OK) {            \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, current_test, \
             millrace_status_message(status));                    \
      ++failures;                                                 \
    }                                                             \
  } while (0)

static int Near(float a, float b) { return a - b < 1e-5f && b - a < 1e-5f; }

static int Equal(const char* a, const char* b) {
  return a != NULL && b != NULL && strcmp(a, b) == 0;
}

// --- Short forms ---------------------------------------------------------------------------------

static MillraceTensor* Floats(int count, const float* values, MillraceStatus* status) {
  const int64_t dims[] = {count};
  return millrace_tensor_from_data(MILLRACE_FLOAT, dims, 1, values, (size_t)count * sizeof *values,
                                   status);
}

static const char* Constant(MillraceGraph* graph, const char* name, int count, const float* values,
                            MillraceStatus* status) {
  MillraceTensor* value = Floats(count, values, status);
  const char* made = millrace_graph_add_constant(graph, name, value, status);
  millrace_tensor_delete(value);
  return made;
}

static const char* Add(MillraceGraph* graph, const char* op, const char* name, const char* a,
                       const char* b, MillraceStatus* status) {
  const char* inputs[] = {a, b};
  return millrace_graph_add_node(graph, op, name, inputs, b == NULL ? 1 : 2, status);
}

static MillraceTensor* Fetch(MillraceSession* session, const char* tensor, MillraceStatus* status) {
  MillraceTensor* result = NULL;
  millrace_session_run(session, NULL, NULL, 0, &tensor, &result, 1, NULL, 0, NULL, status);
  return result;
}

static float FirstFloat(const MillraceTensor* tensor) {
  const float* data = (const float*)millrace_tensor_data(tensor);
  return data == NULL ? -12345.0f : data[0];
}

// --- Statuses ------------------------------------------------------------------------------------

static void AStatusKeepsTheFirstErrorAndStopsLaterCalls(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  EXPECT(Add(graph, "NoSuchOp", NULL, NULL, NULL, NULL) == NULL);
  EXPECT(millrace_graph_add_node(graph, "NoSuchOp", NULL, NULL, 0, status) == NULL);
  EXPECT(millrace_status_code(status) == MILLRACE_NOT_FOUND);
  EXPECT(strstr(millrace_status_message(status), "NoSuchOp") != NULL);
  EXPECT(millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, NULL, -1, status) == NULL);
  EXPECT(strstr(millrace_status_message(status), "NoSuchOp") != NULL);
  millrace_status_clear(status);
  EXPECT_OK(status);
  EXPECT(Equal(millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, NULL, -1, status), "x"));
  EXPECT_OK(status);
  millrace_graph_delete(graph);
}

static void CodesHaveNames(MillraceStatus* status) {
  EXPECT(Equal(millrace_code_name(MILLRACE_OK), "OK"));
  EXPECT(Equal(millrace_code_name(MILLRACE_DATA_LOSS), "DATA_LOSS"));
  EXPECT(Equal(millrace_code_name(MILLRACE_UNAUTHENTICATED), "UNAUTHENTICATED"));
  EXPECT(millrace_code_name(17) == NULL && millrace_code_name(-1) == NULL);
  millrace_status_set(status, MILLRACE_ABORTED, "mine");
  EXPECT(millrace_status_code(status) == MILLRACE_ABORTED);
  EXPECT(Equal(millrace_status_message(status), "mine"));
  millrace_status_clear(status);
  EXPECT(strchr(millrace_version(), '.') != NULL);
}

// --- Tensors -------------------------------------------------------------------------------------

static void CountRelease(void* data, size_t size, void* arg) {
  int* calls = (int*)arg;
  *calls += data != NULL && size == 4 * sizeof(float) ? 1 : 100;
}

static void MemoryOfTheCallerIsReadInPlaceAndReleasedOnce(MillraceStatus* status) {
  static float memory[4] = {1, 2, 3, 4};
  const int64_t dims[] = {2, 2};
  int released = 0;
  MillraceTensor* tensor = millrace_tensor_wrap(MILLRACE_FLOAT, dims, 2, memory, sizeof memory,
                                                CountRelease, &released, status);
  EXPECT_OK(status);
  EXPECT(millrace_tensor_data(tensor) == memory);
  EXPECT(millrace_tensor_mutable_data(tensor, status) == memory);
  MillraceTensor* second = millrace_tensor_share(tensor, status);
  EXPECT(millrace_tensor_data(second) == memory);
  float* copied = (float*)millrace_tensor_mutable_data(second, status);
  EXPECT(copied != NULL && copied != memory);
  if (copied != NULL) copied[0] = 9;
  EXPECT(memory[0] == 1 && FirstFloat(tensor) == 1 && FirstFloat(second) == 9);

  // Fed, fetched and held by a constant: still the same memory.
  MillraceGraph* graph = millrace_graph_new(status);
  const char* x = millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, dims, 2, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  MillraceTensor* result = NULL;
  millrace_session_run(session, &x, &tensor, 1, &x, &result, 1, NULL, 0, NULL, status);
  EXPECT_OK(status);
  EXPECT(millrace_tensor_data(result) == memory);
  millrace_tensor_delete(tensor);
  millrace_tensor_delete(second);
  EXPECT(released == 0);
  millrace_tensor_delete(result);
  EXPECT(released == 1);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
  EXPECT(released == 1);
}

static void MemoryStaysTheCallersWhenWrappingFails(MillraceStatus* status) {
  static float memory[5];
  const int64_t dims[] = {4};
  int released = 0;
  EXPECT(millrace_tensor_wrap(MILLRACE_FLOAT, dims, 1, memory, 12, CountRelease, &released,
                              status) == NULL);
  EXPECT(millrace_status_code(status) == MILLRACE_INVALID_ARGUMENT);
  EXPECT(millrace_tensor_wrap(MILLRACE_FLOAT, dims, 1, memory, 16, CountRelease, &released,
                              status) == NULL);  // the status still holds the error
  millrace_status_clear(status);
  EXPECT(millrace_tensor_wrap(MILLRACE_FLOAT, dims, 1, (char*)memory + 1, 16, CountRelease,
                              &released, status) == NULL);  // between elements
  EXPECT(millrace_status_code(status) == MILLRACE_INVALID_ARGUMENT);
  millrace_status_clear(status);
  EXPECT(released == 0);
}

static int empty_releases = 0;
static void ReleaseEmpty(void* data, size_t size, void* arg) {
  (void)data;
  (void)arg;
  empty_releases += size == 0 ? 1 : 100;
}

static void ATensorWithoutElementsNeedsNoMemory(MillraceStatus* status) {
  const int64_t dims[] = {0, 3};
  MillraceTensor* tensor =
      millrace_tensor_wrap(MILLRACE_FLOAT, dims, 2, NULL, 0, ReleaseEmpty, NULL, status);
  EXPECT_OK(status);
  EXPECT(empty_releases == 1);
  EXPECT(millrace_tensor_num_elements(tensor) == 0 && millrace_tensor_dim(tensor, 1) == 3);
  EXPECT(millrace_tensor_size(tensor) == 0 && millrace_tensor_data(tensor) == NULL);
  EXPECT(millrace_tensor_mutable_data(tensor, status) == NULL);
  EXPECT_OK(status);
  millrace_tensor_delete(tensor);
}

static void StringsKeepTheirBytes(MillraceStatus* status) {
  const int64_t dims[] = {3};
  const char* texts[] = {"one", "a\0b", ""};
  const size_t sizes[] = {3, 3, 0};
  MillraceTensor* tensor = millrace_tensor_from_strings(dims, 1, texts, sizes, 3, status);
  EXPECT_OK(status);
  EXPECT(millrace_tensor_dtype(tensor) == MILLRACE_STRING && millrace_tensor_size(tensor) == 0);
  size_t size = 99;
  EXPECT(Equal(millrace_tensor_string(tensor, 0, &size, status), "one") && size == 3);
  const char* second = millrace_tensor_string(tensor, 1, &size, status);
  EXPECT(second != NULL && size == 3 && memcmp(second, "a\0b", 4) == 0);
  EXPECT(Equal(millrace_tensor_string(tensor, 2, NULL, status), ""));
  EXPECT(millrace_tensor_data(tensor) == NULL);
  MillraceTensor* by_zeros = millrace_tensor_from_strings(dims, 1, texts, NULL, 3, status);
  EXPECT(Equal(millrace_tensor_string(by_zeros, 1, &size, status), "a") && size == 1);
  EXPECT_OK(status);
  millrace_tensor_delete(by_zeros);
  millrace_tensor_delete(tensor);
}

static void DTypesSayTheirNameAndSize(MillraceStatus* status) {
  (void)status;
  EXPECT(Equal(millrace_dtype_name(MILLRACE_FLOAT), "float"));
  EXPECT(millrace_dtype_size(MILLRACE_COMPLEX128) == 16 && millrace_dtype_size(MILLRACE_HALF) == 2);
  EXPECT(millrace_dtype_size(MILLRACE_STRING) == 0);
  EXPECT(millrace_dtype_name(0) == NULL && millrace_dtype_name(24) == NULL &&
         millrace_dtype_name(101) == NULL && millrace_dtype_size(-1) == 0);
  for (MillraceDType d = MILLRACE_FLOAT; d <= MILLRACE_UINT64; ++d) {
    EXPECT(millrace_dtype_name(d) != NULL);
  }
}

// --- Graphs --------------------------------------------------------------------------------------

static void AGraphAnswersQuestions(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const int64_t dims[] = {-1, 3};
  const char* x = millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, dims, 2, status);
  const char* again = millrace_graph_add_placeholder(graph, "x", MILLRACE_INT32, NULL, -1, status);
  EXPECT(Equal(x, "x") && Equal(again, "x_1"));
  EXPECT(millrace_graph_dtype(graph, "x", status) == MILLRACE_FLOAT);
  EXPECT(millrace_graph_dtype(graph, "x_1:0", status) == MILLRACE_INT32);
  int64_t got[4] = {7, 7, 7, 7};
  EXPECT(millrace_graph_shape(graph, x, got, 4, status) == 2);
  EXPECT(got[0] == -1 && got[1] == 3 && got[2] == 7);
  EXPECT(millrace_graph_shape(graph, x, NULL, 0, status) == 2);
  EXPECT(millrace_graph_shape(graph, again, got, 4, status) == -1);
  EXPECT_OK(status);
  const int64_t known[] = {5, -1};
  EXPECT(millrace_graph_set_shape(graph, again, known, 2, status) == MILLRACE_OK);
  EXPECT(millrace_graph_shape(graph, again, got, 1, status) == 2 && got[0] == 5 && got[1] == 3);
  EXPECT(Equal(millrace_graph_node_op(graph, "x", status), "Placeholder"));
  EXPECT(millrace_graph_node_num_outputs(graph, "x", status) == 1);
  EXPECT_OK(status);

  // A contradiction is refused, and what was known before stays known.
  const int64_t other[] = {6, 2};
  EXPECT(millrace_graph_set_shape(graph, again, other, 2, status) == MILLRACE_INVALID_ARGUMENT);
  millrace_status_clear(status);
  EXPECT(millrace_graph_shape(graph, again, got, 2, status) == 2 && got[0] == 5 && got[1] == -1);
  MillraceStrings* nodes = millrace_graph_nodes(graph, status);
  EXPECT(millrace_strings_count(nodes) == 2 && Equal(millrace_strings_get(nodes, 1), "x_1"));
  EXPECT(millrace_strings_get(nodes, 2) == NULL && millrace_strings_get(nodes, -1) == NULL);
  millrace_strings_delete(nodes);
  EXPECT_OK(status);
  millrace_graph_delete(graph);
}

static void ABuilderMakesAnyNode(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const int64_t dims[] = {2, 2};
  const float a[] = {1, 2, 3, 4};
  MillraceTensor* value = millrace_tensor_from_data(MILLRACE_FLOAT, dims, 2, a, sizeof a, status);
  MillraceNodeBuilder* constant = millrace_node_builder_new(graph, "Const", "a", status);
  millrace_node_builder_set_type(constant, "dtype", MILLRACE_FLOAT, status);
  millrace_node_builder_set_tensor(constant, "value", value, status);
  EXPECT(Equal(millrace_node_builder_finish(constant, status), "a"));
  MillraceNodeBuilder* product = millrace_node_builder_new(graph, "MatMul", NULL, status);
  millrace_node_builder_add_input(product, "a", status);
  millrace_node_builder_add_input(product, "a:0", status);
  millrace_node_builder_set_bool(product, "transpose_b", 1, status);
  millrace_node_builder_add_control_input(product, "a", status);
  millrace_node_builder_set_device(product, "/cpu:0", status);
  EXPECT(Equal(millrace_node_builder_finish(product, status), "MatMul"));
  const char* list[] = {"a", "MatMul"};
  MillraceNodeBuilder* pack = millrace_node_builder_new(graph, "Pack", "both", status);
  millrace_node_builder_add_input_list(pack, list, 2, status);
  millrace_node_builder_set_int(pack, "axis", 0, status);
  millrace_node_builder_finish(pack, status);
  EXPECT_OK(status);

  MillraceSession* session = millrace_session_new(graph, NULL, status);
  MillraceTensor* both = Fetch(session, "both", status);
  EXPECT_OK(status);
  EXPECT(millrace_tensor_num_dims(both) == 3 && millrace_tensor_size(both) == 8 * sizeof(float));
  const float* got = (const float*)millrace_tensor_data(both);
  const float want[] = {1, 2, 3, 4, 5, 11, 11, 25};  // a, a times its transpose
  for (int i = 0; got != NULL && i < 8; ++i) EXPECT(got[i] == want[i]);
  millrace_tensor_delete(both);
  millrace_tensor_delete(value);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
}

static void ABuilderKeepsItsFirstError(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  MillraceNodeBuilder* node = millrace_node_builder_new(graph, "NoOp", NULL, status);
  millrace_node_builder_set_type(node, "T", 99, NULL);  // told nobody
  EXPECT(millrace_node_builder_finish(node, status) == NULL);
  EXPECT(millrace_status_code(status) == MILLRACE_INVALID_ARGUMENT);
  EXPECT(strstr(millrace_status_message(status), "99") != NULL);
  millrace_status_clear(status);
  millrace_node_builder_delete(millrace_node_builder_new(graph, "NoOp", NULL, status));
  MillraceStrings* nodes = millrace_graph_nodes(graph, status);
  EXPECT(millrace_strings_count(nodes) == 0);
  millrace_strings_delete(nodes);
  millrace_graph_delete(graph);
}

static void GraphsTravelAsBytes(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float two[] = {2};
  Constant(graph, "c", 1, two, status);
  Add(graph, "Mul", "square", "c", "c", status);
  MillraceBuffer* bytes = millrace_graph_export(graph, status);
  EXPECT(millrace_buffer_size(bytes) > 0);
  MillraceGraph* other = millrace_graph_new(status);
  const void* data = millrace_buffer_data(bytes);
  const size_t size = millrace_buffer_size(bytes);
  EXPECT(millrace_graph_import(other, data, size, NULL, status) == MILLRACE_OK);
  MillraceImportOptions options = {.struct_size = sizeof options};
  options.prefix = "again";
  EXPECT(millrace_graph_import(other, data, size, &options, status) == MILLRACE_OK);
  Add(other, "Add", "sum", "square", "again/square", status);
  MillraceSession* session = millrace_session_new(other, NULL, status);
  MillraceTensor* sum = Fetch(session, "sum:0", status);
  EXPECT_OK(status);
  EXPECT(FirstFloat(sum) == 8);
  // A second time under the same names.
  EXPECT(millrace_graph_import(other, data, size, NULL, status) == MILLRACE_INVALID_ARGUMENT);
  millrace_status_clear(status);
  EXPECT(millrace_graph_node_num_outputs(other, "sum", status) == 1);

  // On top of what is there: the square of the sum, after "c".
  const char *from = "c", *to = "sum", *control = "again/c";
  options.prefix = "top";
  options.mapped_from = &from;
  options.mapped_to = &to;
  options.num_mapped = 1;
  options.control_inputs = &control;
  options.num_control_inputs = 1;
  EXPECT(millrace_graph_import(other, data, size, &options, status) == MILLRACE_OK);
  MillraceTensor* top = Fetch(session, "top/square", status);
  EXPECT_OK(status);
  EXPECT(FirstFloat(top) == 64);
  millrace_tensor_delete(top);
  MillraceStrings* inputs = millrace_graph_node_inputs(other, "top/square", status);
  EXPECT(millrace_strings_count(inputs) == 3 && Equal(millrace_strings_get(inputs, 1), "sum") &&
         Equal(millrace_strings_get(inputs, 2), "^again/c"));
  millrace_strings_delete(inputs);
  MillraceBuffer* node = millrace_graph_node_def(other, "sum", status);
  EXPECT(millrace_buffer_size(node) > 6);
  millrace_buffer_delete(node);
  options.prefix = NULL;
  options.uniquify_names = 1;
  EXPECT(millrace_graph_import(other, data, size, &options, status) == MILLRACE_OK);
  EXPECT(Equal(millrace_graph_node_op(other, "square_1", status), "Mul"));
  to = "nobody";
  EXPECT(millrace_graph_import(other, data, size, &options, status) == MILLRACE_NOT_FOUND);
  millrace_status_clear(status);
  millrace_tensor_delete(sum);
  millrace_session_delete(session);
  millrace_buffer_delete(bytes);
  millrace_graph_delete(other);
  millrace_graph_delete(graph);
}

static void AGraphMayGrowAndItsHandleMayGoUnderASession(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float one[] = {1};
  Constant(graph, "a", 1, one, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  MillraceTensor* first = Fetch(session, "a", status);
  Add(graph, "Add", "b", "a", "a", status);
  MillraceTensor* second = Fetch(session, "b", status);
  // An edit that fails, in between.
  EXPECT(Add(graph, "Add", "c", "a", "nobody", NULL) == NULL);
  EXPECT(Add(graph, "MatMul", "c", "a", "b", NULL) == NULL);  // vectors
  const char* c = Add(graph, "Add", "c", "b", "b", status);
  EXPECT(Equal(c, "c"));
  millrace_graph_delete(graph);
  MillraceTensor* third = Fetch(session, "c", status);
  EXPECT_OK(status);
  EXPECT(FirstFloat(first) == 1 && FirstFloat(second) == 2 && FirstFloat(third) == 4);
  EXPECT(Equal(c, "c"));  // names live as long as a session of the graph
  millrace_tensor_delete(first);
  millrace_tensor_delete(second);
  millrace_tensor_delete(third);
  millrace_session_delete(session);
}

// --- Training ------------------------------------------------------------------------------------

static void GradientsAreTensorsByName(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float values[] = {3, -2};
  Constant(graph, "x", 2, values, status);
  Constant(graph, "z", 2, values, status);
  Add(graph, "Square", "y", "x", NULL, status);
  const char *y = "y", *xs[] = {"x", "z"}, *gradients[] = {"", ""};
  EXPECT(millrace_graph_add_gradients(graph, &y, 1, xs, 2, NULL, gradients, status) == MILLRACE_OK);
  EXPECT_OK(status);
  EXPECT(gradients[0] != NULL && gradients[1] == NULL);  // y does not depend on z
  const char* weighted = NULL;
  const char* weight = "x";  // dy/dx is weighted by x: 2 x * x
  millrace_graph_add_gradients(graph, &y, 1, xs, 1, &weight, &weighted, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  MillraceTensor* plain = Fetch(session, gradients[0], status);
  MillraceTensor* other = Fetch(session, weighted, status);
  EXPECT_OK(status);
  const float* got = (const float*)millrace_tensor_data(plain);
  EXPECT(got != NULL && got[0] == 6 && got[1] == -4);
  got = (const float*)millrace_tensor_data(other);
  EXPECT(got != NULL && got[0] == 18 && got[1] == 8);
  millrace_tensor_delete(plain);
  millrace_tensor_delete(other);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
}

// loss = sum(w^2) / 2 with w = 2: the gradient is w. Returns w after `steps` steps.
static float TrainedBy(MillraceOptimizerOptions options, int steps, MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float two[] = {2};
  Constant(graph, "two", 1, two, status);
  millrace_graph_add_variable(graph, "w", "two", NULL, status);
  const char* value = millrace_graph_variable_value(graph, "w", status);
  const char* loss = Add(graph, "L2Loss", "loss", value, NULL, status);
  options.global_step = millrace_graph_global_step(graph, status);
  const char* train = millrace_graph_minimize(graph, loss, &options, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  millrace_session_initialize_variables(session, status);
  for (int i = 0; i < steps; ++i) {
    millrace_session_run(session, NULL, NULL, 0, NULL, NULL, 0, &train, 1, NULL, status);
  }
  const char* read_step = millrace_graph_variable_value(graph, "global_step", status);
  MillraceTensor* w = Fetch(session, value, status);
  MillraceTensor* step = Fetch(session, read_step, status);
  EXPECT_OK(status);
  const int64_t* count = (const int64_t*)millrace_tensor_data(step);
  EXPECT(count != NULL && *count == steps);
  const float result = FirstFloat(w);
  millrace_tensor_delete(w);
  millrace_tensor_delete(step);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
  return result;
}

static float Trained(const char* optimizer, double learning_rate, int steps,
                     MillraceStatus* status) {
  MillraceOptimizerOptions options = {.struct_size = sizeof options};
  options.optimizer = optimizer;
  options.learning_rate = learning_rate;
  return TrainedBy(options, steps, status);
}

// Zeros that are meant, where 0 stands for another default.
static void AnOptimizersNumberMayBeZero(MillraceStatus* status) {
  MillraceOptimizerOptions options = {.struct_size = sizeof options};
  options.optimizer = "Momentum";
  options.learning_rate = 0.25;
  options.given = MILLRACE_MOMENTUM;  // gradient descent
  EXPECT(Near(TrainedBy(options, 2, status), 2.0f * 0.75f * 0.75f));
  options.learning_rate = 0;
  options.given = MILLRACE_LEARNING_RATE;  // stands still
  EXPECT(Near(TrainedBy(options, 2, status), 2.0f));
  // Without a memory the update is the learning rate: 2 - 0.25 * 2 / sqrt(4). With epsilon 12 it
  // would be a half of that.
  MillraceOptimizerOptions rms = {.struct_size = sizeof rms};
  rms.optimizer = "RMSProp";
  rms.learning_rate = 0.25;
  rms.given = MILLRACE_DECAY | MILLRACE_EPSILON;
  EXPECT(Near(TrainedBy(rms, 1, status), 2.0f - 0.25f));
  rms.epsilon = 12;
  EXPECT(Near(TrainedBy(rms, 1, status), 2.0f - 0.125f));
  // beta1 0: no memory of gradients; the second step is by the second gradient alone.
  MillraceOptimizerOptions adam = {.struct_size = sizeof adam};
  adam.optimizer = "Adam";
  adam.learning_rate = 0.125;
  adam.given = MILLRACE_BETA1 | MILLRACE_BETA2;
  EXPECT(Near(TrainedBy(adam, 2, status), 2.0f - 2 * 0.125f));
}

static void OptimizersFollowTheirEquations(MillraceStatus* status) {
  EXPECT(Near(Trained("GradientDescent", 0.25, 2, status), 2.0f * 0.75f * 0.75f));
  // The first step of Adam is the learning rate, whatever the gradient.
  EXPECT(Near(Trained("Adam", 0.125, 1, status), 2.0f - 0.125f));
  // Velocities 2 and 0.9 * 2 + 1.5.
  EXPECT(Near(Trained("Momentum", 0.25, 2, status), 1.5f - 0.25f * 3.3f));
  // 2 - 0.25 * 2 / sqrt(0.9 * 1 + 0.1 * 4)
  EXPECT(Near(Trained("RMSProp", 0.25, 1, status), 2.0f - 0.5f / 1.1401754f));
  // 2 - 0.5 * 2 / sqrt(0.1 + 4)
  EXPECT(Near(Trained("Adagrad", 0.5, 1, status), 2.0f - 1.0f / 2.0248457f));
}

static void ALearningRateMayBeFed(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float two[] = {2};
  Constant(graph, "two", 1, two, status);
  millrace_graph_add_variable(graph, "w", "two", NULL, status);
  const char* value = millrace_graph_variable_value(graph, "w", status);
  const char* loss = Add(graph, "L2Loss", NULL, value, NULL, status);
  const char* rate = millrace_graph_add_placeholder(graph, "rate", MILLRACE_FLOAT, NULL, 0, status);
  MillraceOptimizerOptions options = {.struct_size = sizeof options};
  options.optimizer = "GradientDescent";
  options.learning_rate_tensor = rate;
  const char* train = millrace_graph_minimize(graph, loss, &options, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  millrace_session_initialize_variables(session, status);
  const float rates[] = {0.5f, 0.25f};
  for (int i = 0; i < 2; ++i) {
    MillraceTensor* fed =
        millrace_tensor_from_data(MILLRACE_FLOAT, NULL, 0, &rates[i], sizeof rates[i], status);
    millrace_session_run(session, &rate, &fed, 1, NULL, NULL, 0, &train, 1, NULL, status);
    millrace_tensor_delete(fed);
  }
  MillraceTensor* after = Fetch(session, value, status);
  EXPECT_OK(status);
  EXPECT(Near(FirstFloat(after), 2.0f * 0.5f * 0.75f));
  millrace_tensor_delete(after);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
}

static void GradientsOfTheCallersAreApplied(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float two[] = {2}, bound[] = {0.5};
  Constant(graph, "two", 1, two, status);
  Constant(graph, "bound", 1, bound, status);
  const char* w = millrace_graph_add_variable(graph, "w", "two", NULL, status);
  const char* value = millrace_graph_variable_value(graph, w, status);
  const char* loss = Add(graph, "L2Loss", NULL, value, NULL, status);
  const char* gradient = NULL;
  millrace_graph_add_gradients(graph, &loss, 1, &w, 1, NULL, &gradient, status);
  const char* clipped = Add(graph, "Minimum", "clipped", gradient, "bound", status);
  MillraceOptimizerOptions options = {.struct_size = sizeof options};
  options.optimizer = "GradientDescent";
  options.learning_rate = 1;
  options.name = "train";
  const char* train = millrace_graph_apply_gradients(graph, &clipped, &w, 1, &options, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  millrace_session_initialize_variables(session, status);
  millrace_session_run(session, NULL, NULL, 0, NULL, NULL, 0, &train, 1, NULL, status);
  MillraceTensor* after = Fetch(session, value, status);
  EXPECT_OK(status);
  EXPECT(Near(FirstFloat(after), 1.5f));
  millrace_tensor_delete(after);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
}

static void WhatFailsLeavesTheGraphAsItWas(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float two[] = {2};
  Constant(graph, "two", 1, two, status);
  millrace_graph_add_variable(graph, "w", "two", NULL, status);
  const char* value = millrace_graph_variable_value(graph, "w", status);
  Add(graph, "Floor", "floor", value, NULL, status);  // cuts the gradient
  MillraceBuffer* before = millrace_graph_export_meta(graph, status);
  EXPECT_OK(status);
  MillraceOptimizerOptions options = {.struct_size = sizeof options};
  options.optimizer = "Adam";
  EXPECT(millrace_graph_minimize(graph, "floor", &options, status) == NULL);
  EXPECT(millrace_status_code(status) == MILLRACE_INVALID_ARGUMENT);
  EXPECT(strstr(millrace_status_message(status), "Floor 'floor'") != NULL);
  EXPECT(strstr(millrace_status_message(status), "built at") == NULL);
  millrace_status_clear(status);
  MillraceBuffer* after = millrace_graph_export_meta(graph, status);
  EXPECT_OK(status);
  const size_t size = millrace_buffer_size(before);
  EXPECT(size > 0 && millrace_buffer_size(after) == size);
  EXPECT(size == millrace_buffer_size(after) &&
         memcmp(millrace_buffer_data(before), millrace_buffer_data(after), size) == 0);
  // And goes on: the same names are free.
  Add(graph, "L2Loss", "loss", value, NULL, status);
  EXPECT(Equal(millrace_graph_minimize(graph, "loss", &options, status), "Adam"));
  EXPECT_OK(status);
  millrace_buffer_delete(before);
  millrace_buffer_delete(after);
  millrace_graph_delete(graph);
}

static void VariablesSayWhatTheyAre(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float two[] = {2, 3};
  Constant(graph, "c", 2, two, status);
  MillraceVariableOptions options = {.struct_size = sizeof options};
  options.device = "/cpu:0";
  options.not_trainable = 1;
  EXPECT(Equal(millrace_graph_add_variable(graph, "v", "c", &options, status), "v"));
  options.local = 1;
  EXPECT(Equal(millrace_graph_add_variable(graph, "v", "c", &options, status), "v_1"));
  MillraceStrings* names = millrace_graph_variables(graph, status);
  EXPECT(millrace_strings_count(names) == 1 && Equal(millrace_strings_get(names, 0), "v"));
  millrace_strings_delete(names);
  const char* init = millrace_graph_add_initializer(graph, NULL, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  millrace_session_run(session, NULL, NULL, 0, NULL, NULL, 0, &init, 1, NULL, status);
  MillraceTensor* local =
      Fetch(session, millrace_graph_variable_value(graph, "v_1:0", status), status);
  EXPECT_OK(status);
  EXPECT(FirstFloat(local) == 2);
  millrace_tensor_delete(local);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
}

// --- Sessions ------------------------------------------------------------------------------------

static void APreparedStepKeepsItsSession(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const char* x = millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, NULL, -1, status);
  const char* y = Add(graph, "Neg", "y", x, NULL, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  MillracePreparedStep* step = millrace_session_prepare(session, &x, 1, &y, 1, NULL, 0, status);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
  const float values[] = {4};
  MillraceTensor* fed = Floats(1, values, status);
  for (int i = 0; i < 3; ++i) {
    MillraceTensor* result;
    EXPECT(millrace_prepared_step_run(step, &fed, 1, &result, 1, NULL, status) == MILLRACE_OK);
    EXPECT(FirstFloat(result) == -4);
    millrace_tensor_delete(result);
  }
  EXPECT_OK(status);
  millrace_tensor_delete(fed);
  millrace_prepared_step_delete(step);
}

static void AStepCanBeTraced(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const float one[] = {1};
  Constant(graph, "one", 1, one, status);
  const char* y = millrace_graph_add_placeholder(graph, "y", MILLRACE_FLOAT, NULL, -1, status);
  const char* sum = Add(graph, "Add", "sum_node", "one", y, status);
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  MillraceTensor *fed = Floats(1, one, status), *result = NULL;
  MillraceBuffer* metadata = NULL;
  MillraceRunOptions options = {.struct_size = sizeof options};
  options.metadata = &metadata;
  millrace_session_run(session, &y, &fed, 1, &sum, &result, 1, NULL, 0, &options, status);
  EXPECT_OK(status);
  const char* bytes = (const char*)millrace_buffer_data(metadata);
  const size_t size = millrace_buffer_size(metadata);
  int found = 0;
  for (size_t i = 0; i + 8 <= size; ++i) found |= memcmp(bytes + i, "sum_node", 8) == 0;
  EXPECT(found);
  millrace_buffer_delete(metadata);
  millrace_tensor_delete(result);
  millrace_tensor_delete(fed);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
}

static void ASessionHasDevicesAndTheLibraryOps(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  MillraceSessionOptions options = {.struct_size = sizeof options};
  options.num_threads = 1;
  MillraceSession* session = millrace_session_new(graph, &options, status);
  MillraceStrings* devices = millrace_session_devices(session, status);
  EXPECT(Equal(millrace_strings_get(devices, 0), "/job:localhost/replica:0/task:0/device:CPU:0"));
  millrace_strings_delete(devices);
  MillraceStrings* ops = millrace_op_names(status);
  EXPECT(millrace_strings_count(ops) > 100);
  for (int i = 1; i < millrace_strings_count(ops); ++i) {
    EXPECT(strcmp(millrace_strings_get(ops, i - 1), millrace_strings_get(ops, i)) < 0);
  }
  millrace_strings_delete(ops);
  MillraceBuffer* def = millrace_op_def("MatMul", status);
  EXPECT(millrace_buffer_size(def) > 8);
  millrace_buffer_delete(def);
  EXPECT_OK(status);
  millrace_session_delete(session);
  millrace_graph_delete(graph);
}

// --- ABI -----------------------------------------------------------------------------------------

// Where fields are, for programs that were built before: they grow at the end.
_Static_assert(offsetof(MillraceVariableOptions, local) == 28, "");
_Static_assert(offsetof(MillraceOptimizerOptions, learning_rate) == 24, "");
_Static_assert(offsetof(MillraceOptimizerOptions, use_locking) == 84, "");
_Static_assert(offsetof(MillraceOptimizerOptions, centered) == 116, "");
_Static_assert(offsetof(MillraceSessionOptions, allow_soft_placement) == 60, "");
_Static_assert(offsetof(MillraceImportOptions, num_control_inputs) == 48, "");
_Static_assert(offsetof(MillraceRunOptions, metadata) == 32, "");
_Static_assert(offsetof(MillraceSaverOptions, max_to_keep) == 20, "");
_Static_assert(offsetof(MillraceExportOptions, main_op) == 24, "");

static void AStructOfALaterProgramIsTakenWhereItAsksForNothingNew(MillraceStatus* status) {
  struct {
    MillraceVariableOptions known;
    int64_t later;
  } options;
  memset(&options, 0, sizeof options);
  options.known.struct_size = sizeof options;
  MillraceGraph* graph = millrace_graph_new(status);
  const float two[] = {2};
  Constant(graph, "c", 1, two, status);
  EXPECT(millrace_graph_add_variable(graph, "v", "c", &options.known, status) != NULL);
  EXPECT_OK(status);
  options.later = 1;
  EXPECT(millrace_graph_add_variable(graph, "v", "c", &options.known, status) == NULL);
  EXPECT(millrace_status_code(status) == MILLRACE_UNIMPLEMENTED);
  millrace_status_clear(status);
  // One of an earlier program: what it does not have is zero.
  options.known.struct_size = offsetof(MillraceVariableOptions, device);
  options.known.device = "no device";
  EXPECT(millrace_graph_add_variable(graph, "v", "c", &options.known, status) != NULL);
  EXPECT_OK(status);
  millrace_graph_delete(graph);
}

typedef struct {
  const char* name;
  void (*run)(MillraceStatus* status);
} Test;

#define TEST(name) \
  { #name, name }
static const Test kTests[] = {
    TEST(AStatusKeepsTheFirstErrorAndStopsLaterCalls),
    TEST(CodesHaveNames),
    TEST(MemoryOfTheCallerIsReadInPlaceAndReleasedOnce),
    TEST(MemoryStaysTheCallersWhenWrappingFails),
    TEST(ATensorWithoutElementsNeedsNoMemory),
    TEST(StringsKeepTheirBytes),
    TEST(DTypesSayTheirNameAndSize),
    TEST(AGraphAnswersQuestions),
    TEST(ABuilderMakesAnyNode),
    TEST(ABuilderKeepsItsFirstError),
    TEST(GraphsTravelAsBytes),
    TEST(AGraphMayGrowAndItsHandleMayGoUnderASession),
    TEST(GradientsAreTensorsByName),
    TEST(OptimizersFollowTheirEquations),
    TEST(AnOptimizersNumberMayBeZero),
    TEST(ALearningRateMayBeFed),
    TEST(GradientsOfTheCallersAreApplied),
    TEST(WhatFailsLeavesTheGraphAsItWas),
    TEST(VariablesSayWhatTheyAre),
    TEST(APreparedStepKeepsItsSession),
    TEST(AStepCanBeTraced),
    TEST(ASessionHasDevicesAndTheLibraryOps),
    TEST(AStructOfALaterProgramIsTakenWhereItAsksForNothingNew),
};

int main(void) {
  const size_t count = sizeof kTests / sizeof *kTests;
  for (size_t i = 0; i < count; ++i) {
    current_test = kTests[i].name;
    MillraceStatus* status = millrace_status_new();
    kTests[i].run(status);
    EXPECT_OK(status);
    millrace_status_delete(status);
  }
  printf("%d tests, %d failures\n", (int)count, failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
