// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel.h"

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/shape_inference.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "runtime/constant_evaluator.h"
#include "runtime/device.h"
#include "runtime/step_memory.h"
#include "runtime/testing/op_test.h"

// covers: graphs: a library loaded later adds ops and kernels; entries never change
// covers: steps: a dropped done callback fails its node, a second call is ignored
// covers: steps: the memory of a step is counted per node; a limit names the largest holders

namespace millrace {
namespace {

// --- Ops that exist for these tests only -------------------------------------------------------

// y = 2 x + bias, of the shape of x; in place when it may.
class DoubleKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(bias_, c->GetAttr<int64_t>("bias"));
    if (bias_ < 0) {
      return absl::InvalidArgumentError(absl::StrCat("bias must be >= 0, got ", bias_));
    }
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(Tensor * y,
                        ctx->ForwardInputOrAllocateOutput({0}, 0, ctx->input(0).shape()));
    const absl::Span<const float> in = ctx->input(0).flat<float>();
    const absl::Span<float> out = y->mutable_raw<float>();
    for (size_t i = 0; i < in.size(); ++i) out[i] = 2 * in[i] + static_cast<float>(bias_);
    return absl::OkStatus();
  }

 private:
  int64_t bias_ = 0;
};

Status DoubleGradient(GradientContext* c) {
  c->set_input_grad(0, NodeBuilder(c->scope(), "_TestDouble")
                           .Input(c->dense_grad())
                           .Attr("bias", int64_t{0})
                           .Finish()
                           .output(0));
  return absl::OkStatus();
}

// The gradient of y = x; wrong by a factor of two for y = 2 x.
Status GradientOfACopy(GradientContext* c) {
  c->set_input_grad(0, c->dense_grad());
  return absl::OkStatus();
}

OpSpec UnarySpec(absl::string_view name) {
  return OpSpec(name)
      .Input("x: T")
      .Output("y: T")
      .Attr("T: {float, double, string}")
      .Attr("bias: int = 0");
}

const OpRegistration kDouble =
    UnarySpec("_TestDouble").Shape(UnchangedShape).Gradient(DoubleGradient);
const KernelRegistration kDoubleKernel("_TestDouble", KernelFor<DoubleKernel>().Type<float>("T"));

const OpRegistration kWrong =
    UnarySpec("_TestWrongGradient").Shape(UnchangedShape).Gradient(GradientOfACopy);
const KernelRegistration kWrongKernel("_TestWrongGradient",
                                      KernelFor<DoubleKernel>().Type<float>("T"));

// A shape function that promises a scalar.
const OpRegistration kLiar = UnarySpec("_TestLiar").Shape(ScalarShape).NotDifferentiable();
const KernelRegistration kLiarKernel("_TestLiar", KernelFor<DoubleKernel>().Type<float>("T"));

// Writes into its input without asking.
class ScribbleKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    Tensor x = ctx->TakeInput(0);
    x.mutable_raw<float>()[0] += 1;
    ctx->set_output(0, std::move(x));
    return absl::OkStatus();
  }
};
const OpRegistration kScribble =
    UnarySpec("_TestScribble").Shape(UnchangedShape).NotDifferentiable();
const KernelRegistration kScribbleKernel("_TestScribble", KernelFor<ScribbleKernel>());

const OpRegistration kTwice = UnarySpec("_TestTwice").Shape(UnchangedShape).NotDifferentiable();
const KernelRegistration kTwiceKernel1("_TestTwice", KernelFor<PassInputKernel>());
const KernelRegistration kTwiceKernel2("_TestTwice", KernelFor<PassInputKernel>().Type<float>("T"));

