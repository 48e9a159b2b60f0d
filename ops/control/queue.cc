// SPDX-License-Identifier: Apache-2.0
#include "ops/control/queue.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "graph/shape_inference.h"
#include "ops/kernels/queue.h"
#include "ops/rules/elements.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/step_loans.h"

namespace millrace {
namespace {

// --- Queues --------------------------------------------------------------------------------------

template <QueueKind kKind>
Status QueueShape(InferenceContext* c) {
  QueueSpec spec;
  MR_RETURN_IF_ERROR(spec.Init(kKind, c->attrs()));
  c->set_output(0, Shape());
  // A handle knows of one type and shape only.
  if (spec.types.size() == 1) {
    c->set_output_handle(0, {spec.types[0], spec.shapes.empty() ? PartialShape() : spec.shapes[0]});
  }
  return absl::OkStatus();
}

class QueueKernel : public Kernel {
 public:
  explicit QueueKernel(QueueKind kind) { spec_.kind = kind; }
  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(spec_.Init(spec_.kind, c->attrs()));
    if (spec_.name.empty()) spec_.name = c->node().name();
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MutexLock lock(&mu_);
    if (!handle_.has_value() || handle_.raw_scalar<ResourceHandle>().resource->abandoned()) {
      MR_ASSIGN_OR_RETURN(
          auto queue, ctx->resources()->LookupOrCreate<Queue>(spec_.container, spec_.name, [this] {
            return StatusOr<std::shared_ptr<Queue>>(std::make_shared<Queue>(spec_));
          }));
      MR_RETURN_IF_ERROR(queue->spec().CheckSame(spec_));
      ResourceHandle handle =
          ctx->resources()->MakeHandle<Queue>(spec_.container, spec_.name, std::move(queue));
      handle.dtypes = spec_.types;
      handle.shapes = spec_.shapes;
      handle_ = Tensor::Scalar<ResourceHandle>(std::move(handle));
    }
    ctx->set_output(0, handle_);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  QueueSpec spec_;
  mutable Mutex mu_;
  mutable Tensor handle_ ABSL_GUARDED_BY(mu_);
};

template <QueueKind kKind>
OpRegistration RegisterQueue(const char* name, const char* more_attrs) {
  return OpSpec(name, "-> handle: resource",
                absl::StrCat("component_types: list(type) >= 1; shapes: list(shape) >= 0 = []; "
                             "capacity: int = -1; ",
                             more_attrs, "container: string = ''; shared_name: string = ''"))
      .Stateful()
      .Shape(QueueShape<kKind>)
      .NotDifferentiable()
      .With(KernelFor<QueueKernel>(kKind));
}
const OpRegistration kFIFOQueue = RegisterQueue<QueueKind::kFifo>("FIFOQueueV2", "");
const OpRegistration kPaddingQueue = RegisterQueue<QueueKind::kPadding>("PaddingFIFOQueueV2", "");
const OpRegistration kShuffleQueue = RegisterQueue<QueueKind::kShuffle>(
    "RandomShuffleQueueV2", "min_after_dequeue: int = 0; seed: int = 0; seed2: int = 0; ");

// --- Enqueue and dequeue -------------------------------------------------------------------------

// Makes an attempt. `types_attr` names the components' types; `begin` takes the callback unless it
// fails.
class AttemptKernel : public AsyncKernel {
 public:
  using BeginFn = Status (*)(KernelContext* ctx, std::shared_ptr<Queue> queue, DoneCallback* done);
  AttemptKernel(const char* types_attr, BeginFn begin) : types_attr_(types_attr), begin_(begin) {}

  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(types_, c->GetAttr<std::vector<DType>>(types_attr_));
    MR_ASSIGN_OR_RETURN(const int64_t timeout_ms, c->GetAttr<int64_t>("timeout_ms"));
    if (timeout_ms == -1) return absl::OkStatus();
    return InvalidArgument("timeout_ms must be -1 (no timeout), got ", timeout_ms);
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    if (const Status status = Begin(ctx, &done); !status.ok()) done(status);
  }

 private:
  Status Begin(KernelContext* ctx, DoneCallback* done) const {
    MR_ASSIGN_OR_RETURN(auto queue, ctx->ResourceInput<Queue>(0));
    MR_RETURN_IF_ERROR(queue->spec().CheckTypes(types_));
    return begin_(ctx, std::move(queue), done);
  }

