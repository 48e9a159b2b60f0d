// SPDX-License-Identifier: Apache-2.0
//
// The rules of graph/partial_value.h that stand beside the ops: what they say of inputs that are
// known in part, and that they say nothing where the kernel refuses.
#include "graph/partial_value.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// "{?,28}" is a vector, "7" and "?" are scalars, "" is nothing.
std::optional<PartialValue> Parse(const std::string& text) {
  if (text.empty()) return std::nullopt;
  PartialValue value;
  value.is_scalar = text[0] != '{';
  const std::string inner = value.is_scalar ? text : text.substr(1, text.size() - 2);
  for (const absl::string_view element : absl::StrSplit(inner, ',', absl::SkipEmpty())) {
    int64_t number = 0;
    if (absl::SimpleAtoi(element, &number)) {
      value.elements.emplace_back(number);
    } else {
      value.elements.emplace_back();
    }
  }
  return value;
}

std::string ToText(const std::optional<PartialValue>& value) {
  if (!value) return "";
  const std::string inner =
      absl::StrJoin(value->elements, ",", [](std::string* out, const std::optional<int64_t>& e) {
        absl::StrAppend(out, e ? absl::StrCat(*e) : "?");
      });
  return value->is_scalar ? inner : absl::StrCat("{", inner, "}");
}

// Values by input; shapes are those of the values, or what `shapes` says ("[2,?]").
struct Inputs : PartialValueContext::Source {
  std::vector<std::string> values;
  std::vector<std::string> shapes;
  std::string output_shape;
  std::optional<PartialValue> Value(int i) override {
    return static_cast<size_t>(i) < values.size() ? Parse(values[static_cast<size_t>(i)])
                                                  : std::nullopt;
  }
  PartialShape InputShape(int i) override {
    if (static_cast<size_t>(i) < shapes.size()) {
      return *PartialShape::Parse(shapes[static_cast<size_t>(i)]);
    }
    const std::optional<PartialValue> value = Value(i);
    if (!value) return PartialShape();
    return value->is_scalar ? PartialShape::Scalar()
                            : PartialShape({static_cast<int64_t>(value->elements.size())});
  }
  PartialShape OutputShape(int) override {
    return output_shape.empty() ? PartialShape() : *PartialShape::Parse(output_shape);
  }
};

struct Case {
  const char* op;
  std::vector<std::string> inputs;
  std::string want;
  std::map<std::string, int64_t> attrs = {};
  std::vector<std::string> shapes = {};
  std::string output_shape = "";
  DType dtype = DT_INT32;
};

std::string Apply(const Case& c) {
  const PartialValueRule* rule = PartialValueRule::Find(c.op);
  if (rule == nullptr) return "no rule";
  tensorflow::NodeDef node;
  node.set_name("n");
  node.set_op(c.op);
  for (const char* name : {"axis", "batch_dims", "begin_mask", "end_mask", "ellipsis_mask",
                           "new_axis_mask", "shrink_axis_mask"}) {
    SetAttr(int64_t{0}, &(*node.mutable_attr())[name]);
  }
  for (const auto& [name, value] : c.attrs) SetAttr(value, &(*node.mutable_attr())[name]);
  Inputs inputs;
  inputs.values = c.inputs;
  inputs.shapes = c.shapes;
  inputs.output_shape = c.output_shape;
  const size_t n = std::max(c.inputs.size(), c.shapes.size());
  PartialValueContext context(NodeAttrs(&node), static_cast<int>(n), 0, c.dtype, &inputs);
  return ToText((*rule)(&context));
}

