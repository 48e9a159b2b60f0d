// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_MODEL_GRAPH_H_
#define MILLRACE_ESTIMATOR_MODEL_GRAPH_H_

// ModelGraph: a graph that the user's functions have made, for one call of an Estimator. Its parts
// come in this order, which gives variables and seeds the same names and places in every task:
// seed, devices (training alone), global step, input, model.
//
// Values; thread-compatible. Failure: of the functions; CheckSpec's; InvalidArgument where they do
// not fit together.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/status.h"
#include "data/dataset.h"
#include "data/initializable_iterator.h"
#include "estimator/estimator_parts.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "estimator/serving_input.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "train/session_run_hook.h"

namespace millrace {

struct ModelGraph {
  Scope root;
  Variable global_step;
  EstimatorSpec spec;
  // Initialise the input in each session; called before all others.
  Hooks input_hooks;
  // Whether the input can come to an end: a Dataset, or what queues feed.
  bool has_reader = false;
  // Of a Dataset: data::Dataset's cardinality; unknown otherwise.
  int64_t cardinality = 0;
  // What the hook initialises; none: the input is no Dataset.
  std::optional<data::Dataset> dataset;
  data::InitializableIterator iterator;

  Hooks AllHooks(std::initializer_list<const Hooks*> further) const;
};

// Where variables are.
enum class Placement {
  kByMode,   // on the cluster when the model trains, in this process otherwise
  kCluster,  // as the RunConfig says: on parameter servers, where there are some
  kHere,     // in this process
};
StatusOr<ModelGraph> BuildModelGraph(const EstimatorParts& parts, Mode mode,
                                     const InputFn& input_fn,
                                     Placement placement = Placement::kByMode);
// Over what a receiver function gives, in this process; labels are left out of kPredict. An error
// of the model says that these are its features.
struct ServingGraph {
  ModelGraph model;
  ServingInputReceiver receiver;
};
StatusOr<ServingGraph> BuildServingGraph(const EstimatorParts& parts, Mode mode,
                                         const ServingInputReceiverFn& receiver_fn);

// The pointers that a session takes; they live as long as the hooks.
std::vector<SessionRunHook*> PointersOf(const Hooks& hooks);
// InvalidArgument for a null hook.
Status CheckHooks(absl::string_view where, const Hooks& hooks);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_MODEL_GRAPH_H_
