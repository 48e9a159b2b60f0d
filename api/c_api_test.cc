// SPDX-License-Identifier: Apache-2.0
//
// The C API from C++20: bad input, threads, files of TensorFlow. What C programs do: c_api_test.c.
#include "api/c_api.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/config.pb.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"

// covers: c api: NULL, deleted handles, handles of another kind, wrong sizes, dtypes and names are
//   a Status with its text, and change nothing (table)
// covers: c api: many threads build and run one graph while edits fail beside them
// covers: c api: a session has exactly what a reader of its graph sees during edits; imports use
//   the shapes that the caller gave
// covers: c api: a session of a graph without nodes says so, and goes on with those that are added
// covers: c api: a model that TensorFlow wrote predicts
// covers: c api: moving averages of weights, and the initial values of other variables

namespace millrace {
namespace {

std::string TestFolder() {
  const std::string folder =
      JoinPath(::testing::TempDir(), absl::StrCat("c_api_", RandomHexName()));
  EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(folder));
  return folder;
}

MillraceTensor* Floats(std::initializer_list<float> values) {
  const int64_t dims[] = {static_cast<int64_t>(values.size())};
  return millrace_tensor_from_data(MILLRACE_FLOAT, dims, 1, values.begin(),
                                   values.size() * sizeof(float), nullptr);
}

std::vector<float> ValuesOf(const MillraceTensor* tensor) {
  const auto* data = static_cast<const float*>(millrace_tensor_data(tensor));
  return {data, data + millrace_tensor_num_elements(tensor)};
}

std::vector<std::string> TextsOf(MillraceStrings* strings) {
  std::vector<std::string> texts;
  for (int i = 0; i < millrace_strings_count(strings); ++i) {
    texts.emplace_back(millrace_strings_get(strings, i));
  }
  millrace_strings_delete(strings);
  return texts;
}

template <typename T>
T Options() {
  T options = {};
  options.struct_size = sizeof(T);
  return options;
}

// A graph with x (placeholder), c (a vector of 2), w (a variable of it) and y = w + x; a session,
// a prepared step and all else that functions take.
class CApiTest : public ::testing::Test {
 protected:
  CApiTest() {
    MillraceTensor* const value = Floats({1, 2});
    millrace_graph_add_constant(graph_, "c", value, status_);
    millrace_tensor_delete(value);
    millrace_graph_add_placeholder(graph_, "x", MILLRACE_FLOAT, nullptr, -1, status_);
    millrace_graph_add_variable(graph_, "w", "c", nullptr, status_);
    const char* const inputs[] = {millrace_graph_variable_value(graph_, "w", status_), "x"};
    millrace_graph_add_node(graph_, "Add", "y", inputs, 2, status_);
    session_ = millrace_session_new(graph_, nullptr, status_);
    millrace_session_initialize_variables(session_, status_);
    const char *x = "x", *y = "y";
    step_ = millrace_session_prepare(session_, &x, 1, &y, 1, nullptr, 0, status_);
    EXPECT_EQ(millrace_status_code(status_), MILLRACE_OK) << millrace_status_message(status_);
  }
  ~CApiTest() override {
    millrace_prepared_step_delete(step_);
    millrace_session_delete(session_);
    millrace_tensor_delete(tensor_);
    millrace_graph_delete(graph_);
    millrace_status_delete(status_);
  }

  Status status() {
    const Status result(static_cast<absl::StatusCode>(millrace_status_code(status_)),
                        millrace_status_message(status_));
    millrace_status_clear(status_);
    return result;
  }