// What a kernel can ask of its context; the input names the question.
class AskKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::string what, ctx->ScalarInput<std::string>(0, "what"));
    if (what == "ref") {
      MR_RETURN_IF_ERROR(ctx->ref_input(1).status());
    } else if (what == "resource") {
      MR_ASSIGN_OR_RETURN(const auto variable, ctx->ResourceInput<VariableStorage>(1));
      MR_ASSIGN_OR_RETURN(Tensor value, variable->Read());
      ctx->set_output(0, std::move(value));
    } else if (what == "huge") {
      MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({int64_t{1} << 39}));
      MR_RETURN_IF_ERROR(ctx->AllocateOutput(0, shape).status());
    } else if (what == "throw") {
      throw std::bad_alloc();
    }
    return absl::OkStatus();
  }
};
const OpRegistration kAsk = OpSpec("_TestAsk")
                                .Input("what: string")
                                .Input("x: T")
                                .Output("y: int64")
                                .Attr("T: type")
                                .Stateful()
                                .Shape(ValueDependentShape)
                                .NotDifferentiable();
const KernelRegistration kAskKernel("_TestAsk", KernelFor<AskKernel>());

// Answers from a thread of the I/O pool.
class LaterKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    ctx->io_pool()->Schedule([ctx, done = std::move(done)]() mutable {
      ctx->set_output(0, ctx->input(0));
      done(absl::OkStatus());
    });
  }
};
const OpRegistration kLater = UnarySpec("_TestLater").Shape(UnchangedShape).NotDifferentiable();
const KernelRegistration kLaterKernel("_TestLater", KernelFor<LaterKernel>());

// y = the sum of scalars; a list argument.
class SumKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    float sum = 0;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (!ctx->has_input(i)) continue;
      MR_ASSIGN_OR_RETURN(const float x, ctx->ScalarInput<float>(i, "x"));
      sum += x;
    }
    ctx->set_output(0, Tensor::Scalar<float>(sum));
    return absl::OkStatus();
  }
};
Status SumShape(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
  return ScalarShape(c);
}
const OpRegistration kSum = OpSpec("_TestSum")
                                .Input("xs: N * T")
                                .Output("y: T")
                                .Attr("N: int >= 1")
                                .Attr("T: {double, float}")
                                .Attr("mode: {'ALL', 'SOME'} = 'ALL'")
                                .Shape(SumShape)
                                .NotDifferentiable();
const KernelRegistration kSumKernel("_TestSum", KernelFor<SumKernel>().Type<float>("T"));

// Reads a variable; its gradient is that of the value.
class ReadKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto variable, ctx->ResourceInput<VariableStorage>(0));
    MR_ASSIGN_OR_RETURN(Tensor value, variable->Read());
    ctx->set_output(0, std::move(value));
    return absl::OkStatus();
  }
};
Status ReadShape(InferenceContext* c) {
  c->set_output(0, c->input_handle(0) ? c->input_handle(0)->shape : PartialShape::Unknown());
  return absl::OkStatus();
}
const OpRegistration kRead = OpSpec("_TestRead")
                                 .Input("handle: resource")
                                 .Output("value: float")
                                 .Stateful()
                                 .Shape(ReadShape)
                                 .Gradient(GradientOfACopy);
const KernelRegistration kReadKernel("_TestRead", KernelFor<ReadKernel>());

const OpRegistration kAddOne = OpSpec("_TestRefAddOne")
                                   .Input("ref: Ref(float)")
                                   .Output("out: Ref(float)")
                                   .Shape(UnchangedShape)
                                   .NotDifferentiable();
class RefAddOneKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto variable, ctx->ref_input(0));
    VariableStorage* const raw = variable.get();
    MR_RETURN_IF_ERROR(VariableStorage::UpdateDense(
        {raw}, [](absl::Span<const Tensor>) { return absl::OkStatus(); },
        [](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) {
          const absl::Span<const float> in = old[0].flat<float>();
          const absl::Span<float> out = fresh[0].mutable_raw<float>();
          for (size_t i = 0; i < in.size(); ++i) out[i] = in[i] + 1;
          return absl::OkStatus();
        }));
    ctx->set_output_ref(0, variable);
    return absl::OkStatus();
  }
};
const KernelRegistration kAddOneKernel("_TestRefAddOne", KernelFor<RefAddOneKernel>());

// --- Registry ----------------------------------------------------------------------------------

