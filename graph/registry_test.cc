// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "google/protobuf/text_format.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "graph/testing/op_list.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"

// covers: values: every op's signature is TensorFlow 1.15's; every builder makes the node it says
// covers: graphs: ops registered after the first look-up are seen by later ones; entries never
//   change

namespace millrace {
namespace {

using tensorflow::OpDef;

Status NoShape(InferenceContext*) { return absl::OkStatus(); }

const OpRegistration kGood = OpSpec("RegistryGood")
                                 .Attr("T: {float, int32} = DT_INT32")
                                 .Attr("n: int >= 2 = 3")
                                 .Attr("mode: {'A', 'B'}")
                                 .Input("x: T")
                                 .Shape(NoShape);
const OpRegistration kTwice1 = OpSpec("RegistryTwice").Shape(NoShape);
const OpRegistration kTwice2 = OpSpec("RegistryTwice").Shape(NoShape);
const OpRegistration kBad = OpSpec("RegistryBad").Input("x float").Shape(NoShape);

OpDef Parse(const std::string& text) {
  OpDef def;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &def)) << text;
  return def;
}

void ExpectSpecIs(const OpSpec& spec, const std::string& text) {
  StatusOr<OpEntry> entry = OpSpec(spec).Shape(NoShape).Build();
  ASSERT_TRUE(entry.ok()) << entry.status();
  std::string difference;
  EXPECT_TRUE(OpDefsEqual(entry->def, Parse(text), &difference)) << difference;
}

TEST(OpSpecTest, FixedTypedAndListArgumentsBecomeArgDefs) {
  ExpectSpecIs(OpSpec("Mix")
                   .Input("a: float")
                   .Input("b: T")
                   .Input("c: N * T")
                   .Input("d: N * string")
                   .Input("e: Ts")
                   .Input("f: Ref(T)")
                   .Input("g: Ref(N * T)")
                   .Output("h: resource")
                   .Attr("N: int")
                   .Attr("T: type")
                   .Attr("Ts: list(type) >= 0"),
               R"pb(name: "Mix"
                    input_arg { name: "a" type: DT_FLOAT }
                    input_arg { name: "b" type_attr: "T" }
                    input_arg { name: "c" type_attr: "T" number_attr: "N" }
                    input_arg { name: "d" type: DT_STRING number_attr: "N" }
                    input_arg { name: "e" type_list_attr: "Ts" }
                    input_arg { name: "f" type_attr: "T" is_ref: true }
                    input_arg { name: "g" type_attr: "T" number_attr: "N" is_ref: true }
                    output_arg { name: "h" type: DT_RESOURCE }
                    attr { name: "N" type: "int" has_minimum: true minimum: 1 }
                    attr { name: "T" type: "type" }
                    attr { name: "Ts" type: "list(type)" has_minimum: true minimum: 0 })pb");
}

