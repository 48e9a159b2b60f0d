// SPDX-License-Identifier: Apache-2.0
#include "ops/control/queue.h"

#include <algorithm>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "graph/shape_inference.h"
#include "ops/rules/elements.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {
namespace {

using Tuple = std::vector<Tensor>;

// Types as "[int32, float]", shapes as "[[2], []]".
template <typename Part>
std::string ListText(const std::vector<Part>& parts) {
  const auto append = [](std::string* out, const Part& part) {
    absl::StrAppend(out, MessagePart(part));
  };
  return absl::StrCat("[", absl::StrJoin(parts, ", ", append), "]");
}

// What a queue is made with.
struct QueueSpec {
  std::vector<DType> types;
  std::vector<PartialShape> shapes;  // empty: any
  int64_t capacity = -1;
  std::string container, name;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "component_types", &types, "shapes", &shapes, "capacity",
                                 &capacity, "container", &container, "shared_name", &name));
    capacity = std::max<int64_t>(capacity, -1);
    if (!shapes.empty() && shapes.size() != types.size()) {
      return InvalidArgument("shapes must be empty or have one shape for each of the ",
                             types.size(), " component_types, got ", shapes.size());
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (shapes[i].IsFullyDefined()) continue;
      return InvalidArgument("shapes[", i, "] must be fully defined, got ", shapes[i]);
    }
    return absl::OkStatus();
  }
  // What is put in or taken out must have the queue's types.
  Status CheckTypes(const std::vector<DType>& got) const {
    if (got == types) return absl::OkStatus();
    return InvalidArgument("FIFOQueue '", name, "' has component types ", ListText(types), ", got ",
                           ListText(got));
  }
  // A queue that exists must be what another node asks for.
  Status CheckSame(const QueueSpec& want) const {
    const auto check = [this](const char* what, const char* were, const std::string& have,
                              const std::string& requested) {
      if (have == requested) return absl::OkStatus();
      return InvalidArgument("Shared queue '", name, "' has ", what, " ", have, " but requested ",
                             what, " ", were, " ", requested);
    };
    MR_RETURN_IF_ERROR(
        check("capacity", "was", absl::StrCat(capacity), absl::StrCat(want.capacity)));
    MR_RETURN_IF_ERROR(check("component types", "were", ListText(types), ListText(want.types)));
    return check("component shapes", "were", ListText(shapes), ListText(want.shapes));
  }
};

// A queue. Attempts that cannot go on wait in two lines, one of enqueues and one of dequeues; only
// the first of a line is served. Whoever changes something serves the lines and then calls what has
// ended, without the lock.
//
// An attempt: waiting -> ended. It ends once: when it has all it wants, when the queue is closed
// and it cannot have it, or when its step is cancelled; whoever takes it out of its line under the
// lock ends it.
class Queue : public Resource, public std::enable_shared_from_this<Queue> {
 public:
  static constexpr const char* kTypeName = "Queue";

  struct Attempt {
    bool is_enqueue = false;
    std::vector<Tuple> tuples = {};  // enqueue: all; dequeue: those collected so far
    // Dequeue: how many elements, or fewer but not 0 when `allow_fewer` and nothing more can come.
    size_t wanted = 0;
    bool allow_fewer = false;
    // Called once, here or on another thread; with the tuples that were dequeued.
    absl::AnyInvocable<void(StatusOr<std::vector<Tuple>>)> done;

    // The queue's own.
    size_t put = 0;  // enqueue: how many of the tuples are in
    Status status = absl::OkStatus();
    // Set while registered; outlives the step's kernels.
    CancellationManager* cancellation = nullptr;
    CancellationManager::Token token = 0;
  };

  explicit Queue(QueueSpec spec) : spec_(std::move(spec)) {}

  const QueueSpec& spec() const { return spec_; }
  std::string DebugString() const override {
    MutexLock lock(&mu_);
    return absl::StrCat("FIFOQueue '", spec_.name, "': ", elements_.size(), " elements",
                        closed_ ? ", closed" : "");
  }
  size_t size() const {
    MutexLock lock(&mu_);
    return elements_.size();
  }
  bool closed() const {
    MutexLock lock(&mu_);
    return closed_;
  }

