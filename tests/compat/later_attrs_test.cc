// SPDX-License-Identifier: Apache-2.0
// What later versions of TensorFlow have added to ops: the default is what the ops do, and another
// value is refused by name, never computed as if it were not there.

#include "graph/later_attrs.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

Status Check(const std::string& op, const std::string& attr, const std::string& value) {
  tensorflow::NodeDef node;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      absl::StrCat("name: 'n' op: '", op, "' attr { key: '", attr, "' value { ", value, " } }"),
      &node));
  return CheckLaterAttrs(node);
}

TEST(LaterAttrs, OtherValuesThanTheDefaultAreRefused) {
  const struct {
    const char* op;
    const char* attr;
    const char* its_default;
    const char* other;
  } kCases[] = {
      {"TopKV2", "index_type", "type: DT_INT32", "type: DT_INT16"},
      {"GatherNd", "bad_indices_policy", "s: ''", "s: 'IGNORE'"},
      {"ScatterNd", "bad_indices_policy", "s: ''", "s: 'IGNORE'"},
      {"InitializeTableFromTextFile", "offset", "i: 0", "i: 1"},
      {"InitializeTableFromTextFileV2", "offset", "i: 0", "i: 1"},
      {"ApplyFtrl", "multiply_linear_by_lr", "b: false", "b: true"},
      {"ApplyFtrlV2", "multiply_linear_by_lr", "b: false", "b: true"},
      {"SparseApplyFtrl", "multiply_linear_by_lr", "b: false", "b: true"},
      {"SparseApplyFtrlV2", "multiply_linear_by_lr", "b: false", "b: true"},
      {"ResourceApplyFtrl", "multiply_linear_by_lr", "b: false", "b: true"},
      {"ResourceApplyFtrlV2", "multiply_linear_by_lr", "b: false", "b: true"},
      {"ResourceSparseApplyFtrl", "multiply_linear_by_lr", "b: false", "b: true"},
      {"ResourceSparseApplyFtrlV2", "multiply_linear_by_lr", "b: false", "b: true"},
      {"TensorListSetItem", "resize_if_index_out_of_bounds", "b: false", "b: true"},
      {"FusedBatchNorm", "exponential_avg_factor", "f: 1", "f: 0.9"},
      {"FusedBatchNormV2", "exponential_avg_factor", "f: 1", "f: 0.9"},
      {"FusedBatchNormV3", "exponential_avg_factor", "f: 1", "f: 0.9"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(absl::StrCat(c.op, ".", c.attr));
    EXPECT_OK(Check(c.op, c.attr, c.its_default));
    EXPECT_STATUS(Check(c.op, c.attr, c.other), absl::StatusCode::kInvalidArgument,
                  absl::StrCat("attr '", c.attr, "' is unknown to this program and must have its"));
  }
}

}  // namespace
}  // namespace millrace
