// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_LAYERS_H_
#define MILLRACE_LAYERS_LAYERS_H_

// What is composed of ops and is no op: variables and the values that they begin with, layers,
// losses.

#include "layers/control_flow.h"       // IWYU pragma: export
#include "layers/convolution.h"        // IWYU pragma: export
#include "layers/dense.h"              // IWYU pragma: export
#include "layers/dropout.h"            // IWYU pragma: export
#include "layers/embedding.h"          // IWYU pragma: export
#include "layers/embedding_sparse.h"   // IWYU pragma: export
#include "layers/initialized_value.h"  // IWYU pragma: export
#include "layers/initializers.h"       // IWYU pragma: export
#include "layers/lookup.h"             // IWYU pragma: export
#include "layers/losses.h"             // IWYU pragma: export
#include "layers/normalization.h"      // IWYU pragma: export
#include "layers/partitioner.h"        // IWYU pragma: export
#include "layers/pooling.h"            // IWYU pragma: export
#include "layers/regularizers.h"       // IWYU pragma: export
#include "layers/rnn.h"                // IWYU pragma: export
#include "layers/rnn_cell.h"           // IWYU pragma: export
#include "layers/tensor_array.h"       // IWYU pragma: export
#include "layers/variable.h"           // IWYU pragma: export
#include "layers/variable_update.h"    // IWYU pragma: export
#include "layers/weight.h"             // IWYU pragma: export

#endif  // MILLRACE_LAYERS_LAYERS_H_
