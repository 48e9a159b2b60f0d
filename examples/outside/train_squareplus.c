// SPDX-License-Identifier: Apache-2.0
// train_squareplus: a C program that trains through an op of its own, which it loads.
//
//   train_squareplus squareplus.so
//
// t = squareplus(2 x) is given, y = squareplus(w x) is trained: w becomes 2.
#include <math.h>
#include <millrace/c_api.h>
#include <stdio.h>

static const char* Node(MillraceGraph* graph, const char* op, const char* a, const char* b,
                        MillraceStatus* status) {
  const char* inputs[] = {a, b};
  return millrace_graph_add_node(graph, op, NULL, inputs, b == NULL ? 1 : 2, status);
}

// An op with an attr.
static const char* Squareplus(MillraceGraph* graph, const char* x, MillraceStatus* status) {
  MillraceNodeBuilder* builder = millrace_node_builder_new(graph, "Squareplus", NULL, status);
  millrace_node_builder_add_input(builder, x, status);
  millrace_node_builder_set_float(builder, "width", 4.0f, status);
  return millrace_node_builder_finish(builder, status);
}

// A scalar variable that begins with 0.5; the tensor that reads it.
static const char* Variable(MillraceGraph* graph, MillraceStatus* status) {
  const float half = 0.5f;
  MillraceTensor* value =
      millrace_tensor_from_data(MILLRACE_FLOAT, NULL, 0, &half, sizeof half, status);
  const char* initial = millrace_graph_add_constant(graph, NULL, value, status);
  millrace_tensor_delete(value);
  const char* variable = millrace_graph_add_variable(graph, "w", initial, NULL, status);
  return millrace_graph_variable_value(graph, variable, status);
}

static float Train(MillraceStatus* status) {
  MillraceGraph* graph = millrace_graph_new(status);
  const int64_t any[] = {-1};
  const char* names[] = {
      millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, any, 1, status),
      millrace_graph_add_placeholder(graph, "t", MILLRACE_FLOAT, any, 1, status)};
  const char* w = Variable(graph, status);
  const char* y = Squareplus(graph, Node(graph, "Mul", names[0], w, status), status);
  const char* loss = Node(graph, "L2Loss", Node(graph, "Sub", y, names[1], status), NULL, status);
  MillraceOptimizerOptions optimizer = {.struct_size = sizeof optimizer};
  optimizer.optimizer = "GradientDescent";
  optimizer.learning_rate = 0.05;
  const char* train = millrace_graph_minimize(graph, loss, &optimizer, status);

  float xs[] = {-1.0f, 0.0f, 1.0f, 2.0f}, ts[4];
  for (int i = 0; i < 4; ++i) ts[i] = (2 * xs[i] + sqrtf(4 * xs[i] * xs[i] + 4)) / 2;
  const int64_t four[] = {4};
  MillraceTensor* feeds[] = {
      millrace_tensor_from_data(MILLRACE_FLOAT, four, 1, xs, sizeof xs, status),
      millrace_tensor_from_data(MILLRACE_FLOAT, four, 1, ts, sizeof ts, status)};
  MillraceSession* session = millrace_session_new(graph, NULL, status);
  millrace_session_initialize_variables(session, status);
  for (int i = 0; i < 500; ++i) {
    millrace_session_run(session, names, feeds, 2, NULL, NULL, 0, &train, 1, NULL, status);
  }
  MillraceTensor* value = NULL;
  millrace_session_run(session, NULL, NULL, 0, &w, &value, 1, NULL, 0, NULL, status);
  const float trained = value == NULL ? 0.0f : *(const float*)millrace_tensor_data(value);

  millrace_tensor_delete(value);
  millrace_session_delete(session);
  millrace_tensor_delete(feeds[0]);
  millrace_tensor_delete(feeds[1]);
  millrace_graph_delete(graph);
  return trained;
}

int main(int argc, char** argv) {
  MillraceStatus* status = millrace_status_new();
  MillraceStrings* ops = millrace_load_op_library(argc > 1 ? argv[1] : "squareplus.so", status);
  for (int i = 0; i < millrace_strings_count(ops); ++i) {
    printf("op %s\n", millrace_strings_get(ops, i));
  }
  const float w = Train(status);
  const int failed = millrace_status_code(status) != MILLRACE_OK;
  if (failed) {
    fprintf(stderr, "%s: %s\n", argv[0], millrace_status_message(status));
  } else {
    printf("w = %.3f\n", (double)w);
  }
  millrace_strings_delete(ops);
  millrace_status_delete(status);
  return failed;
}
