// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_WIRE_MODEL_H_
#define MILLRACE_TESTS_CLUSTER_WIRE_MODEL_H_

// WireModel: a model whose training steps are counted and timed on a cluster. Its variables stand
// on the parameter servers in turn, the rest on the task that trains.
//
//   linear     y = wx + b, gradient descent; the loss and the step after the update are fetched
//   census     examples/census: wide and deep columns of an Estimator, fused; two embeddings and
//              eleven linear tables are looked up where they stand. The loss and the global step
//              are fetched, as the hooks of its loop do
//   cnn        two convolutions and two dense layers of 45 KB together, Adam
//   digits     the same, as large as examples/mnist: 13 MB
//
// Input costs nothing: batches are made before the first step, and census repeats those of its
// dataset from memory. So a step is what crosses the wire and its kernels.
//
// Thread-safety: a model belongs to one thread. Lifetime: the session outlives the step.
// Failure: InvalidArgument for a model or a batch that is none; what builders and sessions say.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/initializable_iterator.h"
#include "graph/scope.h"
#include "runtime/session.h"

namespace millrace {

struct WireModel {
  Scope root;
  std::vector<Output> inputs;  // placeholders, fed with `batch`
  std::vector<Tensor> batch;
  std::optional<data::InitializableIterator> dataset;  // none: all input is fed
  Output loss, step;                                   // what a step fetches
  Operation train;
  Operation init, tables;  // initialise variables and look-up tables

  std::vector<Feed> Feeds() const;
};

// `tf_config`: of the task that trains, with its cluster; "": this process alone.
StatusOr<WireModel> MakeWireModel(absl::string_view name, int64_t batch,
                                  const std::string& tf_config);

// A session at `target` ("": in this process) that can train: variables and input are initialised.
// Waits for the tasks of the cluster.
StatusOr<std::unique_ptr<Session>> BeginWireModel(const WireModel& model,
                                                  const std::string& target);

// The training step, which is run with `model.batch`.
StatusOr<std::unique_ptr<PreparedStep>> PrepareWireStep(const WireModel& model, Session* session);

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_WIRE_MODEL_H_