TEST(KernelRegistryTest, MissingKernelListsWhatIsRegistered) {
  ExpectOpError(OpCall("_TestDouble").Input(TensorOf<double>({1}, {1})),
                absl::StatusCode::kUnimplemented,
                "No kernel for op '_TestDouble' on device type 'CPU' with attrs {T=");
  ExpectOpError(OpCall("_TestDouble").Input(TensorOf<double>({1}, {1})),
                absl::StatusCode::kUnimplemented, "; registered: CPU [T in {float}]");
}

TEST(KernelRegistryTest, OpWithoutAnyKernelSaysSo) {
  tensorflow::NodeDef node;
  node.set_op("_NoSuchOp");
  EXPECT_FALSE(HasKernel(node, "CPU"));
  EXPECT_FALSE(HasAnyKernel("_NoSuchOp"));
  EXPECT_TRUE(HasAnyKernel("_TestDouble"));
  Device device;
  device.type = "CPU";
  tensorflow::OpDef op;
  KernelConstruction construction(&node, &op, &device, {}, {}, 0);
  EXPECT_STATUS(MakeKernel(&construction).status(), absl::StatusCode::kUnimplemented,
                "registered: <none>");
}

TEST(KernelRegistryTest, TypeAndDeviceMustFit) {
  tensorflow::NodeDef node;
  node.set_op("_TestDouble");
  SetAttr(DT_FLOAT, &(*node.mutable_attr())["T"]);
  EXPECT_TRUE(HasKernel(node, "CPU"));
  EXPECT_FALSE(HasKernel(node, "GPU"));
  SetAttr(DT_STRING, &(*node.mutable_attr())["T"]);
  EXPECT_FALSE(HasKernel(node, "CPU"));
  node.mutable_attr()->clear();
  EXPECT_FALSE(HasKernel(node, "CPU"));
}

TEST(KernelRegistryTest, TwoKernelsThatFitAreAnError) {
  ExpectOpError(OpCall("_TestTwice").Input(TensorOf<float>({1}, {1})), absl::StatusCode::kInternal,
                "must have one kernel per type");
  EXPECT_OK(RunOp(OpCall("_TestTwice").Input(TensorOf<double>({1}, {1}))));
}

TEST(KernelRegistryTest, LookUpsSeeWhatALibraryRegistersLater) {
  EXPECT_FALSE(HasAnyKernel("_TestLoadedLater"));
  [[maybe_unused]] const KernelRegistration later("_TestLoadedLater", KernelFor<PassInputKernel>());
  EXPECT_TRUE(HasAnyKernel("_TestLoadedLater"));
  tensorflow::NodeDef node;
  node.set_op("_TestLoadedLater");
  Device device;
  device.type = "CPU";
  tensorflow::OpDef op;
  KernelConstruction construction(&node, &op, &device, {}, {}, 0);
  EXPECT_OK(MakeKernel(&construction).status());
  EXPECT_TRUE(HasAnyKernel("_TestDouble"));  // entries stay
}

TEST(KernelRegistryTest, ErrorOfInitIsTheErrorOfMakeKernel) {
  ExpectOpError(OpCall("_TestDouble").Input(TensorOf<float>({1}, {1})).Attr("bias", int64_t{-3}),
                absl::StatusCode::kInvalidArgument, "bias must be >= 0, got -3");
}

// --- DoneCallback ------------------------------------------------------------------------------

TEST(DoneCallbackTest, PassesTheFirstStatusOnAndIgnoresTheSecond) {
  std::vector<Status> got;
  DoneCallback done = [&](Status status) { got.push_back(std::move(status)); };
  EXPECT_TRUE(done);
  done(absl::AbortedError("first"));
  EXPECT_FALSE(done);
  done(absl::OkStatus());
  ASSERT_EQ(got.size(), 1u);
  EXPECT_STATUS(got[0], absl::StatusCode::kAborted, "first");
}

TEST(DoneCallbackTest, DroppingItFails) {
  std::vector<Status> got;
  {
    const DoneCallback dropped = [&](Status status) { got.push_back(std::move(status)); };
  }
  ASSERT_EQ(got.size(), 1u);
  EXPECT_STATUS(got[0], absl::StatusCode::kInternal, "dropped its done callback");
  EXPECT_TRUE(DoneCallback::WasDropped(got[0]));
}