TEST(PartialValueTest, RulesFollowTheirKernels) {
  const std::string most = "2147483647";
  const std::string longest = "9223372036854775807";
  const std::vector<Case> cases = {
      {"Shape", {}, "{?,28,3}", {}, {"[?,28,3]"}},
      {"Shape", {}, "", {}, {"<unknown>"}},
      {"Size", {}, "84", {}, {"[28,3]"}},
      {"Size", {}, "?", {}, {"[?,3]"}},
      {"Rank", {}, "2", {}, {"[?,3]"}},
      {"Rank", {}, "?", {}, {"<unknown>"}},
      {"Identity", {"{1,?}"}, "{1,?}"},
      {"StopGradient", {"5"}, "5"},
      {"Cast", {"{" + longest + ",1}"}, "{?,1}"},
      {"Cast", {"{" + longest + ",1}"}, "{" + longest + ",1}", {}, {}, "", DT_INT64},
      {"Reshape", {"{4}", "{}"}, "4", {}, {}, "[]"},
      {"Reshape", {"{4,?}", "{2}"}, "{4,?}", {}, {}, "[2]"},
      {"Reshape", {"{4,5}", "{3}"}, "", {}, {}, "[3]"},
      {"Reshape", {"{4,5}", "{?}"}, "", {}, {}, "[?]"},
      {"Squeeze", {"{4}"}, "4", {}, {}, "[]"},
      {"ExpandDims", {"?", "0"}, "{?}", {}, {}, "[1]"},
      {"Pack", {"1", "?", "3"}, "{1,?,3}"},
      {"Pack", {"1", ""}, "{1,?}", {}, {"[]", "[]"}},
      {"Pack", {"1", ""}, "", {}, {"[]", "<unknown>"}},
      {"Pack", {"{1}", "{2}"}, ""},
      {"Pack", {"1", "2"}, "", {{"axis", 1}}},
      {"ConcatV2", {"{1,?}", "{3}", "0"}, "{1,?,3}"},
      {"ConcatV2", {"{1,?}", "{3}", "-1"}, "{1,?,3}"},
      {"ConcatV2", {"{1,?}", "{3}", "1"}, ""},
      {"ConcatV2", {"{1,?}", "{3}", "?"}, ""},
      {"ConcatV2", {"1", "{3}", "0"}, ""},
      {"Concat", {"0", "{1}", "{2}"}, "{1,2}"},
      {"Slice", {"{1,?,3}", "{1}", "{-1}"}, "{?,3}"},
      {"Slice", {"{1,?,3}", "{1}", "{1}"}, "{?}"},
      {"Slice", {"{1,?,3}", "{3}", "{0}"}, "{}"},
      {"Slice", {"{1,?,3}", "{4}", "{-1}"}, ""},
      {"Slice", {"{1,?,3}", "{2}", "{2}"}, ""},
      {"Slice", {"{1,?,3}", "{-1}", "{1}"}, ""},
      {"Slice", {"{1,?,3}", "1", "1"}, ""},
      {"StridedSlice", {"{1,2,3}", "{1}", "{2}", "{1}"}, "2", {{"shrink_axis_mask", 1}}},
      {"StridedSlice", {"{1,2,3}", "{-1}", "{0}", "{1}"}, "3", {{"shrink_axis_mask", 1}}},
      {"StridedSlice", {"{1,2,3}", "{3}", "{4}", "{1}"}, "", {{"shrink_axis_mask", 1}}},
      {"StridedSlice", {"{1,2,3}", "{1}", "{2}", "{-1}"}, "", {{"shrink_axis_mask", 1}}},
      {"StridedSlice",
       {"{1,2,3}", "{0}", "{0}", "{-1}"},
       "{3,2,1}",
       {{"begin_mask", 1}, {"end_mask", 1}}},
      {"StridedSlice", {"{1,2,3,4}", "{-3}", "{100}", "{2}"}, "{2,4}"},
      {"StridedSlice", {"{1,2,3}", "{?}", "{2}", "{1}"}, "{1,2}", {{"begin_mask", 1}}},
      {"StridedSlice", {"{1,2,3}", "", "{2}", "{1}"}, "", {{"begin_mask", 1}}},
      {"StridedSlice", {"{1,2,3}", "{0}", "{2}", "{0}"}, ""},
      {"StridedSlice", {"{1,2,3}", "{0,0}", "{2,2}", "{1,1}"}, ""},
      {"StridedSlice", {"{1,2,3}", "{0}", "{2}", "{1}"}, "", {{"new_axis_mask", 1}}},
      {"Gather", {"{5,?,7}", "{2,1}"}, "{7,?}"},
      {"Gather", {"{5,?,7}", "2"}, "7"},
      {"Gather", {"{5,?,7}", "3"}, ""},
      {"Gather", {"{5,?,7}", "-1"}, ""},
      {"GatherV2", {"{5,?,7}", "{2,?}", "0"}, "{7,?}"},
      {"GatherV2", {"{5,?,7}", "2", "1"}, ""},
      {"GatherV2", {"{5,?,7}", "2", "?"}, ""},
      {"GatherV2", {"{5,6,7}", "2", "0"}, "", {{"batch_dims", 1}}},
      {"Prod", {"{2,3,4}", "0"}, "24", {}, {}, "[]"},
      {"Prod", {"{2,3,4}", "{0}"}, "{24}", {}, {}, "[1]"},
      {"Prod", {"{2,?}", "0"}, "?", {}, {}, "[]"},
      {"Prod", {"{2,3}", "1"}, "", {}, {}, "[]"},
      {"Prod", {"{" + most + ",2}", "0"}, "?", {}, {}, "[]"},
      {"Prod", {"{}", "0"}, "1", {}, {}, "[]"},
      {"AddV2", {"{1,?}", "2"}, "{3,?}"},
      {"Add", {"{1,2}", "{3,4}"}, "{4,6}"},
      {"Add", {"{1,2}", "{3,4,5}"}, ""},
      {"Add", {most, "1"}, "?"},
      {"Add", {most, "1"}, "2147483648", {}, {}, "", DT_INT64},
      {"Add", {longest, "1"}, "?", {}, {}, "", DT_INT64},
      {"Sub", {"5", "7"}, "-2"},
      {"Mul", {"{2,3}", "{?,3}"}, "{?,9}"},
      {"Maximum", {"2", "3"}, "3"},
      {"Minimum", {"{2,4}", "3"}, "{2,3}"},
      {"FloorDiv", {"-7", "2"}, "-4"},
      {"FloorDiv", {"7", "0"}, "?"},
      {"FloorDiv", {"-9223372036854775808", "-1"}, "?", {}, {}, "", DT_INT64},
      {"FloorMod", {"-7", "2"}, "1"},
      {"FloorMod", {"-7", "0"}, "?"},
      {"Fill", {"{3}", "?"}, "{?,?,?}"},
      {"Fill", {"{0}", "1"}, "{}"},
      {"Fill", {"{-1}", "1"}, ""},
      {"Fill", {"{5000}", "1"}, ""},
      {"Fill", {"{2,3}", "1"}, ""},
      {"Range", {"1", "8", "3"}, "{1,4,7}"},
      {"Range", {"3", "0", "-1"}, "{3,2,1}"},
      {"Range", {"3", "0", "1"}, ""},
      {"Range", {"0", "3", "0"}, ""},
      {"Range", {"0", longest, "1"}, "", {}, {}, "", DT_INT64},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Apply(c), c.want) << c.op << "(" << absl::StrJoin(c.inputs, ", ") << ")";
  }
}

TEST(PartialValueTest, TensorsComeAndGo) {
  const Tensor ints = Tensor::Vector<int32_t>({1, -2});
  EXPECT_EQ(ToText(PartialValue::FromTensor(ints)), "{1,-2}");
  EXPECT_EQ(PartialValue::FromTensor(ints)->ToTensor(DT_INT32), ints);
  EXPECT_EQ(ToText(PartialValue::FromTensor(Tensor::Scalar<int64_t>(7))), "7");
  EXPECT_EQ(ToText(PartialValue::FromTensor(Tensor::Scalar(7.f))), "");
  EXPECT_FALSE(Parse("{1,?}")->ToTensor(DT_INT32).has_value());
  EXPECT_FALSE(Parse("2147483648")->ToTensor(DT_INT32).has_value());
  EXPECT_EQ(Parse("2147483648")->ToTensor(DT_INT64), Tensor::Scalar<int64_t>(2147483648));
  EXPECT_EQ(ToText(PartialValue::Unknown({2})), "{?,?}");
  EXPECT_EQ(ToText(PartialValue::Unknown({-1})), "");
  EXPECT_EQ(ToText(PartialValue::Unknown({2, 2})), "");
}

}  // namespace
}  // namespace millrace
