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
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/rules/elements.h"
#include "ops/rules/int_inputs.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {
namespace {

using Tuple = std::vector<Tensor>;

// What a queue is made with.
struct QueueSpec {
  std::string op;    // "FIFOQueueV2"
  std::string name;  // in messages and collections of resources
  std::vector<DType> types;
  std::vector<PartialShape> shapes;  // empty: any
  int64_t capacity = -1;
};

std::string TypesText(absl::Span<const DType> types) {
  return absl::StrCat(
      "[",
      absl::StrJoin(types, ", ",
                    [](std::string* out, DType t) { absl::StrAppend(out, DTypeName(t)); }),
      "]");
}
std::string ShapesText(absl::Span<const PartialShape> shapes) {
  return absl::StrCat("[",
                      absl::StrJoin(shapes, ", ",
                                    [](std::string* out, const PartialShape& s) {
                                      absl::StrAppend(out, s.ToString());
                                    }),
                      "]");
}

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
  using EnqueueDone = absl::AnyInvocable<void(Status)>;
  using DequeueDone = absl::AnyInvocable<void(StatusOr<std::vector<Tuple>>)>;

  explicit Queue(QueueSpec spec) : spec_(std::move(spec)) {}

  const QueueSpec& spec() const { return spec_; }
  std::string DebugString() const override {
    MutexLock lock(&mu_);
    return absl::StrCat("FIFOQueue '", spec_.name, "': ", elements_.size(), " elements",
                        closed_ ? ", closed" : "");
  }
  int64_t size() const {
    MutexLock lock(&mu_);
    return static_cast<int64_t>(elements_.size());
  }
  bool closed() const {
    MutexLock lock(&mu_);
    return closed_;
  }

  // Puts all tuples in; `done` is called once, here or on another thread.
  void Enqueue(CancellationManager* cancellation, std::vector<Tuple> tuples, EnqueueDone done) {
    auto attempt = std::make_shared<Attempt>();
    attempt->is_enqueue = true;
    attempt->tuples = std::move(tuples);
    attempt->enqueue_done = std::move(done);
    Begin(cancellation, std::move(attempt));
  }
  // Takes `count` tuples, or fewer but not 0 when `allow_fewer` and nothing more can come.
  void Dequeue(CancellationManager* cancellation, int64_t count, bool allow_fewer,
               DequeueDone done) {
    auto attempt = std::make_shared<Attempt>();
    attempt->wanted = static_cast<size_t>(count);
    attempt->allow_fewer = allow_fewer;
    attempt->dequeue_done = std::move(done);
    Begin(cancellation, std::move(attempt));
  }
  void Close(bool cancel_pending_enqueues) {
    Ended ended;
    {
      MutexLock lock(&mu_);
      closed_ = true;
      if (cancel_pending_enqueues) {
        for (auto& attempt : enqueues_) {
          attempt->status = absl::CancelledError("Enqueue operation was cancelled");
          ended.push_back(std::move(attempt));
        }
        enqueues_.clear();
      }
      Serve(&ended);
    }
    Finish(std::move(ended));
  }

 private:
  struct Attempt {
    bool is_enqueue = false;
    bool allow_fewer = false;
    size_t wanted = 0;          // dequeue: elements
    std::vector<Tuple> tuples;  // enqueue: all; dequeue: those collected so far
    size_t put = 0;             // enqueue: how many of them are in
    EnqueueDone enqueue_done;
    DequeueDone dequeue_done;
    Status status;
    CancellationManager* cancellation =
        nullptr;  // set while registered; outlives the step's kernels
    CancellationManager::Token token = 0;
    bool cancelled = false;  // the step was cancelled before the attempt stood in line
  };
  using Line = std::list<std::shared_ptr<Attempt>>;
  using Ended = std::vector<std::shared_ptr<Attempt>>;