  const char* const types_attr_;
  const BeginFn begin_;
  std::vector<DType> types_;
};

// Inputs 1, ... as the elements that they are: one, or their rows when `many`.
StatusOr<std::vector<Tuple>> ElementsOfInputs(KernelContext* ctx, const QueueSpec& spec,
                                              bool many) {
  std::vector<Tuple> tuples(1);
  for (int i = 0; i + 1 < ctx->num_inputs(); ++i) {
    const Tensor& component = ctx->input(i + 1);
    Shape element = component.shape();
    if (many) {
      if (element.rank() < 1) {
        return InvalidArgument("components[", i, "] must have rank >= 1, got shape []");
      }
      if (i == 0) tuples.resize(static_cast<size_t>(component.dim(0)));
      if (component.dim(0) != static_cast<int64_t>(tuples.size())) {
        return InvalidArgument(
            "All input tensors must have the same size in the 0th dimension. Component ", i,
            " has ", component.dim(0), ", and should have ", tuples.size());
      }
      element = element.Slice(1, element.rank());
    }
    const size_t c = static_cast<size_t>(i);
    if (!spec.shapes.empty() && !spec.shapes[c].IsCompatibleWith(element)) {
      return InvalidArgument("Shape mismatch in tuple component ", i, ". Expected ", spec.shapes[c],
                             ", got ", element);
    }
    for (size_t row = 0; many && row < tuples.size(); ++row) {
      const int64_t r = static_cast<int64_t>(row);
      MR_ASSIGN_OR_RETURN(Tensor part, component.Rows(r, r + 1).Reshaped(element));
      tuples[row].push_back(std::move(part));
    }
    if (!many) tuples[0].push_back(ctx->TakeInput(i + 1));
  }
  return tuples;
}

template <bool kMany>
Status BeginEnqueue(KernelContext* ctx, std::shared_ptr<Queue> queue, DoneCallback* done) {
  MR_ASSIGN_OR_RETURN(std::vector<Tuple> tuples, ElementsOfInputs(ctx, queue->spec(), kMany));
  queue->Begin(ctx->cancellation(),
               {.is_enqueue = true,
                .tuples = std::move(tuples),
                .done = [done = std::move(*done)](const auto& in) mutable { done(in.status()); }});
  return absl::OkStatus();
}

// A component with `rows` in front.
StatusOr<PartialShape> RowsOf(const PartialShape& element, int64_t rows) {
  if (!element.has_rank()) return PartialShape();
  std::vector<int64_t> dims = {rows};
  dims.insert(dims.end(), element.dims().begin(), element.dims().end());
  return PartialShape::Make(dims);
}

// How many elements: one, n as the rows of each output, or up to n when no more can come.
enum class Take { kOne, kMany, kUpTo };

Status CheckCount(int64_t n) {
  return n >= 0 ? absl::OkStatus() : InvalidArgument("n must be >= 0, got ", n);
}

template <Take kTake>
Status DequeueShape(InferenceContext* c) {
  PartialShape element;
  if (c->num_outputs() == 1 && c->input_handle(0)) element = c->input_handle(0)->shape;
  if (kTake != Take::kOne) {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> n, c->IntScalar(1, "n"));
    MR_RETURN_IF_ERROR(CheckCount(n.value_or(0)));
    MR_ASSIGN_OR_RETURN(element, RowsOf(element, kTake == Take::kMany ? n.value_or(-1) : -1));
  }
  c->set_output(0, std::move(element));
  return absl::OkStatus();
}

// The only tuple as the outputs.
Status SetOutputs(KernelContext* ctx, Tuple tuple) {
  for (size_t i = 0; i < tuple.size(); ++i) {
    ctx->set_output(static_cast<int>(i), std::move(tuple[i]));
  }
  return absl::OkStatus();
}
// The smallest shape that has room for all of a component, which are of one rank.
StatusOr<Shape> PaddedShape(const PartialShape& declared, const std::vector<Tuple>& tuples,
                            size_t component) {
  std::vector<int64_t> dims(declared.dims().begin(), declared.dims().end());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] >= 0) continue;
    dims[d] = 0;
    for (const Tuple& tuple : tuples) {
      dims[d] = std::max(dims[d], tuple[component].dim(static_cast<int>(d)));
    }
  }
  return Shape::Make(dims);
}