TEST(OpSpecTest, DefaultsOfEveryKindAreRead) {
  ExpectSpecIs(OpSpec("Defaults")
                   .Attr("s: string = 'it\\'s'")
                   .Attr("i: int = -7")
                   .Attr("f: float = 1e-4")
                   .Attr("b: bool = true")
                   .Attr("t: type = DT_HALF")
                   .Attr("unknown: shape = { unknown_rank: true }")
                   .Attr("scalar: shape = {}")
                   .Attr("matrix: shape = { dim { size: 2 } dim { size: -1 } }")
                   .Attr("tensor: tensor = { dtype: DT_INT32 tensor_shape {} int_val: 5 }")
                   .Attr("func: func = { name: 'F' attr { key: 'k' value { i: 1 } } }")
                   .Attr("ls: list(string) = ['a', \"b\"]")
                   .Attr("li: list(int) >= 1 = [1, 2, 3]")
                   .Attr("lf: list(float) = [0.5, 2]")
                   .Attr("lb: list(bool) = [true, false]")
                   .Attr("lt: list({float, int32}) = [DT_FLOAT]")
                   .Attr("lshape: list(shape) = [{ dim { size: 1 } }, {}]")
                   .Attr("empty: list(int) = []"),
               R"pb(name: "Defaults"
                    attr {
                      name: "s"
                      type: "string"
                      default_value { s: "it's" }
                    }
                    attr {
                      name: "i"
                      type: "int"
                      default_value { i: -7 }
                    }
                    attr {
                      name: "f"
                      type: "float"
                      default_value { f: 0.0001 }
                    }
                    attr {
                      name: "b"
                      type: "bool"
                      default_value { b: true }
                    }
                    attr {
                      name: "t"
                      type: "type"
                      default_value { type: DT_HALF }
                    }
                    attr {
                      name: "unknown"
                      type: "shape"
                      default_value { shape { unknown_rank: true } }
                    }
                    attr {
                      name: "scalar"
                      type: "shape"
                      default_value { shape {} }
                    }
                    attr {
                      name: "matrix"
                      type: "shape"
                      default_value {
                        shape {
                          dim { size: 2 }
                          dim { size: -1 }
                        }
                      }
                    }
                    attr {
                      name: "tensor"
                      type: "tensor"
                      default_value {
                        tensor {
                          dtype: DT_INT32
                          tensor_shape {}
                          int_val: 5
                        }
                      }
                    }
                    attr {
                      name: "func"
                      type: "func"
                      default_value {
                        func {
                          name: "F"
                          attr {
                            key: "k"
                            value { i: 1 }
                          }
                        }
                      }
                    }
                    attr {
                      name: "ls"
                      type: "list(string)"
                      default_value { list { s: "a" s: "b" } }
                    }
                    attr {
                      name: "li"
                      type: "list(int)"
                      has_minimum: true
                      minimum: 1
                      default_value { list { i: 1 i: 2 i: 3 } }
                    }
                    attr {
                      name: "lf"
                      type: "list(float)"
                      default_value { list { f: 0.5 f: 2 } }
                    }
                    attr {
                      name: "lb"
                      type: "list(bool)"
                      default_value { list { b: true b: false } }
                    }
                    attr {
                      name: "lt"
                      type: "list(type)"
                      default_value { list { type: DT_FLOAT } }
                      allowed_values { list { type: DT_FLOAT type: DT_INT32 } }
                    }
                    attr {
                      name: "lshape"
                      type: "list(shape)"
                      default_value {
                        list {
                          shape { dim { size: 1 } }
                          shape {}
                        }
                      }
                    }
                    attr {
                      name: "empty"
                      type: "list(int)"
                      default_value { list {} }
                    })pb");
}

TEST(OpSpecTest, WordsStandForSetsInTensorFlowsOrder) {
  const std::map<std::string, std::string> words = {
      {"numbertype",
       "type: [DT_FLOAT, DT_DOUBLE, DT_INT32, DT_UINT8, DT_INT16, DT_INT8, DT_COMPLEX64, "
       "DT_INT64, "
       "DT_QINT8, DT_QUINT8, DT_QINT32, DT_BFLOAT16, DT_UINT16, DT_COMPLEX128, DT_HALF, "
       "DT_UINT32, "
       "DT_UINT64]"},
      {"realnumbertype",
       "type: [DT_FLOAT, DT_DOUBLE, DT_INT32, DT_UINT8, DT_INT16, DT_INT8, DT_INT64, "
       "DT_BFLOAT16, "
       "DT_UINT16, DT_HALF, DT_UINT32, DT_UINT64]"},
      {"quantizedtype", "type: [DT_QINT8, DT_QUINT8, DT_QINT32, DT_QINT16, DT_QUINT16]"},
      {"{ 'SAME' , \"VALID\" }", "s: ['SAME', 'VALID']"},
      {"{realnumbertype, variant}",
       "type: [DT_FLOAT, DT_DOUBLE, DT_INT32, DT_UINT8, DT_INT16, DT_INT8, DT_INT64, "
       "DT_BFLOAT16, "
       "DT_UINT16, DT_HALF, DT_UINT32, DT_UINT64, DT_VARIANT]"},
  };
  for (const auto& [word, list] : words) {
    const std::string kind = absl::StrContains(word, "SAME") ? "string" : "type";
    ExpectSpecIs(OpSpec("W").Attr(absl::StrCat("A: ", word)),
                 absl::StrCat("name: 'W' attr { name: 'A' type: '", kind,
                              "' allowed_values { list { ", list, " } } }"));
  }
  StatusOr<OpEntry> alias = OpSpec("W").Attr("A: numerictype").Shape(NoShape).Build();
  ASSERT_TRUE(alias.ok());
  EXPECT_EQ(alias->def.attr(0).allowed_values().list().type_size(), 17);
}