  // Serves the attempt at once when it can be, else registers for cancellation and lets it wait.
  void Begin(CancellationManager* cancellation, std::shared_ptr<Attempt> attempt) {
    Ended ended;
    bool waits;
    {
      MutexLock lock(&mu_);
      Line& line = attempt->is_enqueue ? enqueues_ : dequeues_;
      waits = !IsTooLate(attempt.get()) && (!line.empty() || !TryEnd(attempt.get()));
      if (!waits) {
        ended.push_back(attempt);
        Serve(&ended);
      } else if (line.empty()) {
        // What TryEnd did in part stays done only when the attempt keeps its place in line.
        Restore(attempt.get());
      }
    }
    if (!waits) return Finish(std::move(ended));

    if (cancellation != nullptr) {
      attempt->cancellation = cancellation;
      const bool registered = cancellation->Register(
          &attempt->token, [queue = shared_from_this(), attempt] { queue->Cancel(attempt); });
      if (!registered) {
        attempt->cancellation = nullptr;
        attempt->status = CancelledStatus(*attempt);
        return Finish({std::move(attempt)});
      }
    }
    {
      MutexLock lock(&mu_);
      if (attempt->cancelled) {
        attempt->status = CancelledStatus(*attempt);
        ended.push_back(std::move(attempt));
      } else if (IsTooLate(attempt.get())) {
        ended.push_back(std::move(attempt));
      } else {
        (attempt->is_enqueue ? enqueues_ : dequeues_).push_back(std::move(attempt));
        Serve(&ended);
      }
    }
    Finish(std::move(ended));
  }

  void Cancel(const std::shared_ptr<Attempt>& attempt) {
    Ended ended;
    {
      MutexLock lock(&mu_);
      Line& line = attempt->is_enqueue ? enqueues_ : dequeues_;
      const auto found = std::find(line.begin(), line.end(), attempt);
      attempt->cancelled = true;
      if (found == line.end()) return;  // not in line yet, or ended by somebody else
      line.erase(found);
      if (!attempt->is_enqueue) Restore(attempt.get());
      attempt->status = CancelledStatus(*attempt);
      ended.push_back(attempt);
      Serve(&ended);
    }
    Finish(std::move(ended));
  }

  static Status CancelledStatus(const Attempt& attempt) {
    return absl::CancelledError(attempt.is_enqueue ? "Enqueue operation was cancelled"
                                                   : "Dequeue operation was cancelled");
  }

  // Lets attempts go on, in both lines, until the first of each has to wait.
  void Serve(Ended* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (bool progress = true; progress;) {
      progress = false;
      for (Line* line : {&enqueues_, &dequeues_}) {
        while (!line->empty() && TryEnd(line->front().get())) {
          ended->push_back(std::move(line->front()));
          line->pop_front();
          progress = true;
        }
      }
      // The first enqueue may have put a part of its tuples into room that a dequeue made.
      if (!progress && made_room_) progress = !enqueues_.empty();
      made_room_ = false;
    }
  }