  MillraceStatus* const status_ = millrace_status_new();
  MillraceGraph* const graph_ = millrace_graph_new(status_);
  MillraceTensor* const tensor_ = Floats({3, 4});
  MillraceSession* session_ = nullptr;
  MillracePreparedStep* step_ = nullptr;
};

// --- Bad input -----------------------------------------------------------------------------------

struct BadCall {
  const char* message;  // a part of it
  std::function<void(MillraceStatus*)> call;
  MillraceCode code = MILLRACE_INVALID_ARGUMENT;
};

TEST_F(CApiTest, BadArgumentsAreStatuses) {
  MillraceStatus* const none = nullptr;
  MillraceGraph* const dead_graph = millrace_graph_new(none);
  millrace_graph_delete(dead_graph);
  MillraceTensor* const dead_tensor = Floats({1});
  millrace_tensor_delete(dead_tensor);
  MillraceSession* const dead_session = millrace_session_new(graph_, nullptr, none);
  millrace_session_delete(dead_session);
  const char *x = "x", *y = "y", *c = "c", *w = "w", *null_name = nullptr;
  MillraceTensor* fed = tensor_;
  MillraceTensor* null_tensor = nullptr;
  MillraceTensor* dead_feed = dead_tensor;
  MillraceTensor* result = nullptr;
  const int64_t two[] = {2};
  const int64_t negative[] = {-2};
  const int64_t huge[] = {int64_t{1} << 40, int64_t{1} << 40};
  const float floats[] = {1, 2, 3};
  const unsigned char bools[] = {0, 7};
  alignas(8) char misaligned[16] = {};
  const size_t length = 3;
  const char* gradient = nullptr;
  MillraceSessionOptions unsized = {};
  MillraceSessionOptions negative_time = Options<MillraceSessionOptions>();
  negative_time.timeout_ms = -1;
  MillraceSessionOptions bad_config = Options<MillraceSessionOptions>();
  bad_config.config = "\xff\xff";
  bad_config.config_size = 2;
  MillraceSessionOptions bad_target = Options<MillraceSessionOptions>();
  bad_target.target = "carrier-pigeon://x";
  MillraceRunOptions negative_run = Options<MillraceRunOptions>();
  negative_run.timeout_ms = -5;
  MillraceOptimizerOptions sgd = Options<MillraceOptimizerOptions>();
  sgd.optimizer = "GradientDescent";
  MillraceOptimizerOptions unknown_optimizer = sgd;
  unknown_optimizer.optimizer = "Lion";
  MillraceOptimizerOptions no_optimizer = Options<MillraceOptimizerOptions>();
  MillraceOptimizerOptions bad_variables = sgd;
  bad_variables.num_variables = -1;
  MillraceOptimizerOptions unknown_variable = sgd;
  unknown_variable.variables = &c;
  unknown_variable.num_variables = 1;
  MillraceOptimizerOptions float_step = sgd;
  float_step.global_step = "w";
  MillraceOptimizerOptions two_rates = sgd;
  two_rates.learning_rate = 0.1;
  two_rates.learning_rate_tensor = "c";
  MillraceOptimizerOptions vector_rate = sgd;
  vector_rate.learning_rate_tensor = "c";
  MillraceOptimizerOptions unknown_number = sgd;
  unknown_number.given = 1u << 30;
  MillraceOptimizerOptions sgd_momentum = sgd;
  sgd_momentum.momentum = 0.5;
  MillraceOptimizerOptions sgd_no_momentum = sgd;
  sgd_no_momentum.given = MILLRACE_MOMENTUM;
  MillraceOptimizerOptions no_number = sgd;
  no_number.learning_rate = std::numeric_limits<double>::quiet_NaN();
  MillraceOptimizerOptions sgd_nesterov = sgd;
  sgd_nesterov.use_nesterov = 1;
  MillraceOptimizerOptions sgd_centered = sgd;
  sgd_centered.centered = 1;
  MillraceOptimizerOptions zero_rate_and_tensor = vector_rate;
  zero_rate_and_tensor.given = MILLRACE_LEARNING_RATE;
  MillraceSaverOptions negative_keep = Options<MillraceSaverOptions>();
  negative_keep.max_to_keep = -2;
  const char* const value = millrace_graph_variable_value(graph_, "w", status_);
  const char* const loss = millrace_graph_add_node(graph_, "L2Loss", "loss", &value, 1, status_);

  const std::vector<BadCall> calls = {
      // Tensors.
      {"dtype must be one of", [&](auto* s) { millrace_tensor_new(0, two, 1, s); }},
      {"got 101", [&](auto* s) { millrace_tensor_new(101, two, 1, s); }},
      {"must be numbers, bools or strings, got resource",
       [&](auto* s) { millrace_tensor_new(MILLRACE_RESOURCE, two, 1, s); }},
      {"number of dims must be >= 0, got -1",
       [&](auto* s) { millrace_tensor_new(MILLRACE_FLOAT, two, -1, s); }},
      {"dims must have 1 elements, got NULL",
       [&](auto* s) { millrace_tensor_new(MILLRACE_FLOAT, nullptr, 1, s); }},
      {"-2", [&](auto* s) { millrace_tensor_new(MILLRACE_FLOAT, negative, 1, s); }},
      {"millrace_tensor_new", [&](auto* s) { millrace_tensor_new(MILLRACE_FLOAT, huge, 2, s); }},
      {"float[2] must have 8 bytes, got 12",
       [&](auto* s) {
         millrace_tensor_from_data(MILLRACE_FLOAT, two, 1, floats, sizeof floats, s);
       }},
      {"data must be 8 bytes, got NULL",
       [&](auto* s) { millrace_tensor_from_data(MILLRACE_FLOAT, two, 1, nullptr, 8, s); }},
      {"must have a fixed size, got string; use millrace_tensor_from_strings",
       [&](auto* s) { millrace_tensor_from_data(MILLRACE_STRING, two, 1, floats, 8, s); }},
      {"a bool must be 0 or 1",
       [&](auto* s) { millrace_tensor_from_data(MILLRACE_BOOL, two, 1, bools, 2, s); }},
      {"must be aligned",
       [&](auto* s) {
         millrace_tensor_wrap(MILLRACE_FLOAT, two, 1, misaligned + 1, 8, nullptr, nullptr, s);
       }},
      {"strings[0] must be a text, got NULL",
       [&](auto* s) { millrace_tensor_from_strings(nullptr, 0, &null_name, nullptr, 1, s); }},
      {"needs 2 values, got 1",
       [&](auto* s) { millrace_tensor_from_strings(two, 1, &x, nullptr, 1, s); }},
      {"number of strings must be >= 0, got -7",
       [&](auto* s) { millrace_tensor_from_strings(two, 1, &x, &length, -7, s); }},
      {"tensor must be a living MillraceTensor, got NULL",
       [&](auto* s) { millrace_tensor_share(nullptr, s); }},
      {"tensor must be a living MillraceTensor, got one that was deleted",
       [&](auto* s) { millrace_tensor_mutable_data(dead_tensor, s); }},
      {"got no handle of this kind",
       [&](auto* s) { millrace_tensor_share(reinterpret_cast<MillraceTensor*>(graph_), s); }},
      {"must be of strings, got float[2]",
       [&](auto* s) { millrace_tensor_string(tensor_, 0, nullptr, s); }},
      // Graphs and nodes.
      {"graph must be a living MillraceGraph, got NULL",
       [&](auto* s) { millrace_graph_export(nullptr, s); }},
      {"graph must be a living MillraceGraph, got one that was deleted",
       [&](auto* s) { millrace_graph_nodes(dead_graph, s); }},
      {"must be 3 bytes, got NULL",
       [&](auto* s) { millrace_graph_import(graph_, nullptr, 3, nullptr, s); }},
      {"must be a serialized GraphDef, got 2 bytes",
       [&](auto* s) { millrace_graph_import(graph_, "\xff\xff", 2, nullptr, s); },
       MILLRACE_DATA_LOSS},
      {"must be at most",
       [&](auto* s) { millrace_graph_import(graph_, "", SIZE_MAX, nullptr, s); }},
      {"the graph must have no nodes",
       [&](auto* s) { millrace_graph_import_meta(graph_, "", 0, s); },
       MILLRACE_FAILED_PRECONDITION},
      {"op must be a text, got NULL",
       [&](auto* s) { millrace_graph_add_node(graph_, nullptr, "n", nullptr, 0, s); }},
      {"inputs must have 1 elements, got NULL",
       [&](auto* s) { millrace_graph_add_node(graph_, "Neg", "n", nullptr, 1, s); }},
      {"inputs[0] must be a text, got NULL",
       [&](auto* s) { millrace_graph_add_node(graph_, "Neg", "n", &null_name, 1, s); }},
      {"must have 1 input (x), got 0",
       [&](auto* s) { millrace_graph_add_node(graph_, "Neg", "n", nullptr, 0, s); }},
      {"'c:1' must be an output of Const 'c', got one that has 1",
       [&](auto* s) {
         const char* const input = "c:1";
         millrace_graph_add_node(graph_, "Neg", "n", &input, 1, s);
       }},
      {"a tensor must be 'node' or 'node:output', got '^c'",
       [&](auto* s) {
         const char* const input = "^c";
         millrace_graph_add_node(graph_, "Neg", "n", &input, 1, s);
       }},
      {"must have node 'losss', got none; did you mean 'loss'?",
       [&](auto* s) {
         const char* const input = "losss";
         millrace_graph_add_node(graph_, "Neg", "n", &input, 1, s);
       },
       MILLRACE_NOT_FOUND},
      {"NoSuchOp",
       [&](auto* s) { millrace_graph_add_node(graph_, "NoSuchOp", "n", nullptr, 0, s); },
       MILLRACE_NOT_FOUND},
      {"a b", [&](auto* s) { millrace_graph_add_node(graph_, "NoOp", "a b", nullptr, 0, s); }},
      {"value must be a living MillraceTensor, got NULL",
       [&](auto* s) { millrace_graph_add_constant(graph_, "n", nullptr, s); }},
      {"number of dims must be >= 0, got -2",
       [&](auto* s) {
         millrace_graph_add_placeholder(graph_, "n", MILLRACE_FLOAT, nullptr, -2, s);
       }},
      {"-2",
       [&](auto* s) {
         millrace_graph_add_placeholder(graph_, "n", MILLRACE_FLOAT, negative, 1, s);
       }},
      {"got 77", [&](auto* s) { millrace_graph_add_placeholder(graph_, "n", 77, two, 1, s); }},
      {"tensor must be a text, got NULL",
       [&](auto* s) { millrace_graph_dtype(graph_, nullptr, s); }},
      {"must have node 'q'", [&](auto* s) { millrace_graph_shape(graph_, "q", nullptr, 0, s); },
       MILLRACE_NOT_FOUND},
      {"dims must have 3 elements, got NULL",
       [&](auto* s) { millrace_graph_shape(graph_, "x", nullptr, 3, s); }},
      {"node must be a text, got NULL",
       [&](auto* s) { millrace_graph_node_op(graph_, nullptr, s); }},
      {"node must be a text, got NULL",
       [&](auto* s) { millrace_graph_node_inputs(graph_, nullptr, s); }},
      {"must have node 'x/y'", [&](auto* s) { millrace_graph_node_def(graph_, "x/y", s); },
       MILLRACE_NOT_FOUND},
      {"options.mapped_from must have 1 elements, got NULL",
       [&](auto* s) {
         MillraceImportOptions options = Options<MillraceImportOptions>();
         options.num_mapped = 1;
         millrace_graph_import(graph_, "", 0, &options, s);
       }},
      // Builders.
      {"builder must be a living MillraceNodeBuilder, got NULL",
       [&](auto* s) { millrace_node_builder_finish(nullptr, s); }},
      {"builder must be a living MillraceNodeBuilder, got NULL",
       [&](auto* s) { millrace_node_builder_set_int(nullptr, "a", 1, s); }},
      {"builder must be a living MillraceNodeBuilder, got one that was deleted",
       [&](auto* s) {
         MillraceNodeBuilder* const node = millrace_node_builder_new(graph_, "NoOp", nullptr, s);
         millrace_node_builder_delete(node);
         millrace_node_builder_add_input(node, "x", s);
       }},
      {"attr must be a text, got NULL",
       [&](auto* s) {
         MillraceNodeBuilder* const node = millrace_node_builder_new(graph_, "NoOp", nullptr, s);
         millrace_node_builder_set_int(node, nullptr, 1, s);
         millrace_node_builder_delete(node);
       }},
      {"values[0] must be a living MillraceTensor, got NULL",
       [&](auto* s) {
         MillraceNodeBuilder* const node = millrace_node_builder_new(graph_, "NoOp", nullptr, s);
         millrace_node_builder_set_tensor_list(node, "_a", &null_tensor, 1, s);
         millrace_node_builder_delete(node);
       }},
      {"must be a serialized AttrValue",
       [&](auto* s) {
         MillraceNodeBuilder* const node = millrace_node_builder_new(graph_, "NoOp", nullptr, s);
         millrace_node_builder_set_attr_value(node, "_a", "\xff", 1, s);
         millrace_node_builder_delete(node);
       },
       MILLRACE_DATA_LOSS},
      {"number of values must be >= 0, got -1",
       [&](auto* s) {
         MillraceNodeBuilder* const node = millrace_node_builder_new(graph_, "NoOp", nullptr, s);
         millrace_node_builder_set_int_list(node, "_a", two, -1, s);
         millrace_node_builder_delete(node);
       }},
      // Training.
      {"initial_value must be a text, got NULL",
       [&](auto* s) { millrace_graph_add_variable(graph_, "v", nullptr, nullptr, s); }},
      {"must have a fully defined shape",
       [&](auto* s) { millrace_graph_add_variable(graph_, "v", "x", nullptr, s); }},
      {"must have variable 'c', got none of its 1 variables",
       [&](auto* s) { millrace_graph_variable_value(graph_, "c", s); }, MILLRACE_NOT_FOUND},
      {"there must be at least one y",
       [&](auto* s) {
         millrace_graph_add_gradients(graph_, nullptr, 0, &x, 1, nullptr, &gradient, s);
       }},
      {"gradients must have 1 elements, got NULL",
       [&](auto* s) { millrace_graph_add_gradients(graph_, &y, 1, &x, 1, nullptr, nullptr, s); }},
      {"struct_size of options must be its sizeof",
       [&](auto* s) { millrace_session_new(graph_, &unsized, s); }},
      {"options.optimizer must be a text, got NULL",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, nullptr, s); }},
      {"options.optimizer must be a text, got NULL",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &no_optimizer, s); }},
      {"options.given must be made of MILLRACE_LEARNING_RATE to MILLRACE_DECAY, got 1073741824",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &unknown_number, s); }},
      {"options.momentum must not be given to GradientDescent, which has none, got 0.5",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &sgd_momentum, s); }},
      {"options.momentum must not be given to GradientDescent, which has none, got 0",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &sgd_no_momentum, s); }},
      {"options.learning_rate must be finite, got nan",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &no_number, s); }},
      {"options.use_nesterov must not be set for GradientDescent",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &sgd_nesterov, s); }},
      {"options.centered must not be set for GradientDescent",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &sgd_centered, s); }},
      {"learning_rate or learning_rate_tensor, got both",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &zero_rate_and_tensor, s); }},
      {"must be GradientDescent, Momentum, Adam, Adagrad or RMSProp, got 'Lion'",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &unknown_optimizer, s); }},
      {"must have learning_rate or learning_rate_tensor, got both",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &two_rates, s); }},
      {"learning_rate must be a scalar, got shape [2]",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &vector_rate, s); }},
      {"number of options.variables must be >= 0, got -1",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &bad_variables, s); }},
      {"must have variable 'c'",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &unknown_variable, s); },
       MILLRACE_NOT_FOUND},
      {"options.global_step must be int64 or int32, got float",
       [&](auto* s) { millrace_graph_minimize(graph_, loss, &float_step, s); }},
      {"No gradients provided for any variable",
       [&](auto* s) { millrace_graph_minimize(graph_, "c", &sgd, s); }},
      {"the gradient of 'w' must be float[2]",
       [&](auto* s) { millrace_graph_apply_gradients(graph_, &loss, &w, 1, &sgd, s); }},
      // Sessions.
      {"options.timeout_ms must be >= 0, got -1",
       [&](auto* s) { millrace_session_new(graph_, &negative_time, s); }},
      {"must be a serialized ConfigProto",
       [&](auto* s) { millrace_session_new(graph_, &bad_config, s); }, MILLRACE_DATA_LOSS},
      {"carrier-pigeon", [&](auto* s) { millrace_session_new(graph_, &bad_target, s); },
       MILLRACE_NOT_FOUND},
      {"session must be a living MillraceSession, got one that was deleted",
       [&](auto* s) {
         millrace_session_run(dead_session, nullptr, nullptr, 0, &c, &result, 1, nullptr, 0,
                              nullptr, s);
       }},
      {"feeds[0] must be a living MillraceTensor, got NULL",
       [&](auto* s) {
         millrace_session_run(session_, &x, &null_tensor, 1, &y, &result, 1, nullptr, 0, nullptr,
                              s);
       }},
      {"feeds[0] must be a living MillraceTensor, got one that was deleted",
       [&](auto* s) {
         millrace_session_run(session_, &x, &dead_feed, 1, &y, &result, 1, nullptr, 0, nullptr, s);
       }},
      {"feed_names[0] must be a text, got NULL",
       [&](auto* s) {
         millrace_session_run(session_, &null_name, &fed, 1, &y, &result, 1, nullptr, 0, nullptr,
                              s);
       }},
      {"feed_names must have 1 elements, got NULL",
       [&](auto* s) {
         millrace_session_run(session_, nullptr, &fed, 1, &y, &result, 1, nullptr, 0, nullptr, s);
       }},
      {"results must have 1 elements, got NULL",
       [&](auto* s) {
         millrace_session_run(session_, &x, &fed, 1, &y, nullptr, 1, nullptr, 0, nullptr, s);
       }},
      {"number of targets must be >= 0, got -3",
       [&](auto* s) {
         millrace_session_run(session_, &x, &fed, 1, &y, &result, 1, nullptr, -3, nullptr, s);
       }},
      {"options.timeout_ms must be >= 0, got -5",
       [&](auto* s) {
         millrace_session_run(session_, &x, &fed, 1, &y, &result, 1, nullptr, 0, &negative_run, s);
       }},
      {"each fetch must be a tensor, got 1 names of 0 tensors",
       [&](auto* s) {
         const char* const node = "w/Assign";  // without outputs
         millrace_session_run(session_, nullptr, nullptr, 0, &node, &result, 1, nullptr, 0, nullptr,
                              s);
       }},
      {"nobody",
       [&](auto* s) {
         const char* const node = "nobody";
         millrace_session_run(session_, nullptr, nullptr, 0, &node, &result, 1, nullptr, 0, nullptr,
                              s);
       },
       MILLRACE_NOT_FOUND},
      {"the step has 1 feeds, got 0",
       [&](auto* s) { millrace_prepared_step_run(step_, nullptr, 0, &result, 1, nullptr, s); }},
      {"the step has 1 feeds, got -1",
       [&](auto* s) { millrace_prepared_step_run(step_, &fed, -1, &result, 1, nullptr, s); }},
      {"the step has 1 results, got places for 2",
       [&](auto* s) {
         MillraceTensor* results[2];
         millrace_prepared_step_run(step_, &fed, 1, results, 2, nullptr, s);
       }},
      {"results must have 1 elements, got NULL",
       [&](auto* s) { millrace_prepared_step_run(step_, &fed, 1, nullptr, 1, nullptr, s); }},
      {"step must be a living MillracePreparedStep, got NULL",
       [&](auto* s) { millrace_prepared_step_run(nullptr, &fed, 1, &result, 1, nullptr, s); }},
      {"Cannot feed value of type int32 for Tensor 'x:0', which has type float",
       [&](auto* s) {
         MillraceTensor* ints = millrace_tensor_new(MILLRACE_INT32, two, 1, s);
         millrace_prepared_step_run(step_, &ints, 1, &result, 1, nullptr, s);
         millrace_tensor_delete(ints);
       }},
      // Files.
      {"options.max_to_keep must be >= -1, got -2",
       [&](auto* s) { millrace_saver_new(graph_, &negative_keep, s); }},
      {"saver must be a living MillraceSaver, got NULL",
       [&](auto* s) { millrace_saver_save(nullptr, session_, "p", 1, s); }},
      {"directory must be a text, got NULL",
       [&](auto* s) { millrace_latest_checkpoint(nullptr, s); }},
      {"must have a whole checkpoint, got none",
       [&](auto* s) { millrace_latest_checkpoint("/nowhere/at/all", s); }, MILLRACE_NOT_FOUND},
      {"signature must be a living MillraceSignature, got NULL",
       [&](auto* s) { millrace_signature_add_input(nullptr, "x", "x", s); }},
      {"signatures must have 1 elements, got NULL",
       [&](auto* s) { millrace_session_export(session_, "d", nullptr, 1, nullptr, s); }},
      {"/nowhere",
       [&](auto* s) { millrace_saved_model_load("/nowhere/at/all", nullptr, 0, nullptr, s); },
       MILLRACE_NOT_FOUND},
      {"model must be a living MillraceSavedModel, got NULL",
       [&](auto* s) { millrace_saved_model_signatures(nullptr, s); }},
      // The library.
      {"op must be a text, got NULL", [&](auto* s) { millrace_op_def(nullptr, s); }},
      {"NoSuchOp", [&](auto* s) { millrace_op_def("NoSuchOp", s); }, MILLRACE_NOT_FOUND},
      {"path must be a text, got NULL", [&](auto* s) { millrace_load_op_library(nullptr, s); }},
      {"no_such.so", [&](auto* s) { millrace_load_op_library("no_such.so", s); },
       MILLRACE_NOT_FOUND},
  };
  MillraceStrings* nodes = millrace_graph_nodes(graph_, status_);
  const std::vector<std::string> before = TextsOf(nodes);
  for (const BadCall& bad : calls) {
    bad.call(status_);
    EXPECT_STATUS(status(), static_cast<absl::StatusCode>(bad.code), bad.message);
    EXPECT_EQ(result, nullptr) << bad.message;
    bad.call(nullptr);  // nobody to tell
  }
  nodes = millrace_graph_nodes(graph_, status_);
  EXPECT_EQ(TextsOf(nodes), before);
  // Everything still works.
  EXPECT_EQ(millrace_prepared_step_run(step_, &fed, 1, &result, 1, nullptr, status_), MILLRACE_OK);
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{4, 6}));
  millrace_tensor_delete(result);
}

