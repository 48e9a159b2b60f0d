// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TESTING_HOOKED_MODEL_H_
#define MILLRACE_TRAIN_TESTING_HOOKED_MODEL_H_

// HookedModel: a graph to try hooks on: w = 1, a global step, operations that change them, an
// input x that is given back as y.

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/state/state.h"

namespace millrace {

struct HookedModel {
  HookedModel() {
    w = MakeVariable(root.WithName("w"), Const(root, 1.f));
    step = GlobalStep(root);
    // A run that fetches the step gets the one before its own update.
    count = AssignAddVariableOp(root.WithName("count").WithControlDependencies({step.value.op()}),
                                step.handle, Const(root, int64_t{1}));
    grow = AssignAddVariableOp(root.WithName("grow"), w.handle, Const(root, 10.f));
    x = Placeholder(root.WithName("x"), DT_FLOAT, {});
    y = Identity(root.WithName("y"), x);
  }
  Scope root;
  Variable w, step;
  Operation count, grow;
  Output x, y;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TESTING_HOOKED_MODEL_H_