  // Ends an enqueue that wants to stand in line after the queue was closed.
  bool IsTooLate(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!a->is_enqueue || !closed_) return false;
    a->status = absl::CancelledError(absl::StrCat("FIFOQueue '", spec_.name, "' is closed."));
    return true;
  }
  // Goes on with the attempt as far as possible; true when it has ended.
  bool TryEnd(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return a->is_enqueue ? TryEnqueue(a) : TryDequeue(a);
  }
  bool TryEnqueue(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (a->put < a->tuples.size() &&
           (spec_.capacity < 0 || static_cast<int64_t>(elements_.size()) < spec_.capacity)) {
      elements_.push_back(std::move(a->tuples[a->put++]));
    }
    return a->put == a->tuples.size();
  }
  bool TryDequeue(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (a->tuples.size() < a->wanted && !elements_.empty()) {
      a->tuples.push_back(std::move(elements_.front()));
      elements_.pop_front();
      made_room_ = true;
    }
    if (a->tuples.size() == a->wanted) return true;
    if (!closed_ || !enqueues_.empty()) return false;
    if (a->allow_fewer && !a->tuples.empty()) return true;
    const size_t have = a->tuples.size();
    Restore(a);
    a->status = absl::OutOfRangeError(absl::StrCat(
        "FIFOQueue '", spec_.name, "' is closed and has insufficient elements (requested ",
        a->wanted, ", current size ", have, ")"));
    return true;
  }
  // Undoes what an attempt that does not stand in line has done so far.
  void Restore(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (a->is_enqueue) {
      while (a->put > 0) {
        a->tuples[--a->put] = std::move(elements_.back());
        elements_.pop_back();
      }
      return;
    }
    for (size_t i = a->tuples.size(); i-- > 0;) elements_.push_front(std::move(a->tuples[i]));
    a->tuples.clear();
  }

  static void Finish(Ended ended) {
    for (const std::shared_ptr<Attempt>& a : ended) {
      // When its callback has begun, it finds that the attempt has left its line.
      if (a->cancellation != nullptr) a->cancellation->Deregister(a->token);
      if (a->is_enqueue) {
        std::move(a->enqueue_done)(a->status);
      } else if (!a->status.ok()) {
        std::move(a->dequeue_done)(a->status);
      } else {
        std::move(a->dequeue_done)(std::move(a->tuples));
      }
    }
  }

  const QueueSpec spec_;
  mutable Mutex mu_;
  std::deque<Tuple> elements_ ABSL_GUARDED_BY(mu_);
  Line enqueues_ ABSL_GUARDED_BY(mu_), dequeues_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool made_room_ ABSL_GUARDED_BY(mu_) = false;  // within Serve: a dequeue took something
};

// --- FIFOQueueV2 ---------------------------------------------------------------------------------

Status CheckSpec(const QueueSpec& spec) {
  if (!spec.shapes.empty() && spec.shapes.size() != spec.types.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shapes must be empty or have one shape for each of the ", spec.types.size(),
                     " component_types, got ", spec.shapes.size()));
  }
  for (size_t i = 0; i < spec.shapes.size(); ++i) {
    if (!spec.shapes[i].IsFullyDefined()) {
      return absl::InvalidArgumentError(
          absl::StrCat("shapes[", i, "] must be fully defined, got ", spec.shapes[i].ToString()));
    }
  }
  return absl::OkStatus();
}

template <typename Context>
StatusOr<QueueSpec> ReadSpec(const Context* c) {
  QueueSpec spec;
  MR_ASSIGN_OR_RETURN(spec.types, c->template GetAttr<std::vector<DType>>("component_types"));
  MR_ASSIGN_OR_RETURN(spec.shapes, c->template GetAttr<std::vector<PartialShape>>("shapes"));
  MR_ASSIGN_OR_RETURN(spec.capacity, c->template GetAttr<int64_t>("capacity"));
  MR_ASSIGN_OR_RETURN(spec.name, c->template GetAttr<std::string>("shared_name"));
  if (spec.capacity < 0) spec.capacity = -1;
  MR_RETURN_IF_ERROR(CheckSpec(spec));
  return spec;
}

Status FIFOQueueShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const QueueSpec spec, ReadSpec(c));
  c->set_output(0, Shape());
  // A handle knows of one type and shape only.
  if (spec.types.size() == 1) {
    HandleData data;
    data.dtype = spec.types[0];
    if (!spec.shapes.empty()) data.shape = spec.shapes[0];
    c->set_output_handle(0, std::move(data));
  }
  return absl::OkStatus();
}