TEST_F(CApiTest, WhatIsNoHandleAnswersNothing) {
  EXPECT_EQ(millrace_status_code(nullptr), MILLRACE_OK);
  EXPECT_STREQ(millrace_status_message(nullptr), "");
  MillraceStatus* const dead = millrace_status_new();
  millrace_status_delete(dead);
  EXPECT_EQ(millrace_status_code(dead), MILLRACE_INVALID_ARGUMENT);
  EXPECT_STRNE(millrace_status_message(dead), "");
  millrace_status_clear(dead);
  millrace_status_set(dead, MILLRACE_ABORTED, "x");
  MillraceGraph* const graph = millrace_graph_new(dead);  // as without a status
  EXPECT_NE(graph, nullptr);
  millrace_graph_delete(graph);
  millrace_graph_delete(graph);
  millrace_graph_delete(nullptr);
  EXPECT_EQ(millrace_tensor_dtype(nullptr), 0);
  EXPECT_EQ(millrace_tensor_num_dims(nullptr), -1);
  EXPECT_EQ(millrace_tensor_dim(tensor_, 1), -1);
  EXPECT_EQ(millrace_tensor_dim(tensor_, -1), -1);
  EXPECT_EQ(millrace_tensor_num_elements(nullptr), -1);
  EXPECT_EQ(millrace_tensor_size(nullptr), 0u);
  EXPECT_EQ(millrace_tensor_data(nullptr), nullptr);
  EXPECT_EQ(millrace_buffer_data(nullptr), nullptr);
  EXPECT_EQ(millrace_buffer_size(nullptr), 0u);
  EXPECT_EQ(millrace_strings_count(nullptr), 0);
  EXPECT_EQ(millrace_strings_get(nullptr, 0), nullptr);
}

