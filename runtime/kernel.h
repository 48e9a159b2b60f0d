// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_KERNEL_H_
#define MILLRACE_RUNTIME_KERNEL_H_

// Kernels: the code of an op on a device. This header is all that an op author sees of the runtime.
//
//   class MatMulKernel : public RuledKernel<MatMulRule> {
//    protected:
//     Status Run(KernelContext* ctx) const override {
//       MR_ASSIGN_OR_RETURN(Tensor* product, ctx->AllocateOutput(0));  // as the rule says
//       ...
//       return absl::OkStatus();
//     }
//   };
//   const OpRegistration kMatMul =
//       OpSpec("MatMul", ...).With(KernelFor<MatMulKernel>().Types("T", "numbertype"));
//
// The framework runs the op's rule (graph/op_rule.h) first: Run sees legal inputs only. A Kernel
// that is none of these (families of element-wise ops, updates of variables) checks for itself.
//
// A kernel is built once per plan (a stateful one once per session and node; stateless nodes with
// equal attrs may share one, so it must not keep the node's name) and run by many steps at once,
// so Compute is const; state has its own lock. A kernel that can fail to be built has
// `Status Init(KernelConstruction*)` (a RuledKernel: Prepare).
//
// Rules: Compute never blocks (AsyncKernel is for queues, receives, files); only an isolated
// ParallelFor may wait. Every output must be set when Compute returns OK, except by ops that leave
// outputs dead (Switch, Recv). Inputs are read-only; only an output may be written.
// Exceptions (bad_alloc, oneDNN's) become Status at the boundary, once, in the executor. The
// executor also puts "<op> '<node>': " in front of the message.

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/resource_handle.h"  // IWYU pragma: export
#include "core/status.h"           // IWYU pragma: export
#include "core/tensor.h"           // IWYU pragma: export
#include "graph/arg_range.h"       // IWYU pragma: export
#include "graph/attr.h"            // IWYU pragma: export
#include "graph/op_registry.h"     // IWYU pragma: export
#include "graph/op_rule.h"         // IWYU pragma: export
#include "graph/partial_value.h"
#include "graph/shape_inference.h"  // IWYU pragma: export
#include "runtime/done_callback.h"  // IWYU pragma: export

namespace millrace {

class CancellationManager;  // core/cancellation.h
class CalledFunction;       // runtime/function_runner.h
class FunctionLibrary;      // graph/function_library.h
class FunctionRunner;       // runtime/function_runner.h
class IoPool;               // core/io_pool.h
class Rendezvous;           // runtime/rendezvous.h
class ResourceManager;      // runtime/resource_manager.h
class VariableStorage;      // runtime/variable_storage.h
struct Device;              // runtime/device.h
struct StepContext;         // runtime/step_context.h

// What a kernel is built from.
class KernelConstruction {
 public:
  KernelConstruction(const NodeAttrs& attrs, const tensorflow::OpDef* op, Device* device,
                     absl::Span<const DType> input_types, absl::Span<const DType> output_types,
                     int graph_producer)
      : attrs_(attrs),
        op_(op),
        device_(device),
        input_types_(input_types),
        output_types_(output_types),
        graph_producer_(graph_producer) {}

  const tensorflow::NodeDef& node() const { return attrs_.node(); }
  const NodeAttrs& attrs() const { return attrs_; }
  const tensorflow::OpDef& op() const { return *op_; }
  template <typename T>
  StatusOr<T> GetAttr(absl::string_view name) const {
    return millrace::GetAttr<T>(attrs_, name);
  }
  // Where a named argument stands among the inputs or outputs; for KernelContext::inputs(range).
  StatusOr<ArgRange> InputRange(absl::string_view arg) const {
    return InputArgRange(node(), *op_, arg);
  }
  StatusOr<ArgRange> OutputRange(absl::string_view arg) const {
    return OutputArgRange(node(), *op_, arg);
  }
  Device* device() const { return device_; }
  int num_inputs() const { return static_cast<int>(input_types_.size()); }
  int num_outputs() const { return static_cast<int>(output_types_.size()); }
  DType input_type(int i) const { return input_types_[static_cast<size_t>(i)]; }
  DType output_type(int i) const { return output_types_[static_cast<size_t>(i)]; }
  int graph_producer() const { return graph_producer_; }