TEST(OpSpecTest, BadSpecsNameOpAndPart) {
  struct Case {
    OpSpec spec;
    const char* message;
  };
  const std::vector<Case> cases = {
      {OpSpec("3D"), "Op '3D': name must be letters, digits and '_', got '3D'"},
      {OpSpec("O").Input("x"), "Op 'O': input 'x': must have the form 'name: type'"},
      {OpSpec("O").Input("x: T"), "Op 'O': input 'x: T': 'T' must be a type or an attr of the op"},
      {OpSpec("O").Output("x: N * float"),
       "Op 'O': output 'x: N * float': 'N' must be an attr of type int"},
      {OpSpec("O").Attr("N: float").Input("x: N * float"),
       "Op 'O': input 'x: N * float': 'N' must be an attr of type int"},
      {OpSpec("O").Attr("N: int").Input("x: N"),
       "Op 'O': input 'x: N': attr 'N' must be a type or list(type), got int"},
      {OpSpec("O").Input("x: Ref(float"),
       "Op 'O': input 'x: Ref(float': Ref( must be closed by ')'"},
      {OpSpec("O").Input("x: float y"), "Op 'O': input 'x: float y': must end here, got 'y'"},
      {OpSpec("O").Attr("a"), "Op 'O': attr 'a': must have the form 'name: type'"},
      {OpSpec("O").Attr("a: number"),
       "Op 'O': attr 'a: number': type must be string, int, float, bool, type, shape, "
       "tensor, func "
       "or a set, got 'number'"},
      {OpSpec("O").Attr("a: {float, 'x'}"),
       "Op 'O': attr 'a: {float, 'x'}': a set must not mix types and strings"},
      {OpSpec("O").Attr("a: {}"), "Op 'O': attr 'a: {}': a set must not be empty"},
      {OpSpec("O").Attr("a: {float int32}"),
       "Op 'O': attr 'a: {float int32}': a set must be closed by '}', got 'int32}'"},
      {OpSpec("O").Attr("a: list(int"), "Op 'O': attr 'a: list(int': list( must be closed by ')'"},
      {OpSpec("O").Attr("a: float >= 1"),
       "Op 'O': attr 'a: float >= 1': only an int or a list may have a minimum"},
      {OpSpec("O").Attr("a: int >= x"),
       "Op 'O': attr 'a: int >= x': minimum must be an integer, got 'x'"},
      {OpSpec("O").Attr("a: int >= 2 = 1"),
       "Op 'O': attr 'a: int >= 2 = 1': attr 'a' must be >= 2, got 1"},
      {OpSpec("O").Attr("a: {float} = DT_INT32"),
       "Op 'O': attr 'a: {float} = DT_INT32': attr 'a' must be one of {float}, got int32"},
      {OpSpec("O").Attr("a: {'x', 'y'} = 'z'"),
       "Op 'O': attr 'a: {'x', 'y'} = 'z'': attr 'a' must be one of {'x', 'y'}, got 'z'"},
      {OpSpec("O").Attr("a: list(int) = 1"),
       "Op 'O': attr 'a: list(int) = 1': default of list(int) must be written [a, b], got "
       "'1'"},
      {OpSpec("O").Attr("a: int").Attr("a: int"),
       "Op 'O': attr 'a' must be declared once, got two"},
      {OpSpec("O").Input("a: int32").Input("a: int32"),
       "Op 'O': input 'a' must be declared once, got two"},
  };
  for (const Case& c : cases) {
    StatusOr<OpEntry> entry = OpSpec(c.spec).Shape(NoShape).Build();
    ASSERT_FALSE(entry.ok()) << c.message;
    EXPECT_EQ(entry.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(entry.status().message(), c.message);
  }
  StatusOr<OpEntry> bad_default = OpSpec("O").Attr("a: int = many").Shape(NoShape).Build();
  ASSERT_FALSE(bad_default.ok());
  EXPECT_TRUE(absl::StartsWith(bad_default.status().message(),
                               "Op 'O': attr 'a: int = many': default must be a int, got 'many' ("))
      << bad_default.status();
  EXPECT_EQ(OpSpec("O").Build().status().message(), "Op 'O': must have a shape function");
}

TEST(RegistryTest, LookUpFindsRegisteredOpsOnly) {
  const OpEntry* entry = LookUpOp("RegistryGood");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->def.name(), "RegistryGood");
  EXPECT_EQ(entry->differentiability, OpEntry::Differentiability::kUnknown);
  EXPECT_EQ(LookUpOp("RegistryNone"), nullptr);
  StatusOr<const OpEntry*> none = FindOp("RegistryNone");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StartsWith(none.status().message(),
                               "Op type not registered 'RegistryNone' in binary running on "))
      << none.status();
  EXPECT_TRUE(
      absl::StrContains(FindOp("RegistryGod").status().message(),
                        "; did you mean 'RegistryGood'?; the op family that has it must be linked"))
      << FindOp("RegistryGod").status();
}