// An existing queue must be what this node asks for.
Status CheckSame(const QueueSpec& have, const QueueSpec& want, const std::string& node_name) {
  const std::string queue = absl::StrCat("Shared queue '", have.name, "' has ");
  if (have.op != want.op) {
    return absl::InvalidArgumentError(absl::StrCat(queue, "type '", have.op,
                                                   "' that does not match type of Node '",
                                                   node_name, "': ", want.op));
  }
  if (have.capacity != want.capacity) {
    return absl::InvalidArgumentError(absl::StrCat(queue, "capacity ", have.capacity,
                                                   " but requested capacity was ", want.capacity));
  }
  if (have.types != want.types) {
    return absl::InvalidArgumentError(absl::StrCat(queue, "component types ", TypesText(have.types),
                                                   " but requested component types were ",
                                                   TypesText(want.types)));
  }
  if (have.shapes != want.shapes) {
    return absl::InvalidArgumentError(
        absl::StrCat(queue, "component shapes ", ShapesText(have.shapes),
                     " but requested component shapes were ", ShapesText(want.shapes)));
  }
  return absl::OkStatus();
}

class FIFOQueueKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(spec_, ReadSpec(c));
    MR_ASSIGN_OR_RETURN(container_, c->GetAttr<std::string>("container"));
    spec_.op = c->node().op();
    if (spec_.name.empty()) spec_.name = c->node().name();
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MutexLock lock(&mu_);
    if (!handle_.has_value() || handle_.raw_scalar<ResourceHandle>().resource->abandoned()) {
      MR_ASSIGN_OR_RETURN(auto queue,
                          ctx->resources()->LookupOrCreate<Queue>(
                              container_, spec_.name, [this]() -> StatusOr<std::shared_ptr<Queue>> {
                                return std::make_shared<Queue>(spec_);
                              }));
      MR_RETURN_IF_ERROR(CheckSame(queue->spec(), spec_, ctx->node_name()));
      ResourceHandle handle =
          ctx->resources()->MakeHandle<Queue>(container_, spec_.name, std::move(queue));
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
  std::string container_;
  mutable Mutex mu_;
  mutable Tensor handle_ ABSL_GUARDED_BY(mu_);
};

const OpRegistration kFIFOQueue = OpSpec("FIFOQueueV2")
                                      .Output("handle: resource")
                                      .Attr("component_types: list(type) >= 1")
                                      .Attr("shapes: list(shape) >= 0 = []")
                                      .Attr("capacity: int = -1")
                                      .Attr("container: string = ''")
                                      .Attr("shared_name: string = ''")
                                      .Stateful()
                                      .Shape(FIFOQueueShape)
                                      .NotDifferentiable();
const KernelRegistration kFIFOQueueKernel = KernelFor<FIFOQueueKernel>("FIFOQueueV2");

// --- Enqueue -------------------------------------------------------------------------------------

Status CheckTypes(const Queue& queue, absl::Span<const DType> types) {
  if (absl::MakeConstSpan(queue.spec().types) != types) {
    return absl::InvalidArgumentError(
        absl::StrCat("FIFOQueue '", queue.spec().name, "' has component types ",
                     TypesText(queue.spec().types), ", got ", TypesText(types)));
  }
  return absl::OkStatus();
}

Status CheckTimeout(KernelConstruction* c) {
  MR_ASSIGN_OR_RETURN(const int64_t timeout_ms, c->GetAttr<int64_t>("timeout_ms"));
  if (timeout_ms != -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout_ms must be -1 (no timeout), got ", timeout_ms));
  }
  return absl::OkStatus();
}

// `row` is the shape of one element of component i.
Status CheckComponentShape(const Queue& queue, size_t i, const Shape& row) {
  const auto& shapes = queue.spec().shapes;
  if (!shapes.empty() && !shapes[i].IsCompatibleWith(row)) {
    return absl::InvalidArgumentError(absl::StrCat("Shape mismatch in tuple component ", i,
                                                   ". Expected ", shapes[i].ToString(), ", got ",
                                                   row.ToString()));
  }
  return absl::OkStatus();
}