// Copies `from` into the corner of a zeroed place of shape `room`.
template <typename E>
void CopyIntoCorner(const E* from, const Shape& shape, E* to, const Shape& room) {
  if (shape.num_elements() == 0) return;
  const int rank = shape.rank();
  const int64_t row = rank == 0 ? 1 : shape.dim(rank - 1);
  const int64_t rows = shape.num_elements() / row;
  for (int64_t r = 0; r < rows; ++r) {
    // The place of row r, dimension by dimension from the last but one on.
    int64_t left = r, at = 0, stride = rank == 0 ? 1 : room.dim(rank - 1);
    for (int d = rank - 2; d >= 0; --d) {
      at += left % shape.dim(d) * stride;
      left /= shape.dim(d);
      stride *= room.dim(d);
    }
    std::copy_n(from + r * row, row, to + at);
  }
}

// The tuples as the rows of one output per component, each padded with zeros to the largest.
Status SetPaddedRows(KernelContext* ctx, const QueueSpec& spec, const std::vector<Tuple>& tuples) {
  for (size_t c = 0; c < spec.types.size(); ++c) {
    MR_ASSIGN_OR_RETURN(const Shape room, PaddedShape(spec.shapes[c], tuples, c));
    MR_ASSIGN_OR_RETURN(const PartialShape rows,
                        RowsOf(PartialShape(room), static_cast<int64_t>(tuples.size())));
    MR_ASSIGN_OR_RETURN(const Shape shape, rows.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(static_cast<int>(c), shape));
    MR_RETURN_IF_ERROR(VisitElements(out->dtype(), [&]<typename E>() {
      E* to = MutableElementsOf<E>(out);
      std::fill_n(to, out->num_elements(), E());
      for (const Tuple& tuple : tuples) {
        CopyIntoCorner(ElementsOf<E>(tuple[c]), tuple[c].shape(), to, room);
        to += room.num_elements();
      }
    }));
  }
  return absl::OkStatus();
}

// The tuples as the rows of one output per component.
Status SetOutputRows(KernelContext* ctx, const QueueSpec& spec, const std::vector<Tuple>& tuples) {
  if (spec.kind == QueueKind::kPadding) return SetPaddedRows(ctx, spec, tuples);
  for (size_t c = 0; c < spec.types.size(); ++c) {
    MR_ASSIGN_OR_RETURN(const PartialShape rows,
                        RowsOf(spec.shapes[c], static_cast<int64_t>(tuples.size())));
    MR_ASSIGN_OR_RETURN(const Shape shape, rows.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(static_cast<int>(c), shape));
    MR_RETURN_IF_ERROR(VisitElements(out->dtype(), [&]<typename E>() {
      E* to = MutableElementsOf<E>(out);
      for (const Tuple& tuple : tuples) {
        to = std::copy_n(ElementsOf<E>(tuple[c]), tuple[c].num_elements(), to);
      }
    }));
  }
  return absl::OkStatus();
}

// The elements go back when the step is given up (runtime/step_loans.h), or when that cannot be
// noted.
Status Lend(const KernelContext& ctx, const std::shared_ptr<Queue>& queue,
            std::vector<Tuple>* tuples) {
  StepLoans* const loans = StepLoans::Of(ctx);
  if (loans == nullptr) return absl::OkStatus();
  const Status lent = NoExceptions("Dequeue", [&]() -> Status {
    loans->Lend([queue, taken = *tuples]() mutable { queue->GiveBack(std::move(taken)); });
    return absl::OkStatus();
  });
  if (!lent.ok()) queue->GiveBack(std::move(*tuples));
  return lent;
}

