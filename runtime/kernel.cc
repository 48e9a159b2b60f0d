// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/arena.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/logging.h"
#include "graph/function_body.h"
#include "proto/attr_value.pb.h"
#include "runtime/device.h"
#include "runtime/function_runner.h"
#include "runtime/rendezvous.h"
#include "runtime/resource_manager.h"
#include "runtime/step_context.h"
#include "runtime/step_memory.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

Status OutOfMemory(absl::string_view what, DType dtype, const Shape& shape, const Status& cause) {
  if (!absl::IsResourceExhausted(cause)) return Prefixed(what, cause);
  if (StepMemory::IsOverLimit(cause)) return Prefixed(what, cause);
  return absl::ResourceExhaustedError(
      absl::StrCat("OOM when allocating ", what, " with shape ", shape.ToString(), " and type ",
                   DTypeName(dtype), " (",
                   shape.num_elements() * static_cast<int64_t>(DTypeSize(dtype)), " bytes)"));
}

// Can an output of this type and shape live in the memory of `input`?
bool CanForward(const EdgeValue& input, DType dtype, const Shape& shape) {
  const Tensor& t = input;
  if (!t.has_value() || t.is_reference()) return false;
  if (t.num_elements() != shape.num_elements() || !t.BufferIsUnique()) return false;
  if (t.dtype() == dtype) return true;
  return IsMemcopyable(dtype) && IsMemcopyable(t.dtype()) &&
         DTypeSize(dtype) == DTypeSize(t.dtype());
}

StatusOr<Tensor> SameMemory(const Tensor& t, DType dtype, const Shape& shape) {
  if (t.dtype() == dtype) return t.Reshaped(shape);
  const size_t offset = static_cast<size_t>(static_cast<const char*>(t.raw_data()) -
                                            static_cast<const char*>(t.buffer()->data()));
  return Tensor::FromBuffer(dtype, shape, t.buffer(), offset);
}

// Stands among the rule's shapes for one that the rule does not know: a shape that nobody uses.
const Shape& LeftOpen() {
  static const Shape* const shape = new Shape{0, Shape::kMaxElements, 0, 1};
  return *shape;
}

// Whether `shape`, which output i is to get, is the rule's and the rule does not know it. (A kernel
// that gives no shape gives the rule's.) Asked for each output of each node, so it calls nothing.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool IsLeftOpen(absl::Span<const Shape> rule_shapes, int i,
                                                    const Shape& shape) {
  if (ABSL_PREDICT_TRUE(shape.rank() != 4 || shape.dim(1) != Shape::kMaxElements)) return false;
  const size_t at = static_cast<size_t>(i);
  return at < rule_shapes.size() && &shape == &rule_shapes[at] && shape.dim(0) == 0;
}

ABSL_ATTRIBUTE_NOINLINE Status NoShapeGiven(int i) {
  return InvalidArgument("output ", i,
                         " must get its shape from the kernel, as the op's rule leaves it "
                         "unknown, got none; call AllocateOutput(",
                         i, ", shape)");
}

}  // namespace

StatusOr<std::shared_ptr<VariableStorage>> KernelContext::ref_input(int i) const {
  const Tensor& in = input(i);
  if (!in.has_value() || !in.is_reference()) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", i, " must be a reference to a variable, got a ",
                     in.has_value() ? DTypeName(in.dtype()) : "dead", " tensor"));
  }
  return std::static_pointer_cast<VariableStorage>(in.reference());
}

void KernelContext::set_output_ref(int i, std::shared_ptr<VariableStorage> ref) {
  const DType dtype = RefOf(ref->dtype());
  f_->outputs[i] = Tensor::Reference(dtype, std::move(ref));
}

StatusOr<Tensor> KernelContext::Allocate(DType dtype, const Shape& shape) const {
  const StepContext& step = *f_->step;
  if (step.memory != nullptr) return step.memory->Allocate(dtype, shape, node_name());
  return Tensor::Allocate(dtype, shape, step.device->allocator);
}

StatusOr<Tensor*> KernelContext::AllocateOutput(int i, const Shape& shape) {
  if (ABSL_PREDICT_FALSE(IsLeftOpen(rule_shapes_, i, shape))) return NoShapeGiven(i);
  const DType dtype = WithoutRef(f_->output_types[i]);
  StatusOr<Tensor> fresh = Allocate(dtype, shape);
  if (!fresh.ok()) {
    return OutOfMemory(absl::StrCat("output ", i), dtype, shape, fresh.status());
  }
  f_->outputs[i] = *std::move(fresh);
  return mutable_output(i);
}

StatusOr<Tensor*> KernelContext::ForwardInputOrAllocateOutput(std::initializer_list<int> candidates,
                                                              int i, const Shape& shape) {
  if (ABSL_PREDICT_FALSE(IsLeftOpen(rule_shapes_, i, shape))) return NoShapeGiven(i);
  const DType dtype = WithoutRef(f_->output_types[i]);
  for (const int candidate : candidates) {
    const Tensor& in = input(candidate);
    if (!CanForward(in, dtype, shape)) continue;
    MR_ASSIGN_OR_RETURN(Tensor same, SameMemory(in, dtype, shape));
    set_output(i, std::move(same));
    return mutable_output(i);
  }
  return AllocateOutput(i, shape);
}

