// SPDX-License-Identifier: Apache-2.0
#include "data/iterator_ops.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/tensor_proto.h"
#include "data/dataset_variant.h"
#include "data/element.h"
#include "data/iterator_resource.h"
#include "data/optional_ops.h"
#include "data/optional_variant.h"
#include "graph/shape_inference.h"
#include "proto/node_def.pb.h"
#include "proto/resource_handle.pb.h"
#include "proto/tensor.pb.h"
#include "runtime/function_runner.h"
#include "runtime/holds_for_sessions.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {
namespace {

using data::CheckElement;
using data::Element;
using data::ElementSpec;
using data::IteratorResource;

constexpr char kStateTypeName[] = "millrace.IteratorState";

// Attrs output_types and output_shapes.
StatusOr<ElementSpec> SpecOfAttrs(const NodeAttrs& attrs) {
  std::vector<DType> types;
  std::vector<PartialShape> shapes;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "output_types", &types, "output_shapes", &shapes));
  if (shapes.size() != types.size()) {
    return InvalidArgument("output_shapes must have one shape for each of the ", types.size(),
                           " output_types, got ", shapes.size());
  }
  ElementSpec spec;
  for (size_t i = 0; i < types.size(); ++i) spec.push_back({types[i], shapes[i]});
  return spec;
}

std::vector<DType> TypesOf(const ElementSpec& spec) {
  std::vector<DType> types;
  for (const data::ComponentSpec& component : spec) types.push_back(component.dtype);
  return types;
}
std::vector<PartialShape> ShapesOf(const ElementSpec& spec) {
  std::vector<PartialShape> shapes;
  for (const data::ComponentSpec& component : spec) shapes.push_back(component.shape);
  return shapes;
}

// An iterator as the resource manager has it; one session's alone, if `session` is not empty.
class SessionIterator final : public IteratorResource, public HoldsForSessions {
 public:
  SessionIterator(std::string container, std::string key, std::string session,
                  const std::string& node, ElementSpec spec)
      : IteratorResource(node, std::move(spec)),
        container_(std::move(container)),
        key_(std::move(key)),
        session_(std::move(session)) {}
  void SessionEnded(absl::string_view session_handle) override {
    if (!session_.empty() && session_handle == session_) End(IoPool::Default());
  }

  // For OneShotIterator: who begins it.
  //
  //   idle -> kMine -> begun, or idle again
  enum class Beginning { kMine, kBegun, kWait };
  // kMine: the caller begins it, and says by EndBeginning how that ended; then `again` of those who
  // got kWait is called.
  Beginning BeginOnce(std::function<void()> again) {
    MutexLock lock(&begin_mu_);
    if (begun_) return Beginning::kBegun;
    if (beginning_) {
      waiting_.push_back(std::move(again));
      return Beginning::kWait;
    }
    beginning_ = true;
    return Beginning::kMine;
  }
  void EndBeginning(bool begun) {
    std::vector<std::function<void()>> waiting;
    {
      MutexLock lock(&begin_mu_);
      begun_ = begun;
      beginning_ = false;
      waiting.swap(waiting_);
    }
    for (const auto& again : waiting) again();
  }

  // Those whose sessions have ended.
  static void DeleteOver(ResourceManager* resources) {
    for (const auto& iterator : resources->All<IteratorResource>()) {
      const auto* const own = dynamic_cast<const SessionIterator*>(iterator.get());
      if (own == nullptr || !own->over()) continue;
      resources->Delete<IteratorResource>(own->container_, own->key_).IgnoreError();
    }
  }

 private:
  const std::string container_, key_, session_;
  Mutex begin_mu_;
  bool begun_ ABSL_GUARDED_BY(begin_mu_) = false;
  bool beginning_ ABSL_GUARDED_BY(begin_mu_) = false;
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(begin_mu_);
};

// --- Iterator, IteratorV2

Status IteratorShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(SpecOfAttrs(c->attrs()).status());
  c->set_output(0, Shape());
  return absl::OkStatus();
}

