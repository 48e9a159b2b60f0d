// SPDX-License-Identifier: Apache-2.0
#include "saver/servable_model.h"

#include <algorithm>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/allocator.h"
#include "core/cached_memory.h"
#include "core/did_you_mean.h"
#include "core/io_pool.h"
#include "core/paced_thread.h"
#include "graph/batch_hint.h"
#include "graph/missing_op_hint.h"
#include "graph/missing_ops.h"
#include "graph/signature.h"
#include "proto/config.pb.h"
#include "saver/file_parts.h"
#include "saver/saved_model.h"

namespace millrace {
namespace {

// What may stay in the allocator after a model has gone.
constexpr int64_t kReleasedFrom = int64_t{8} << 20;
// Signatures that a server compiles for a model at a time: fewer than the threads of the pool,
// which other loads share.
constexpr int kCompiledAtOnce = 8;

std::vector<ServableSignature::Place> PlacesOf(
    const std::map<std::string, SignatureTensor>& tensors) {
  std::vector<ServableSignature::Place> places;
  for (const auto& [key, tensor] : tensors) places.push_back({key, tensor.dtype(), tensor.shape()});
  return places;
}

StatusOr<std::unique_ptr<PreparedStep>> Compile(const ModelSignature& signature, Session* session) {
  RunSignature names;
  for (const auto* tensors : {&signature.inputs(), &signature.outputs()}) {
    for (const auto& [name, tensor] : *tensors) {
      if (tensor.name().empty()) {
        return Unimplemented(
            "'", name,
            "' must be a dense tensor, got a sparse one; export its values, indices "
            "and dense shape under aliases of their own, or run the session()");
      }
      (tensors == &signature.inputs() ? names.feeds : names.fetches).push_back(tensor.name());
    }
  }
  return session->Prepare(names);
}

// Is it the signature, as it stands in the model, that cannot be compiled? Other errors (no memory,
// a server that does not answer) may pass: a model that kept them would never answer.
bool IsOfSignature(const Status& status) {
  return absl::IsUnimplemented(status) || absl::IsInvalidArgument(status) ||
         absl::IsNotFound(status);
}

std::string KeysText(const std::map<std::string, ModelSignature>& signatures) {
  if (signatures.empty()) return "none";
  return absl::StrJoin(signatures, ", ", [](std::string* out, const auto& one) {
    absl::StrAppend(out, "'", one.first, "'");
  });
}

// Why a signature cannot be compiled: Unimplemented when it is ops that nobody has registered here.
Status CheckOps(const Model& model, const std::string& key, const ModelSignature& signature) {
  std::vector<std::string> feeds, fetches;
  for (const auto& [name, tensor] : signature.inputs()) feeds.push_back(tensor.name());
  for (const auto& [name, tensor] : signature.outputs()) fetches.push_back(tensor.name());
  const std::vector<MissingOp> missing = MissingOps(model.graph(), fetches, feeds);
  if (missing.empty()) return absl::OkStatus();
  return Unimplemented("Model '", model.name(), "': signature '", key,
                       "' must have ops that are registered in this program, ",
                       MissingOpsText(missing), kMissingOpHint,
                       model.signatures().size() == 1
                           ? ""
                           : "; LoadModelOptions::signatures names those that are to be served");
}

// InvalidArgument for a name that no signature has.
Status CheckServed(const Model& model, const std::vector<std::string>& served) {
  for (const std::string& key : served) {
    if (model.signatures().count(key) > 0) continue;
    DidYouMean best(key);
    for (const auto& [name, signature] : model.signatures()) best.Consider(name);
    return InvalidArgument("Model '", model.name(), "': a signature to serve must be one of ",
                           KeysText(model.signatures()), ", got '", key, "'", best.Hint());
  }
  return absl::OkStatus();
}

// A feed that the graph refuses although the signature does not: by the names that the caller
// knows, in front of TensorFlow's text.
Status NamedByInput(const Status& status, const std::string& key,
                    const std::map<std::string, SignatureTensor>& inputs) {
  if (!absl::StartsWith(status.message(), "Cannot feed value")) return status;
  for (const auto& [name, tensor] : inputs) {
    if (absl::StrContains(status.message(),
                          absl::StrCat("Tensor '", CanonicalTensorName(tensor.name()), "'"))) {
      return Prefixed(absl::StrCat("Predict: input '", name, "' of signature '", key, "'"), status);
    }
  }
  return status;
}

}  // namespace

struct ServableModel::Impl {
  // Immutable once the model is loaded.
  struct Slot {
    ServableSignature signature;
    Status status;
    std::unique_ptr<PreparedStep> step;  // null after an error
  };

  ~Impl() {
    slots.clear();
    if (session != nullptr) session->Close().IgnoreError();
    session.reset();
    // What a server has unloaded it will not want again soon. Small models are not worth that all
    // others ask the system for their next blocks.
    if (DefaultAllocatorStats().bytes_cached >= kReleasedFrom) ReleaseCachedMemory();
  }

