// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_SMALL_MODEL_H_
#define MILLRACE_DISTRIBUTED_TESTING_SMALL_MODEL_H_

// What the tests of this folder train: y = w x + b, variables on /job:ps, the rest on one worker;
// and ops that only tests have: TestWait never ends by itself, TestFail fails, TestSilent does not
// answer its cancellation either.
//
// Thread-safety: a model belongs to one thread.

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/training/training_ops.h"
#include "runtime/session.h"

namespace millrace {

struct SmallModel {
  Scope root;
  Output x, y, loss;
  Variable w, b;
  Operation init, train;
};

inline SmallModel MakeSmallModel(const std::string& worker = "/job:worker/task:0",
                                 const std::vector<std::string>& ps = {"/job:ps/task:0"}) {
  SmallModel m;
  const Scope on_worker = m.root.WithDevice(worker);
  const auto variable = [&](const char* name, size_t i) {
    const Scope s = m.root.WithDevice(ps[i % ps.size()]);
    return MakeVariable(s.WithName(name), Const(s, 0.0f));
  };
  m.w = variable("w", 0);
  m.b = variable("b", 1);
  m.x = Placeholder(on_worker.WithName("x"), DT_FLOAT, {-1});
  m.y = Placeholder(on_worker.WithName("y"), DT_FLOAT, {-1});
  const Output axis = Const<int32_t>(on_worker, {0});
  const Output error =
      Sub(on_worker, Add(on_worker, Mul(on_worker, m.x, m.w.value), m.b.value), m.y);
  m.loss = Mean(on_worker.WithName("loss"), Mul(on_worker, error, error), axis);
  const Output two = Const(on_worker, 2.0f);
  const Output dw = Mul(on_worker, two, Mean(on_worker, Mul(on_worker, error, m.x), axis));
  const Output db = Mul(on_worker, two, Mean(on_worker, error, axis));
  std::vector<Operation> updates;
  for (const auto& [v, grad] : {std::pair(m.w, dw), std::pair(m.b, db)}) {
    const Scope s = m.root.ColocatedWith(v.handle.op());
    updates.push_back(ResourceApplyGradientDescent(s, v.handle, Const(s, 0.1f), grad));
  }
  m.train = Group(on_worker.WithName("train"), updates);
  m.init = Group(m.root.WithName("init"), {m.w.initializer, m.b.initializer});
  return m;
}

// Three examples of y = 3 x + 1.
inline std::vector<Feed> SmallModelBatch(const SmallModel& model) {
  return {{model.x, Tensor::Vector<float>({-1, 0, 1})},
          {model.y, Tensor::Vector<float>({-2, 1, 4})}};
}

// A scalar float that depends on `input`, which may be invalid.
inline Output TestWait(ScopeAt at) { return NodeBuilder(at, "TestWait").Finish().output(0); }
// TestWait kernels that have begun to wait in this process.
int64_t TestWaitsBegun();
inline Output TestSilent(ScopeAt at) { return NodeBuilder(at, "TestSilent").Finish().output(0); }
// Lets the TestSilent kernels of this process that have been started end.
void EndSilentKernels();
inline Output TestFail(ScopeAt at, Output input) {
  return NodeBuilder(at, "TestFail").Input(input).Finish().output(0);
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_SMALL_MODEL_H_