// Inputs 1, ... as the elements that they are.
StatusOr<std::vector<Tuple>> ElementsOfInputs(KernelContext* ctx, const Queue& queue, bool many) {
  std::vector<DType> types;
  for (int i = 1; i < ctx->num_inputs(); ++i) types.push_back(ctx->input_dtype(i));
  MR_RETURN_IF_ERROR(CheckTypes(queue, types));
  if (!many) {
    Tuple tuple;
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      MR_RETURN_IF_ERROR(
          CheckComponentShape(queue, static_cast<size_t>(i - 1), ctx->input(i).shape()));
      tuple.push_back(ctx->TakeInput(i));
    }
    std::vector<Tuple> tuples;
    tuples.push_back(std::move(tuple));
    return tuples;
  }
  int64_t rows = -1;
  for (int i = 1; i < ctx->num_inputs(); ++i) {
    const Shape& shape = ctx->input(i).shape();
    if (shape.rank() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("components[", i - 1, "] must have rank >= 1, got shape []"));
    }
    if (rows == -1) rows = shape.dim(0);
    if (shape.dim(0) != rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("All input tensors must have the same size in the 0th dimension. Component ",
                       i - 1, " has ", shape.dim(0), ", and should have ", rows));
    }
    MR_RETURN_IF_ERROR(
        CheckComponentShape(queue, static_cast<size_t>(i - 1), shape.Slice(1, shape.rank())));
  }
  std::vector<Tuple> tuples(static_cast<size_t>(rows));
  for (int i = 1; i < ctx->num_inputs(); ++i) {
    const Tensor& component = ctx->input(i);
    const Shape row = component.shape().Slice(1, component.rank());
    for (int64_t r = 0; r < rows; ++r) {
      MR_ASSIGN_OR_RETURN(Tensor element, component.Rows(r, r + 1).Reshaped(row));
      tuples[static_cast<size_t>(r)].push_back(std::move(element));
    }
  }
  return tuples;
}

class EnqueueKernelOf : public AsyncKernel {
 public:
  explicit EnqueueKernelOf(bool many) : many_(many) {}
  Status Init(KernelConstruction* c) override { return CheckTimeout(c); }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto queue = ctx->ResourceInput<Queue>(0);
    if (!queue.ok()) return std::move(done)(queue.status());
    StatusOr<std::vector<Tuple>> tuples = ElementsOfInputs(ctx, **queue, many_);
    if (!tuples.ok()) return std::move(done)(tuples.status());
    (*queue)->Enqueue(ctx->cancellation(), *std::move(tuples), std::move(done));
  }

 private:
  const bool many_;
};
class EnqueueKernel : public EnqueueKernelOf {
 public:
  EnqueueKernel() : EnqueueKernelOf(false) {}
};
class EnqueueManyKernel : public EnqueueKernelOf {
 public:
  EnqueueManyKernel() : EnqueueKernelOf(true) {}
};

OpSpec EnqueueSpec(const char* name) {
  return OpSpec(name)
      .Input("handle: resource")
      .Input("components: Tcomponents")
      .Attr("Tcomponents: list(type) >= 1")
      .Attr("timeout_ms: int = -1")
      .Stateful()
      .Shape(NoOutputShape)
      .NotDifferentiable();
}
const OpRegistration kEnqueue = EnqueueSpec("QueueEnqueueV2");
const KernelRegistration kEnqueueKernel = KernelFor<EnqueueKernel>("QueueEnqueueV2");
const OpRegistration kEnqueueMany = EnqueueSpec("QueueEnqueueManyV2");
const KernelRegistration kEnqueueManyKernel = KernelFor<EnqueueManyKernel>("QueueEnqueueManyV2");

// --- Dequeue -------------------------------------------------------------------------------------