TEST(RegistryTest, ErrorsOfRegistrationAreKeptAndReported) {
  EXPECT_FALSE(OpRegistrationStatus().ok());
  EXPECT_EQ(LookUpOp("RegistryTwice"), nullptr);
  EXPECT_EQ(FindOp("RegistryTwice").status().message(),
            "Op 'RegistryTwice': name must be registered once, got two");
  EXPECT_EQ(FindOp("RegistryBad").status().message(),
            "Op 'RegistryBad': input 'x float': must have the form 'name: type'");
}

TEST(RegistryTest, ARegistrationAfterTheFirstLookUpIsSeenByLaterOnes) {
  const OpEntry* const good = LookUpOp("RegistryGood");
  ASSERT_NE(good, nullptr);
  ASSERT_EQ(LookUpOp("RegistryLate"), nullptr);
  const std::vector<const OpEntry*> before = AllOps();
  [[maybe_unused]] const OpRegistration late = OpSpec("RegistryLate").Shape(NoShape);
  const OpEntry* const added = LookUpOp("RegistryLate");
  ASSERT_NE(added, nullptr);
  EXPECT_EQ(*FindOp("RegistryLate"), added);
  EXPECT_EQ(AllOps().size(), before.size() + 1);
  // What was there has neither changed nor moved.
  EXPECT_EQ(LookUpOp("RegistryGood"), good);
  for (const OpEntry* entry : before) EXPECT_EQ(LookUpOp(entry->def.name()), entry);
}

TEST(RegistryTest, ALateSecondRegistrationLeavesTheEntryThatOthersUse) {
  const OpEntry* const good = LookUpOp("RegistryGood");
  [[maybe_unused]] const OpRegistration again =
      OpSpec("RegistryGood").Input("other: float").Shape(NoShape);
  EXPECT_EQ(LookUpOp("RegistryGood"), good);
  EXPECT_EQ(*FindOp("RegistryGood"), good);
  EXPECT_EQ(good->def.input_arg_size(), LookUpOp("RegistryGood")->def.input_arg_size());
  // A late op with a bad spec is reported as an early one is.
  [[maybe_unused]] const OpRegistration bad = OpSpec("RegistryLateBad").Input("x").Shape(NoShape);
  EXPECT_EQ(LookUpOp("RegistryLateBad"), nullptr);
  EXPECT_EQ(FindOp("RegistryLateBad").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RegistryTest, LookUpsTakeNoLock) {
  ASSERT_NE(LookUpOp("RegistryGood"), nullptr);
  const int64_t before = MutexLockCountForTesting();
  for (int i = 0; i < 100; ++i) {
    LookUpOp("RegistryGood");
    LookUpOp("RegistryNone");
    FindOp("RegistryTwice").status().IgnoreError();
  }
  EXPECT_EQ(MutexLockCountForTesting(), before);
}

TEST(RegistryTest, LookUpsAndRegistrationsMayRunAtOnce) {
  const OpEntry* const good = LookUpOp("RegistryGood");
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) {
      if (LookUpOp("RegistryGood") != good) ADD_FAILURE() << "the entry moved";
    }
  });
  for (int i = 0; i < 50; ++i) {
    const std::string name = "RegistryConcurrent" + std::to_string(i);
    [[maybe_unused]] const OpRegistration late = OpSpec(name).Shape(NoShape);
    EXPECT_NE(LookUpOp(name), nullptr);
  }
  done.store(true);
  reader.join();
}

TEST(RegistryTest, AllOpsAreSortedByName) {
  const std::vector<const OpEntry*> all = AllOps();
  ASSERT_FALSE(all.empty());
  for (size_t i = 1; i < all.size(); ++i) EXPECT_LT(all[i - 1]->def.name(), all[i]->def.name());
}

