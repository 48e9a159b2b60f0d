// SPDX-License-Identifier: Apache-2.0
#include "estimator/input_fn.h"

namespace millrace {

StatusOr<Input> InputFn::operator()(const InputFnCall& call) const {
  if (!valid()) return InvalidArgument("Estimator: input_fn must be a function, got none");
  StatusOr<Input> input = call_(call);
  MR_RETURN_IF_ERROR(call.scope.status());
  return input;
}

}  // namespace millrace
