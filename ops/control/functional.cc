// SPDX-License-Identifier: Apache-2.0
#include "ops/control/functional.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "graph/function_gradient.h"
#include "graph/gradient.h"
#include "proto/attr_value.pb.h"
#include "runtime/function_runner.h"
#include "runtime/kernel.h"
#include "runtime/step_context.h"

namespace millrace {
namespace {

using tensorflow::NameAttrList;

// --- Shapes --------------------------------------------------------------------------------------

// What holds of both.
PartialShape CommonShape(const PartialShape& a, const PartialShape& b) {
  if (!a.has_rank() || !b.has_rank() || a.rank() != b.rank()) return PartialShape();
  std::vector<int64_t> dims(a.dims().begin(), a.dims().end());
  for (int d = 0; d < b.rank(); ++d) {
    if (dims[static_cast<size_t>(d)] != b.dim(d)) dims[static_cast<size_t>(d)] = -1;
  }
  const StatusOr<PartialShape> common = PartialShape::Make(dims);
  return common.ok() ? *common : PartialShape();
}

bool SameHandle(const std::optional<HandleData>& a, const std::optional<HandleData>& b) {
  return a.has_value() == b.has_value() &&
         (!a.has_value() || (a->dtype == b->dtype && a->shape == b->shape));
}

KnownTensor Common(const KnownTensor& a, const KnownTensor& b) {
  KnownTensor common;
  common.shape = CommonShape(a.shape, b.shape);
  if (SameHandle(a.handle, b.handle)) common.handle = a.handle;
  return common;
}

Status CheckCount(const NameAttrList& function, size_t got, int want) {
  if (static_cast<int>(got) == want) return absl::OkStatus();
  return InvalidArgument("Function '", function.name(), "': must have ", want,
                         want == 1 ? " result" : " results", ", got ", got);
}

// `known` (empty: nothing) as outputs, with what attr output_shapes says.
Status SetOutputs(InferenceContext* c, const std::vector<KnownTensor>& known) {
  std::vector<PartialShape> declared;
  if (HasAttr(c->node(), "output_shapes")) {
    MR_ASSIGN_OR_RETURN(declared, c->GetAttr<std::vector<PartialShape>>("output_shapes"));
  }
  if (!declared.empty() && static_cast<int>(declared.size()) != c->num_outputs()) {
    return InvalidArgument("attr 'output_shapes' must have ", c->num_outputs(),
                           " shapes, one a result, or none, got ", declared.size());
  }
  for (int i = 0; i < c->num_outputs(); ++i) {
    const size_t k = static_cast<size_t>(i);
    PartialShape shape = known.empty() ? PartialShape() : known[k].shape;
    if (!declared.empty()) {
      StatusOr<PartialShape> merged = shape.MergeWith(declared[k]);
      if (!merged.ok()) {
        return InvalidArgument("attr 'output_shapes'[", i, "] must fit the shape of result ", i,
                               ", ", shape, ", got ", declared[k]);
      }
      shape = *std::move(merged);
    }
    c->set_output(i, std::move(shape));
    if (!known.empty() && known[k].handle.has_value()) c->set_output_handle(i, *known[k].handle);
  }
  return absl::OkStatus();
}

Status CallShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const auto function, c->GetAttr<NameAttrList>("f"));
  return InferCall(c, function, {0, c->num_inputs()});
}

Status BranchesShape(InferenceContext* c, const std::vector<NameAttrList>& branches) {
  std::vector<KnownTensor> common, arguments;
  if (c->functions() == nullptr) return SetOutputs(c, common);
  for (int i = 1; i < c->num_inputs(); ++i) arguments.push_back(c->KnownInput(i));
  for (size_t b = 0; b < branches.size(); ++b) {
    MR_ASSIGN_OR_RETURN(std::vector<KnownTensor> results,
                        c->functions()->Infer(branches[b], arguments));
    if (results.empty()) return SetOutputs(c, {});
    MR_RETURN_IF_ERROR(CheckCount(branches[b], results.size(), c->num_outputs()));
    if (b == 0) {
      common = std::move(results);
    } else {
      for (size_t i = 0; i < common.size(); ++i) common[i] = Common(common[i], results[i]);
    }
  }
  return SetOutputs(c, common);
}

