// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_CENSUS_PROBLEM_H_
#define MILLRACE_TESTS_SCALING_CENSUS_PROBLEM_H_

// The people of examples/wide_deep and a wide and deep model of them, with one hidden layer: 12,600
// numbers in three tables, two matrices and their biases.

#include <cstddef>
#include <memory>

#include "core/status.h"
#include "examples/wide_deep/census.h"
#include "tests/scaling/problem.h"

namespace millrace::scaling {

// The first `held_out` of `test` judge; all, if there are fewer. InvalidArgument for nobody.
StatusOr<std::unique_ptr<Problem>> MakeCensusProblem(Census people, const Census& test,
                                                     size_t held_out);

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_CENSUS_PROBLEM_H_
