// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_LAYERS_H_
#define MILLRACE_LAYERS_LAYERS_H_

// What is composed of ops and is no op: variables, embeddings, dropout.

#include "layers/dropout.h"         // IWYU pragma: export
#include "layers/embedding.h"       // IWYU pragma: export
#include "layers/initial_values.h"  // IWYU pragma: export
#include "layers/variable.h"        // IWYU pragma: export

#endif  // MILLRACE_LAYERS_LAYERS_H_