// One component's shape with `rows` in front (nullopt: as it is).
Status DequeueShapeOf(InferenceContext* c, const std::optional<int64_t>& rows) {
  if (c->num_outputs() != 1 || !c->input_handle(0)) return absl::OkStatus();
  const PartialShape& element = c->input_handle(0)->shape;
  if (!element.has_rank()) return absl::OkStatus();
  std::vector<int64_t> dims(element.dims().begin(), element.dims().end());
  if (rows) dims.insert(dims.begin(), *rows);
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}
Status CheckCount(int64_t n) {
  if (n < 0) return absl::InvalidArgumentError(absl::StrCat("n must be >= 0, got ", n));
  return absl::OkStatus();
}
Status DequeueShape(InferenceContext* c) { return DequeueShapeOf(c, std::nullopt); }
Status DequeueManyShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0).status());
  const std::optional<int64_t> n = ConstantInt(c, 1);
  if (n) MR_RETURN_IF_ERROR(CheckCount(*n));
  return DequeueShapeOf(c, n.value_or(-1));
}
Status DequeueUpToShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0).status());
  if (const std::optional<int64_t> n = ConstantInt(c, 1)) MR_RETURN_IF_ERROR(CheckCount(*n));
  return DequeueShapeOf(c, -1);
}

// The types that a dequeue's outputs have, checked against the queue's.
class DequeueBase : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(types_, c->GetAttr<std::vector<DType>>("component_types"));
    return CheckTimeout(c);
  }

 protected:
  StatusOr<std::shared_ptr<Queue>> FindQueue(KernelContext* ctx) const {
    MR_ASSIGN_OR_RETURN(auto queue, ctx->ResourceInput<Queue>(0));
    MR_RETURN_IF_ERROR(CheckTypes(*queue, types_));
    return queue;
  }

 private:
  std::vector<DType> types_;
};

class DequeueKernel : public DequeueBase {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto queue = FindQueue(ctx);
    if (!queue.ok()) return std::move(done)(queue.status());
    (*queue)->Dequeue(ctx->cancellation(), 1, /*allow_fewer=*/false,
                      [ctx, done = std::move(done)](StatusOr<std::vector<Tuple>> tuples) mutable {
                        if (!tuples.ok()) return std::move(done)(tuples.status());
                        Tuple& tuple = tuples->front();
                        for (size_t i = 0; i < tuple.size(); ++i) {
                          ctx->set_output(static_cast<int>(i), std::move(tuple[i]));
                        }
                        std::move(done)(absl::OkStatus());
                      });
  }
};

// The tuples as the rows of one output per component.
Status OutputRows(KernelContext* ctx, const Queue& queue, const std::vector<Tuple>& tuples) {
  for (size_t c = 0; c < queue.spec().types.size(); ++c) {
    const PartialShape& element = queue.spec().shapes[c];
    std::vector<int64_t> dims(element.dims().begin(), element.dims().end());
    dims.insert(dims.begin(), static_cast<int64_t>(tuples.size()));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(static_cast<int>(c), shape));
    MR_RETURN_IF_ERROR(VisitElements(out->dtype(), [&]<typename E>() {
      E* to = MutableElementsOf<E>(out);
      for (const Tuple& tuple : tuples) {
        const E* from = ElementsOf<E>(tuple[c]);
        to = std::copy(from, from + tuple[c].num_elements(), to);
      }
    }));
  }
  return absl::OkStatus();
}

class DequeueManyKernelOf : public DequeueBase {
 public:
  explicit DequeueManyKernelOf(bool allow_fewer) : allow_fewer_(allow_fewer) {}
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto queue = FindQueue(ctx);
    if (!queue.ok()) return std::move(done)(queue.status());
    StatusOr<int64_t> n = ctx->IntScalarInput(1, "n");
    if (!n.ok()) return std::move(done)(n.status());
    if (const Status status = CheckCount(*n); !status.ok()) return std::move(done)(status);
    if ((*queue)->spec().shapes.empty()) {
      return std::move(done)(absl::InvalidArgumentError(
          "FIFOQueue's DequeueMany and DequeueUpTo require the components to have specified "
          "shapes."));
    }
    (*queue)->Dequeue(
        ctx->cancellation(), *n, allow_fewer_,
        [ctx, queue = *queue, done = std::move(done)](StatusOr<std::vector<Tuple>> tuples) mutable {
          std::move(done)(tuples.ok() ? OutputRows(ctx, *queue, *tuples) : tuples.status());
        });
  }

 private:
  const bool allow_fewer_;
};
class DequeueManyKernel : public DequeueManyKernelOf {
 public:
  DequeueManyKernel() : DequeueManyKernelOf(false) {}
};
class DequeueUpToKernel : public DequeueManyKernelOf {
 public:
  DequeueUpToKernel() : DequeueManyKernelOf(true) {}
};