TEST(DoneCallbackTest, MovingHandsTheDutyOn) {
  int calls = 0;
  {
    DoneCallback first = [&](const Status&) { ++calls; };
    DoneCallback second = std::move(first);
    DoneCallback third;
    third = std::move(second);
    third(absl::OkStatus());
  }
  EXPECT_EQ(calls, 1);
}

// --- StepMemory --------------------------------------------------------------------------------

TEST(StepMemoryTest, CountsUntilTheLastTensorIsGone) {
  const auto memory = StepMemory::Make(0);
  ASSERT_OK_AND_ASSIGN(Tensor a, memory->Allocate(DT_FLOAT, ShapeOf({256}), "a"));
  const int64_t one = memory->bytes_in_use();
  EXPECT_GE(one, 1024);
  ASSERT_OK_AND_ASSIGN(Tensor b, memory->Allocate(DT_FLOAT, ShapeOf({256}), "b"));
  EXPECT_EQ(memory->bytes_in_use(), 2 * one);
  Tensor shared = a;
  a = Tensor();
  EXPECT_EQ(memory->bytes_in_use(), 2 * one);
  shared = Tensor();
  EXPECT_EQ(memory->bytes_in_use(), one);
  EXPECT_EQ(memory->peak_bytes(), 2 * one);
  EXPECT_EQ(memory->total_bytes(), 2 * one);
}

TEST(StepMemoryTest, NamesTheLargestHoldersAtTheLimit) {
  OpTestDevice device;
  device.mutable_step()->memory = StepMemory::Make(4096);
  const DType type = DT_FLOAT;
  EdgeValue out[1];
  const auto allocate = [&](const std::string& node, int64_t elements) {
    const KernelFrame frame{.step = &device.step(),
                            .node_name = &node,
                            .outputs = out,
                            .output_types = &type,
                            .num_outputs = 1};
    KernelContext context(&frame);
    return context.AllocateTemp(DT_FLOAT, ShapeOf({elements}));
  };
  ASSERT_OK_AND_ASSIGN(Tensor small, allocate("small", 16));
  ASSERT_OK_AND_ASSIGN(Tensor large, allocate("large", 512));
  const Status full = allocate("last", 512).status();
  EXPECT_STATUS(full, absl::StatusCode::kResourceExhausted,
                "step memory must be at most 4096 bytes");
  EXPECT_STATUS(full, absl::StatusCode::kResourceExhausted, "held by 'large' (2");
  large = Tensor();
  EXPECT_OK(allocate("last", 512));
}

// A buffer is larger than its elements: the limit decides, not what the elements would have needed.
TEST(StepMemoryTest, NamesHoldersAlsoWhereTheElementsAloneWouldFit) {
  const auto memory = StepMemory::Make(1000 * 4 + 8);
  const Status status = memory->Allocate(DT_FLOAT, ShapeOf({1000}), "a").status();
  EXPECT_STATUS(status, absl::StatusCode::kResourceExhausted, "step memory must be at most 4008");
  EXPECT_TRUE(StepMemory::IsOverLimit(status));
}

TEST(StepMemoryTest, MemoryOutlivesItsStep) {
  Tensor kept;
  {
    auto memory = StepMemory::Make(0);
    ASSERT_OK_AND_ASSIGN(kept, memory->Allocate(DT_FLOAT, ShapeOf({4}), "a"));
  }
  kept.mutable_raw<float>()[3] = 1;  // a sanitizer would see memory that is gone
  EXPECT_EQ(kept.flat<float>()[3], 1);
}

// --- KernelContext -----------------------------------------------------------------------------