TEST_F(CApiTest, ADeletedTensorIsRefusedThoughOthersWereMadeSince) {
  MillraceTensor* dead = Floats({1, 2});
  millrace_tensor_delete(dead);
  std::vector<MillraceTensor*> others;
  for (int i = 0; i < 50; ++i) others.push_back(Floats({9, 9}));
  MillraceTensor* result = nullptr;
  EXPECT_EQ(millrace_prepared_step_run(step_, &dead, 1, &result, 1, nullptr, status_),
            MILLRACE_INVALID_ARGUMENT);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument, "got one that was deleted");
  for (MillraceTensor* const other : others) millrace_tensor_delete(other);
}

// --- Nodes ---------------------------------------------------------------------------------------

TEST_F(CApiTest, AttrsOfEveryKindReachTheNode) {
  MillraceNodeBuilder* const node = millrace_node_builder_new(graph_, "NoOp", "n", status_);
  const int64_t ints[] = {1, -2};
  const float floats[] = {0.5f, 2};
  const unsigned char bools[] = {1, 0};
  const char* const texts[] = {"a", "b"};
  const size_t sizes[] = {1, 1};
  const MillraceDType types[] = {MILLRACE_FLOAT, MILLRACE_INT64};
  const int64_t dims[] = {-1, 3};
  const int64_t* const shapes[] = {dims, nullptr};
  const int ranks[] = {2, -1};
  MillraceTensor* const tensors[] = {tensor_, tensor_};
  millrace_node_builder_set_int(node, "_int", 7, status_);
  millrace_node_builder_set_float(node, "_float", 0.5f, status_);
  millrace_node_builder_set_bool(node, "_bool", 2, status_);
  millrace_node_builder_set_string(node, "_string", "x\0y", 3, status_);
  millrace_node_builder_set_type(node, "_type", MILLRACE_HALF, status_);
  millrace_node_builder_set_shape(node, "_shape", dims, 2, status_);
  millrace_node_builder_set_tensor(node, "_tensor", tensor_, status_);
  millrace_node_builder_set_function(node, "_func", "f", status_);
  millrace_node_builder_set_int_list(node, "_ints", ints, 2, status_);
  millrace_node_builder_set_float_list(node, "_floats", floats, 2, status_);
  millrace_node_builder_set_bool_list(node, "_bools", bools, 2, status_);
  millrace_node_builder_set_string_list(node, "_strings", texts, sizes, 2, status_);
  millrace_node_builder_set_type_list(node, "_types", types, 2, status_);
  millrace_node_builder_set_shape_list(node, "_shapes", shapes, ranks, 2, status_);
  millrace_node_builder_set_tensor_list(node, "_tensors", tensors, 2, status_);
  millrace_node_builder_set_function_list(node, "_funcs", texts, 2, status_);
  tensorflow::AttrValue value;
  value.mutable_func()->set_name("g");
  (*value.mutable_func()->mutable_attr())["T"].set_i(5);
  const std::string bytes = value.SerializeAsString();
  millrace_node_builder_set_attr_value(node, "_value", bytes.data(), bytes.size(), status_);
  millrace_node_builder_add_control_input(node, "c", status_);
  millrace_node_builder_set_device(node, "/job:ps", status_);
  EXPECT_STREQ(millrace_node_builder_finish(node, status_), "n");
  ASSERT_OK(status());

  MillraceBuffer* const exported = millrace_graph_export(graph_, status_);
  tensorflow::GraphDef def;
  ASSERT_TRUE(def.ParseFromArray(millrace_buffer_data(exported),
                                 static_cast<int>(millrace_buffer_size(exported))));
  millrace_buffer_delete(exported);
  const tensorflow::NodeDef& made = def.node(def.node_size() - 1);
  EXPECT_EQ(made.name(), "n");
  EXPECT_EQ(made.device(), "/job:ps");
  EXPECT_EQ(made.input(0), "^c");
  const auto attr = [&](const char* name) { return made.attr().at(name); };
  EXPECT_EQ(attr("_int").i(), 7);
  EXPECT_EQ(attr("_float").f(), 0.5f);
  EXPECT_TRUE(attr("_bool").b());
  EXPECT_EQ(attr("_string").s(), std::string("x\0y", 3));
  EXPECT_EQ(attr("_type").type(), tensorflow::DT_HALF);
  EXPECT_EQ(attr("_shape").shape().dim(1).size(), 3);
  EXPECT_EQ(attr("_shape").shape().dim(0).size(), -1);
  EXPECT_EQ(attr("_tensor").tensor().tensor_shape().dim(0).size(), 2);
  EXPECT_EQ(attr("_func").func().name(), "f");
  EXPECT_EQ(attr("_ints").list().i(1), -2);
  EXPECT_EQ(attr("_floats").list().f(1), 2);
  EXPECT_TRUE(attr("_bools").list().b(0));
  EXPECT_FALSE(attr("_bools").list().b(1));
  EXPECT_EQ(attr("_strings").list().s(1), "b");
  EXPECT_EQ(attr("_types").list().type(1), tensorflow::DT_INT64);
  EXPECT_EQ(attr("_shapes").list().shape(0).dim(1).size(), 3);
  EXPECT_TRUE(attr("_shapes").list().shape(1).unknown_rank());
  EXPECT_EQ(attr("_tensors").list().tensor_size(), 2);
  EXPECT_EQ(attr("_funcs").list().func(1).name(), "b");
  EXPECT_EQ(attr("_value").func().attr().at("T").i(), 5);
}