template <Take kTake>
Status BeginDequeue(KernelContext* ctx, std::shared_ptr<Queue> queue, DoneCallback* done) {
  int64_t n = 1;
  if (kTake != Take::kOne) {
    MR_ASSIGN_OR_RETURN(n, ctx->ScalarInput<int32_t>(1, "n"));
    MR_RETURN_IF_ERROR(CheckCount(n));
    if (queue->spec().shapes.empty()) {
      return InvalidArgument(
          QueueKindName(queue->spec().kind),
          "'s DequeueMany and DequeueUpTo require the components to have specified shapes.");
    }
  }
  auto finish = [ctx, queue, done = std::move(*done)](StatusOr<std::vector<Tuple>> tuples) mutable {
    if (!tuples.ok()) return done(tuples.status());
    if (const Status lent = Lend(*ctx, queue, &*tuples); !lent.ok()) return done(lent);
    done(kTake == Take::kOne ? SetOutputs(ctx, std::move(tuples->front()))
                             : SetOutputRows(ctx, queue->spec(), *tuples));
  };
  queue->Begin(ctx->cancellation(), {.wanted = static_cast<size_t>(n),
                                     .allow_fewer = kTake == Take::kUpTo,
                                     .done = std::move(finish)});
  return absl::OkStatus();
}

// An op that makes attempts, and its kernel.
struct AttemptOp {
  AttemptOp(const char* name, const char* arguments, const char* types_attr, ShapeFn shape,
            AttemptKernel::BeginFn begin) {
    OpRegistration{
        OpSpec(name, arguments, absl::StrCat(types_attr, ": list(type) >= 1; timeout_ms: int = -1"))
            .Stateful()
            .WaitsForSteps(WaitsForSteps::kMay)
            .Shape(std::move(shape))
            .NotDifferentiable()
            .With(KernelFor<AttemptKernel>(types_attr, begin))};
  }
};
const AttemptOp kEnqueue("QueueEnqueueV2", "handle: resource, components: Tcomponents",
                         "Tcomponents", NoOutputShape, BeginEnqueue<false>);
const AttemptOp kEnqueueMany("QueueEnqueueManyV2", "handle: resource, components: Tcomponents",
                             "Tcomponents", NoOutputShape, BeginEnqueue<true>);
const AttemptOp kDequeue("QueueDequeueV2", "handle: resource -> components: component_types",
                         "component_types", DequeueShape<Take::kOne>, BeginDequeue<Take::kOne>);
constexpr char kDequeueArguments[] = "handle: resource, n: int32 -> components: component_types";
const AttemptOp kDequeueMany("QueueDequeueManyV2", kDequeueArguments, "component_types",
                             DequeueShape<Take::kMany>, BeginDequeue<Take::kMany>);
const AttemptOp kDequeueUpTo("QueueDequeueUpToV2", kDequeueArguments, "component_types",
                             DequeueShape<Take::kUpTo>, BeginDequeue<Take::kUpTo>);

// --- Close, Size, IsClosed -----------------------------------------------------------------------

struct CloseRule {
  bool cancel_pending_enqueues = false;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "cancel_pending_enqueues", &cancel_pending_enqueues);
  }
  Status operator()(RuleContext*) const { return absl::OkStatus(); }
};
Status RunClose(KernelContext* ctx, const CloseRule& rule) {
  MR_ASSIGN_OR_RETURN(auto queue, ctx->ResourceInput<Queue>(0));
  queue->Close(rule.cancel_pending_enqueues);
  return absl::OkStatus();
}
const OpRegistration kQueueClose =
    OpSpec("QueueCloseV2", "handle: resource", "cancel_pending_enqueues: bool = false")
        .Stateful()
        .With(RuledKernelFor<CloseRule>(RunClose))
        .NotDifferentiable();

// What a queue says of itself.
struct StateRule {
  StatusOr<PartialShape> operator()(RuleContext*) const { return PartialShape::Scalar(); }
};
template <typename T, auto kState>
Status RunState(KernelContext* ctx, const StateRule&) {
  MR_ASSIGN_OR_RETURN(auto queue, ctx->ResourceInput<Queue>(0));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  out->mutable_raw<T>()[0] = static_cast<T>((*queue.*kState)());
  return absl::OkStatus();
}
OpSpec StateSpec(const char* name, const char* arguments) {
  return OpSpec(name, arguments).Stateful().NotDifferentiable();
}
const OpRegistration kSize = StateSpec("QueueSizeV2", "handle: resource -> size: int32")
                                 .With(RuledKernelFor<StateRule>(RunState<int32_t, &Queue::size>));
const OpRegistration kIsClosed =
    StateSpec("QueueIsClosedV2", "handle: resource -> is_closed: bool")
        .With(RuledKernelFor<StateRule>(RunState<bool, &Queue::closed>));

}  // namespace
}  // namespace millrace