// Runs _TestDouble on one input that the caller may still hold.
Tensor RunDouble(Tensor input) {
  OpTestDevice device;
  tensorflow::NodeDef node;
  node.set_op("_TestDouble");
  SetAttr(DT_FLOAT, &(*node.mutable_attr())["T"]);
  SetAttr(int64_t{0}, &(*node.mutable_attr())["bias"]);
  const std::vector<DType> types = {DT_FLOAT};
  KernelConstruction construction(&node, &LookUpOp("_TestDouble")->def, device.device(), types,
                                  types, kGraphVersion);
  StatusOr<std::unique_ptr<Kernel>> kernel = MakeKernel(&construction);
  EXPECT_OK(kernel);
  EdgeValue in[1] = {std::move(input)};
  EdgeValue out[1];
  const std::string node_name = "n";
  const KernelFrame frame{.step = &device.step(),
                          .node_name = &node_name,
                          .inputs = in,
                          .outputs = out,
                          .output_types = types.data(),
                          .num_inputs = 1,
                          .num_outputs = 1};
  KernelContext context(&frame);
  EXPECT_OK((*kernel)->Compute(&context));
  return out[0];
}

TEST(KernelContextTest, OutputTakesTheMemoryOfAnInputNobodyElseUses) {
  Tensor x = TensorOf<float>({2}, {1, 2});
  const void* const memory = x.raw_data();
  const Tensor y = RunDouble(std::move(x));
  EXPECT_EQ(y.raw_data(), memory);
  ExpectTensorEqual(y, TensorOf<float>({2}, {2, 4}));
}

TEST(KernelContextTest, SharedInputIsNotOverwritten) {
  const Tensor x = TensorOf<float>({2}, {1, 2});
  const Tensor y = RunDouble(x);
  EXPECT_NE(y.raw_data(), x.raw_data());
  ExpectTensorEqual(x, TensorOf<float>({2}, {1, 2}));
  ExpectTensorEqual(y, TensorOf<float>({2}, {2, 4}));
}

// Forwarding looks at memory, sharing, element count and size.
TEST(KernelContextTest, ForwardingRules) {
  struct Case {
    const char* what;
    Tensor input;
    DType output;
    std::vector<int64_t> shape;
    bool forwards;
  };
  std::vector<Case> cases;
  cases.push_back(
      {"same type", TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6}), DT_FLOAT, {2, 3}, true});
  cases.push_back(
      {"other shape", TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6}), DT_FLOAT, {6}, true});
  cases.push_back({"same size", TensorOf<float>({2}, {1, 2}), DT_INT32, {2}, true});
  cases.push_back({"other size", TensorOf<float>({2}, {1, 2}), DT_DOUBLE, {2}, false});
  cases.push_back({"fewer elements", TensorOf<float>({2}, {1, 2}), DT_FLOAT, {1}, false});
  cases.push_back({"empty", TensorOf<float>({0}, {}), DT_FLOAT, {0}, false});
  cases.push_back({"strings", TensorOf<std::string>({1}, {"a"}), DT_STRING, {1}, true});
  cases.push_back({"string to number", TensorOf<std::string>({1}, {"a"}), DT_INT64, {1}, false});
  OpTestDevice device;
  for (Case& c : cases) {
    SCOPED_TRACE(c.what);
    const void* const memory = c.input.raw_data();
    EdgeValue in[1] = {std::move(c.input)};
    EdgeValue out[1];
    const std::string node_name = "n";
    const KernelFrame frame{.step = &device.step(),
                            .node_name = &node_name,
                            .inputs = in,
                            .outputs = out,
                            .output_types = &c.output,
                            .num_inputs = 1,
                            .num_outputs = 1};
    KernelContext context(&frame);
    ASSERT_OK_AND_ASSIGN(const Shape shape, Shape::Make(c.shape));
    ASSERT_OK_AND_ASSIGN(Tensor * y, context.ForwardInputOrAllocateOutput({0}, 0, shape));
    EXPECT_EQ(y->dtype(), c.output);
    EXPECT_EQ(y->shape(), shape);
    EXPECT_TRUE(out[0].has_value());
    EXPECT_EQ(y->raw_data() == memory && memory != nullptr, c.forwards);
  }
}

