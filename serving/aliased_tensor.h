// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_ALIASED_TENSOR_H_
#define MILLRACE_SERVING_ALIASED_TENSOR_H_

// A tensor by the name that a signature gives it. Thread-safety: a value. Failure: none.

#include <string>

#include "core/tensor.h"

namespace millrace {

struct AliasedTensor {
  std::string alias;
  Tensor tensor;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_ALIASED_TENSOR_H_