// The iterator of a node.
class NodeIterator {
 public:
  Status Init(KernelConstruction* c) {
    MR_ASSIGN_OR_RETURN(spec_, SpecOfAttrs(c->attrs()));
    MR_RETURN_IF_ERROR(
        ReadAttrs(c->attrs(), "shared_name", &shared_name_, "container", &container_));
    node_name_ = c->node().name();
    return absl::OkStatus();
  }
  // A handle to it, made when it is not there. One kernel may serve several sessions (plans are
  // shared): the handle of the last is kept.
  StatusOr<Tensor> Handle(KernelContext* ctx) const {
    static const std::string* const no_session = new std::string;
    const std::string& session = shared_name_.empty() ? ctx->session_handle() : *no_session;
    MutexLock lock(&mu_);
    if (!handle_.has_value() || session != handle_session_ ||
        handle_.raw_scalar<ResourceHandle>().resource->abandoned()) {
      SessionIterator::DeleteOver(ctx->resources());
      const std::string name =
          shared_name_.empty() ? absl::StrCat(session, "/", node_name_) : shared_name_;
      MR_ASSIGN_OR_RETURN(
          auto iterator,
          ctx->resources()->LookupOrCreate<IteratorResource>(
              container_, name, [&]() -> StatusOr<std::shared_ptr<IteratorResource>> {
                return std::make_shared<SessionIterator>(
                    container_, name, session, shared_name_.empty() ? node_name_ : name, spec_);
              }));
      if (data::SpecText(iterator->spec()) != data::SpecText(spec_)) {
        return InvalidArgument("Shared iterator '", name, "' has elements ",
                               data::SpecText(iterator->spec()), " but requested were ",
                               data::SpecText(spec_));
      }
      ResourceHandle handle =
          ctx->resources()->MakeHandle<IteratorResource>(container_, name, std::move(iterator));
      handle.dtypes = TypesOf(spec_);
      handle.shapes = ShapesOf(spec_);
      handle_ = Tensor::Scalar<ResourceHandle>(std::move(handle));
      handle_session_ = session;
    }
    return handle_;
  }

 private:
  ElementSpec spec_;
  std::string shared_name_, container_, node_name_;
  mutable Mutex mu_;
  mutable Tensor handle_ ABSL_GUARDED_BY(mu_);
  mutable std::string handle_session_ ABSL_GUARDED_BY(mu_);
};

class IteratorKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return iterator_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(Tensor handle, iterator_.Handle(ctx));
    ctx->set_output(0, std::move(handle));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  NodeIterator iterator_;
};

OpSpec IteratorSpec(const char* name) {
  return OpSpec(name, "-> handle: resource",
                "shared_name: string; container: string; output_types: list(type) >= 1; "
                "output_shapes: list(shape) >= 1")
      .Stateful()
      .Shape(IteratorShape)
      .NotDifferentiable()
      .With(KernelFor<IteratorKernel>());
}
const OpRegistration kIterator = IteratorSpec("Iterator");
const OpRegistration kIteratorV2 = IteratorSpec("IteratorV2");

// --- OneShotIterator

// Its function makes the dataset, once for each iterator, by the first step that asks.
class OneShotKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(iterator_.Init(c));
    MR_ASSIGN_OR_RETURN(function_, c->Function("dataset_factory"));
    const absl::Span<const DType> results = function_->result_types();
    if (!function_->argument_types().empty() || results.size() != 1 || results[0] != DT_VARIANT) {
      return InvalidArgument(
          "the function of attr 'dataset_factory' must have no argument and return one variant, "
          "got ",
          function_->argument_types().size(), " arguments and ", results.size(), " results",
          results.size() == 1 ? absl::StrCat(" of ", DTypeName(results[0])) : "");
    }
    return absl::OkStatus();
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    StatusOr<Tensor> handle = iterator_.Handle(ctx);
    if (!handle.ok()) return done(handle.status());
    const auto call = std::make_shared<Call>();
    call->iterator =
        std::dynamic_pointer_cast<SessionIterator>(handle->raw_scalar<ResourceHandle>().resource);
    if (call->iterator == nullptr) {
      return done(absl::InternalError("the iterator is none of this op"));
    }
    ctx->set_output(0, *std::move(handle));
    call->ctx = ctx;
    call->done = std::move(done);
    Begin(call);
  }

 private:
  struct Call {
    KernelContext* ctx = nullptr;
    DoneCallback done;
    std::shared_ptr<SessionIterator> iterator;
    Element results = Element(1);
  };

  void Begin(const std::shared_ptr<Call>& call) const {
    switch (call->iterator->BeginOnce([this, call] { Begin(call); })) {
      case SessionIterator::Beginning::kBegun:
        return call->done(absl::OkStatus());
      case SessionIterator::Beginning::kWait:
        return;
      case SessionIterator::Beginning::kMine:
        break;
    }
    function_->Run(call->ctx->step(), {}, absl::MakeSpan(call->results), [call](Status status) {
      if (!status.ok()) return End(call, std::move(status));
      auto dataset = data::DatasetOf(call->results[0], "the result of attr 'dataset_factory'");
      if (!dataset.ok()) return End(call, dataset.status());
      call->ctx->io_pool()->Schedule([call, dataset = *std::move(dataset)]() mutable {
        Status started = call->iterator->Start(dataset.dataset, dataset.options);
        dataset = {};
        End(call, std::move(started));
      });
    });
  }
  static void End(const std::shared_ptr<Call>& call, Status status) {
    call->iterator->EndBeginning(status.ok());
    // What the call holds may be the last of its kind, and `done` the end of what this runs in.
    call->results.clear();
    call->iterator.reset();
    call->done(std::move(status));
  }

  NodeIterator iterator_;
  CalledFunction* function_ = nullptr;
};

