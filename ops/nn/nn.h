// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_NN_H_
#define MILLRACE_OPS_NN_NN_H_

// The builders of this drawer: layers of networks: convolution, pooling, normalisation,
// recurrent cells, activations, losses.

#include "ops/nn/activations.h"       // IWYU pragma: export
#include "ops/nn/bias.h"              // IWYU pragma: export
#include "ops/nn/conv.h"              // IWYU pragma: export
#include "ops/nn/fused_batch_norm.h"  // IWYU pragma: export
#include "ops/nn/gru_block.h"         // IWYU pragma: export
#include "ops/nn/lrn.h"               // IWYU pragma: export
#include "ops/nn/lstm_block.h"        // IWYU pragma: export
#include "ops/nn/pool.h"              // IWYU pragma: export
#include "ops/nn/softmax.h"           // IWYU pragma: export
#include "ops/nn/top_k.h"             // IWYU pragma: export
#include "ops/nn/xent.h"              // IWYU pragma: export

#endif  // MILLRACE_OPS_NN_NN_H_