Status IfShape(InferenceContext* c) {
  std::vector<NameAttrList> branches;
  for (const char* attr : {"then_branch", "else_branch"}) {
    MR_ASSIGN_OR_RETURN(branches.emplace_back(), c->GetAttr<NameAttrList>(attr));
  }
  return BranchesShape(c, branches);
}

Status CaseShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "branch_index").status());
  MR_ASSIGN_OR_RETURN(const auto branches, c->GetAttr<std::vector<NameAttrList>>("branches"));
  return BranchesShape(c, branches);
}

// What stays of the loop's variables (inputs from `first` on) however often `body` runs; it is
// called with `before` and the variables.
Status LoopShape(InferenceContext* c, const NameAttrList& body, int first,
                 absl::Span<const KnownTensor> before) {
  // Each round loses a dimension or a rank, or is the last.
  constexpr int kMaxRounds = 32;
  if (c->functions() == nullptr) return SetOutputs(c, {});
  std::vector<KnownTensor> variables;
  for (int i = first; i < c->num_inputs(); ++i) {
    variables.push_back({c->input(i), c->input_handle(i), nullptr});
  }
  for (int round = 0; round < kMaxRounds; ++round) {
    std::vector<KnownTensor> arguments(before.begin(), before.end());
    arguments.insert(arguments.end(), variables.begin(), variables.end());
    MR_ASSIGN_OR_RETURN(const std::vector<KnownTensor> results,
                        c->functions()->Infer(body, arguments));
    if (results.empty()) break;
    MR_RETURN_IF_ERROR(CheckCount(body, results.size(), c->num_outputs()));
    bool changed = false;
    for (size_t i = 0; i < variables.size(); ++i) {
      const KnownTensor common = Common(variables[i], results[i]);
      changed = changed || !(common.shape == variables[i].shape) ||
                !SameHandle(common.handle, variables[i].handle);
      variables[i] = common;
    }
    if (!changed) return SetOutputs(c, variables);
  }
  return SetOutputs(c, {});
}

Status WhileShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const auto body, c->GetAttr<NameAttrList>("body"));
  return LoopShape(c, body, 0, {});
}

Status ForShape(InferenceContext* c) {
  const char* const names[] = {"start", "limit", "delta"};
  for (int i = 0; i < 3; ++i) MR_RETURN_IF_ERROR(c->InputWithRank(i, 0, names[i]).status());
  MR_ASSIGN_OR_RETURN(const auto body, c->GetAttr<NameAttrList>("body"));
  const KnownTensor index = {PartialShape::Scalar(), std::nullopt, nullptr};
  return LoopShape(c, body, 3, {&index, 1});
}

// The gradient of an argument is shaped as the argument.
Status SymbolicGradientShape(InferenceContext* c) {
  if (c->num_outputs() > c->num_inputs()) {
    return InvalidArgument("must have at most as many outputs as inputs (", c->num_inputs(),
                           "), got ", c->num_outputs());
  }
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// --- Calls ---------------------------------------------------------------------------------------

std::string TypesText(absl::Span<const DType> types) {
  return absl::StrCat(
      "[",
      absl::StrJoin(types, ", ",
                    [](std::string* text, DType type) { text->append(DTypeName(type)); }),
      "]");
}

// Whether the function takes `arguments` and gives `results`.
Status CheckTypes(const CalledFunction& function, absl::string_view attr,
                  absl::Span<const DType> arguments, absl::Span<const DType> results) {
  if (function.argument_types() != arguments) {
    return InvalidArgument("the function of attr '", attr, "' must have arguments of types ",
                           TypesText(arguments), ", got ", TypesText(function.argument_types()));
  }
  if (function.result_types() != results) {
    return InvalidArgument("the function of attr '", attr, "' must have results of types ",
                           TypesText(results), ", got ", TypesText(function.result_types()));
  }
  return absl::OkStatus();
}

// Types of the kernel's inputs from `begin` on, and of its outputs.
std::vector<DType> InputTypes(KernelConstruction* c, int begin) {
  std::vector<DType> types;
  for (int i = begin; i < c->num_inputs(); ++i) types.push_back(c->input_type(i));
  return types;
}
std::vector<DType> OutputTypes(KernelConstruction* c) {
  std::vector<DType> types;
  for (int i = 0; i < c->num_outputs(); ++i) types.push_back(c->output_type(i));
  return types;
}

class CallKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(function_, c->Function("f"));
    return CheckTypes(*function_, "f", InputTypes(c, 0), OutputTypes(c));
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    function_->Run(ctx->step(), ctx->TakeInputs({0, ctx->num_inputs()}), ctx->mutable_outputs(),
                   std::move(done));
  }

 private:
  CalledFunction* function_ = nullptr;
};