StatusOr<Tensor> KernelContext::AllocateTemp(DType dtype, const Shape& shape) {
  StatusOr<Tensor> fresh = Allocate(dtype, shape);
  if (!fresh.ok()) return OutOfMemory("scratch memory", dtype, shape, fresh.status());
  return fresh;
}

void KernelContext::ParallelFor(int64_t n, double cost_ns,
                                absl::FunctionRef<void(int64_t begin, int64_t end)> body) const {
  f_->step->arena->ParallelFor(n, cost_ns, body);
}

void KernelContext::ParallelBlocks(int64_t n, int64_t block, double cost_ns,
                                   absl::FunctionRef<void(int64_t begin, int64_t end)> body) const {
  f_->step->arena->ParallelBlocks(n, block, cost_ns, body);
}

int KernelContext::num_threads() const { return f_->step->arena->num_threads(); }
int64_t KernelContext::step_id() const { return f_->step->step_id; }
Device* KernelContext::device() const { return f_->step->device; }
ResourceManager* KernelContext::resources() const { return f_->step->device->resources.get(); }
ResourceManager* KernelContext::step_resources() const { return f_->step->step_resources; }
Rendezvous* KernelContext::rendezvous() const { return f_->step->rendezvous.get(); }
CancellationManager* KernelContext::cancellation() const { return f_->step->cancellation; }
IoPool* KernelContext::io_pool() const { return f_->step->io_pool; }
const std::string& KernelContext::session_handle() const { return f_->step->session_handle; }

StatusOr<CalledFunction*> KernelConstruction::FindFunction(const tensorflow::NameAttrList& function,
                                                           absl::string_view role) const {
  if (runner_ == nullptr) {
    return FailedPrecondition("function '", function.name(),
                              "' must be called in the graph of a session, got a node alone");
  }
  MR_ASSIGN_OR_RETURN(std::string name, IdentityOf(attrs_));
  if (!role.empty()) absl::StrAppend(&name, "\n", role);
  return runner_->Find(function, {*library_, std::move(name), device_, graph_producer_});
}

StatusOr<CalledFunction*> KernelConstruction::Function(absl::string_view attr,
                                                       absl::string_view role) const {
  MR_ASSIGN_OR_RETURN(const auto function, GetAttr<tensorflow::NameAttrList>(attr));
  return FindFunction(function, role);
}

StatusOr<std::vector<CalledFunction*>> KernelConstruction::Functions(absl::string_view attr) const {
  MR_ASSIGN_OR_RETURN(const auto functions, GetAttr<std::vector<tensorflow::NameAttrList>>(attr));
  std::vector<CalledFunction*> found;
  for (const tensorflow::NameAttrList& function : functions) {
    MR_ASSIGN_OR_RETURN(CalledFunction* const called,
                        FindFunction(function, absl::StrCat(attr, "_", found.size())));
    found.push_back(called);
  }
  return found;
}

Status KernelContext::NotScalar(int i, absl::string_view name) const {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be a scalar, got shape ", input(i).shape().ToString()));
}

StatusOr<std::shared_ptr<Resource>> KernelContext::ResolveInput(int i,
                                                                const char* type_name) const {
  const Tensor& t = input(i);
  if (t.dtype() != DT_RESOURCE || t.num_elements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", i, " must be one resource handle, got ", DTypeName(t.dtype()),
                     " of shape ", t.shape().ToString()));
  }
  return resources()->ResolveAny(t.raw_scalar<ResourceHandle>(), type_name);
}

StatusOr<Tensor*> KernelContext::AllocateZeros(int i, const Shape& shape) {
  MR_ASSIGN_OR_RETURN(Tensor * out, AllocateOutput(i, shape));
  // Strings are made empty.
  if (IsMemcopyable(out->dtype()) && out->num_elements() > 0) {
    const absl::Span<char> bytes = out->mutable_bytes();
    std::memset(bytes.data(), 0, bytes.size());
  }
  return out;
}

Status KernelContext::PassInput(int i) {
  if (ABSL_PREDICT_FALSE(IsLeftOpen(rule_shapes_, 0, output_shape(0)))) return NoShapeGiven(0);
  MR_ASSIGN_OR_RETURN(Tensor same, input(i).Reshaped(output_shape(0)));
  set_output(0, std::move(same));
  return absl::OkStatus();
}

StepRule::StepRule(KernelContext* ctx) : RuleContext({}, {}, &values_), ctx_(ctx), values_(ctx) {
  input_shapes_.reserve(static_cast<size_t>(ctx->num_inputs()));
  for (int i = 0; i < ctx->num_inputs(); ++i) input_shapes_.emplace_back(ctx->input(i).shape());
  partial_outputs_.resize(static_cast<size_t>(ctx->num_outputs()));
  inputs_ = input_shapes_;
  outputs_ = absl::MakeSpan(partial_outputs_);
}