  // What this node calls functions of; without it Function fails. Both outlive the kernel.
  void set_functions(FunctionRunner* runner,
                     const std::shared_ptr<const FunctionLibrary>& library) {
    runner_ = runner;
    library_ = &library;
  }
  // The function that attr `attr` names, as this node calls it (runtime/function_runner.h). Several
  // of one node are told apart by `role`, which names them below the node.
  StatusOr<CalledFunction*> Function(absl::string_view attr, absl::string_view role = "") const;
  // Those of an attr that is a list: by position.
  StatusOr<std::vector<CalledFunction*>> Functions(absl::string_view attr) const;

 private:
  StatusOr<CalledFunction*> FindFunction(const tensorflow::NameAttrList& function,
                                         absl::string_view role) const;

  NodeAttrs attrs_;
  const tensorflow::OpDef* op_;
  Device* device_;
  absl::Span<const DType> input_types_, output_types_;
  int graph_producer_;
  FunctionRunner* runner_ = nullptr;
  const std::shared_ptr<const FunctionLibrary>* library_ = nullptr;
};

// What flows along an edge during a step: a value, a reference to a variable (old graphs;
// Tensor::is_reference), or nothing (no value: dead, or not set yet).
using EdgeValue = Tensor;

// What the executor points a kernel at; op authors use the methods of KernelContext.
struct KernelFrame {
  const StepContext* step = nullptr;
  const std::string* node_name = nullptr;
  EdgeValue* inputs = nullptr;
  EdgeValue* outputs = nullptr;
  const DType* output_types = nullptr;
  uint32_t num_inputs = 0;
  uint32_t num_outputs = 0;
  bool is_input_dead = false;  // _Send, _Recv and control flow see dead inputs
  uint64_t frame_id = 0;
  int64_t iteration = 0;
};

// What a kernel sees of its run. Passed by pointer; valid until Compute returns or `done` is
// called.
class KernelContext {
 public:
  // `frame` outlives the context.
  explicit KernelContext(const KernelFrame* frame) : f_(frame) {}
  KernelContext(const KernelContext&) = delete;
  KernelContext& operator=(const KernelContext&) = delete;

  // --- Inputs

  int num_inputs() const { return static_cast<int>(f_->num_inputs); }
  // A reference to a variable has no elements here: ask ref_input for the variable.
  const Tensor& input(int i) const { return f_->inputs[i]; }
  // The tensors of a list argument (KernelConstruction::InputRange).
  absl::Span<const Tensor> inputs(ArgRange range) const {
    return absl::MakeConstSpan(f_->inputs + range.begin, static_cast<size_t>(range.size()));
  }
  DType input_dtype(int i) const { return input(i).dtype(); }
  bool has_input(int i) const { return input(i).has_value(); }
  bool is_input_dead() const { return f_->is_input_dead; }
  // Moves the input out (for outputs that pass it on).
  Tensor TakeInput(int i) { return std::move(f_->inputs[i]); }
  // The same for those who hand several on: arguments of functions.
  absl::Span<Tensor> TakeInputs(ArgRange range) {
    return absl::MakeSpan(f_->inputs + range.begin, static_cast<size_t>(range.size()));
  }
  // The variable behind a reference input; InvalidArgument when it is none.
  StatusOr<std::shared_ptr<VariableStorage>> ref_input(int i) const;

  // The only element of scalar input i. InvalidArgument "<name> must be a scalar, got shape ...".
  template <typename T>
  StatusOr<T> ScalarInput(int i, absl::string_view name) const {
    if (!input(i).shape().is_scalar()) return NotScalar(i, name);
    return input(i).raw_scalar<T>();
  }

