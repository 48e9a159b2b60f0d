// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_LOOPS_LOWER_H_
#define MILLRACE_TESTS_LOOPS_LOWER_H_

// Lower: a Program (program.h) as a graph of Switch, Merge, Enter, NextIteration and Exit, as
// TensorFlow's cond and while_loop make them.
//
// Ops are TestProbe nodes with the program's names: "mix" for plain ones, "mix_now" and "mix_late"
// (asynchronous); "mix_or_fail", ... for those that may fail; pure ones are TensorFlow's; "limit"
// and "next" count a loop's trips. The test sets these hooks. Output i is the input of a TestProbe
// "output<i>" with the hook "output".
//
// LowerToGraphDef makes the same for a session, of programs with functions, too: these become
// FunctionDefs, with the same nodes in them, which PartitionedCall, nodes of their names, If, Case,
// While and For call.
//
// Failure: a program that is not one ends the test.

#include <cstdint>

#include "proto/graph.pb.h"
#include "runtime/testing/step_ops.h"
#include "tests/loops/program.h"

namespace millrace::loops {

// Of a program without functions.
void Lower(const Program& program, testing::TestGraph* graph);

struct LowerOptions {
  // What is outside of functions is in one, "main", which is called once: all of it runs, whether
  // the outputs need it or not.
  bool in_function = false;
  // Each node asks for one of so many, up to chance.
  int num_devices = 1;
  uint64_t seed = 0;
};
tensorflow::GraphDef LowerToGraphDef(const Program& program, const LowerOptions& options);

}  // namespace millrace::loops

#endif  // MILLRACE_TESTS_LOOPS_LOWER_H_
