// SPDX-License-Identifier: Apache-2.0
#include "ops/linalg/einsum.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "runtime/testing/op_test.h"

// covers: values: Einsum is the sum of products that its equation says, by matrix products where it
//   sums over a common label; equations that are none are refused

namespace millrace {
namespace {

// 1, 2, 3, ... in this shape.
Output Counted(const Scope& s, std::initializer_list<int64_t> dims) {
  const Shape shape(dims);
  const auto count = static_cast<int32_t>(shape.num_elements());
  return Reshape(s, Cast(s, Range(s, 1, count + 1, 1), DT_FLOAT), shape);
}

TEST(Einsum, GivesWhatTheEquationSays) {
  Scope s;
  const Output v = Counted(s, {3}), u = Counted(s, {2}), m = Counted(s, {2, 3});
  const Output n = Counted(s, {3, 2}), b = Counted(s, {2, 1, 2}), c = Counted(s, {2, 2, 1});
  // The rank is known, the sizes are not.
  const Output open = PlaceholderWithDefault(s, m, {-1, -1});
  struct Case {
    const char* equation;
    std::vector<Output> inputs;
    const char* want;
  };
  const Case cases[] = {
      {"ij,jk->ik", {m, n}, "float[2,2]: 22 28 49 64"},
      {"ij,jk", {m, n}, "float[2,2]: 22 28 49 64"},
      {"ij, jk -> ki", {m, n}, "float[2,2]: 22 49 28 64"},
      {"ij,kj->ik", {m, m}, "float[2,2]: 14 32 32 77"},
      {"ij->ji", {m}, "float[3,2]: 1 4 2 5 3 6"},
      {"ij->j", {m}, "float[3]: 5 7 9"},
      {"ij->", {m}, "float[]: 21"},
      {"ij->ij", {m}, "float[2,3]: 1 2 3 4 5 6"},
      {"i,i->", {v, v}, "float[]: 14"},
      {"i,i->i", {v, v}, "float[3]: 1 4 9"},
      {"i,j->ij", {u, v}, "float[2,3]: 1 2 3 2 4 6"},
      {"i,j->ji", {u, v}, "float[3,2]: 1 2 2 4 3 6"},
      {"ij,j->i", {m, v}, "float[2]: 14 32"},
      {"i,ij->j", {u, m}, "float[3]: 9 12 15"},
      {"ij,ij->", {m, m}, "float[]: 91"},
      {"ij,ij->i", {m, m}, "float[2]: 14 77"},
      {"bij,bjk->bik", {b, c}, "float[2,1,1]: 5 25"},
      {"bij,bji->b", {b, c}, "float[2]: 5 25"},
      {"bij,k->bijk", {b, u}, "float[2,1,2,2]: 1 2 2 4 3 6 4 8"},
      {"abc,cd->abd", {b, m}, "float[2,1,3]: 9 12 15 19 26 33"},
      {"ij,jk,k->i", {m, n, u}, "float[2]: 78 177"},
      {"ij,jk->ik", {open, n}, "float[2,2]: 22 28 49 64"},
      {"ij,ij->", {open, m}, "float[]: 91"},
      {"ij,k->ijk", {open, u}, "float[2,3,2]: 1 2 2 4 3 6 4 8"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.equation);
    const Output output = Einsum(s, one.equation, one.inputs);
    ASSERT_OK(s.status());
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, EvaluateGraph(s, {}, {output}));
    EXPECT_TRUE(got[0].DebugString().starts_with(one.want)) << got[0];
  }
}

TEST(Einsum, RefusesWhatIsNoEquation) {
  struct Case {
    const char* equation;
    int num_inputs;
    absl::StatusCode code;
    const char* want;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kNotOurs = absl::StatusCode::kUnimplemented;
  const Case cases[] = {
      {"ij,jk->ik", 1, kInvalid, "Einsum 'ij,jk->ik': there must be 2 tensors, got 1"},
      {"ijk->i", 1, kInvalid, "inputs[0] must have rank 3 as 'ijk', got shape [2,3] of '"},
      {"ij->k", 1, kInvalid, "a label of the result must be one of a tensor's, got 'k'"},
      {"i1->i", 1, kInvalid, "a label must be a letter, got '1'"},
      {"i-j", 1, kInvalid, "a label must be a letter, got '-'"},
      {"", 1, kInvalid, "inputs[0] must have rank 0 as ''"},
      {"...i->i", 1, kNotOurs, "there must be a label for each dimension, got '...'"},
      {"ii->i", 1, kNotOurs, "a label must appear once in a tensor, got 'ii'"},
      {"ij->ii", 1, kNotOurs, "a label must appear once in a tensor, got 'ii'"},
  };
  for (const Case& one : cases) {
    Scope s;
    const std::vector<Output> inputs(static_cast<size_t>(one.num_inputs), Counted(s, {2, 3}));
    EXPECT_FALSE(Einsum(s, one.equation, inputs).valid());
    EXPECT_STATUS(s.status(), one.code, one.want);
  }
  Scope s;
  Einsum(s, "i->i", {Output()});
  EXPECT_STATUS(s.status(), kInvalid, "inputs[0] must be a tensor of the graph, got an invalid");
}

}  // namespace
}  // namespace millrace