TEST(RegistryTest, DefaultsFillOnlyWhatIsMissing) {
  tensorflow::NodeDef node;
  (*node.mutable_attr())["n"].set_i(9);
  AddDefaultAttrs(LookUpOp("RegistryGood")->def, &node);
  EXPECT_EQ(node.attr().at("n").i(), 9);
  EXPECT_EQ(node.attr().at("T").type(), tensorflow::DT_INT32);
  EXPECT_FALSE(node.attr().contains("mode"));
}

TEST(ValidateAttrValueTest, MessagesSayRuleAndValue) {
  struct Case {
    const char* spec;
    const char* value;
    const char* message;  // "" = legal
  };
  const std::vector<Case> cases = {
      {"a: int >= 1", "i: 0", "attr 'a' must be >= 1, got 0"},
      {"a: int >= 1", "i: 1", ""},
      {"a: int", "f: 1", "attr 'a' must be int, got float"},
      {"a: int", "", "attr 'a' must be int, got no value"},
      {"a: int", "list { i: 1 }", "attr 'a' must be int, got list(int)"},
      {"a: list(type)", "i: 1", "attr 'a' must be list(type), got int"},
      {"a: list(type)", "list { i: 1 }", "attr 'a' must be list(type), got list(int)"},
      {"a: list(type)", "list { type: DT_FLOAT i: 1 }",
       "attr 'a' must be list(type), got list of several types"},
      {"a: list(type) >= 1", "list { }", "attr 'a' must have at least 1 elements, got 0"},
      {"a: list(type)", "list { type: DT_INVALID }", "attr 'a' must be a type, got DT_INVALID"},
      {"a: type", "type: DT_INVALID", "attr 'a' must be a type, got DT_INVALID"},
      {"a: type", "type: 77", "attr 'a' must be a known type, got number 77"},
      {"a: type", "type: DT_FLOAT_REF", "attr 'a' must not be a reference type, got float_ref"},
      {"a: {float, half}", "type: DT_INT32", "attr 'a' must be one of {float, half}, got int32"},
      {"a: {'SAME', 'VALID'}", "s: 'FULL'",
       "attr 'a' must be one of {'SAME', 'VALID'}, got 'FULL'"},
      {"a: func", "func { name: 'f' }", ""},
      {"a: list(float)", "list { }", ""},
  };
  for (const Case& c : cases) {
    StatusOr<OpEntry> entry = OpSpec("O").Attr(c.spec).Shape(NoShape).Build();
    ASSERT_TRUE(entry.ok()) << entry.status();
    tensorflow::AttrValue value;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(c.value, &value)) << c.value;
    EXPECT_EQ(ValidateAttrValue(entry->def.attr(0), value).message(), c.message)
        << c.spec << " <- " << c.value;
  }
}

TEST(OpDefsEqualTest, DocumentationDoesNotCountButEverythingElseDoes) {
  const OpDef a = Parse(
      "name: 'A' input_arg { name: 'x' type: DT_FLOAT description: 'd' } "
      "summary: 's' deprecation { version: 8 explanation: 'old' }");
  OpDef b = a;
  b.clear_summary();
  b.mutable_input_arg(0)->clear_description();
  b.mutable_deprecation()->set_explanation("other");
  EXPECT_TRUE(OpDefsEqual(a, b, nullptr));
  b.mutable_input_arg(0)->set_type(tensorflow::DT_INT32);
  std::string difference;
  EXPECT_FALSE(OpDefsEqual(a, b, &difference));
  EXPECT_EQ(difference, "modified: input_arg[0].type: DT_FLOAT -> DT_INT32\n");
}