  // Serves the attempt at once when it can be, else registers for cancellation and lets it wait.
  void Begin(CancellationManager* cancellation, Attempt wish) {
    const auto attempt = std::make_shared<Attempt>(std::move(wish));
    Line arrived = {attempt};
    Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      Attempt* const a = attempt.get();
      Line& line = LineOf(*a);
      bool waits = false;
      if (a->is_enqueue && closed_) {
        a->status = absl::CancelledError(absl::StrCat("FIFOQueue '", spec_.name, "' is closed."));
      } else if (!line.empty() || !TryEnd(a)) {
        Restore(a);  // what TryEnd did in part stays done only when the attempt stands in line
        waits = cancellation == nullptr ||
                cancellation->Register(
                    &a->token, [queue = shared_from_this(), attempt] { queue->Cancel(attempt); });
        if (waits) a->cancellation = cancellation;
        if (!waits) a->status = CancelledStatus(*a);
      }
      Line& place = waits ? line : *ended;
      place.splice(place.end(), arrived);
    });
  }
  void Close(bool cancel_pending_enqueues) {
    Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      closed_ = true;
      if (!cancel_pending_enqueues) return;
      for (auto& attempt : enqueues_) attempt->status = CancelledStatus(*attempt);
      ended->swap(enqueues_);
    });
  }

 private:
  // Attempts move between lines with their nodes: that takes no memory.
  using Line = std::list<std::shared_ptr<Attempt>>;

  void Cancel(const std::shared_ptr<Attempt>& attempt) {
    Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      Line& line = LineOf(*attempt);
      const auto found = std::find(line.begin(), line.end(), attempt);
      if (found == line.end()) return;  // ended by somebody else
      ended->splice(ended->end(), line, found);
      if (!attempt->is_enqueue) Restore(attempt.get());
      attempt->status = CancelledStatus(*attempt);
    });
  }

  // Calls change(&ended) and serves the lines, then calls what has ended, without the lock.
  void Change(absl::FunctionRef<void(Line* ended)> change) {
    Line ended;
    {
      MutexLock lock(&mu_);
      change(&ended);
      Serve(&ended);
    }
    for (const std::shared_ptr<Attempt>& a : ended) {
      // When its callback has begun, it finds that the attempt has left its line.
      if (a->cancellation != nullptr) a->cancellation->Deregister(a->token);
      a->status.ok() ? a->done(std::move(a->tuples)) : a->done(a->status);
    }
  }

  static Status CancelledStatus(const Attempt& attempt) {
    return absl::CancelledError(attempt.is_enqueue ? "Enqueue operation was cancelled"
                                                   : "Dequeue operation was cancelled");
  }
  Line& LineOf(const Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return attempt.is_enqueue ? enqueues_ : dequeues_;
  }
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return spec_.capacity < 0 || static_cast<int64_t>(elements_.size()) < spec_.capacity;
  }

  // Lets attempts go on, in both lines, until the first of each has to wait.
  void Serve(Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    do {
      for (Line* line : {&enqueues_, &dequeues_}) {
        while (!line->empty() && TryEnd(line->front().get())) {
          ended->splice(ended->end(), *line, line->begin());
        }
      }
      // Dequeues may have made room for a part of what the first enqueue has.
    } while (!enqueues_.empty() && HasRoom());
  }

  // Goes on with the attempt as far as possible; true when it has ended.
  bool TryEnd(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (a->is_enqueue) {
      while (a->put < a->tuples.size() && HasRoom()) {
        elements_.push_back(std::move(a->tuples[a->put++]));
      }
      return a->put == a->tuples.size();
    }
    while (a->tuples.size() < a->wanted && !elements_.empty()) {
      a->tuples.push_back(std::move(elements_.front()));
      elements_.pop_front();
    }
    const size_t have = a->tuples.size();
    if (have == a->wanted) return true;
    if (!closed_ || !enqueues_.empty()) return false;
    if (a->allow_fewer && have > 0) return true;
    Restore(a);
    a->status = OutOfRange("FIFOQueue '", spec_.name,
                           "' is closed and has insufficient elements (requested ", a->wanted,
                           ", current size ", have, ")");
    return true;
  }
  // Undoes what an attempt that does not stand in line has done so far.
  void Restore(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (a->is_enqueue) {
      for (; a->put > 0; elements_.pop_back()) a->tuples[--a->put] = std::move(elements_.back());
      return;
    }
    for (size_t i = a->tuples.size(); i-- > 0;) elements_.push_front(std::move(a->tuples[i]));
    a->tuples.clear();
  }

  const QueueSpec spec_;
  mutable Mutex mu_;
  std::deque<Tuple> elements_ ABSL_GUARDED_BY(mu_);
  Line enqueues_ ABSL_GUARDED_BY(mu_), dequeues_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// --- FIFOQueueV2 ---------------------------------------------------------------------------------

Status FIFOQueueShape(InferenceContext* c) {
  QueueSpec spec;
  MR_RETURN_IF_ERROR(spec.Init(c->attrs()));
  c->set_output(0, Shape());
  // A handle knows of one type and shape only.
  if (spec.types.size() == 1) {
    c->set_output_handle(0, {spec.types[0], spec.shapes.empty() ? PartialShape() : spec.shapes[0]});
  }
  return absl::OkStatus();
}

class FIFOQueueKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(spec_.Init(c->attrs()));
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

const OpRegistration kFIFOQueue =
    OpSpec("FIFOQueueV2", "-> handle: resource",
           "component_types: list(type) >= 1; shapes: list(shape) >= 0 = []; capacity: int = -1; "
           "container: string = ''; shared_name: string = ''")
        .Stateful()
        .Shape(FIFOQueueShape)
        .NotDifferentiable()
        .With(KernelFor<FIFOQueueKernel>());

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
// The tuples as the rows of one output per component.
Status SetOutputRows(KernelContext* ctx, const QueueSpec& spec, const std::vector<Tuple>& tuples) {
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

template <Take kTake>
Status BeginDequeue(KernelContext* ctx, std::shared_ptr<Queue> queue, DoneCallback* done) {
  int64_t n = 1;
  if (kTake != Take::kOne) {
    MR_ASSIGN_OR_RETURN(n, ctx->ScalarInput<int32_t>(1, "n"));
    MR_RETURN_IF_ERROR(CheckCount(n));
    if (queue->spec().shapes.empty()) {
      return InvalidArgument(
          "FIFOQueue's DequeueMany and DequeueUpTo require the components to have specified "
          "shapes.");
    }
  }
  auto finish = [ctx, queue, done = std::move(*done)](StatusOr<std::vector<Tuple>> tuples) mutable {
    if (!tuples.ok()) return done(tuples.status());
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