// Not run: the function would be another task's to run.
class RemoteCallKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const auto function, c->GetAttr<NameAttrList>("f"));
    return Unimplemented("function '", function.name(),
                         "' must be called on the device of the node, not on one that an input "
                         "names; RemoteCall is not run here");
  }
  Status Compute(KernelContext*) const override { return absl::OkStatus(); }
};

constexpr char kCallArguments[] = "args: Tin -> output: Tout";
constexpr char kCallAttrs[] =
    "Tin: list(type) >= 0; Tout: list(type) >= 0; f: func; config: string = ''; "
    "config_proto: string = ''; executor_type: string = ''";

const OpRegistration kPartitionedCall = OpSpec("PartitionedCall", kCallArguments, kCallAttrs)
                                            .Shape(CallShape)
                                            .Gradient(GradientOfCall)
                                            .With(KernelFor<CallKernel>());

const OpRegistration kStatefulPartitionedCall =
    OpSpec("StatefulPartitionedCall", kCallArguments, kCallAttrs)
        .Stateful()
        .Shape(CallShape)
        .Gradient(GradientOfCall)
        .With(KernelFor<CallKernel>());

const OpRegistration kSymbolicGradient =
    OpSpec("SymbolicGradient", "input: Tin -> output: Tout",
           "Tin: list(type) >= 1; Tout: list(type) >= 1; f: func")
        .Shape(SymbolicGradientShape)
        .Gradient(GradientOfCall);

const OpRegistration kRemoteCall = OpSpec("RemoteCall", "target: string, args: Tin -> output: Tout",
                                          "Tin: list(type) >= 1; Tout: list(type) >= 1; f: func")
                                       .Stateful()
                                       .WaitsForSteps(WaitsForSteps::kMay)
                                       .Shape(ValueDependentShape)
                                       .NotDifferentiable()
                                       .With(KernelFor<RemoteCallKernel>());

// --- If and Case ---------------------------------------------------------------------------------

// Whether a condition holds; TensorFlow's rule.
StatusOr<bool> Holds(const Tensor& condition) {
  if (!condition.shape().is_scalar()) return condition.num_elements() > 0;
  switch (condition.dtype()) {
    case DT_BOOL:
      return condition.raw_scalar<bool>();
    case DT_FLOAT:
      return condition.raw_scalar<float>() != 0;
    case DT_DOUBLE:
      return condition.raw_scalar<double>() != 0;
    case DT_INT8:
      return condition.raw_scalar<int8_t>() != 0;
    case DT_UINT8:
      return condition.raw_scalar<uint8_t>() != 0;
    case DT_INT16:
      return condition.raw_scalar<int16_t>() != 0;
    case DT_UINT16:
      return condition.raw_scalar<uint16_t>() != 0;
    case DT_INT32:
      return condition.raw_scalar<int32_t>() != 0;
    case DT_INT64:
      return condition.raw_scalar<int64_t>() != 0;
    case DT_STRING:
      return !condition.raw_scalar<std::string>().empty();
    default:
      return InvalidArgument("a condition must be bool, a number or a string, got ",
                             condition.dtype());
  }
}

class BranchKernel : public AsyncKernel {
 public:
  // Called with inputs 1, 2, ...
  void RunBranch(CalledFunction* branch, KernelContext* ctx, DoneCallback done) const {
    branch->Run(ctx->step(), ctx->TakeInputs({1, ctx->num_inputs()}), ctx->mutable_outputs(),
                std::move(done));
  }
};