// TensorFlow's own registrations of these ops, against what TensorFlow printed of them.
TEST(TensorFlowOpsTest, SpecsGiveTensorFlowsOpDefs) {
  const tensorflow::OpList list = TensorFlowOps();
  if (list.op().empty()) GTEST_SKIP() << "MILLRACE_SHARED has no ops/ops.pbtxt";
  const std::vector<OpSpec> specs = {
      OpSpec("AddN")
          .Input("inputs: N * T")
          .Output("sum: T")
          .Attr("N: int >= 1")
          .Attr("T: {numbertype, variant}")
          .Commutative()
          .Aggregate(),
      OpSpec("MatMul")
          .Input("a: T")
          .Input("b: T")
          .Output("product: T")
          .Attr("transpose_a: bool = false")
          .Attr("transpose_b: bool = false")
          .Attr("T: {bfloat16, half, float, double, int32, int64, complex64, complex128}"),
      OpSpec("Less").Input("x: T").Input("y: T").Output("z: bool").Attr("T: realnumbertype"),
      OpSpec("Max")
          .Input("input: T")
          .Input("reduction_indices: Tidx")
          .Output("output: T")
          .Attr("keep_dims: bool = false")
          .Attr("T: numbertype")
          .Attr("Tidx: {int32, int64} = DT_INT32"),
      OpSpec("Placeholder")
          .Output("output: dtype")
          .Attr("dtype: type")
          .Attr("shape: shape = { unknown_rank: true }"),
      OpSpec("VariableV2")
          .Output("ref: Ref(dtype)")
          .Attr("shape: shape")
          .Attr("dtype: type")
          .Attr("container: string = ''")
          .Attr("shared_name: string = ''")
          .Stateful(),
      OpSpec("Assign")
          .Input("ref: Ref(T)")
          .Input("value: T")
          .Output("output_ref: Ref(T)")
          .Attr("T: type")
          .Attr("validate_shape: bool = true")
          .Attr("use_locking: bool = true")
          .AllowsUninitializedInput(),
      OpSpec("RefMerge")
          .Input("inputs: Ref(N * T)")
          .Output("output: Ref(T)")
          .Output("value_index: int32")
          .Attr("T: type")
          .Attr("N: int >= 1"),
      OpSpec("IdentityN").Input("input: T").Output("output: T").Attr("T: list(type)"),
      OpSpec("FIFOQueueV2")
          .Output("handle: resource")
          .Attr("component_types: list(type) >= 1")
          .Attr("shapes: list(shape) >= 0 = []")
          .Attr("capacity: int = -1")
          .Attr("container: string = ''")
          .Attr("shared_name: string = ''")
          .Stateful(),
      OpSpec("Conv2D")
          .Input("input: T")
          .Input("filter: T")
          .Output("output: T")
          .Attr("T: {half, bfloat16, float, double}")
          .Attr("strides: list(int)")
          .Attr("use_cudnn_on_gpu: bool = true")
          .Attr("padding: {'SAME', 'VALID', 'EXPLICIT'}")
          .Attr("explicit_paddings: list(int) = []")
          .Attr("data_format: { 'NHWC', 'NCHW' } = 'NHWC'")
          .Attr("dilations: list(int) = [1, 1, 1, 1]"),
      OpSpec("Dequantize")
          .Input("input: T")
          .Input("min_range: float")
          .Input("max_range: float")
          .Output("output: float")
          .Attr("T: quantizedtype")
          .Attr("mode: {'MIN_COMBINED', 'MIN_FIRST', 'SCALED'} = 'MIN_COMBINED'"),
      OpSpec("StatefulPartitionedCall")
          .Input("args: Tin")
          .Output("output: Tout")
          .Attr("Tin: list(type) >= 0")
          .Attr("Tout: list(type) >= 0")
          .Attr("f: func")
          .Attr("config: string = ''")
          .Attr("config_proto: string = ''")
          .Attr("executor_type: string = ''")
          .Stateful(),
  };
  std::map<std::string, const OpDef*> by_name;
  for (const OpDef& def : list.op()) by_name[def.name()] = &def;
  for (const OpSpec& spec : specs) {
    StatusOr<OpEntry> entry = OpSpec(spec).Shape(NoShape).Build();
    ASSERT_TRUE(entry.ok()) << entry.status();
    ASSERT_TRUE(by_name.count(spec.name())) << spec.name();
    std::string difference;
    EXPECT_TRUE(OpDefsEqual(*by_name[spec.name()], entry->def, &difference)) << spec.name() << "\n"
                                                                             << difference;
  }
}

TEST(TensorFlowOpsTest, EveryOpDefCanBeWrittenAsASpecAndReadBack) {
  const tensorflow::OpList list = TensorFlowOps();
  if (list.op().empty()) GTEST_SKIP() << "MILLRACE_SHARED has no ops/ops.pbtxt";
  ASSERT_GT(list.op_size(), 1200);
  for (const OpDef& def : list.op()) {
    StatusOr<OpEntry> entry = SpecOf(def).Shape(NoShape).Build();
    ASSERT_TRUE(entry.ok()) << entry.status();
    std::string difference;
    EXPECT_TRUE(OpDefsEqual(def, entry->def, &difference)) << def.name() << "\n" << difference;
  }
}

}  // namespace
}  // namespace millrace