const OpRegistration kOneShot =
    OpSpec("OneShotIterator", "-> handle: resource",
           "dataset_factory: func; output_types: list(type) >= 1; output_shapes: list(shape) >= 1; "
           "container: string = ''; shared_name: string = ''")
        .Stateful()
        .Shape(IteratorShape)
        .NotDifferentiable()
        .With(KernelFor<OneShotKernel>());

// --- MakeIterator

Status CheckScalars(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) {
    MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
  }
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, PartialShape::Scalar());
  return absl::OkStatus();
}

// Files are listed and the run before is ended there, so it works on the I/O pool.
class MakeIteratorKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto dataset = data::DatasetOf(ctx->input(0), "dataset");
    auto iterator = ctx->ResourceInput<IteratorResource>(1);
    if (!dataset.ok()) return done(dataset.status());
    if (!iterator.ok()) return done(iterator.status());
    ctx->io_pool()->Schedule([dataset = *std::move(dataset), iterator = *std::move(iterator),
                              done = std::move(done)]() mutable {
      Status started = iterator->Start(dataset.dataset, dataset.options);
      // Both may be the last of their kind, and `done` the end of what this runs in.
      dataset = {};
      iterator.reset();
      done(std::move(started));
    });
  }
};

const OpRegistration kMakeIterator = OpSpec("MakeIterator", "dataset: variant, iterator: resource")
                                         .Stateful()
                                         .Shape(CheckScalars)
                                         .NotDifferentiable()
                                         .With(KernelFor<MakeIteratorKernel>());

// --- IteratorGetNext

Status GetNextShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "iterator").status());
  MR_ASSIGN_OR_RETURN(const ElementSpec spec, SpecOfAttrs(c->attrs()));
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, spec[static_cast<size_t>(i)].shape);
  }
  return absl::OkStatus();
}

// Waits for the next element, or its error, and hands it on as outputs.
class NextKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(spec_, SpecOfAttrs(c->attrs()));
    return absl::OkStatus();
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto iterator = ctx->ResourceInput<IteratorResource>(0);
    if (!iterator.ok()) return done(iterator.status());
    if (auto made = (*iterator)->TryGetNext()) return done(SetOutputs(ctx, *std::move(made)));
    (*iterator)->GetNext(ctx->cancellation(), ctx->io_pool(),
                         [this, ctx, done = std::move(done)](StatusOr<Element> made) mutable {
                           done(SetOutputs(ctx, std::move(made)));
                         });
  }

 protected:
  virtual Status SetOutputs(KernelContext* ctx, StatusOr<Element> made) const = 0;
  // The element is of the iterator's spec, which may be another than this node's.
  Status Check(const Element& made) const { return CheckElement("the iterator", spec_, made); }

 private:
  ElementSpec spec_;
};

class GetNextKernel final : public NextKernel {
 protected:
  Status SetOutputs(KernelContext* ctx, StatusOr<Element> made) const override {
    MR_RETURN_IF_ERROR(made.status());
    MR_RETURN_IF_ERROR(Check(*made));
    for (size_t i = 0; i < made->size(); ++i) {
      ctx->set_output(static_cast<int>(i), std::move((*made)[i]));
    }
    return absl::OkStatus();
  }
};

OpSpec GetNextSpec(const char* name) {
  return OpSpec(name, "iterator: resource -> components: output_types",
                "output_types: list(type) >= 1; output_shapes: list(shape) >= 1")
      .Stateful()
      .WaitsForSteps(WaitsForSteps::kInFunctions)
      .Shape(GetNextShape)
      .NotDifferentiable()
      .With(KernelFor<GetNextKernel>());
}
const OpRegistration kGetNext = GetNextSpec("IteratorGetNext");
const OpRegistration kGetNextSync = GetNextSpec("IteratorGetNextSync");

class GetNextAsOptionalKernel final : public NextKernel {
 protected:
  Status SetOutputs(KernelContext* ctx, StatusOr<Element> made) const override {
    if (absl::IsOutOfRange(made.status())) {
      ctx->set_output(0, data::OptionalTensor(std::nullopt));
      return absl::OkStatus();
    }
    MR_RETURN_IF_ERROR(made.status());
    MR_RETURN_IF_ERROR(Check(*made));
    ctx->set_output(0, data::OptionalTensor(*std::move(made)));
    return absl::OkStatus();
  }
};

const OpRegistration kGetNextAsOptional =
    OpSpec("IteratorGetNextAsOptional", "iterator: resource -> optional: variant",
           "output_types: list(type) >= 1; output_shapes: list(shape) >= 1")
        .Stateful()
        .WaitsForSteps(WaitsForSteps::kInFunctions)
        .Shape(CheckScalars)
        .NotDifferentiable()
        .With(KernelFor<GetNextAsOptionalKernel>());