class IfKernel : public BranchKernel {
 public:
  Status Init(KernelConstruction* c) override {
    for (const auto& [attr, function] :
         {std::pair("then_branch", &then_), std::pair("else_branch", &else_)}) {
      MR_ASSIGN_OR_RETURN(*function, c->Function(attr, attr));
      MR_RETURN_IF_ERROR(CheckTypes(**function, attr, InputTypes(c, 1), OutputTypes(c)));
    }
    return absl::OkStatus();
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    const StatusOr<bool> holds = Holds(ctx->input(0));
    if (!holds.ok()) return done(holds.status());
    RunBranch(*holds ? then_ : else_, ctx, std::move(done));
  }

 private:
  CalledFunction* then_ = nullptr;
  CalledFunction* else_ = nullptr;
};

class CaseKernel : public BranchKernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(branches_, c->Functions("branches"));
    for (const CalledFunction* const branch : branches_) {
      MR_RETURN_IF_ERROR(CheckTypes(*branch, "branches", InputTypes(c, 1), OutputTypes(c)));
    }
    return absl::OkStatus();
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    const StatusOr<int32_t> index = ctx->ScalarInput<int32_t>(0, "branch_index");
    if (!index.ok()) return done(index.status());
    const size_t last = branches_.size() - 1;
    const bool in_range = *index >= 0 && static_cast<size_t>(*index) <= last;
    RunBranch(branches_[in_range ? static_cast<size_t>(*index) : last], ctx, std::move(done));
  }

 private:
  std::vector<CalledFunction*> branches_;
};

constexpr char kIfArguments[] = "cond: Tcond, input: Tin -> output: Tout";
constexpr char kIfAttrs[] =
    "Tcond: type; Tin: list(type) >= 0; Tout: list(type) >= 0; then_branch: func; "
    "else_branch: func; output_shapes: list(shape) = []";

const OpRegistration kIf = OpSpec("If", kIfArguments, kIfAttrs)
                               .Stateful()
                               .Shape(IfShape)
                               .Gradient(GradientOfBranches)
                               .With(KernelFor<IfKernel>());
const OpRegistration kStatelessIf = OpSpec("StatelessIf", kIfArguments, kIfAttrs)
                                        .Shape(IfShape)
                                        .Gradient(GradientOfBranches)
                                        .With(KernelFor<IfKernel>());

const OpRegistration kCase =
    OpSpec("Case", "branch_index: int32, input: Tin -> output: Tout",
           "Tin: list(type) >= 0; Tout: list(type) >= 0; branches: list(func) >= 1; "
           "output_shapes: list(shape) = []")
        .Stateful()
        .Shape(CaseShape)
        .Gradient(GradientOfBranches)
        .With(KernelFor<CaseKernel>());

// --- While and For -------------------------------------------------------------------------------

// One run of a loop: its functions in turns, one after the other. A function that ends before its
// Run returns is followed here, so that a loop takes no stack; one that ends later goes on in its
// own thread.
class LoopRun {
 public:
  LoopRun(KernelContext* ctx, DoneCallback done, int first_variable)
      : ctx_(ctx), done_(std::move(done)) {
    for (int i = first_variable; i < ctx->num_inputs(); ++i) {
      variables_.push_back(ctx->TakeInput(i));
    }
  }
  virtual ~LoopRun() = default;

  // Runs until the loop has ended or a function has to be waited for. Deletes itself at the end.
  void Go() {
    for (;;) {
      // Here may be the thread of a function that has ended, which nothing may be thrown into.
      const StatusOr<CalledFunction*> next = NoExceptions("Loop", [this] { return Next(); });
      if (!next.ok() || *next == nullptr) return End(next.status());
      if (ctx_->cancellation() != nullptr && ctx_->cancellation()->IsCancelled()) {
        return End(absl::CancelledError("Step was cancelled."));
      }
      answered_.store(false, std::memory_order_relaxed);
      (*next)->Run(ctx_->step(), absl::MakeSpan(arguments_), absl::MakeSpan(results_),
                   [this](Status status) {
                     status_ = std::move(status);
                     // The second one goes on.
                     if (answered_.exchange(true, std::memory_order_acq_rel)) Resume();
                   });
      if (!answered_.exchange(true, std::memory_order_acq_rel)) return;
      if (!status_.ok()) return End(status_);
    }
  }