TEST(KernelContextTest, VariableValueIsNeverForwarded) {
  const std::shared_ptr<VariableStorage> variable =
      std::make_shared<VariableStorage>("v", DT_FLOAT, PartialShape());
  OpTestDevice device;
  EdgeValue in[1] = {Tensor::Reference(DT_FLOAT_REF, variable)};
  EdgeValue out[1];
  const DType type = DT_FLOAT;
  const std::string node_name = "n";
  const KernelFrame frame{.step = &device.step(),
                          .node_name = &node_name,
                          .inputs = in,
                          .outputs = out,
                          .output_types = &type,
                          .num_inputs = 1,
                          .num_outputs = 1};
  KernelContext context(&frame);
  ASSERT_OK_AND_ASSIGN(Tensor * y, context.ForwardInputOrAllocateOutput({0}, 0, ShapeOf({2})));
  EXPECT_TRUE(in[0].is_reference());
  EXPECT_FALSE(y->SharesBufferWith(in[0]));
}

TEST(KernelContextTest, InputsOfAnotherKindAreRefused) {
  const struct {
    Tensor what;
    Tensor x;
    const char* text;
  } bad[] = {
      {TensorOf<std::string>({1}, {"x"}), TensorOf<float>({}, {7}),
       "what must be a scalar, got shape [1]"},
      {Tensor::Scalar("ref"), TensorOf<float>({}, {7}),
       "input 1 must be a reference to a variable, got a float tensor"},
      {Tensor::Scalar("resource"), TensorOf<float>({}, {7}),
       "input 1 must be one resource handle, got float of shape []"},
  };
  for (const auto& c : bad) {
    ExpectOpError(OpCall("_TestAsk").Input(c.what).Input(c.x), absl::StatusCode::kInvalidArgument,
                  c.text);
  }
}

TEST(KernelContextTest, AllocationErrorNamesTheBytes) {
  ExpectOpError(OpCall("_TestAsk").Input(Tensor::Scalar("huge")).Input(TensorOf<float>({}, {7})),
                absl::StatusCode::kResourceExhausted, "(4398046511104 bytes)");
}

TEST(KernelContextTest, HandleInputReachesTheResource) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("v", TensorOf<int64_t>({2}, {3, 4}));
  ExpectTensorEqual(
      RunOp1(OpCall("_TestAsk").Input(Tensor::Scalar("resource")).Input(handle).On(&device)),
      TensorOf<int64_t>({2}, {3, 4}));
  OpTestDevice other;  // same name, other resources: only the handle's own pointer leads there
  Tensor travelled = *handle.Clone();
  travelled.mutable_raw<ResourceHandle>()[0].resource = nullptr;
  ExpectOpError(OpCall("_TestAsk").Input(Tensor::Scalar("resource")).Input(travelled).On(&other),
                absl::StatusCode::kNotFound, "Resource localhost/v/Var does not exist.");
  ExpectTensorEqual(
      RunOp1(OpCall("_TestAsk").Input(Tensor::Scalar("resource")).Input(travelled).On(&device)),
      TensorOf<int64_t>({2}, {3, 4}));
}

// --- The test kit itself -----------------------------------------------------------------------

TEST(OpTestTest, AsynchronousKernelIsWaitedFor) {
  ExpectTensorEqual(RunOp1(OpCall("_TestLater").Input(TensorOf<float>({1}, {3}))),
                    TensorOf<float>({1}, {3}));
}

TEST(OpTestTest, ExceptionOfAKernelIsAStatus) {
  ExpectOpError(OpCall("_TestAsk").Input(Tensor::Scalar("throw")).Input(TensorOf<float>({}, {7})),
                absl::StatusCode::kResourceExhausted, "out of memory");
}

TEST(OpTestTest, ReferenceInputAndOutput) {
  const auto variable = TestVariable("v", TensorOf<float>({2}, {1, 2}));
  ExpectTensorEqual(RunOp1(OpCall("_TestRefAddOne").InputRef(variable)),
                    TensorOf<float>({2}, {2, 3}));
  ExpectOpError(OpCall("_TestRefAddOne")
                    .InputRef(std::make_shared<VariableStorage>("empty", DT_FLOAT, PartialShape())),
                absl::StatusCode::kFailedPrecondition,
                "Attempting to use uninitialized value empty");
}