// --- String handles: a serialized ResourceHandleProto

class ToStringHandleKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_RETURN_IF_ERROR(ctx->ResourceInput<IteratorResource>(0).status());
    tensorflow::TensorProto proto;
    MR_RETURN_IF_ERROR(TensorToProto(ctx->input(0), &proto));
    ctx->set_output(0,
                    Tensor::Scalar<std::string>(proto.resource_handle_val(0).SerializeAsString()));
    return absl::OkStatus();
  }
};

const OpRegistration kToStringHandle =
    OpSpec("IteratorToStringHandle", "resource_handle: resource -> string_handle: string")
        .Stateful()
        .Shape(CheckScalars)
        .NotDifferentiable()
        .With(KernelFor<ToStringHandleKernel>());

class FromStringHandleKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(spec_, SpecOfAttrs(c->attrs()));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::string text, ctx->ScalarInput<std::string>(0, "string_handle"));
    tensorflow::TensorProto proto;
    proto.set_dtype(tensorflow::DT_RESOURCE);
    if (!proto.add_resource_handle_val()->ParseFromString(text)) {
      return InvalidArgument("string_handle must be that of an iterator, got ", text.size(),
                             " other bytes");
    }
    MR_ASSIGN_OR_RETURN(Tensor handle, TensorFromProto(proto));
    ResourceHandle& named = handle.mutable_raw<ResourceHandle>()[0];
    MR_ASSIGN_OR_RETURN(auto iterator, ctx->resources()->Resolve<IteratorResource>(named));
    if (!spec_.empty()) {
      MR_RETURN_IF_ERROR(
          data::MergeSpecs("the iterator of string_handle", spec_, iterator->spec()).status());
    }
    named.resource = std::move(iterator);
    ctx->set_output(0, std::move(handle));
    return absl::OkStatus();
  }

 private:
  ElementSpec spec_;  // empty: any
};

OpSpec FromStringHandleSpec(const char* name) {
  return OpSpec(name, "string_handle: string -> resource_handle: resource",
                "output_types: list(type) >= 0 = []; output_shapes: list(shape) >= 0 = []")
      .Stateful()
      .Shape(CheckScalars)
      .NotDifferentiable()
      .With(KernelFor<FromStringHandleKernel>());
}
const OpRegistration kFromStringHandle = FromStringHandleSpec("IteratorFromStringHandle");
const OpRegistration kFromStringHandleV2 = FromStringHandleSpec("IteratorFromStringHandleV2");

// --- State

// Waits while an element is made, and, to restore, for files: on the I/O pool.
class SerializeKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto iterator = ctx->ResourceInput<IteratorResource>(0);
    if (!iterator.ok()) return done(iterator.status());
    ctx->io_pool()->Schedule(
        [ctx, iterator = *std::move(iterator), done = std::move(done)]() mutable {
          StatusOr<std::string> state = iterator->Save();
          iterator.reset();
          if (!state.ok()) return done(state.status());
          Variant variant;
          variant.type_name = kStateTypeName;
          variant.metadata = *std::move(state);
          ctx->set_output(0, Tensor::Scalar<Variant>(std::move(variant)));
          done(absl::OkStatus());
        });
  }
};

const OpRegistration kSerialize =
    OpSpec("SerializeIterator", "resource_handle: resource -> serialized: variant")
        .Stateful()
        .WaitsForSteps(WaitsForSteps::kInFunctions)
        .Shape(CheckScalars)
        .NotDifferentiable()
        .With(KernelFor<SerializeKernel>());

class DeserializeKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto iterator = ctx->ResourceInput<IteratorResource>(0);
    if (!iterator.ok()) return done(iterator.status());
    const Tensor& serialized = ctx->input(1);
    if (!serialized.shape().is_scalar() ||
        serialized.raw_scalar<Variant>().type_name != kStateTypeName) {
      return done(InvalidArgument("serialized must be what SerializeIterator gave, got ",
                                  serialized.DebugString()));
    }
    ctx->io_pool()->Schedule(
        [iterator = *std::move(iterator), state = serialized, done = std::move(done)]() mutable {
          Status restored = iterator->Restore(state.raw_scalar<Variant>().metadata);
          iterator.reset();
          done(std::move(restored));
        });
  }
};

const OpRegistration kDeserialize =
    OpSpec("DeserializeIterator", "resource_handle: resource, serialized: variant")
        .Stateful()
        .WaitsForSteps(WaitsForSteps::kInFunctions)
        .Shape(CheckScalars)
        .NotDifferentiable()
        .With(KernelFor<DeserializeKernel>());

}  // namespace
}  // namespace millrace
