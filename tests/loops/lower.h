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
// Failure: a program that is not one ends the test.

#include "runtime/testing/step_ops.h"
#include "tests/loops/program.h"

namespace millrace::loops {

void Lower(const Program& program, testing::TestGraph* graph);

}  // namespace millrace::loops

#endif  // MILLRACE_TESTS_LOOPS_LOWER_H_