TEST_F(CApiTest, ShapesOutliveEditsThatFailAndImports) {
  const auto shape_of = [&](const char* tensor) {
    int64_t dims[4] = {-7, -7, -7, -7};
    const int rank = millrace_graph_shape(graph_, tensor, dims, 4, status_);
    return std::vector<int64_t>(dims, dims + std::max(rank, 0));
  };
  const char* const p =
      millrace_graph_add_placeholder(graph_, "p", MILLRACE_FLOAT, nullptr, -1, status_);
  const int64_t said[] = {-1, 3};
  millrace_graph_set_shape(graph_, p, said, 2, status_);
  // What was inferred of what the caller said: nodes that are there, and nodes to come.
  const char* const q = millrace_graph_add_node(graph_, "Square", "q", &p, 1, status_);
  ASSERT_OK(status());
  EXPECT_EQ(shape_of(q), (std::vector<int64_t>{-1, 3}));

  const char* const pair[] = {"c", "q"};  // [2] and [?,3]
  EXPECT_EQ(millrace_graph_add_node(graph_, "Add", nullptr, pair, 2, nullptr), nullptr);
  EXPECT_EQ(shape_of(p), (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(shape_of(q), (std::vector<int64_t>{-1, 3}));
  const char* const r = millrace_graph_add_node(graph_, "Neg", "r", &q, 1, status_);
  EXPECT_EQ(shape_of(r), (std::vector<int64_t>{-1, 3}));

  tensorflow::GraphDef more;
  auto* const node = more.add_node();
  node->set_name("more");
  node->set_op("NoOp");
  const std::string bytes = more.SerializeAsString();
  EXPECT_EQ(millrace_graph_import(graph_, bytes.data(), bytes.size(), nullptr, status_),
            MILLRACE_OK);
  EXPECT_EQ(shape_of(r), (std::vector<int64_t>{-1, 3}));
  const int64_t other[] = {-1, 4};
  millrace_graph_set_shape(graph_, q, other, 2, status_);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument, "must have shape [?,3], got [?,4]");
  EXPECT_EQ(shape_of(q), (std::vector<int64_t>{-1, 3}));
  EXPECT_OK(status());
}

TEST_F(CApiTest, WhatIsImportedIsInferredOfTheShapesThatWereSaid) {
  const auto shape_of = [&](const char* tensor) {
    int64_t dims[4] = {-7, -7, -7, -7};
    const int rank = millrace_graph_shape(graph_, tensor, dims, 4, status_);
    return std::vector<int64_t>(dims, dims + std::max(rank, 0));
  };
  const int64_t said[] = {-1, 3};
  millrace_graph_add_placeholder(graph_, "p", MILLRACE_FLOAT, nullptr, -1, status_);
  millrace_graph_set_shape(graph_, "p", said, 2, status_);
  ASSERT_OK(status());

  // "in" is to be p: sum = in + in, and its square.
  tensorflow::GraphDef more;
  const auto add = [&](const char* name, const char* op, std::vector<std::string> inputs) {
    auto* const node = more.add_node();
    node->set_name(name);
    node->set_op(op);
    for (const std::string& input : inputs) node->add_input(input);
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
  };
  add("square", "Square", {"sum"});
  add("sum", "Add", {"in", "in"});
  const char *from = "in", *to = "p";
  auto options = Options<MillraceImportOptions>();
  options.mapped_from = &from;
  options.mapped_to = &to;
  options.num_mapped = 1;
  std::string bytes = more.SerializeAsString();
  millrace_graph_import(graph_, bytes.data(), bytes.size(), &options, status_);
  ASSERT_OK(status());
  EXPECT_EQ(shape_of("sum"), (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(shape_of("square"), (std::vector<int64_t>{-1, 3}));

  // What contradicts them is refused, as it is where nodes are built, and changes nothing.
  more.Clear();
  add("bad", "Add", {"in", "two"});
  options.num_mapped = 2;
  const char *froms[] = {"in", "two"}, *tos[] = {"p", "c"};
  options.mapped_from = froms;
  options.mapped_to = tos;
  bytes = more.SerializeAsString();
  EXPECT_EQ(millrace_graph_import(graph_, bytes.data(), bytes.size(), &options, status_),
            MILLRACE_INVALID_ARGUMENT);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument, "Add 'bad'");
  EXPECT_EQ(millrace_graph_shape(graph_, "bad", nullptr, 0, nullptr), -1);
  EXPECT_EQ(shape_of("square"), (std::vector<int64_t>{-1, 3}));
  EXPECT_OK(status());
}

TEST_F(CApiTest, AMetaGraphBringsItsVariables) {
  MillraceBuffer* const meta = millrace_graph_export_meta(graph_, status_);
  MillraceGraph* const other = millrace_graph_new(status_);
  EXPECT_EQ(millrace_graph_import_meta(other, millrace_buffer_data(meta),
                                       millrace_buffer_size(meta), status_),
            MILLRACE_OK);
  ASSERT_OK(status());
  EXPECT_EQ(TextsOf(millrace_graph_variables(other, status_)), std::vector<std::string>{"w"});
  millrace_buffer_delete(meta);
  millrace_graph_delete(other);
}

// --- Steps ---------------------------------------------------------------------------------------

// A graph whose node "take" waits for an element that never comes.
void AddEndlessWait(MillraceGraph* graph, MillraceStatus* status) {
  const MillraceDType types[] = {MILLRACE_FLOAT};
  MillraceNodeBuilder* const queue =
      millrace_node_builder_new(graph, "FIFOQueueV2", "queue", status);
  millrace_node_builder_set_type_list(queue, "component_types", types, 1, status);
  millrace_node_builder_finish(queue, status);
  MillraceNodeBuilder* const take =
      millrace_node_builder_new(graph, "QueueDequeueV2", "take", status);
  millrace_node_builder_add_input(take, "queue", status);
  millrace_node_builder_set_type_list(take, "component_types", types, 1, status);
  millrace_node_builder_finish(take, status);
}

TEST_F(CApiTest, AStepEndsWhenItsTimeIsOver) {
  AddEndlessWait(graph_, status_);
  ASSERT_OK(status());
  const char* const take = "take";
  MillraceTensor* result = nullptr;
  MillraceRunOptions options = Options<MillraceRunOptions>();
  options.timeout_ms = 20;
  EXPECT_EQ(millrace_session_run(session_, nullptr, nullptr, 0, &take, &result, 1, nullptr, 0,
                                 &options, status_),
            MILLRACE_DEADLINE_EXCEEDED);
  millrace_status_clear(status_);
  MillracePreparedStep* const step =
      millrace_session_prepare(session_, nullptr, 0, &take, 1, nullptr, 0, status_);
  EXPECT_EQ(millrace_prepared_step_run(step, nullptr, 0, &result, 1, &options, status_),
            MILLRACE_DEADLINE_EXCEEDED);
  millrace_status_clear(status_);
  millrace_prepared_step_delete(step);

  MillraceSessionOptions all_steps = Options<MillraceSessionOptions>();
  all_steps.timeout_ms = 20;
  MillraceSession* const session = millrace_session_new(graph_, &all_steps, status_);
  EXPECT_EQ(millrace_session_run(session, nullptr, nullptr, 0, &take, &result, 1, nullptr, 0,
                                 nullptr, status_),
            MILLRACE_DEADLINE_EXCEEDED);
  millrace_status_clear(status_);
  millrace_session_delete(session);
}

TEST_F(CApiTest, ClosingASessionCancelsItsSteps) {
  AddEndlessWait(graph_, status_);
  ASSERT_OK(status());
  std::thread waits([&] {
    const char* const take = "take";
    MillraceTensor* result = nullptr;
    // Whether it began before or after Close.
    EXPECT_EQ(millrace_session_run(session_, nullptr, nullptr, 0, &take, &result, 1, nullptr, 0,
                                   nullptr, nullptr),
              MILLRACE_CANCELLED);
  });
  EXPECT_EQ(millrace_session_close(session_, status_), MILLRACE_OK);
  waits.join();
  MillraceTensor *fed = tensor_, *result = nullptr;
  EXPECT_EQ(millrace_prepared_step_run(step_, &fed, 1, &result, 1, nullptr, status_),
            MILLRACE_CANCELLED);
  EXPECT_STATUS(status(), absl::StatusCode::kCancelled, "closed");
}

TEST_F(CApiTest, AStepThatNeedsTooMuchMemoryIsRefused) {
  MillraceSessionOptions options = Options<MillraceSessionOptions>();
  options.max_step_bytes = 1024;
  MillraceSession* const session = millrace_session_new(graph_, &options, status_);
  millrace_session_initialize_variables(session, status_);
  ASSERT_OK(status());
  const char* const inputs[] = {"x", "x"};
  millrace_graph_add_node(graph_, "Add", "twice", inputs, 2, status_);
  const int64_t dims[] = {1000};
  MillraceTensor* large = millrace_tensor_new(MILLRACE_FLOAT, dims, 1, status_);
  const char *x = "x", *twice = "twice";
  MillraceTensor* result = nullptr;
  EXPECT_EQ(millrace_session_run(session, &x, &large, 1, &twice, &result, 1, nullptr, 0, nullptr,
                                 status_),
            MILLRACE_RESOURCE_EXHAUSTED);
  millrace_status_clear(status_);
  millrace_tensor_delete(large);
  millrace_session_delete(session);
}

TEST_F(CApiTest, WhatIsFetchedChangesNoVariable) {
  const char* const value = millrace_graph_variable_value(graph_, "w", status_);
  MillraceTensor* results[2] = {};
  for (MillraceTensor*& result : results) {
    millrace_session_run(session_, nullptr, nullptr, 0, &value, &result, 1, nullptr, 0, nullptr,
                         status_);
    EXPECT_EQ(ValuesOf(result), (std::vector<float>{1, 2}));
    static_cast<float*>(millrace_tensor_mutable_data(result, status_))[0] = 99;
  }
  ASSERT_OK(status());
  for (MillraceTensor* const result : results) millrace_tensor_delete(result);
}

TEST_F(CApiTest, ManyThreadsBuildAndRunAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      MillraceStatus* const status = millrace_status_new();
      const std::string name = absl::StrCat("mine", t);
      const char* inputs[] = {"x", "x"};
      for (int i = 0; i < 20; ++i) {
        // Errors beside it, which make the graph again.
        if (i % 5 == t) millrace_graph_add_node(graph_, "NoSuchOp", nullptr, nullptr, 0, nullptr);
        const char* const sum =
            millrace_graph_add_node(graph_, "Add", name.c_str(), inputs, 2, status);
        MillraceTensor* fed = Floats({1.0f * static_cast<float>(i), 2});
        MillraceTensor* results[2] = {};
        const char *x = "x", *fetches[] = {sum, "y"};
        millrace_session_run(session_, &x, &fed, 1, fetches, results, 2, nullptr, 0, nullptr,
                             status);
        ASSERT_EQ(millrace_status_code(status), MILLRACE_OK) << millrace_status_message(status);
        EXPECT_EQ(ValuesOf(results[0]), (std::vector<float>{2.0f * static_cast<float>(i), 4}));
        EXPECT_EQ(ValuesOf(results[1]), (std::vector<float>{1.0f + static_cast<float>(i), 4}));
        millrace_tensor_delete(results[0]);
        millrace_tensor_delete(results[1]);
        MillraceTensor* prepared = nullptr;
        millrace_prepared_step_run(step_, &fed, 1, &prepared, 1, nullptr, status);
        millrace_tensor_delete(prepared);
        millrace_tensor_delete(fed);
      }
      millrace_status_delete(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CApiTest, ASessionOfAnEmptyGraphSaysWhatToDo) {
  MillraceGraph* const graph = millrace_graph_new(status_);
  MillraceSession* const session = millrace_session_new(graph, nullptr, status_);
  ASSERT_OK(status());
  const char* const d = "d";
  MillraceTensor* result = nullptr;
  const auto run = [&] {
    millrace_session_run(session, nullptr, nullptr, 0, &d, &result, 1, nullptr, 0, nullptr,
                         status_);
  };
  run();
  EXPECT_STATUS(status(), absl::StatusCode::kFailedPrecondition,
                "must have a graph before it runs or prepares a step, got none; call Extend first "
                "(in C: add nodes to the session's graph)");
  millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, nullptr, -1, status_);
  run();
  EXPECT_STATUS(status(), absl::StatusCode::kNotFound, "d:0: not found");
  millrace_session_delete(session);
  millrace_graph_delete(graph);
}

TEST_F(CApiTest, AnOpOfALibraryRunsInTheSessionThatIsOpen) {
  EXPECT_EQ(TextsOf(millrace_load_op_library("runtime/testing/good.so", status_)),
            std::vector<std::string>{"LibraryOp_good"});
  const char* const c = "c";
  const char* const twice =
      millrace_graph_add_node(graph_, "LibraryOp_good", "twice", &c, 1, status_);
  MillraceTensor* result = nullptr;
  millrace_session_run(session_, nullptr, nullptr, 0, &twice, &result, 1, nullptr, 0, nullptr,
                       status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{2, 4}));
  millrace_tensor_delete(result);
}

// --- Files ---------------------------------------------------------------------------------------

TEST_F(CApiTest, ACheckpointHasItsMetaGraphAndOldOnesGo) {
  const std::string folder = TestFolder();
  MillraceSaverOptions options = Options<MillraceSaverOptions>();
  options.max_to_keep = 2;
  MillraceSaver* const saver = millrace_saver_new(graph_, &options, status_);
  const std::string prefix = JoinPath(folder, "m");
  // A failed edit between making and using a saver.
  millrace_graph_add_node(graph_, "NoSuchOp", nullptr, nullptr, 0, nullptr);
  std::vector<std::string> paths;
  for (int64_t step : {1, 2, 3}) {
    const char* const path = millrace_saver_save(saver, session_, prefix.c_str(), step, status_);
    ASSERT_OK(status());
    paths.emplace_back(path);
  }
  EXPECT_EQ(paths[2], prefix + "-3");
  FileSystem* const fs = FileSystem::Posix();
  EXPECT_FALSE(fs->FileExists(paths[0] + ".index"));
  EXPECT_FALSE(fs->FileExists(paths[0] + ".meta"));
  EXPECT_TRUE(fs->FileExists(paths[1] + ".index"));
  EXPECT_TRUE(fs->FileExists(paths[2] + ".meta"));
  MillraceBuffer* const latest = millrace_latest_checkpoint(folder.c_str(), status_);
  EXPECT_STREQ(static_cast<const char*>(millrace_buffer_data(latest)), paths[2].c_str());
  millrace_buffer_delete(latest);
  // A checkpoint is known by its files and its directory, too.
  for (const std::string& name : {paths[2] + ".index", paths[2] + ".data-00000-of-00001",
                                  paths[2] + ".meta", folder, JoinPath(folder, "checkpoint")}) {
    millrace_saver_restore(saver, session_, name.c_str(), status_);
    ASSERT_OK(status());
  }
  // The meta graph is one that a program can go on with.
  ASSERT_OK_AND_ASSIGN(const std::string meta, ReadFileToString(fs, paths[2] + ".meta"));
  MillraceGraph* const other = millrace_graph_new(status_);
  millrace_graph_import_meta(other, meta.data(), meta.size(), status_);
  EXPECT_EQ(TextsOf(millrace_graph_variables(other, status_)), std::vector<std::string>{"w"});
  ASSERT_OK(status());

  // Another graph's session is refused, and so is a missing checkpoint.
  MillraceSession* const foreign = millrace_session_new(other, nullptr, status_);
  millrace_saver_restore(saver, foreign, paths[2].c_str(), status_);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument,
                "the session must be one of the saver's graph, got one of another graph");
  millrace_saver_restore(saver, session_, (paths[0] + ".index").c_str(), status_);
  EXPECT_STATUS(status(), absl::StatusCode::kNotFound, absl::StrCat("'", paths[0], "'"));
  millrace_session_delete(foreign);
  millrace_graph_delete(other);
  millrace_saver_delete(saver);
}

