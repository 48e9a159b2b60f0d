// SPDX-License-Identifier: Apache-2.0
#include "examples/rnn/sums.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/shape.h"

namespace millrace {
namespace {

// Standard distributions differ between libraries; these do not.
float Fraction(std::mt19937_64* random) {
  return static_cast<float>(static_cast<double>((*random)() >> 40) / (1 << 24));
}
int64_t Below(int64_t bound, std::mt19937_64* random) {
  return static_cast<int64_t>((*random)() % static_cast<uint64_t>(bound));
}

}  // namespace

StatusOr<SumsBatch> DrawSums(int64_t batch, int64_t longest, std::mt19937_64* random) {
  SumsBatch out;
  MR_ASSIGN_OR_RETURN(out.steps, Tensor::Allocate(DT_FLOAT, Shape({batch, longest, 2})));
  MR_ASSIGN_OR_RETURN(out.lengths, Tensor::Allocate(DT_INT32, Shape({batch})));
  MR_ASSIGN_OR_RETURN(out.sums, Tensor::Allocate(DT_FLOAT, Shape({batch, 1})));
  float* step = out.steps.mutable_flat<float>().data();
  int32_t* lengths = out.lengths.mutable_flat<int32_t>().data();
  float* sums = out.sums.mutable_flat<float>().data();
  std::fill_n(step, batch * longest * 2, 0.0f);
  for (int64_t i = 0; i < batch; ++i, step += longest * 2) {
    const int64_t length = longest / 2 + Below(longest - longest / 2 + 1, random);
    for (int64_t t = 0; t < length; ++t) step[2 * t] = Fraction(random);
    const int64_t first = Below(length / 2, random);
    const int64_t second = length / 2 + Below(length - length / 2, random);
    step[2 * first + 1] = step[2 * second + 1] = 1;
    lengths[i] = static_cast<int32_t>(length);
    sums[i] = step[2 * first] + step[2 * second];
  }
  return out;
}

}  // namespace millrace
