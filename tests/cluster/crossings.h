// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_CROSSINGS_H_
#define MILLRACE_TESTS_CLUSTER_CROSSINGS_H_

// Crossings: what crosses from one task to another in a step, read from the graph as it was cut:
// each _Send of a partition is one tensor of a step.
//
// A plain value. Failure: of the run.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "runtime/session.h"

namespace millrace {

struct Crossings {
  // "w/Read/ReadVariableOp ps0 -> worker", sorted; a task of another job than ps by its job.
  std::vector<std::string> tensors;
  // Edges that only order, by what they wait for.
  std::vector<std::string> controls;

  // How many tensors and controls go from a task whose name begins with `from` to one whose name
  // begins with `to`: Count("ps", "worker").
  int64_t Count(absl::string_view from, absl::string_view to) const;
};

// Runs a step. In a loop a tensor may cross more than once.
StatusOr<Crossings> CrossingsOfRun(Session* session, absl::Span<const Feed> feeds,
                                   absl::Span<const FetchName> fetches,
                                   absl::Span<const FetchName> targets);

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_CROSSINGS_H_