const OpRegistration kDequeue = OpSpec("QueueDequeueV2")
                                    .Input("handle: resource")
                                    .Output("components: component_types")
                                    .Attr("component_types: list(type) >= 1")
                                    .Attr("timeout_ms: int = -1")
                                    .Stateful()
                                    .Shape(DequeueShape)
                                    .NotDifferentiable();
const KernelRegistration kDequeueKernel = KernelFor<DequeueKernel>("QueueDequeueV2");

OpSpec DequeueManySpec(const char* name, ShapeFn shape) {
  return OpSpec(name)
      .Input("handle: resource")
      .Input("n: int32")
      .Output("components: component_types")
      .Attr("component_types: list(type) >= 1")
      .Attr("timeout_ms: int = -1")
      .Stateful()
      .Shape(std::move(shape))
      .NotDifferentiable();
}
const OpRegistration kDequeueMany = DequeueManySpec("QueueDequeueManyV2", DequeueManyShape);
const KernelRegistration kDequeueManyKernel = KernelFor<DequeueManyKernel>("QueueDequeueManyV2");
const OpRegistration kDequeueUpTo = DequeueManySpec("QueueDequeueUpToV2", DequeueUpToShape);
const KernelRegistration kDequeueUpToKernel = KernelFor<DequeueUpToKernel>("QueueDequeueUpToV2");

// --- Close, Size, IsClosed -----------------------------------------------------------------------

class QueueCloseKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(cancel_pending_enqueues_, c->GetAttr<bool>("cancel_pending_enqueues"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto queue, ctx->ResourceInput<Queue>(0));
    queue->Close(cancel_pending_enqueues_);
    return absl::OkStatus();
  }

 private:
  bool cancel_pending_enqueues_ = false;
};
const OpRegistration kQueueClose = OpSpec("QueueCloseV2")
                                       .Input("handle: resource")
                                       .Attr("cancel_pending_enqueues: bool = false")
                                       .Stateful()
                                       .Shape(NoOutputShape)
                                       .NotDifferentiable();
const KernelRegistration kQueueCloseKernel = KernelFor<QueueCloseKernel>("QueueCloseV2");

class QueueSizeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto queue, ctx->ResourceInput<Queue>(0));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    out->mutable_raw<int32_t>()[0] = static_cast<int32_t>(queue->size());
    return absl::OkStatus();
  }
};
const OpRegistration kQueueSize = OpSpec("QueueSizeV2")
                                      .Input("handle: resource")
                                      .Output("size: int32")
                                      .Stateful()
                                      .Shape(ScalarShape)
                                      .NotDifferentiable();
const KernelRegistration kQueueSizeKernel = KernelFor<QueueSizeKernel>("QueueSizeV2");

class QueueIsClosedKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto queue, ctx->ResourceInput<Queue>(0));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    out->mutable_raw<bool>()[0] = queue->closed();
    return absl::OkStatus();
  }
};
const OpRegistration kQueueIsClosed = OpSpec("QueueIsClosedV2")
                                          .Input("handle: resource")
                                          .Output("is_closed: bool")
                                          .Stateful()
                                          .Shape(ScalarShape)
                                          .NotDifferentiable();
const KernelRegistration kQueueIsClosedKernel = KernelFor<QueueIsClosedKernel>("QueueIsClosedV2");

}  // namespace
}  // namespace millrace
