// SPDX-License-Identifier: Apache-2.0
#include "graph/variable_bytes.h"

#include <cstdint>

#include "core/dtype.h"
#include "core/shape.h"
#include "graph/attr.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

tensorflow::NodeDef NodeOf(DType dtype, const PartialShape& shape) {
  tensorflow::NodeDef node;
  node.set_name("n");
  SetAttr(dtype, &(*node.mutable_attr())["dtype"]);
  SetAttr(shape, &(*node.mutable_attr())["shape"]);
  return node;
}

TEST(VariableBytesTest, ElementsTimesTheSizeOfOne) {
  const struct {
    DType dtype;
    PartialShape shape;
    int64_t bytes;
  } cases[] = {
      {DT_FLOAT, PartialShape::Scalar(), 4},
      {DT_INT64, PartialShape::Scalar(), 8},
      {DT_FLOAT, {10, 3}, 120},
      {DT_DOUBLE, {2, 2}, 32},
      {DT_BFLOAT16, {5}, 10},
      {DT_BOOL, {7}, 7},
      {DT_STRING, {3}, 24},
      {DT_FLOAT, {0, 9}, 0},
      {DT_COMPLEX128, {2}, 32},
      {DT_RESOURCE, PartialShape::Scalar(), 1},
  };
  for (const auto& c : cases) {
    const tensorflow::NodeDef node = NodeOf(c.dtype, c.shape);
    EXPECT_EQ(VariableBytes(&node), c.bytes) << c.shape;
    EXPECT_TRUE(HasVariableBytes(&node)) << c.shape;
  }
}

TEST(VariableBytesTest, WhatIsNotKnownCountsOne) {
  const tensorflow::NodeDef no_dim = NodeOf(DT_FLOAT, {-1, 3});
  EXPECT_EQ(VariableBytes(&no_dim), 1);
  EXPECT_FALSE(HasVariableBytes(&no_dim));
  const tensorflow::NodeDef no_rank = NodeOf(DT_FLOAT, PartialShape::Unknown());
  EXPECT_EQ(VariableBytes(&no_rank), 1);
  tensorflow::NodeDef table;  // as MutableHashTableV2, which has neither attr
  EXPECT_EQ(VariableBytes(&table), 1);
  EXPECT_FALSE(HasVariableBytes(&table));
  (*table.mutable_attr())["shape"].set_i(3);  // of another kind
  EXPECT_EQ(VariableBytes(&table), 1);
}

}  // namespace
}  // namespace millrace