  // --- Outputs

  int num_outputs() const { return static_cast<int>(f_->num_outputs); }
  // The shape that the rule of a RuledKernel's op gives output i in this step. Meaningless for an
  // output that the rule leaves to the kernel.
  const Shape& output_shape(int i) const { return rule_shapes_[static_cast<size_t>(i)]; }
  // What `rule`, that of the RuledKernel, has planned for this step (Planned, graph/op_rule.h).
  template <typename R>
  const PlanOf<R>& plan(const R&) const {
    return *static_cast<const PlanOf<R>*>(rule_plan_);
  }
  // A fresh tensor as output i, booked to the step (runtime/step_memory.h). ResourceExhausted.
  StatusOr<Tensor*> AllocateOutput(int i, const Shape& shape);
  StatusOr<Tensor*> AllocateOutput(int i) { return AllocateOutput(i, output_shape(i)); }
  // Output i in the memory of one of `candidates` when that input has no other user and the same
  // element size and count, else a fresh one. The input keeps its value (same memory).
  StatusOr<Tensor*> ForwardInputOrAllocateOutput(std::initializer_list<int> candidates, int i,
                                                 const Shape& shape);
  StatusOr<Tensor*> ForwardInputOrAllocateOutput(std::initializer_list<int> candidates, int i) {
    return ForwardInputOrAllocateOutput(candidates, i, output_shape(i));
  }
  // A fresh output of zeros (of empty strings).
  StatusOr<Tensor*> AllocateZeros(int i, const Shape& shape);
  StatusOr<Tensor*> AllocateZeros(int i) { return AllocateZeros(i, output_shape(i)); }
  // Input i as output 0, in the rule's shape and the same memory: for reshapes and for what turns
  // out to change nothing. Requires as many elements.
  Status PassInput(int i);
  // Scratch memory, booked to the step.
  StatusOr<Tensor> AllocateTemp(DType dtype, const Shape& shape);
  // The dtype must be that of the output (checked by the executor).
  void set_output(int i, Tensor value) { f_->outputs[i] = std::move(value); }
  void set_output_ref(int i, std::shared_ptr<VariableStorage> ref);
  Tensor* mutable_output(int i) { return &f_->outputs[i]; }
  // All of them, for those who have them made: results of functions.
  absl::Span<Tensor> mutable_outputs() { return absl::MakeSpan(f_->outputs, f_->num_outputs); }

  // For RuledKernel; both outlive the run.
  void set_rule_result(absl::Span<const Shape> shapes, const void* plan) {
    rule_shapes_ = shapes;
    rule_plan_ = plan;
  }

  // --- Threads
  //
  // A body may read inputs, write its own part of outputs and scratch memory, and compute. It must
  // not allocate outputs, block, wait for another loop than one it starts itself, or touch the
  // step (cancel, send, set outputs). What it throws ends the loop and the kernel.

  // body(begin, end) over [0, n) on the compute arena; small work runs here and now. Where the cuts
  // are depends on the number of threads: only for results that do not depend on the cuts.
  void ParallelFor(int64_t n, double cost_ns,
                   absl::FunctionRef<void(int64_t begin, int64_t end)> body) const;
  // body(begin, end) for each block of `block` items of [0, n): the same calls on any number of
  // threads. core/arena.h says what a body may do, and which loop a kernel needs.
  void ParallelBlocks(int64_t n, int64_t block, double cost_ns,
                      absl::FunctionRef<void(int64_t begin, int64_t end)> body) const;
  int num_threads() const;

  // --- The step and what outlives it

  const std::string& node_name() const { return *f_->node_name; }
  uint64_t frame_id() const { return f_->frame_id; }
  int64_t iteration() const { return f_->iteration; }
  int64_t step_id() const;
  Device* device() const;
  ResourceManager* resources() const;
  ResourceManager* step_resources() const;
  Rendezvous* rendezvous() const;
  CancellationManager* cancellation() const;
  IoPool* io_pool() const;
  const std::string& session_handle() const;
  const StepContext& step() const { return *f_->step; }

