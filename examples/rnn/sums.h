// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_RNN_SUMS_H_
#define MILLRACE_EXAMPLES_RNN_SUMS_H_

// The adding problem (Hochreiter and Schmidhuber, 1997): a sequence of numbers, two of them marked;
// what is asked for at its end is the sum of those two. Who always says 1 is wrong by 1/6 in the
// mean square; to do better, a network must remember.

#include <cstdint>
#include <random>

#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

struct SumsBatch {
  Tensor steps;    // float [batch, longest, 2]: a number in [0, 1) and its mark, zeros at the end
  Tensor lengths;  // int32 [batch], from longest / 2 to longest
  Tensor sums;     // float [batch, 1]
};
// Draws from `random`: equal generators, equal batches. longest is at least 4.
StatusOr<SumsBatch> DrawSums(int64_t batch, int64_t longest, std::mt19937_64* random);

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_RNN_SUMS_H_