// Steps move the averages of w; a saver puts them in the place of w.
TEST_F(CApiTest, VariablesAreRestoredFromTheirMovingAverages) {
  const char* const w = "w";
  const char* const value = millrace_graph_variable_value(graph_, "w", status_);
  const char* const loss = millrace_graph_add_node(graph_, "L2Loss", "loss", &value, 1, status_);
  MillraceOptimizerOptions sgd = Options<MillraceOptimizerOptions>();
  sgd.optimizer = "GradientDescent";
  sgd.learning_rate = 0.5;  // w is halved
  const char* const update = millrace_graph_minimize(graph_, loss, &sgd, status_);
  MillraceMovingAverageOptions options = Options<MillraceMovingAverageOptions>();
  options.decay = 0.75;
  options.after = update;
  const std::string train = millrace_graph_add_moving_average(graph_, &w, 1, &options, status_);
  MillraceSaver* const saver = millrace_saver_new(graph_, nullptr, status_);
  MillraceSaverOptions from_averages = Options<MillraceSaverOptions>();
  from_averages.moving_average = "ExponentialMovingAverage";
  MillraceSaver* const evaluated = millrace_saver_new(graph_, &from_averages, status_);
  ASSERT_OK(status());
  EXPECT_EQ(TextsOf(millrace_graph_variables(graph_, status_)),
            (std::vector<std::string>{"w", "w/ExponentialMovingAverage"}));

  MillraceSession* const session = millrace_session_new(graph_, nullptr, status_);
  millrace_session_initialize_variables(session, status_);
  const char* const target = train.c_str();
  millrace_session_run(session, nullptr, nullptr, 0, nullptr, nullptr, 0, &target, 1, nullptr,
                       status_);
  const std::string prefix = JoinPath(TestFolder(), "m");
  const std::string path = millrace_saver_save(saver, session, prefix.c_str(), 1, status_);
  millrace_saver_restore(evaluated, session, path.c_str(), status_);
  ASSERT_OK(status());
  MillraceTensor* got = nullptr;
  millrace_session_run(session, nullptr, nullptr, 0, &value, &got, 1, nullptr, 0, nullptr, status_);
  ASSERT_OK(status());
  // w was {1, 2} and is {0.5, 1}: 0.75 of what it was, and 0.25 of what it is.
  EXPECT_EQ(ValuesOf(got), (std::vector<float>{0.875f, 1.75f}));
  millrace_tensor_delete(got);

  // What is wrong changes nothing.
  EXPECT_EQ(millrace_graph_add_moving_average(graph_, &w, 1, &options, status_), nullptr);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument,
                "the average 'w/ExponentialMovingAverage' must be moved by one node");
  options.name = "slow";
  EXPECT_NE(millrace_graph_add_moving_average(graph_, &w, 1, &options, status_), nullptr);
  options.decay = 2;
  options.name = "slower";
  EXPECT_EQ(millrace_graph_add_moving_average(graph_, &w, 1, &options, status_), nullptr);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument, "decay must be in [0, 1], got 2");
  EXPECT_EQ(millrace_graph_initialized_value(graph_, "v", status_), nullptr);
  EXPECT_STATUS(status(), absl::StatusCode::kNotFound, "must have variable 'v'");
  millrace_saver_delete(evaluated);
  millrace_saver_delete(saver);
  millrace_session_delete(session);
}