  // The resource behind handle input i; T is a Resource with a kTypeName.
  template <typename T>
  StatusOr<std::shared_ptr<T>> ResourceInput(int i) const {
    MR_ASSIGN_OR_RETURN(std::shared_ptr<Resource> found, ResolveInput(i, T::kTypeName));
    return std::static_pointer_cast<T>(std::move(found));
  }

 private:
  Status NotScalar(int i, absl::string_view name) const;
  StatusOr<Tensor> Allocate(DType dtype, const Shape& shape) const;
  StatusOr<std::shared_ptr<Resource>> ResolveInput(int i, const char* type_name) const;
  const KernelFrame* f_;
  // Of the rule, while a RuledKernel runs.
  absl::Span<const Shape> rule_shapes_;
  const void* rule_plan_ = nullptr;
};

// A rule's view of a step: every shape and value is known. Made by RuledKernel.
class StepRule : public RuleContext {
 public:
  // `ctx` outlives it, and gets the shapes of its outputs from it.
  explicit StepRule(KernelContext* ctx);
  // After the rule: the context sees shapes and plan. InvalidArgument when a shape is not legal.
  Status HandOver();

  // The inputs whose values the rule has looked at.
  absl::Span<const int> values_read() const { return values_.read; }
  absl::Span<const Shape> output_shapes() const { return output_shapes_; }
  // What the rule has planned (ApplyRule), to be kept with the shapes.
  std::shared_ptr<const void>* mutable_plan() { return &plan_; }
  const std::shared_ptr<const void>& plan() const { return plan_; }

 private:
  struct Values : public Source {
    explicit Values(const KernelContext* context) : ctx(context) {}
    const Tensor* ConstantInput(int i) override;
    StatusOr<PartialShape> ShapeInput(int i) override;
    std::optional<PartialValue> PartialInput(int) override { return std::nullopt; }

    const KernelContext* const ctx;
    absl::InlinedVector<int, 4> read;
  };

  KernelContext* const ctx_;
  Values values_;
  absl::InlinedVector<PartialShape, 4> input_shapes_;
  absl::InlinedVector<PartialShape, 2> partial_outputs_;
  absl::InlinedVector<Shape, 2> output_shapes_;
  std::shared_ptr<const void> plan_;
};

class AsyncKernel;

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Errors in building a kernel; default none.
  virtual Status Init(KernelConstruction*) { return absl::OkStatus(); }
  virtual Status Compute(KernelContext* ctx) const = 0;
  virtual const AsyncKernel* AsAsync() const { return nullptr; }
  // False for kernels of a few instructions (identity, shape, ...): the executor then never
  // schedules them apart. Others are measured.
  virtual bool may_be_expensive() const { return true; }
};

// What a rule gave in earlier steps. Steps mostly bring the same shapes and the same axes and
// sizes: a rule, which looks at nothing else, need not be asked again.
//
// The first few are kept, for good. Thread-safety: any thread; readers take no lock.
class RuleMemo {
 public:
  RuleMemo() = default;
  ~RuleMemo();
  RuleMemo(const RuleMemo&) = delete;
  RuleMemo& operator=(const RuleMemo&) = delete;

  // Hands output shapes and plan over if a step with these inputs is known.
  bool HandOver(KernelContext* ctx) const;
  // After the rule. Inputs that are many, or large where the rule has read them, are not kept.
  void Keep(const KernelContext& ctx, const StepRule& step) const;

 private:
  struct Entry;
  // A list that only grows. release when one is put in front, acquire when it is read.
  mutable std::atomic<const Entry*> newest_{nullptr};
};

