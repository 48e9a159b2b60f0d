// SPDX-License-Identifier: Apache-2.0
//
// What an op family includes of graph. Parsing protobuf's headers took 40 % of the compile time of
// an op file, so none of these may bring them in.

#include "graph/attr.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/node_body.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/place/kernel_support.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"

// Every header of protobuf defines it.
#ifdef GOOGLE_PROTOBUF_VERSION
constexpr bool kHasProtobuf = true;
#else
constexpr bool kHasProtobuf = false;
#endif

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(AuthorHeaders, AreFreeOfProtobuf) { EXPECT_FALSE(kHasProtobuf); }

}  // namespace
}  // namespace millrace