TEST(OpTestTest, ShapeFunctionThatContradictsTheKernelFails) {
  EXPECT_NONFATAL_FAILURE(RunOp1(OpCall("_TestLiar").Input(TensorOf<float>({2}, {1, 2}))),
                          "inferred [], knowing shapes and constants of inputs [2], got [2]");
}

TEST(OpTestTest, KernelThatChangesASharedInputFails) {
  EXPECT_NONFATAL_FAILURE(RunOp1(OpCall("_TestScribble").Input(TensorOf<float>({2}, {1, 2}))),
                          "changed its input 0");
}

TEST(OpTestTest, MissingOutputFails) {
  EXPECT_NONFATAL_FAILURE(
      RunOp1(OpCall("_TestAsk").Input(Tensor::Scalar("nothing")).Input(TensorOf<float>({}, {7}))),
      "Missing output 0");
}

TEST(OpTestTest, ShapesAsText) {
  EXPECT_SHAPE("_TestDouble", {}, {"[2,?]"}, "[2,?]");
  EXPECT_SHAPE("_TestDouble", {{"T", DT_DOUBLE}}, {"<unknown>"}, "<unknown>");
  EXPECT_SHAPE("_TestAsk", {{"T", DT_INT32}}, {"[]", TensorOf<int32_t>({1}, {1})}, "<unknown>");
  EXPECT_SHAPE("_TestSum", {}, {"[]", "<unknown>", "[]"}, "[]");
  EXPECT_SHAPE("_TestSum", {{"N", 2}, {"mode", "SOME"}}, {"[]", "[]"}, "[]");
  EXPECT_SHAPE("_TestRead", {}, {{DT_FLOAT, "[2,?]"}}, "[2,?]");
  EXPECT_SHAPE_ERROR("_TestSum", {}, {"[]", "[2]"}, "rank 0");
  EXPECT_NONFATAL_FAILURE(EXPECT_SHAPE("_TestDouble", {}, {"[2]"}, "[3]"), "[2]");
  EXPECT_FATAL_FAILURE(EXPECT_SHAPE("_TestDouble", {{"no_attr", 1}}, {"[2]"}, "[2]"),
                       "has no attr no_attr");
}

TEST(OpTestTest, ListArgumentsAndDeadInputs) {
  const Tensor one = Tensor::Scalar<float>(1);
  const Tensor two = Tensor::Scalar<float>(2);
  ExpectTensorEqual(RunOp1(OpCall("_TestSum").Inputs({one, two, two}).Attr("mode", "SOME")),
                    Tensor::Scalar<float>(5));
  ExpectTensorEqual(RunOp1(OpCall("_TestSum").Inputs({OpInput::Dead(DT_FLOAT), two})),
                    Tensor::Scalar<float>(2));
  ExpectOpError(OpCall("_TestSum").Inputs({one}).Attr("mode", "NONE"),
                absl::StatusCode::kInvalidArgument, "mode");
}

TEST(OpTestTest, GradientsAreComparedWithFiniteDifferences) {
  const auto build = [](absl::string_view op) {
    return BuildOutput([op](const Scope& scope, const std::vector<Output>& x) {
      return NodeBuilder(scope, op).Input(x[0]).Attr("bias", int64_t{1}).Finish().output(0);
    });
  };
  const std::vector<Tensor> inputs = {TensorOf<float>({2, 1}, {0.5f, -2})};
  ExpectGradientsMatch(build("_TestDouble"), inputs);
  ::testing::TestPartResultArray failures;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    ExpectGradientsMatch(build("_TestWrongGradient"), inputs);
  }
  EXPECT_EQ(failures.size(), 4);  // two elements, with known and with unknown shapes
}

TEST(OpTestTest, GradientWithRespectToAVariableIsCheckedByMovingIt) {
  OpTestDevice device;
  const Tensor start = TensorOf<float>({3}, {0.5f, -2, 1});
  GradientCheckOptions options;
  options.device = &device;
  ExpectGradientsMatch(
      [](const Scope& scope, const std::vector<Output>& x) {
        const Output value = NodeBuilder(scope, "_TestRead").Input(x[0]).Finish().output(0);
        return NodeBuilder(scope, "_TestDouble").Input(value).Finish().output(0);
      },
      {device.VariableHandle("v", start)}, options);
  ASSERT_OK_AND_ASSIGN(const auto variable, device.resources()->Lookup<VariableStorage>("", "v"));
  ExpectTensorEqual(*variable->Read(), start);
}

