// SPDX-License-Identifier: Apache-2.0
#include "graph/later_attrs.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"

// covers: graphs: attrs of later TensorFlows that would change what an op does are refused unless
//   they have their default or the op heeds them; others are carried along

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const OpRegistration kLater =
    OpSpec("LaterAttrsOp", "x: float -> y: float", "n: int = 1")
        .With(LaterAttr("index_type: type = DT_INT32"))
        .With(LaterAttr("sizes: list(int) = []"))
        .With(LaterAttr("policy: {'', 'IGNORE'} = ''", LaterAttr::kHeeded))
        .Shape(UnchangedShape);
const OpRegistration kWrong = OpSpec("LaterAttrsWrong", "x: float -> y: float")
                                  .With(LaterAttr("flag: bool"))
                                  .Shape(UnchangedShape);
const OpRegistration kSource = OpSpec("LaterAttrsSource", "-> y: float").Shape(ScalarShape);
const OpRegistration kNone = OpSpec("LaterAttrsNone", "x: float -> y: float").Shape(UnchangedShape);

// A graph with a node of `op` that has `attrs`, in text.
Status Import(const std::string& op, const std::string& attrs) {
  MR_ASSIGN_OR_RETURN(const tensorflow::GraphDef def,
                      ParseGraphDefText(absl::StrCat(
                          "node { name: 'x' op: 'LaterAttrsSource' } node { name: 'y' op: '", op,
                          "' input: 'x' ", attrs, " }")));
  Graph graph;
  return ImportGraphDef(def, {}, &graph);
}

TEST(LaterAttrs, DefaultsAreTakenAndOtherValuesRefused) {
  const std::string op = "LaterAttrsOp";
  EXPECT_OK(Import(op, ""));
  EXPECT_OK(Import(op, "attr { key: 'index_type' value { type: DT_INT32 } }"));
  EXPECT_OK(Import(op, "attr { key: 'sizes' value { list { } } }"));
  EXPECT_STATUS(Import(op, "attr { key: 'index_type' value { type: DT_INT64 } }"), kInvalid,
                "GraphDef node[1] 'y': attr 'index_type' is unknown to this program and must have "
                "its default DT_INT32, got DT_INT64");
  EXPECT_STATUS(Import(op, "attr { key: 'sizes' value { list { i: 2 } } }"), kInvalid,
                "attr 'sizes' is unknown to this program and must have its default");
  EXPECT_STATUS(Import(op, "attr { key: 'index_type' value { b: true } }"), kInvalid,
                "attr 'index_type' must be type, got bool");
}

TEST(LaterAttrs, WhatAnOpHeedsIsCheckedByItsKindOnly) {
  const std::string op = "LaterAttrsOp";
  EXPECT_OK(Import(op, "attr { key: 'policy' value { s: 'IGNORE' } }"));
  EXPECT_STATUS(Import(op, "attr { key: 'policy' value { s: 'ASK' } }"), kInvalid,
                "attr 'policy' must be one of {'', 'IGNORE'}, got 'ASK'");
  EXPECT_TRUE(HeedsLaterAttr(op, "policy"));
  EXPECT_FALSE(HeedsLaterAttr(op, "index_type"));
  EXPECT_FALSE(HeedsLaterAttr(op, "n"));
  EXPECT_FALSE(HeedsLaterAttr("NoSuchOp", "policy"));
}

TEST(LaterAttrs, OthersAreCarriedAlong) {
  EXPECT_OK(Import("LaterAttrsOp", "attr { key: 'hint' value { b: true } }"));
  EXPECT_OK(Import("LaterAttrsNone", "attr { key: 'index_type' value { type: DT_INT64 } }"));
}

TEST(LaterAttrs, AWrongSpecIsSaid) {
  EXPECT_STATUS(Import("LaterAttrsWrong", ""), absl::StatusCode::kInternal,
                "later attr 'flag: bool' must have a default");
}

}  // namespace
}  // namespace millrace