// A kernel behind its op's rule: attrs are read once, with the rule, and Run is called with inputs
// that the rule has accepted.
template <typename R>
class RuledKernel : public Kernel {
 public:
  using KernelRule = R;
  Status Init(KernelConstruction* c) final {
    MR_RETURN_IF_ERROR(InitRule(&rule_, c->attrs()));
    return Prepare(c);
  }
  Status Compute(KernelContext* ctx) const final {
    if (memo_.HandOver(ctx)) return Run(ctx);
    StepRule step(ctx);
    MR_RETURN_IF_ERROR(ApplyRule(rule_, &step, step.mutable_plan()));
    MR_RETURN_IF_ERROR(step.HandOver());
    memo_.Keep(*ctx, step);
    return Run(ctx);
  }

 protected:
  // What else is to be found out once: loops by dtype, say.
  virtual Status Prepare(KernelConstruction*) { return absl::OkStatus(); }
  virtual Status Run(KernelContext* ctx) const = 0;
  const R& rule() const { return rule_; }

 private:
  R rule_;
  const RuleMemo memo_;
};

// Whether the executor measures what a kernel costs or takes it for a few instructions.
enum class KernelCost { kMeasured, kCheap };

// A RuledKernel that is one function of the step and the rule.
template <typename R>
class RuledFunctionKernel final : public RuledKernel<R> {
 public:
  using Function = Status (*)(KernelContext* ctx, const R& rule);
  RuledFunctionKernel(Function run, KernelCost cost) : run_(run), cost_(cost) {}
  bool may_be_expensive() const override { return cost_ == KernelCost::kMeasured; }

 protected:
  Status Run(KernelContext* ctx) const override { return run_(ctx, this->rule()); }

 private:
  const Function run_;
  const KernelCost cost_;
};

// The same with loops, found once, by the dtype of input 0.
template <typename R, typename L>
class RuledLoopKernel final : public RuledKernel<R> {
 public:
  using Find = L (*)(DType dtype);
  using Function = Status (*)(KernelContext* ctx, const R& rule, L loops);
  RuledLoopKernel(Find find, Function run) : find_(find), run_(run) {}

 protected:
  Status Prepare(KernelConstruction* c) override {
    loops_ = find_(WithoutRef(c->input_type(0)));
    return absl::OkStatus();
  }
  Status Run(KernelContext* ctx) const override { return run_(ctx, this->rule(), loops_); }

 private:
  const Find find_;
  const Function run_;
  L loops_{};
};

class AsyncKernel : public Kernel {
 public:
  using DoneCallback = millrace::DoneCallback;
  // Calls `done` once, here or on another thread; ctx lives until then. Must react to
  // ctx->cancellation(). Dropping `done` without a call fails the node (Internal).
  virtual void ComputeAsync(KernelContext* ctx, DoneCallback done) const = 0;
  const AsyncKernel* AsAsync() const final { return this; }
  // Only executors that know AsyncKernel run it.
  Status Compute(KernelContext*) const final;
};

// --- Registration --------------------------------------------------------------------------------

// A kernel, for the types that it names. OpSpec::With registers it with its op, which gets the rule
// that the kernel stands behind.
class KernelSpec {
 public:
  using Factory = std::function<std::unique_ptr<Kernel>()>;
  // `infer` is the kernel's rule in the graph (InferByRule); none when empty.
  explicit KernelSpec(Factory factory, ShapeFn infer = nullptr);
  // "CPU" unless said otherwise.
  KernelSpec& Device(absl::string_view type);
  // Attr `attr` must be T's dtype. Several calls for one attr allow each of the types.
  template <typename T>
  KernelSpec& Type(absl::string_view attr) {
    return Type(attr, DTypeOf<T>);
  }
  KernelSpec& Type(absl::string_view attr, DType dtype);
  KernelSpec& Types(absl::string_view attr, std::initializer_list<DType> dtypes);
  // By a word of the spec language: "numbertype".
  KernelSpec& Types(absl::string_view attr, absl::string_view word);
  // Every dtype for which `has` says so: the types for which there is a loop.
  KernelSpec& TypesWith(absl::string_view attr, absl::FunctionRef<bool(DType)> has);
  // The argument is in host memory (MemoryKind, runtime/device.h) also on devices with a memory of
  // their own: shapes, axes, paths.
  KernelSpec& HostMemory(absl::string_view arg);
  void AddTo(OpSpec* op) const;  // for OpSpec::With

