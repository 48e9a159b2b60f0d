// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_TESTING_REWRITE_TEST_H_
#define MILLRACE_GRAPH_REWRITE_TESTING_REWRITE_TEST_H_

// RewriteTest: a graph before and after passes, as text, and its results with and without them.
//
//   const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {2});
//   Identity(root_.WithName("y"), x);
//   EXPECT_EQ(After("identities", {{"x"}, {"y"}}), "_arg_x_0_0 = _Arg()\n"
//                                                  "_retval_y_0_0 = _Retval(_arg_x_0_0)\n");
//   ExpectSameResults({{"x", TensorOf<float>({2}, {1, 2})}}, {"y"});
//
// All nodes are placed on one device unless they ask for another.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/prune.h"
#include "graph/rewrite/rewrite.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "gtest/gtest.h"
#include "runtime/session.h"

namespace millrace::testing {

class RewriteTest : public ::testing::Test {
 protected:
  // One line a node, sorted: "y = Add(x, c:1, ^z) @/device:CPU:1", "c = Const() int32[2]: 4 6". The
  // device is written when it is not the first one.
  std::string Before(const RunSignature& signature);
  // `passes` joined by ','; "" for all in their order. They run until nothing changes.
  std::string After(absl::string_view passes, const RunSignature& signature);
  const RewriteReport& report() const { return report_; }

  // Runs the graph in sessions without and with rewrites: results are equal bit for bit, errors
  // are equal as text. Returns the results or the error.
  StatusOr<std::vector<Tensor>> ExpectSameResults(const std::vector<Feed>& feeds,
                                                  const std::vector<FetchName>& fetches,
                                                  const std::vector<FetchName>& targets = {});

  Scope root_;

 private:
  RewriteReport report_;
};

// All nodes of the graph, as RewriteTest writes them.
std::string NodesAsText(const Graph& graph);

}  // namespace millrace::testing

#endif  // MILLRACE_GRAPH_REWRITE_TESTING_REWRITE_TEST_H_