  std::shared_ptr<const void> asset_copies;  // outlives the session
  std::unique_ptr<Session> session;
  std::map<std::string, ModelSignature> signatures;
  std::vector<Slot> slots;
};

ServableModel::ServableModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServableModel::ServableModel(ServableModel&&) noexcept = default;
ServableModel& ServableModel::operator=(ServableModel&&) noexcept = default;
ServableModel::~ServableModel() = default;

StatusOr<ServableModel> ServableModel::Load(const std::string& directory,
                                            const LoadModelOptions& options) {
  SessionOptions session_options = options.session;
  session_options.target = options.target;
  MR_ASSIGN_OR_RETURN(const Model model,
                      ReadModel(directory, {.tags = options.tags,
                                            .file_system = options.file_system,
                                            .only_to_open = options.target.empty()}));
  return Load(model, session_options, options.signatures);
}

StatusOr<ServableModel> ServableModel::Load(const Model& model, const SessionOptions& options,
                                            const std::vector<std::string>& signatures) {
  MR_RETURN_IF_ERROR(CheckServed(model, signatures));
  SessionOptions session_options = options;
  // On a server other sessions may have variables of these names.
  tensorflow::ConfigProto config = ConfigProtoOf(session_options.config);
  config.set_isolate_session_state(true);
  session_options.config = SessionConfigOf(std::move(config));
  MR_ASSIGN_OR_RETURN(SavedModelBundle bundle, OpenModel(session_options, model));
  auto impl = std::make_unique<Impl>();
  impl->asset_copies = std::move(bundle.asset_copies);
  impl->session = std::move(bundle.session);
  impl->signatures = model.signatures();
  for (const auto& [key, signature] : impl->signatures) {
    impl->slots.emplace_back().signature = {key, PlacesOf(signature.inputs()),
                                            PlacesOf(signature.outputs())};
  }
  const auto compile = [&](int64_t i) -> Status {
    Impl::Slot& slot = impl->slots[static_cast<size_t>(i)];
    const std::string& key = slot.signature.key;
    StatusOr<std::unique_ptr<PreparedStep>> step =
        Compile(impl->signatures.at(key), impl->session.get());
    slot.status = Prefixed(absl::StrCat("Predict: signature '", key, "'"), step.status());
    if (!step.ok() && !IsOfSignature(slot.status)) {
      return Prefixed(absl::StrCat("Model '", model.name(), "': signature '", key, "'"),
                      step.status());
    }
    if (step.ok()) {
      slot.step = *std::move(step);
      return absl::OkStatus();
    }
    const bool must_be_served =
        signatures.empty() ||
        std::find(signatures.begin(), signatures.end(), key) != signatures.end();
    // A server has ops of its own.
    if (!must_be_served || !session_options.target.empty()) return absl::OkStatus();
    return CheckOps(model, key, impl->signatures.at(key));
  };
  // In this process compiling takes the processor, in another one the way there and back.
  MR_RETURN_IF_ERROR(AtLowPriority([&] {
    IoPool* const pool = session_options.target.empty() ? nullptr : IoPool::Default();
    return RunParts(pool, kCompiledAtOnce, static_cast<int64_t>(impl->slots.size()), compile);
  }));
  return ServableModel(std::move(impl));
}

int ServableModel::num_signatures() const { return static_cast<int>(impl_->slots.size()); }

const ServableSignature& ServableModel::signature(int number) const {
  return impl_->slots[static_cast<size_t>(number)].signature;
}

const Status& ServableModel::status(int number) const {
  return impl_->slots[static_cast<size_t>(number)].status;
}

PreparedStep* ServableModel::step(int number) const {
  return impl_->slots[static_cast<size_t>(number)].step.get();
}

const std::map<std::string, ModelSignature>& ServableModel::signatures() const {
  return impl_->signatures;
}

Session* ServableModel::session() const { return impl_->session.get(); }

StatusOr<int> ServableModel::FindSignature(absl::string_view key) const {
  for (size_t i = 0; i < impl_->slots.size(); ++i) {
    if (impl_->slots[i].signature.key == key) return static_cast<int>(i);
  }
  DidYouMean best(key);
  for (const Impl::Slot& slot : impl_->slots) best.Consider(slot.signature.key);
  return InvalidArgument("Predict: signature '", key, "' must be one of ",
                         KeysText(impl_->signatures), best.Hint());
}

Status ServableModel::Predict(int signature, absl::Span<const Tensor> inputs,
                              absl::Span<Tensor> outputs) const {
  for (Tensor& output : outputs) output = Tensor();
  if (signature < 0 || signature >= num_signatures()) {
    return InvalidArgument("Predict: signature must be a number from 0 to ", num_signatures() - 1,
                           ", got ", signature);
  }
  const Impl::Slot& slot = impl_->slots[static_cast<size_t>(signature)];
  const ServableSignature& places = slot.signature;
  if (inputs.size() != places.inputs.size()) {
    return InvalidArgument("Predict: signature '", places.key, "' must be given ",
                           places.inputs.size(), " inputs, got ", inputs.size());
  }
  if (outputs.size() != places.outputs.size()) {
    return InvalidArgument("Predict: signature '", places.key, "' must be given places for ",
                           places.outputs.size(), " outputs, got ", outputs.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ServableSignature::Place& place = places.inputs[i];
    if (place.dtype != DT_INVALID && inputs[i].dtype() != place.dtype) {
      return InvalidArgument("Predict: input '", place.key, "' of signature '", places.key,
                             "' must be ", place.dtype, ", got ", inputs[i].dtype());
    }
    if (!place.shape.IsCompatibleWith(inputs[i].shape())) {
      return InvalidArgument("Predict: input '", place.key, "' of signature '", places.key,
                             "' must have shape ", place.shape, ", got ", inputs[i].shape(),
                             BatchHint(place.shape, inputs[i].shape()));
    }
  }
  MR_RETURN_IF_ERROR(slot.status);
  const Status status = slot.step->RunInto(inputs, outputs);
  if (ABSL_PREDICT_TRUE(status.ok())) return status;
  return NamedByInput(status, places.key, impl_->signatures.at(places.key).inputs());
}

}  // namespace millrace
