// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_MULTI_HEAD_H_
#define MILLRACE_ESTIMATOR_HEADS_MULTI_HEAD_H_

// MultiHead: several heads over one network, trained together.
//
//   HeadPtr head = MultiHead({BinaryHead({.name = "bought"}),
//                             RegressionHead({.name = "price"})}, {1.0, 0.1});
//
//   logits          [batch, sum of the heads' dimensions], cut in the order of the heads; or those
//                   of each head (HeadCall::logits_by_head)
//   labels          by the names of the heads
//   loss            the sum of the heads' losses, each times its weight
//   predictions     "<head>/<key>"
//   export          serving_default: that of the first head; "<head>" and "<head>/<signature>" of
//                   each; predict: all predictions
//   metrics         those of the heads, whose keys end with their names, and "loss/<head>"
//
// Failure: as any head (estimator/heads/head.h); InvalidArgument for heads without names of their
// own.

#include <source_location>
#include <vector>

#include "estimator/heads/head.h"

namespace millrace {

// `weights`: none, or one for each head.
HeadPtr MultiHead(std::vector<HeadPtr> heads, std::vector<double> weights = {},
                  std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_MULTI_HEAD_H_
