// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_RESTORED_INITIALIZER_H_
#define MILLRACE_ESTIMATOR_COLUMNS_RESTORED_INITIALIZER_H_

// RestoredInitializer: a tensor of a checkpoint as the value that a variable begins with.

#include <string>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "layers/initializers.h"

namespace millrace {

// `checkpoint`: the prefix of one, or a directory for its newest. The initialiser reads it in the
// graph (RestoreV2), where and whenever the variable is initialised; of a part only that part.
// Here it is looked at: NotFound for a checkpoint or tensor that is not there, InvalidArgument for
// a tensor of another shape or dtype.
StatusOr<Initializer> RestoredInitializer(const std::string& checkpoint, const std::string& tensor,
                                          const Shape& shape, DType dtype);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_RESTORED_INITIALIZER_H_