// A node cannot say which of its variables is first.
TEST_F(CApiTest, TheInitializerTakesLocalVariablesThatWaitForNoOther) {
  const std::string initial = millrace_graph_initialized_value(graph_, "w", status_);
  MillraceVariableOptions local = Options<MillraceVariableOptions>();
  local.local = 1;
  millrace_graph_add_variable(graph_, "copy", initial.c_str(), &local, status_);
  const char* const value = millrace_graph_variable_value(graph_, "copy", status_);
  const std::string init = millrace_graph_add_initializer(graph_, "init_all", status_);
  MillraceSession* const session = millrace_session_new(graph_, nullptr, status_);
  const char* const target = init.c_str();
  millrace_session_run(session, nullptr, nullptr, 0, nullptr, nullptr, 0, &target, 1, nullptr,
                       status_);
  MillraceTensor* got = nullptr;
  millrace_session_run(session, nullptr, nullptr, 0, &value, &got, 1, nullptr, 0, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(got), (std::vector<float>{1, 2}));
  millrace_tensor_delete(got);
  millrace_session_delete(session);
}

TEST_F(CApiTest, AVariableBeginsWithTheInitialValueOfAnother) {
  const char* const two[] = {millrace_graph_variable_value(graph_, "w", status_), "c"};
  const char* const initial = millrace_graph_add_node(graph_, "Add", "twice", two, 2, status_);
  millrace_graph_add_variable(graph_, "v", initial, nullptr, status_);
  const char* const value = millrace_graph_variable_value(graph_, "v", status_);
  const std::string given = millrace_graph_initialized_value(graph_, "v", status_);
  MillraceSession* const session = millrace_session_new(graph_, nullptr, status_);
  // Nothing has a value yet.
  const char* const before = given.c_str();
  MillraceTensor* got = nullptr;
  millrace_session_run(session, nullptr, nullptr, 0, &before, &got, 1, nullptr, 0, nullptr,
                       status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(got), (std::vector<float>{2, 4}));
  millrace_tensor_delete(got);
  millrace_session_initialize_variables(session, status_);
  millrace_session_run(session, nullptr, nullptr, 0, &value, &got, 1, nullptr, 0, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(got), (std::vector<float>{2, 4}));
  millrace_tensor_delete(got);
  millrace_session_delete(session);
}

TEST_F(CApiTest, AnExportedModelSaysWhatItTakesAndGives) {
  const std::string folder = JoinPath(TestFolder(), "export");
  MillraceSignature* const signature = millrace_signature_new("sum", nullptr, status_);
  millrace_signature_add_input(signature, "in", "x", status_);
  millrace_signature_add_output(signature, "out", "y:0", status_);
  ASSERT_OK(status());
  EXPECT_EQ(millrace_signature_add_output(signature, "out", "c", status_),
            MILLRACE_INVALID_ARGUMENT);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument,
                "name must be new in signature 'sum'");
  MillraceSignature* const twice[] = {signature, signature};
  millrace_session_export(session_, folder.c_str(), twice, 2, nullptr, status_);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument, "got 'sum' twice");
  const char* const tags[] = {"serve", "mine"};
  MillraceExportOptions options = Options<MillraceExportOptions>();
  options.tags = tags;
  options.num_tags = 2;
  // A variable without a value: nothing is left behind, so the next call works.
  MillraceSession* const bare = millrace_session_new(graph_, nullptr, status_);
  millrace_session_export(bare, folder.c_str(), twice, 1, &options, status_);
  EXPECT_FALSE(status().ok());
  EXPECT_FALSE(FileSystem::Posix()->FileExists(folder));
  millrace_session_delete(bare);
  EXPECT_EQ(millrace_session_export(session_, folder.c_str(), twice, 1, &options, status_),
            MILLRACE_OK);
  millrace_signature_delete(signature);
  ASSERT_OK(status());

  millrace_saved_model_load(folder.c_str(), nullptr, 0, nullptr, status_);
  EXPECT_FALSE(status().ok());  // other tags
  MillraceSavedModel* const model =
      millrace_saved_model_load(folder.c_str(), tags, 2, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(TextsOf(millrace_saved_model_signatures(model, status_)),
            std::vector<std::string>{"sum"});
  EXPECT_EQ(TextsOf(millrace_saved_model_inputs(model, "sum", status_)),
            std::vector<std::string>{"in"});
  EXPECT_EQ(TextsOf(millrace_saved_model_outputs(model, "sum", status_)),
            std::vector<std::string>{"out"});
  MillraceDType dtype = 0;
  int64_t dims[2] = {};
  int num_dims = 7;
  EXPECT_STREQ(
      millrace_saved_model_output(model, "sum", "out", &dtype, dims, 2, &num_dims, status_), "y:0");
  EXPECT_EQ(dtype, MILLRACE_FLOAT);
  EXPECT_EQ(num_dims, -1);  // x may be of any shape
  EXPECT_STREQ(
      millrace_saved_model_input(model, "sum", "in", nullptr, nullptr, 0, nullptr, status_), "x:0");
  ASSERT_OK(status());

  MillraceTensor *fed = tensor_, *result = nullptr;
  const char *in = "in", *out = "out", *wrong = "inn";
  EXPECT_EQ(
      millrace_saved_model_run(model, "sum", &in, &fed, 1, &out, &result, 1, nullptr, status_),
      MILLRACE_OK);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{4, 6}));
  millrace_tensor_delete(result);
  millrace_saved_model_run(model, "sum", &wrong, &fed, 1, &out, &result, 1, nullptr, status_);
  EXPECT_STATUS(status(), absl::StatusCode::kNotFound, "input must be one of 'in', got 'inn'");
  millrace_saved_model_run(model, "su", &in, &fed, 1, &out, &result, 1, nullptr, status_);
  EXPECT_STATUS(status(), absl::StatusCode::kNotFound, "signature must be one of 'sum', got 'su'");
  millrace_saved_model_run(model, nullptr, &in, &fed, 1, &out, &result, 1, nullptr, status_);
  EXPECT_STATUS(status(), absl::StatusCode::kNotFound,
                "signature must be one of 'sum', got 'serving_default'");

  // Its session outlives it, and belongs to no graph.
  MillraceSession* const session = millrace_saved_model_session(model, status_);
  millrace_saved_model_delete(model);
  const char *x = "x:0", *y = "y";
  millrace_session_run(session, &x, &fed, 1, &y, &result, 1, nullptr, 0, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{4, 6}));
  millrace_tensor_delete(result);
  millrace_session_initialize_variables(session, status_);
  EXPECT_STATUS(status(), absl::StatusCode::kFailedPrecondition, "got a loaded model's");
  millrace_session_delete(session);
}

