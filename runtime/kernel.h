// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_KERNEL_H_
#define MILLRACE_RUNTIME_KERNEL_H_

// Kernels: the code of an op on a device. This header is all that an op author sees of the runtime.
//
//   class ReluKernel : public Kernel {
//    public:
//     Status Compute(KernelContext* ctx) const override {
//       const Tensor& x = ctx->input(0);
//       MR_ASSIGN_OR_RETURN(Tensor* y, ctx->ForwardInputOrAllocateOutput({0}, 0, x.shape()));
//       ...
//       return absl::OkStatus();
//     }
//   };
//   const KernelRegistration kRelu = KernelFor<ReluKernel>("Relu").Type<float>("T");
//
// A kernel is built once per plan (a stateful one once per session and node; stateless nodes with
// equal attrs may share one, so it must not keep the node's name) and run by many steps at once,
// so Compute is const; state has its own lock. A kernel that can fail to be built has
// `Status Init(KernelConstruction*)`.
//
// Rules: Compute never blocks (AsyncKernel is for queues, receives, files); only an isolated
// ParallelFor may wait. Every output must be set when Compute returns OK, except by ops that leave
// outputs dead (Switch, Recv). Inputs are read-only; only an output may be written.
// Exceptions (bad_alloc, oneDNN's) become Status at the boundary, once, in the executor. The
// executor also puts "<op> '<node>': " in front of the message.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/op_registry.h"
#include "runtime/rendezvous.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace {

class FunctionRunner;  // runs functions of the graph's library from within a kernel (later)

// A device of this process: its name, its resources.
struct Device {
  std::string name;          // "/job:worker/replica:0/task:0/device:CPU:0"
  std::string type;          // "CPU"
  uint64_t incarnation = 0;  // random, nonzero, new in every process
  std::unique_ptr<ResourceManager> resources;
};

// What a kernel is built from.
class KernelConstruction {
 public:
  KernelConstruction(const tensorflow::NodeDef* node, const tensorflow::OpDef* op, Device* device,
                     absl::Span<const DType> input_types, absl::Span<const DType> output_types,
                     int graph_producer)
      : node_(node),
        op_(op),
        device_(device),
        input_types_(input_types),
        output_types_(output_types),
        graph_producer_(graph_producer) {}

  const tensorflow::NodeDef& node() const { return *node_; }
  const tensorflow::OpDef& op() const { return *op_; }
  template <typename T>
  StatusOr<T> GetAttr(absl::string_view name) const {
    return millrace::GetAttr<T>(*node_, name);
  }
  Device* device() const { return device_; }
  int num_inputs() const { return static_cast<int>(input_types_.size()); }
  int num_outputs() const { return static_cast<int>(output_types_.size()); }
  DType input_type(int i) const { return input_types_[static_cast<size_t>(i)]; }
  DType output_type(int i) const { return output_types_[static_cast<size_t>(i)]; }
  int graph_producer() const { return graph_producer_; }

 private:
  const tensorflow::NodeDef* node_;
  const tensorflow::OpDef* op_;
  Device* device_;
  absl::Span<const DType> input_types_, output_types_;
  int graph_producer_;
};

// What flows along an edge during a step: a tensor, or a reference to a variable (old graphs).
struct EdgeValue {
  Tensor tensor;
  std::shared_ptr<VariableStorage> ref;  // set for reference outputs
  bool has_value = false;                // false: dead, or not set yet
};

// What all kernels of one step share. Owned by whoever runs the step; outlives its kernels.
struct StepContext {
  int64_t step_id = 0;
  Device* device = nullptr;
  std::shared_ptr<Rendezvous> rendezvous;
  CancellationManager* cancellation = nullptr;
  Arena* arena = nullptr;
  IoPool* io_pool = nullptr;
  // Resources that end with the step (temporary variables, tensor arrays).
  ResourceManager* step_resources = nullptr;
  FunctionRunner* functions = nullptr;
  std::string session_handle;
  // Fed tensors by _Arg index and where _Retval puts its tensor; null outside of a session's step.
  absl::Span<const Tensor> args;
  absl::Span<Tensor> results;
};

class KernelContext {
 public:
  // The executor fills these; op authors use the methods.
  struct Params {
    const StepContext* step = nullptr;
    const std::string* node_name = nullptr;
    absl::Span<EdgeValue> inputs;
    absl::Span<const DType> output_types;
    absl::Span<EdgeValue> outputs;
    bool is_input_dead = false;  // _Send, _Recv and control flow see dead inputs
    uint64_t frame_id = 0;
    int64_t iteration = 0;
  };
  explicit KernelContext(const Params& params) : p_(params) {}

  int num_inputs() const { return static_cast<int>(p_.inputs.size()); }
  int num_outputs() const { return static_cast<int>(p_.outputs.size()); }
  // For a reference input: the variable's value as the executor read it before the kernel.
  const Tensor& input(int i) const { return p_.inputs[static_cast<size_t>(i)].tensor; }
  DType input_dtype(int i) const { return input(i).dtype(); }
  bool has_input(int i) const { return p_.inputs[static_cast<size_t>(i)].has_value; }
  bool is_input_dead() const { return p_.is_input_dead; }
  // Moves the input out (for outputs that pass it on).
  Tensor TakeInput(int i) { return std::move(p_.inputs[static_cast<size_t>(i)].tensor); }
  // The variable behind a reference input; InvalidArgument when it is none.
  StatusOr<std::shared_ptr<VariableStorage>> ref_input(int i) const;