 protected:
  // What runs next, with arguments_ and room for results_; null when the loop has ended.
  virtual StatusOr<CalledFunction*> Next() = 0;

  KernelContext* const ctx_;
  std::vector<Tensor> variables_, arguments_, results_;

 private:
  void Resume() {
    if (!status_.ok()) return End(status_);
    Go();
  }
  void End(Status status) {
    if (status.ok()) {
      for (size_t i = 0; i < variables_.size(); ++i) {
        ctx_->set_output(static_cast<int>(i), std::move(variables_[i]));
      }
    }
    DoneCallback done = std::move(done_);
    delete this;
    done(std::move(status));
  }

  DoneCallback done_;
  Status status_;
  std::atomic<bool> answered_{false};
};

class WhileRun final : public LoopRun {
 public:
  WhileRun(KernelContext* ctx, DoneCallback done, CalledFunction* cond, CalledFunction* body)
      : LoopRun(ctx, std::move(done), 0), cond_(cond), body_(body) {}

 protected:
  StatusOr<CalledFunction*> Next() override {
    if (last_ == Last::kCond) {
      MR_ASSIGN_OR_RETURN(const bool holds, Holds(results_[0]));
      if (!holds) return nullptr;
      arguments_.swap(variables_);
      variables_.clear();  // what cond has not read would be held twice, so writers would copy it
      results_.clear();
      results_.resize(arguments_.size());
      last_ = Last::kBody;
      return body_;
    }
    if (last_ == Last::kBody) variables_.swap(results_);
    arguments_ = variables_;
    results_.clear();
    results_.resize(1);
    last_ = Last::kCond;
    return cond_;
  }

 private:
  CalledFunction* const cond_;
  CalledFunction* const body_;  // may be the same
  enum class Last { kNone, kCond, kBody } last_ = Last::kNone;
};

class WhileKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(cond_, c->Function("cond", "cond"));
    MR_ASSIGN_OR_RETURN(body_, c->Function("body", "body"));
    const std::vector<DType> types = InputTypes(c, 0);
    if (cond_->result_types().size() != 1) {
      return InvalidArgument("the function of attr 'cond' must have one result, got ",
                             cond_->result_types().size());
    }
    MR_RETURN_IF_ERROR(CheckTypes(*cond_, "cond", types, cond_->result_types()));
    return CheckTypes(*body_, "body", types, types);
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    (new WhileRun(ctx, std::move(done), cond_, body_))->Go();
  }

 private:
  CalledFunction* cond_ = nullptr;
  CalledFunction* body_ = nullptr;
};

class ForRun final : public LoopRun {
 public:
  ForRun(KernelContext* ctx, DoneCallback done, CalledFunction* body, int64_t start, int64_t limit,
         int64_t delta)
      : LoopRun(ctx, std::move(done), 3), body_(body), next_(start), limit_(limit), delta_(delta) {}

 protected:
  StatusOr<CalledFunction*> Next() override {
    if (ran_) variables_.swap(results_);
    ran_ = true;
    if (delta_ > 0 ? next_ >= limit_ : next_ <= limit_) return nullptr;
    arguments_.clear();
    arguments_.push_back(Tensor::Scalar(static_cast<int32_t>(next_)));
    for (Tensor& variable : variables_) arguments_.push_back(std::move(variable));
    results_.clear();
    results_.resize(variables_.size());
    next_ += delta_;
    return body_;
  }

 private:
  CalledFunction* const body_;
  int64_t next_;
  const int64_t limit_, delta_;
  bool ran_ = false;
};

class ForKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(body_, c->Function("body", "body"));
    std::vector<DType> arguments = InputTypes(c, 3);
    arguments.insert(arguments.begin(), DT_INT32);
    return CheckTypes(*body_, "body", arguments, OutputTypes(c));
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    const char* const names[] = {"start", "limit", "delta"};
    int64_t bounds[3] = {};
    for (int i = 0; i < 3; ++i) {
      const StatusOr<int32_t> value = ctx->ScalarInput<int32_t>(i, names[i]);
      if (!value.ok()) return done(value.status());
      bounds[i] = *value;
    }
    const auto [start, limit, delta] = bounds;
    if (start != limit && (delta == 0 || (delta > 0) != (start < limit))) {
      return done(InvalidArgument("delta must lead from start to limit, got start ", start,
                                  ", limit ", limit, " and delta ", delta));
    }
    (new ForRun(ctx, std::move(done), body_, start, limit, delta))->Go();
  }

 private:
  CalledFunction* body_ = nullptr;
};

constexpr char kWhileArguments[] = "input: T -> output: T";
constexpr char kWhileAttrs[] =
    "T: list(type) >= 0; cond: func; body: func; output_shapes: list(shape) = []; "
    "parallel_iterations: int = 10";

// A loop may ask again and again for what another step is to write.
const OpRegistration kWhile = OpSpec("While", kWhileArguments, kWhileAttrs)
                                  .Stateful()
                                  .WaitsForSteps(WaitsForSteps::kMay)
                                  .Shape(WhileShape)
                                  .Gradient(GradientOfLoop)
                                  .With(KernelFor<WhileKernel>());
const OpRegistration kStatelessWhile = OpSpec("StatelessWhile", kWhileArguments, kWhileAttrs)
                                           .WaitsForSteps(WaitsForSteps::kMay)
                                           .Shape(WhileShape)
                                           .Gradient(GradientOfLoop)
                                           .With(KernelFor<WhileKernel>());

const OpRegistration kFor =
    OpSpec("For", "start: int32, limit: int32, delta: int32, input: T -> output: T",
           "T: list(type) >= 0; body: func")
        .Shape(ForShape)
        .Gradient(GradientOfLoop)
        .With(KernelFor<ForKernel>());

// --- FakeParam -----------------------------------------------------------------------------------

Status FakeParamShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, shape);
  return absl::OkStatus();
}

class FakeParamKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const PartialShape shape, c->GetAttr<PartialShape>("shape"));
    std::vector<int64_t> dims;
    if (shape.has_rank()) dims.assign(shape.dims().begin(), shape.dims().end());
    for (int64_t& dim : dims) dim = std::max<int64_t>(dim, 0);
    MR_ASSIGN_OR_RETURN(const Shape known, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(value_, Tensor::Zeros(c->output_type(0), known));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ctx->set_output(0, value_);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  Tensor value_;
};

const OpRegistration kFakeParam =
    OpSpec("FakeParam", "-> output: dtype", "dtype: type; shape: shape")
        .Shape(FakeParamShape)
        .NotDifferentiable()
        .With(KernelFor<FakeParamKernel>());

// --- _Alive --------------------------------------------------------------------------------------

// What gradients of functions with branches take along (graph/function_gradient.h): a tensor that
// may be dead as two that are not.
class AliveKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(nothing_, Tensor::Zeros(c->output_type(0), Shape::Vector(0)));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const bool alive = ctx->has_input(0);
    ctx->set_output(0, alive ? ctx->TakeInput(0) : nothing_);
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(1, Shape()));
    output->mutable_raw<bool>()[0] = alive;
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  Tensor nothing_;
};

Status AliveShape(InferenceContext* c) {
  c->set_output(1, Shape());
  return absl::OkStatus();
}

// Dead where the tensor was.
Status AliveGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(0, NodeBuilder(c->scope(), "Switch")
                           .Input(c->dense_grad(0))
                           .Input(c->output(1))
                           .Finish()
                           .output(1));
  return absl::OkStatus();
}

const OpRegistration kAlive = OpSpec("_Alive", "value: T -> output: T, alive: bool", "T: type")
                                  .Trigger()
                                  .Shape(AliveShape)
                                  .Gradient(AliveGradient)
                                  .With(KernelFor<AliveKernel>());

}  // namespace
}  // namespace millrace
