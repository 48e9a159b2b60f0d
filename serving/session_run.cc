// SPDX-License-Identifier: Apache-2.0
#include "serving/session_run.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/exceptions.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "net/splat_bytes.h"
#include "proto/config.pb.h"
#include "proto/named_tensor.pb.h"
#include "proto/serving/session_service.pb.h"
#include "runtime/session.h"
#include "saver/model_signature.h"
#include "serving/run_step.h"

namespace millrace {
namespace {

using tensorflow::serving::SessionRunRequest;
using tensorflow::serving::SessionRunResponse;

// Names of the request to names of the graph.
class Names {
 public:
  static StatusOr<Names> Of(const ServedModel& model, const SessionRunRequest& request) {
    Names names;
    if (!request.tensor_name_is_alias()) return names;
    const std::string& asked = request.model_spec().signature_name();
    const auto found =
        model.signatures().find(asked.empty() ? std::string(kDefaultServingSignature) : asked);
    if (found == model.signatures().end()) {
      return FailedPrecondition("Serving signature key \"",
                                asked.empty() ? kDefaultServingSignature : asked, "\" not found.");
    }
    names.signature_ = &found->second;
    return names;
  }
  StatusOr<std::string> Input(const std::string& name) const {
    return signature_ == nullptr ? name : Find(signature_->inputs(), name);
  }
  StatusOr<std::string> Output(const std::string& name) const {
    return signature_ == nullptr ? name : Find(signature_->outputs(), name);
  }

 private:
  static StatusOr<std::string> Find(const std::map<std::string, SignatureTensor>& tensors,
                                    const std::string& alias) {
    const auto found = tensors.find(alias);
    if (found == tensors.end() || found->second.name().empty()) {
      return InvalidArgument(
          "SessionRun: a name must be an alias of a dense tensor of the "
          "signature, got '",
          alias, "'");
    }
    return found->second.name();
  }
  const ModelSignature* signature_ = nullptr;
};

Status Run(const ServedModel& model, const SessionRunRequest& request, const StepBounds& bounds,
           int64_t max_splat_bytes, SessionRunResponse* response) {
  MR_ASSIGN_OR_RETURN(const Names names, Names::Of(model, request));
  Signature signature;
  std::vector<Tensor> feeds;
  int64_t splat_bytes = 0;
  for (const tensorflow::NamedTensorProto& feed : request.feed()) {
    MR_ASSIGN_OR_RETURN(std::string name, names.Input(feed.name()));
    signature.feeds.push_back(std::move(name));
    splat_bytes = AddCapped(splat_bytes, SplatBytes(feed.tensor()));
    if (splat_bytes > max_splat_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("SessionRun: elements that the feeds do not list must take at most ",
                       max_splat_bytes, " bytes, got ", splat_bytes));
    }
    StatusOr<Tensor> tensor = TensorFromProto(feed.tensor());
    if (!tensor.ok()) return InvalidArgument("tensor parsing error: ", feed.name());
    feeds.push_back(*std::move(tensor));
  }
  for (const std::string& fetch : request.fetch()) {
    MR_ASSIGN_OR_RETURN(std::string name, names.Output(fetch));
    signature.fetches.push_back(std::move(name));
  }
  signature.targets.assign(request.target().begin(), request.target().end());
  MR_RETURN_IF_ERROR(CheckBounds(bounds));  // before it is compiled
  MR_ASSIGN_OR_RETURN(const auto step, model.session()->Prepare(signature));

  std::vector<Tensor> results;
  const tensorflow::RunOptions& asked = request.options();
  if (asked.trace_level() == tensorflow::RunOptions::NO_TRACE) {
    StepOptions options = {.deadline = bounds.deadline, .cancellation = bounds.cancellation};
    if (asked.timeout_in_ms() > 0) {
      options.deadline =
          std::min(options.deadline, absl::Now() + absl::Milliseconds(asked.timeout_in_ms()));
    }
    results.resize(signature.fetches.size());
    MR_RETURN_IF_ERROR(step->RunInto(options, feeds, absl::MakeSpan(results)));
  } else {
    tensorflow::RunOptions options;
    options.set_trace_level(asked.trace_level());
    options.set_timeout_in_ms(asked.timeout_in_ms());
    if (bounds.deadline != absl::InfiniteFuture()) {
      const int64_t left_ms =
          std::max<int64_t>(absl::ToInt64Milliseconds(bounds.deadline - absl::Now()), 1);
      options.set_timeout_in_ms(asked.timeout_in_ms() > 0 ? std::min(asked.timeout_in_ms(), left_ms)
                                                          : left_ms);
    }
    MR_ASSIGN_OR_RETURN(results, step->Run(options, feeds, response->mutable_metadata()));
  }
  if (results.size() != signature.fetches.size()) {
    return InvalidArgument("SessionRun: each fetch must name a tensor, got ",
                           signature.fetches.size(), " names of ", results.size(),
                           " tensors; operations are targets");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    tensorflow::NamedTensorProto* const out = response->add_tensor();
    out->set_name(request.fetch(static_cast<int>(i)));
    MR_RETURN_IF_ERROR(TensorToListedProto(results[i], out->mutable_tensor()));
  }
  response->mutable_model_spec()->set_name(request.model_spec().name());
  response->mutable_model_spec()->set_signature_name(request.model_spec().signature_name());
  response->mutable_model_spec()->mutable_version()->set_value(model.version());
  return absl::OkStatus();
}

}  // namespace

Status SessionRun(const ServedModel& model, const SessionRunRequest& request,
                  const StepBounds& bounds, int64_t max_splat_bytes, SessionRunResponse* response) {
  response->Clear();
  const Status status = NoExceptions(
      "SessionRun", [&] { return Run(model, request, bounds, max_splat_bytes, response); });
  if (!status.ok()) response->Clear();
  return status;
}

}  // namespace millrace
