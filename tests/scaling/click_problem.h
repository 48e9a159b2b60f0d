// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_CLICK_PROBLEM_H_
#define MILLRACE_TESTS_SCALING_CLICK_PROBLEM_H_

// A click log that nobody has to have: eight fields of ids, a few common and most rare, and whether
// there was a click.
//
//   ids      of each field from a Zipf distribution over its eighth of the rows
//   clicks   drawn with a probability that a hidden model decides: a taste of each id, and how well
//            the tastes of neighbouring fields go together. The draw is the noise: no model
//            foretells it
//   model    a weight and an embedding for each row; the embeddings of the eight fields go through
//            one hidden layer

#include <cstdint>
#include <memory>

#include "core/status.h"
#include "tests/scaling/problem.h"

namespace millrace::scaling {

struct ClickLogOptions {
  int64_t rows = 100'000;  // of the tables; each field has an eighth
  int64_t train = 600'000;
  int64_t held_out = 10'000;
  double exponent = 1.05;  // Zipf's; not 1
  double click_rate = 0.2;
  uint64_t seed = 1;  // equal logs for equal seeds
};

// InvalidArgument for options that make no log.
StatusOr<std::unique_ptr<Problem>> MakeClickProblem(const ClickLogOptions& options);

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_CLICK_PROBLEM_H_
