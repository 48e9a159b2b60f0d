// SPDX-License-Identifier: Apache-2.0
//
// Small graphs that TensorFlow 1.x wrote give the values that it computed.
//
// The cases are shared data (tf_graphs/cases.jsonl), not part of the repository. A case is left out
//   * when it needs an op, or a data format of images, that no kernel has;
//   * when its variables were frozen to constants, but an op still wants to assign to them.
// The test prints how many those are, and fails when fewer cases than before are run.

#include <cstdint>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "graph/import_export.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

double NumberOf(const Json& v) {
  if (v.is_string()) {
    const std::string text = v.get<std::string>();
    return text == "nan"   ? std::numeric_limits<double>::quiet_NaN()
           : text == "inf" ? std::numeric_limits<double>::infinity()
                           : -std::numeric_limits<double>::infinity();
  }
  return v.get<double>();
}

template <typename T>
T ElementOf(const Json& v) {
  if constexpr (std::is_same_v<T, Half>) {
    return ToHalf(static_cast<float>(NumberOf(v)));
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return ToBfloat16(static_cast<float>(NumberOf(v)));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(NumberOf(v));
  } else if constexpr (std::is_same_v<T, bool>) {
    return v.is_boolean() ? v.get<bool>() : v.get<int>() != 0;
  } else {
    return v.get<T>();
  }
}

template <typename T>
Tensor TensorOfJson(const Shape& shape, const Json& values) {
  StatusOr<Tensor> t = Tensor::Allocate(DTypeOf<T>, shape);
  EXPECT_OK(t.status());
  const absl::Span<T> elements = t->template mutable_flat<T>();
  for (size_t i = 0; i < values.size(); ++i) elements[i] = ElementOf<T>(values[i]);
  return *std::move(t);
}

Tensor ReadTensor(const Json& json) {
  const std::vector<int64_t> dims = json["shape"].get<std::vector<int64_t>>();
  const auto shape = Shape::Make(dims);
  const auto dtype = DTypeFromName(json["dtype"].get<std::string>());
  EXPECT_OK(shape.status());
  EXPECT_OK(dtype.status());
  const Json& values = json["values"];
  switch (*dtype) {
#define MILLRACE_CASE(T) \
  case DTypeOf<T>:       \
    return TensorOfJson<T>(*shape, values);
    MILLRACE_CASE(float)
    MILLRACE_CASE(double)
    MILLRACE_CASE(Half)
    MILLRACE_CASE(Bfloat16)
    MILLRACE_CASE(int8_t)
    MILLRACE_CASE(uint8_t)
    MILLRACE_CASE(int16_t)
    MILLRACE_CASE(uint16_t)
    MILLRACE_CASE(int32_t)
    MILLRACE_CASE(int64_t)
    MILLRACE_CASE(uint64_t)
    MILLRACE_CASE(bool)
#undef MILLRACE_CASE
    default:
      ADD_FAILURE() << "dtype of a case: " << json["dtype"];
      return Tensor();
  }
}

Output OutputNamed(const Scope& scope, const std::string& name) {
  const auto parsed = ParseTensorName(name);
  if (!parsed.ok()) return Output();
  Node* node = scope.graph()->FindNode(parsed->node);
  return node == nullptr ? Output() : Output(node, parsed->index);
}

// Ops of the case that nobody runs here: without a kernel, or loops (which need a session).
std::set<std::string> MissingOps(const Json& c) {
  std::set<std::string> missing;
  for (const auto& [op, count] : c["ops"].items()) {
    if (!HasAnyKernel(op) || op == "Enter") missing.insert(op);
  }
  return missing;
}

// An op that assigns takes a reference first; a frozen graph has a constant there.
bool AssignsToConstant(const tensorflow::GraphDef& def) {
  std::set<std::string> values;
  for (const auto& node : def.node()) {
    if (node.op() == "Const" || node.op() == "Identity") values.insert(node.name());
  }
  for (const auto& node : def.node()) {
    const OpEntry* op = LookUpOp(node.op());
    if (op == nullptr || op->def.input_arg_size() == 0 || !op->def.input_arg(0).is_ref()) continue;
    if (node.input_size() > 0 && values.count(node.input(0)) > 0) return true;
  }
  return false;
}

void RunCase(const Json& c, const std::string& folder, bool* left_out) {
  SCOPED_TRACE(c["name"].get<std::string>());
  ASSERT_OK_AND_ASSIGN(
      const tensorflow::GraphDef def,
      ReadGraphDef(FileSystem::Posix(), folder + "/" + c["graph"].get<std::string>()));
  *left_out = AssignsToConstant(def);
  if (*left_out) return;
  auto graph = std::make_unique<Graph>();
  ASSERT_OK(ImportGraphDef(def, {}, graph.get()));
  ASSERT_OK_AND_ASSIGN(const Scope scope, Scope::ForGraph(std::move(graph)));
  std::vector<std::pair<Output, Tensor>> feeds;
  for (const auto& [name, value] : c["feeds"].items()) {
    feeds.emplace_back(OutputNamed(scope, name), ReadTensor(value));
  }
  OpTestDevice device;
  // Variables first.
  std::vector<Output> assigned;
  for (const auto& node : scope.graph()->nodes()) {
    if (node != nullptr && node->op() == "Assign") assigned.emplace_back(node.get(), 0);
  }
  if (!assigned.empty()) {
    ASSERT_OK(EvaluateGraph(scope, {}, assigned, &device));
  }
  std::vector<Output> fetches;
  std::vector<Tensor> expected;
  for (const auto& [name, value] : c["fetches"].items()) {
    fetches.push_back(OutputNamed(scope, name));
    expected.push_back(ReadTensor(value));
  }
  const auto evaluated = EvaluateGraph(scope, feeds, fetches, &device);
  *left_out = absl::IsUnimplemented(evaluated.status());
  if (*left_out) return;
  ASSERT_OK(evaluated);
  const std::vector<Tensor>& got = *evaluated;
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(fetches[i].name());
    ExpectTensorNear(got[i], expected[i], c.value("rtol", 1e-4), c.value("atol", 1e-5));
    // What was inferred before the step must allow what the step gives.
    EXPECT_TRUE(scope.shape(fetches[i]).IsCompatibleWith(got[i].shape()))
        << scope.shape(fetches[i]).ToString() << " was inferred, got " << got[i].shape().ToString();
  }
}

TEST(TfGraphs, GiveTensorFlowsValues) {
  const std::string folder = SharedDataPath("tf_graphs");
  if (folder.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no tf_graphs";
  std::ifstream file(folder + "/cases.jsonl");
  std::map<std::string, int> missing;
  int num_run = 0, num_left_out = 0;
  for (std::string line; std::getline(file, line);) {
    const Json c = Json::parse(line);
    if (c.value("reference", "") == "order differs") continue;
    const std::set<std::string> lacks = MissingOps(c);
    if (!lacks.empty()) {
      ++num_left_out;
      for (const std::string& op : lacks) ++missing[op];
      continue;
    }
    bool left_out = false;
    RunCase(c, folder, &left_out);
    ++(left_out ? num_left_out : num_run);
  }
  std::ostringstream text;
  for (const auto& [op, count] : missing) text << " " << op << ":" << count;
  std::cout << num_run << " cases run, " << num_left_out << " left out for want of" << text.str()
            << "\n";
  EXPECT_GE(num_run, 529);
}

}  // namespace
}  // namespace millrace