Status StepRule::HandOver() {
  output_shapes_.resize(partial_outputs_.size());
  for (size_t i = 0; i < partial_outputs_.size(); ++i) {
    const PartialShape& shape = partial_outputs_[i];
    if (ABSL_PREDICT_FALSE(!shape.valid())) return shape.ToShape().status();
    if (shape.IsFullyDefined()) {
      output_shapes_[i] = Shape::Of(shape);
    } else {
      output_shapes_[i] = LeftOpen();
    }
  }
  ctx_->set_rule_result(output_shapes_, plan_.get());
  return absl::OkStatus();
}

const Tensor* StepRule::Values::ConstantInput(int i) {
  if (std::find(read.begin(), read.end(), i) == read.end()) read.push_back(i);
  return &ctx->input(i);
}

StatusOr<PartialShape> StepRule::Values::ShapeInput(int i) {
  return ShapeOfElements(*ConstantInput(i));
}

namespace {
// Of plain elements.
size_t BytesOf(const Tensor& t) {
  return static_cast<size_t>(t.num_elements()) * DTypeSize(t.dtype());
}
}  // namespace

struct RuleMemo::Entry {
  // Bounds: kernels live as long as plans, and long lists of inputs are slow to compare.
  static constexpr int kMost = 4, kMostInputs = 8;
  static constexpr size_t kMostBytes = 256;  // of all values

  bool Fits(const KernelContext& ctx) const {
    if (static_cast<int>(inputs.size()) != ctx.num_inputs()) return false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] != ctx.input(static_cast<int>(i)).shape()) return false;
    }
    size_t at = 0;
    for (const int i : read) {  // of the same shape, and so of as many bytes
      const Tensor& t = ctx.input(i);
      const size_t size = BytesOf(t);
      if (size > 0 && std::memcmp(values.data() + at, t.raw_data(), size) != 0) return false;
      at += size;
    }
    return true;
  }

  const Entry* older = nullptr;
  int number = 1;
  absl::InlinedVector<Shape, 4> inputs;
  absl::InlinedVector<int, 4> read;
  std::string values;  // of the inputs that were read, one behind the other
  absl::InlinedVector<Shape, 2> outputs;
  std::shared_ptr<const void> plan;  // as large as shapes and values make it
};

RuleMemo::~RuleMemo() {
  const Entry* entry = newest_.load(std::memory_order_acquire);
  while (entry != nullptr) {
    const std::unique_ptr<const Entry> last(entry);
    entry = last->older;
  }
}

bool RuleMemo::HandOver(KernelContext* ctx) const {
  const Entry* entry = newest_.load(std::memory_order_acquire);
  while (entry != nullptr && !entry->Fits(*ctx)) entry = entry->older;
  if (entry == nullptr) return false;
  ctx->set_rule_result(entry->outputs, entry->plan.get());
  return true;
}

void RuleMemo::Keep(const KernelContext& ctx, const StepRule& step) const {
  const Entry* newest = newest_.load(std::memory_order_acquire);
  if (ctx.num_inputs() > Entry::kMostInputs) return;
  if (newest != nullptr && newest->number >= Entry::kMost) return;
  auto entry = std::make_unique<Entry>();
  for (int i = 0; i < ctx.num_inputs(); ++i) {
    if (ctx.input(i).is_reference()) return;  // the variable's shape is not the tensor's
    entry->inputs.push_back(ctx.input(i).shape());
  }
  for (const int i : step.values_read()) {
    const Tensor& t = ctx.input(i);
    if (!IsMemcopyable(t.dtype()) || entry->values.size() + BytesOf(t) > Entry::kMostBytes) {
      return;
    }
    entry->read.push_back(i);
    if (BytesOf(t) > 0) {
      entry->values.append(static_cast<const char*>(t.raw_data()), BytesOf(t));
    }
  }
  entry->outputs.assign(step.output_shapes().begin(), step.output_shapes().end());
  entry->plan = step.plan();
  do {
    entry->older = newest;
    entry->number = newest == nullptr ? 1 : newest->number + 1;
  } while (!newest_.compare_exchange_weak(newest, entry.get(), std::memory_order_acq_rel,
                                          std::memory_order_acquire));
  entry.release();
}

Status AsyncKernel::Compute(KernelContext*) const {
  return absl::InternalError("an asynchronous kernel was run synchronously");
}

// --- DoneCallback --------------------------------------------------------------------------------

namespace {
constexpr absl::string_view kDropped = "the kernel dropped its done callback without calling it";
}  // namespace

void DoneCallback::CallDropped() { (*this)(absl::InternalError(kDropped)); }

bool DoneCallback::WasDropped(const Status& status) {
  return absl::IsInternal(status) && status.message() == kDropped;
}

void DoneCallback::LogSecondCall(const Status& status) {
  LogWarning("an asynchronous kernel must call its done callback once, got a second call with ",
             status.ToString());
}

}  // namespace millrace