  const std::string& device() const { return device_; }
  const std::vector<std::pair<std::string, std::vector<DType>>>& types() const { return types_; }
  const std::vector<std::string>& host_memory() const { return host_memory_; }
  const Factory& factory() const { return factory_; }

 private:
  std::string device_ = "CPU";
  std::vector<std::pair<std::string, std::vector<DType>>> types_;
  std::vector<std::string> host_memory_;
  Factory factory_;
  ShapeFn infer_;
};

// K made from `args`.
template <typename K, typename... Args>
KernelSpec KernelFor(Args... args) {
  const auto make = [=] { return std::make_unique<K>(args...); };
  if constexpr (requires { typename K::KernelRule; }) {
    return KernelSpec(make, &InferByRule<typename K::KernelRule>);
  } else {
    return KernelSpec(make);
  }
}

// The kernel that `run` is behind rule R:
//
//   const OpRegistration kTile = OpSpec("Tile", ...).With(RuledKernelFor<TileRule>(RunTile));
template <typename R>
KernelSpec RuledKernelFor(typename RuledFunctionKernel<R>::Function run,
                          KernelCost cost = KernelCost::kMeasured) {
  return KernelFor<RuledFunctionKernel<R>>(run, cost);
}

// The kernel that `run` is behind rule R with the loops that `find` has for the dtype of input 0:
//
//   OpSpec("Softmax", ...).With(RuledLoopKernelFor<SoftmaxRule>(math::FindSoftmax, RunSoftmax))
template <typename R, typename F, typename K = RuledLoopKernel<R, std::invoke_result_t<F, DType>>>
KernelSpec RuledLoopKernelFor(F find, typename K::Function run) {
  return KernelFor<K>(find, run);
}

// RuledKernelFor for each of `Ts` as attr `attr`; function() is a lambda that gives the one for T:
//
//   RuledKernelsFor<CumsumRule, float, double>("T", []<typename T> { return &RunSum<T>; })
template <typename R, typename... Ts, typename F>
std::vector<KernelSpec> RuledKernelsFor(absl::string_view attr, F function,
                                        KernelCost cost = KernelCost::kMeasured) {
  return {RuledKernelFor<R>(function.template operator()<Ts>(), cost).template Type<Ts>(attr)...};
}

// K<T> for each of `Ts`, as the kernel for attr `attr` = T:
//
//   KernelsFor<GatherKernel, int32_t, int64_t>("Tidx")
template <template <typename> class K, typename... Ts>
std::vector<KernelSpec> KernelsFor(absl::string_view attr) {
  return {KernelFor<K<Ts>>().template Type<Ts>(attr)...};
}

// Registers the kernel of an op that is registered elsewhere, at construction; meant for
// namespace-scope constants. Registrations are seen by the look-ups that begin after them, so that
// a library may be loaded at any time; what was registered never changes.
class KernelRegistration {
 public:
  KernelRegistration(absl::string_view op, const KernelSpec& spec);
};

// The kernel that fits the node's op, device type and attrs, built. Unimplemented with the list of
// registered kernels when there is none.
StatusOr<std::unique_ptr<Kernel>> MakeKernel(KernelConstruction* construction);
// Is there a kernel for this op, device type and these attrs?
bool HasKernel(const tensorflow::NodeDef& node, absl::string_view device_type);
// Is there any kernel of this op, on any device?
bool HasAnyKernel(absl::string_view op);
// The kernels of this op for messages: "CPU [T in {float}]; CPU [T in {double}]". Empty when none.
std::string DescribeKernels(absl::string_view op);

// Passes its first input on: identity-like ops.
class PassInputKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ctx->set_output(0, ctx->TakeInput(0));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_KERNEL_H_
