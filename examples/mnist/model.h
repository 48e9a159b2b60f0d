// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_MNIST_MODEL_H_
#define MILLRACE_EXAMPLES_MNIST_MODEL_H_

// The network: two convolutions of 5 x 5 (32 and 64 filters) with max pooling, a layer of 1,024
// units with dropout, ten classes.
//
// Initial values are those of the article that this example follows: truncated normals of
// standard deviation 0.1 for the filters and 1.0 for the hidden layer, zeros for the output
// layer, biases 0.1.

#include <cstdint>
#include <optional>

#include "core/status.h"
#include "core/tensor.h"
#include "examples/mnist/digits.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"

namespace millrace {

struct MnistModel {
  Output logits;                // [n, 10]
  Output probabilities;         // [n, 10]
  Variable filters1, filters2;  // of the convolutions
};

// `images`: [n, 784] in [0, 1]. Dropout only when `keep_prob` (a scalar) is given.
MnistModel BuildMnistModel(const Scope& scope, Output images, std::optional<Output> keep_prob);

// The model with its loss and what trains and judges it.
struct MnistTrainer {
  Output images;     // placeholder [n, 784]
  Output labels;     // placeholder [n, 10], one-hot
  Output keep_prob;  // scalar, 1 unless fed
  Output loss;       // cross entropy, summed over the batch
  Output mean_loss;  // of an image of the batch
  Output accuracy;   // share of images classified right
  Operation train;
  Output step;  // int64 scalar: the global step, read after the step's own update
  Variable global_step;
};
// `sync` > 0: a step applies the mean of so many trainers' gradients.
MnistTrainer BuildMnistTrainer(const Scope& scope, int64_t sync = 0);

struct MnistScore {
  double mean_loss = 0;  // cross entropy of an image
  double accuracy = 0;   // mean
};
// Judges all of `digits` in batches; the last one may be smaller.
StatusOr<MnistScore> Evaluate(Session* session, const MnistTrainer& trainer, const Digits& digits,
                              int64_t batch_size);

// Builds the model anew, without devices, restores `checkpoint` into it and writes a SavedModel to
// `directory` (which must not exist). Variables of the checkpoint that the model has not (Adam's)
// are left out. Signature serving_default: image, key -> scores, prediction, key.
Status ExportMnist(const std::string& checkpoint, const std::string& directory);

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_MNIST_MODEL_H_