  // The only element of scalar input i. InvalidArgument "<name> must be a scalar, got shape ...".
  template <typename T>
  StatusOr<T> ScalarInput(int i, absl::string_view name) const {
    if (!input(i).shape().is_scalar()) return NotScalar(i, name);
    return input(i).raw_scalar<T>();
  }
  // The elements of an int32 or int64 vector input. InvalidArgument for another rank or dtype.
  StatusOr<std::vector<int64_t>> IntVectorInput(int i, absl::string_view name) const;
  // An int32 or int64 scalar.
  StatusOr<int64_t> IntScalarInput(int i, absl::string_view name) const;

  // A fresh tensor as output i. ResourceExhausted.
  StatusOr<Tensor*> AllocateOutput(int i, const Shape& shape);
  // Output i in the memory of one of `candidates` when that input has no other user and the same
  // element size and count, else a fresh one. The input keeps its value (same memory).
  StatusOr<Tensor*> ForwardInputOrAllocateOutput(std::initializer_list<int> candidates, int i,
                                                 const Shape& shape);
  StatusOr<Tensor> AllocateTemp(DType dtype, const Shape& shape);
  // The dtype must be that of the output (checked by the executor).
  void set_output(int i, Tensor value) {
    EdgeValue& out = p_.outputs[static_cast<size_t>(i)];
    out.tensor = std::move(value);
    out.has_value = true;
  }
  void set_output_ref(int i, std::shared_ptr<VariableStorage> ref) {
    EdgeValue& out = p_.outputs[static_cast<size_t>(i)];
    out.ref = std::move(ref);
    out.has_value = true;
  }
  Tensor* mutable_output(int i) { return &p_.outputs[static_cast<size_t>(i)].tensor; }

  // body(begin, end) over [0, n) on the compute arena; small work runs here and now.
  void ParallelFor(int64_t n, double cost_ns,
                   absl::FunctionRef<void(int64_t begin, int64_t end)> body) const {
    p_.step->arena->ParallelFor(n, cost_ns, body);
  }
  int num_threads() const { return p_.step->arena->num_threads(); }

  const std::string& node_name() const { return *p_.node_name; }
  int64_t step_id() const { return p_.step->step_id; }
  Device* device() const { return p_.step->device; }
  ResourceManager* resources() const { return p_.step->device->resources.get(); }
  ResourceManager* step_resources() const { return p_.step->step_resources; }
  Rendezvous* rendezvous() const { return p_.step->rendezvous.get(); }
  CancellationManager* cancellation() const { return p_.step->cancellation; }
  IoPool* io_pool() const { return p_.step->io_pool; }
  FunctionRunner* functions() const { return p_.step->functions; }
  const std::string& session_handle() const { return p_.step->session_handle; }
  const StepContext& step() const { return *p_.step; }
  uint64_t frame_id() const { return p_.frame_id; }
  int64_t iteration() const { return p_.iteration; }

  // The resource behind handle input i.
  template <typename T>
  StatusOr<std::shared_ptr<T>> ResourceInput(int i) const {
    MR_RETURN_IF_ERROR(CheckHandleInput(i));
    return resources()->Resolve<T>(input(i).raw_scalar<ResourceHandle>());
  }

 private:
  Status NotScalar(int i, absl::string_view name) const;
  Status CheckHandleInput(int i) const;
  Params p_;
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

class AsyncKernel : public Kernel {
 public:
  using DoneCallback = absl::AnyInvocable<void(Status)>;
  // Calls `done` exactly once, here or on another thread; ctx lives until then. Must react to
  // ctx->cancellation().
  virtual void ComputeAsync(KernelContext* ctx, DoneCallback done) const = 0;
  const AsyncKernel* AsAsync() const final { return this; }
  // Only executors that know AsyncKernel run it.
  Status Compute(KernelContext*) const final;
};

// --- Registration --------------------------------------------------------------------------------

class KernelSpec {
 public:
  using Factory = std::function<std::unique_ptr<Kernel>()>;
  KernelSpec(absl::string_view op, Factory factory);
  // "CPU" unless said otherwise.
  KernelSpec& Device(absl::string_view type);
  // Attr `attr` must be T's dtype. Several calls for one attr allow each of the types.
  template <typename T>
  KernelSpec& Type(absl::string_view attr) {
    return Type(attr, DTypeOf<T>);
  }
  KernelSpec& Type(absl::string_view attr, DType dtype);
  KernelSpec& Types(absl::string_view attr, std::initializer_list<DType> dtypes);

  const std::string& op() const { return op_; }
  const std::string& device() const { return device_; }
  const std::vector<std::pair<std::string, std::vector<DType>>>& types() const { return types_; }
  const Factory& factory() const { return factory_; }

 private:
  std::string op_;
  std::string device_ = "CPU";
  std::vector<std::pair<std::string, std::vector<DType>>> types_;
  Factory factory_;
};

template <typename K>
KernelSpec KernelFor(absl::string_view op) {
  return KernelSpec(op, [] { return std::make_unique<K>(); });
}

// Registers at construction; meant for namespace-scope constants.
class KernelRegistration {
 public:
  KernelRegistration(const KernelSpec& spec);  // NOLINT: converts from the finished spec
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