TEST(OpTestTest, GraphIsEvaluatedInTopologicalOrder) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT);
  const Output y = NodeBuilder(scope, "_TestDouble").Input(x).Finish().output(0);
  const Output z = NodeBuilder(scope, "_TestLater").Input(y).Finish().output(0);
  const Tensor two = TensorOf<float>({1}, {2});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, EvaluateGraph(scope, {{x, two}}, {z, x}));
  ExpectTensorEqual(out[0], TensorOf<float>({1}, {4}));
  ExpectTensorEqual(out[1], two);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> fed, EvaluateGraph(scope, {{y, two}}, {z}));
  ExpectTensorEqual(fed[0], two);
  EXPECT_STATUS(EvaluateGraph(scope, {}, {z}), absl::StatusCode::kInvalidArgument, "must be fed");
}

// --- KernelEvaluator ---------------------------------------------------------------------------

class KernelEvaluatorTest : public ::testing::Test {
 protected:
  const Node* Build(absl::string_view op, DType dtype = DT_FLOAT) {
    const Output x = TestInput(scope_, dtype);
    return NodeBuilder(scope_, op).Input(x).Finish().operation().node();
  }
  Scope scope_;
};

TEST_F(KernelEvaluatorTest, ComputesAStatelessNode) {
  const Node* node = Build("_TestDouble");
  ASSERT_NE(node, nullptr) << scope_.status();
  KernelEvaluator evaluator;
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       evaluator.Evaluate(*node, {TensorOf<float>({2}, {1, 2})}));
  ASSERT_EQ(out.size(), 1u);
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {2, 4}));
}

TEST_F(KernelEvaluatorTest, LeavesOtherNodesToTheStep) {
  KernelEvaluator evaluator(/*max_bytes=*/8);
  const Tensor small = TensorOf<float>({2}, {1, 2});
  const Tensor large = TensorOf<float>({3}, {1, 2, 3});
  const Node* node = Build("_TestDouble");
  ASSERT_NE(node, nullptr) << scope_.status();
  EXPECT_OK(evaluator.Evaluate(*node, {small}));
  EXPECT_STATUS(evaluator.Evaluate(*node, {large}), absl::StatusCode::kUnimplemented,
                "its result may have 12 bytes, more than 8");
  EXPECT_STATUS(evaluator.Evaluate(*Build("_TestLater"), {small}), absl::StatusCode::kUnimplemented,
                "its kernel waits");
  EXPECT_STATUS(evaluator.Evaluate(*Build("_TestDouble", DT_DOUBLE), {TensorOf<double>({1}, {1})}),
                absl::StatusCode::kUnimplemented, "No kernel for op");
  EXPECT_STATUS(evaluator.Evaluate(*TestInput(scope_, DT_FLOAT).node(), {}),
                absl::StatusCode::kUnimplemented, "it is stateful");
  EXPECT_STATUS(evaluator.Evaluate(*node, {TensorOf<double>({1}, {1})}),
                absl::StatusCode::kInvalidArgument, "input 0 must be float, got double");
}

TEST(KernelRegistrySupportTest, AnswersThePlacer) {
  tensorflow::NodeDef node;
  node.set_op("_TestDouble");
  SetAttr(DT_FLOAT, &(*node.mutable_attr())["T"]);
  const KernelRegistrySupport support;
  EXPECT_TRUE(support.HasKernel(node, "CPU"));
  EXPECT_FALSE(support.HasKernel(node, "GPU"));
  EXPECT_EQ(support.DescribeKernels("_TestDouble"), "CPU [T in {float}]");
  EXPECT_EQ(support.DescribeKernels("_NoSuchOp"), "");
}

}  // namespace
}  // namespace millrace
