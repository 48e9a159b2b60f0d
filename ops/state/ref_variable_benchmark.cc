// SPDX-License-Identifier: Apache-2.0
//
// A step that adds to three rows of a table [1M, 64]: a variable by reference (0), a resource (1).
#include "benchmark/benchmark.h"
#include "core/shape.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/state/ref_variable.h"
#include "ops/state/resource_rows.h"
#include "ops/state/resource_variable.h"
#include "runtime/session.h"

namespace millrace {
namespace {

void Require(const Status& status, benchmark::State& state) {
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

void ScatterAddThreeRows(benchmark::State& state) {
  const PartialShape shape({1'000'000, 64});
  Scope root;
  const Output zeros = Fill(root, Const<int32_t>(root, {1'000'000, 64}), Const(root, 0.0f));
  const Output rows = Const<int32_t>(root, {3, 500'000, 999'999});
  const Output one = Const(root, 1.0f);
  Operation init, add;
  if (state.range(0) == 0) {
    const Output ref = VariableV2(root, shape, DT_FLOAT);
    init = Assign(root, ref, zeros).op();
    add = ScatterAdd(root, ref, rows, one).op();
  } else {
    const Output handle = VarHandleOp(root, DT_FLOAT, shape);
    init = AssignVariableOp(root, handle, zeros);
    add = ResourceScatterAdd(root, handle, rows, one);
  }
  StatusOr<std::unique_ptr<Session>> session = NewSession();
  Require(session.status(), state);
  Require((*session)->Extend(root), state);
  Require((*session)->Run({}, {}, {init}).status(), state);
  for (auto _ : state) Require((*session)->Run({}, {}, {add}).status(), state);
}
BENCHMARK(ScatterAddThreeRows)->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace millrace