TEST_F(CApiTest, NoSignatureIsTheDefaultOneAndARowIsNoBatch) {
  const std::string folder = JoinPath(TestFolder(), "export");
  const int64_t batch[] = {-1, 2};
  millrace_graph_add_placeholder(graph_, "rows", MILLRACE_FLOAT, batch, 2, status_);
  const char* const rows_w[] = {"rows", millrace_graph_variable_value(graph_, "w", status_)};
  millrace_graph_add_node(graph_, "Add", "moved", rows_w, 2, status_);
  MillraceSignature* const signature = millrace_signature_new(nullptr, nullptr, status_);
  millrace_signature_add_input(signature, "in", "rows:0", status_);
  millrace_signature_add_output(signature, "out", "moved:0", status_);
  millrace_session_export(session_, folder.c_str(), &signature, 1, nullptr, status_);
  millrace_signature_delete(signature);
  ASSERT_OK(status());

  MillraceSavedModel* const model =
      millrace_saved_model_load(folder.c_str(), nullptr, 0, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(TextsOf(millrace_saved_model_signatures(model, status_)),
            std::vector<std::string>{"serving_default"});
  EXPECT_EQ(TextsOf(millrace_saved_model_inputs(model, nullptr, status_)),
            std::vector<std::string>{"in"});
  EXPECT_EQ(TextsOf(millrace_saved_model_outputs(model, nullptr, status_)),
            std::vector<std::string>{"out"});
  int64_t dims[2] = {};
  int num_dims = 0;
  EXPECT_STREQ(
      millrace_saved_model_input(model, nullptr, "in", nullptr, dims, 2, &num_dims, status_),
      "rows:0");
  EXPECT_EQ(num_dims, 2);
  EXPECT_EQ(dims[0], -1);
  EXPECT_EQ(dims[1], 2);
  EXPECT_STREQ(
      millrace_saved_model_output(model, nullptr, "out", nullptr, nullptr, 0, nullptr, status_),
      "moved:0");
  ASSERT_OK(status());

  const int64_t one_row[] = {1, 2};
  const float values[] = {3, 4};
  MillraceTensor* fed =
      millrace_tensor_from_data(MILLRACE_FLOAT, one_row, 2, values, sizeof values, status_);
  MillraceTensor *row = tensor_, *result = nullptr;
  const char *in = "in", *out = "out";
  EXPECT_EQ(
      millrace_saved_model_run(model, nullptr, &in, &fed, 1, &out, &result, 1, nullptr, status_),
      MILLRACE_OK);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{4, 6}));  // w is 1, 2
  millrace_tensor_delete(result);
  millrace_tensor_delete(fed);
  millrace_saved_model_run(model, nullptr, &in, &row, 1, &out, &result, 1, nullptr, status_);
  EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument,
                "Cannot feed value of shape [2] for Tensor 'rows:0', which has shape [?,2]; it is "
                "one row: did you forget the batch dimension, as in [1,2]?");
  millrace_saved_model_delete(model);
}

TEST_F(CApiTest, AnExportHasWhatItsSignaturesNeed) {
  const std::string folder = JoinPath(TestFolder(), "export");
  // y is computed by "sum" and fed by "product".
  const char* const value = millrace_graph_variable_value(graph_, "w", status_);
  const char* const y_w[] = {"y", value};
  millrace_graph_add_node(graph_, "Mul", "product", y_w, 2, status_);
  millrace_graph_add_node(graph_, "NoOp", "ready", nullptr, 0, status_);
  millrace_graph_add_node(graph_, "NoOp", "unread", nullptr, 0, status_);
  MillraceSignature* const sum = millrace_signature_new("sum", nullptr, status_);
  millrace_signature_add_input(sum, "x", "x", status_);
  millrace_signature_add_output(sum, "y", "y", status_);
  MillraceSignature* const product = millrace_signature_new("product", "my/method", status_);
  millrace_signature_add_input(product, "y", "y", status_);
  millrace_signature_add_output(product, "z", "product", status_);
  ASSERT_OK(status());

  // What is refused leaves nothing behind.
  MillraceExportOptions options = Options<MillraceExportOptions>();
  const auto refused = [&](MillraceSignature* const* signatures, int count, const char* text) {
    millrace_session_export(session_, folder.c_str(), signatures, count, &options, status_);
    EXPECT_STATUS(status(), absl::StatusCode::kInvalidArgument, text);
    EXPECT_FALSE(FileSystem::Posix()->FileExists(folder));
    EXPECT_FALSE(FileSystem::Posix()->FileExists(folder + ".unfinished"));
  };
  refused(nullptr, 0, "there must be at least one signature, got none");
  MillraceSignature* const no_inputs = millrace_signature_new("none", nullptr, status_);
  refused(&no_inputs, 1, "signature 'none' must have at least one output, got none");
  millrace_signature_add_output(no_inputs, "y", "y", status_);
  refused(&no_inputs, 1, "the outputs need 'x', which must be an input; inputs are none");
  MillraceSignature* const unnamed = millrace_signature_new("", nullptr, status_);
  millrace_signature_add_output(unnamed, "c", "c", status_);
  refused(&unnamed, 1, "the key of a signature must be a name");
  const char* const doubled[] = {"serve", "serve"};
  options.tags = doubled;
  options.num_tags = 2;
  refused(&sum, 1, "tags must be names that differ, got 'serve', 'serve'");
  options = Options<MillraceExportOptions>();
  options.main_op = "x";
  refused(&sum, 1, "main_op 'x' must need no input and no local variable, got 'x'");
  options.main_op = "ready";

  MillraceSignature* const both[] = {sum, product};
  EXPECT_EQ(millrace_session_export(session_, folder.c_str(), both, 2, &options, status_),
            MILLRACE_OK);
  ASSERT_OK(status());
  for (MillraceSignature* const one : {sum, product, no_inputs, unnamed}) {
    millrace_signature_delete(one);
  }
  MillraceSavedModel* const model =
      millrace_saved_model_load(folder.c_str(), nullptr, 0, nullptr, status_);
  ASSERT_OK(status());
  MillraceTensor *fed = tensor_, *result = nullptr;
  const char *x = "x", *y = "y", *z = "z";
  millrace_saved_model_run(model, "sum", &x, &fed, 1, &y, &result, 1, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{4, 6}));
  millrace_tensor_delete(result);
  millrace_saved_model_run(model, "product", &y, &fed, 1, &z, &result, 1, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{3, 8}));
  millrace_tensor_delete(result);
  // The rest of the graph stayed behind.
  MillraceSession* const session = millrace_saved_model_session(model, status_);
  const char* const unread = "unread";
  millrace_session_run(session, nullptr, nullptr, 0, nullptr, nullptr, 0, &unread, 1, nullptr,
                       status_);
  EXPECT_STATUS(status(), absl::StatusCode::kNotFound, "unread");
  millrace_session_delete(session);
  millrace_saved_model_delete(model);
}

TEST_F(CApiTest, AModelOfTensorFlowPredicts) {
  const std::string path = SharedDataPath("saved_models/half_plus_two_cpu");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models/half_plus_two_cpu";
  MillraceSavedModel* const model =
      millrace_saved_model_load(path.c_str(), nullptr, 0, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(TextsOf(millrace_saved_model_signatures(model, status_)),
            (std::vector<std::string>{"classify_x_to_y", "regress_x2_to_y3", "regress_x_to_y",
                                      "regress_x_to_y2", "serving_default"}));
  int64_t dims[2] = {};
  int num_dims = 0;
  millrace_saved_model_input(model, "serving_default", "x", nullptr, dims, 2, &num_dims, status_);
  EXPECT_EQ(num_dims, 2);
  EXPECT_EQ(dims[0], -1);
  EXPECT_EQ(dims[1], 1);
  const int64_t shape[] = {2, 1};
  const float values[] = {1, 2};
  MillraceTensor* fed =
      millrace_tensor_from_data(MILLRACE_FLOAT, shape, 2, values, sizeof values, status_);
  MillraceTensor* result = nullptr;
  const char *inputs = "inputs", *outputs = "outputs", *x = "x", *y = "y";
  millrace_saved_model_run(model, "regress_x2_to_y3", &inputs, &fed, 1, &outputs, &result, 1,
                           nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{3.5, 4}));  // data/README.md
  millrace_tensor_delete(result);
  millrace_saved_model_run(model, "serving_default", &x, &fed, 1, &y, &result, 1, nullptr, status_);
  ASSERT_OK(status());
  EXPECT_EQ(ValuesOf(result), (std::vector<float>{2.5, 3}));  // 0.5 x + 2
  millrace_tensor_delete(result);
  millrace_tensor_delete(fed);
  millrace_saved_model_delete(model);
}

}  // namespace
}  // namespace millrace
