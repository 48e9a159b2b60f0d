// SPDX-License-Identifier: Apache-2.0
//
// Sessions and steps.
#include <algorithm>
#include <optional>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "api/c_api.h"
#include "api/c_api_handle.h"
#include "api/c_api_internal.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "runtime/session.h"
#include "runtime/session_config.h"

namespace millrace::c_api {
namespace {

struct StepObject {
  using Opaque = MillracePreparedStep;
  static constexpr uint32_t kKind = 0x4d520009;
  static constexpr char kName[] = "MillracePreparedStep";

  std::unique_ptr<PreparedStep> step;
  size_t num_feeds, num_fetches;
  std::shared_ptr<SessionState> session;  // stays open
};

// What a caller wants of one step besides its results.
struct RunControl {
  tensorflow::RunOptions options;
  MillraceBuffer** metadata_place = nullptr;
  std::optional<tensorflow::RunMetadata> metadata;  // where there is a place for it
};

StatusOr<RunControl> ControlOf(const MillraceRunOptions* options, absl::string_view where) {
  MillraceRunOptions given;
  MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &given));
  if (given.metadata != nullptr) *given.metadata = nullptr;
  RunControl control;
  MR_ASSIGN_OR_RETURN(
      const absl::string_view bytes,
      BytesOf(given.run_options, given.run_options_size, where, "options.run_options"));
  if (!control.options.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError(
        absl::StrCat(where, ": options.run_options must be a serialized RunOptions, got ",
                     bytes.size(), " bytes that are none"));
  }
  if (given.timeout_ms < 0) {
    return InvalidArgument(where, ": options.timeout_ms must be >= 0, got ", given.timeout_ms);
  }
  if (given.timeout_ms > 0) control.options.set_timeout_in_ms(given.timeout_ms);
  if (given.metadata != nullptr) {
    control.metadata_place = given.metadata;
    control.metadata.emplace();
    if (control.options.trace_level() == tensorflow::RunOptions::NO_TRACE) {
      control.options.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
    }
  }
  return control;
}

using FetchNames = absl::InlinedVector<FetchName, 4>;
Status TakeNames(const char* const* names, int count, absl::string_view where,
                 absl::string_view what, FetchNames* taken) {
  MR_RETURN_IF_ERROR(CheckArray(names, count, where, what));
  taken->reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (names[i] == nullptr) {
      return InvalidArgument(where, ": ", what, "[", i, "] must be a text, got NULL");
    }
    taken->emplace_back(names[i]);
  }
  return absl::OkStatus();
}

void ClearResults(MillraceTensor** results, int count) {
  if (results == nullptr) return;
  for (int i = 0; i < count; ++i) results[i] = nullptr;
}

// Handles for the results, and the trace where it was asked for; all of it or nothing.
Status Give(absl::Span<Tensor> tensors, const RunControl& control, MillraceTensor** results) {
  MillraceBuffer* trace = nullptr;
  if (control.metadata) {
    trace = Handles<BufferObject>::New({control.metadata->SerializeAsString()});
  }
  const Status given = NoExceptions("Run", [&] { return GiveTensors(tensors, results); });
  if (trace == nullptr) return given;
  if (given.ok()) {
    *control.metadata_place = trace;
  } else {
    Handles<BufferObject>::Delete(trace);
  }
  return given;
}

// An operation that is fetched gives no tensor.
Status CheckFetched(absl::Span<const Tensor> fetched, size_t wanted, absl::string_view where) {
  if (ABSL_PREDICT_TRUE(fetched.size() == wanted)) return absl::OkStatus();
  return InvalidArgument(where, ": each fetch must be a tensor, got ", wanted, " names of ",
                         fetched.size(), " tensors; nodes without outputs are targets");
}

// RunStep with options: apart, because what they need is large and most steps have none.
ABSL_ATTRIBUTE_NOINLINE Status RunControlled(SessionState* session, absl::Span<const Feed> feeds,
                                             absl::Span<const FetchName> fetches,
                                             absl::Span<const FetchName> targets,
                                             const MillraceRunOptions& options,
                                             absl::string_view where, MillraceTensor** results) {
  MR_ASSIGN_OR_RETURN(RunControl control, ControlOf(&options, where));
  MR_RETURN_IF_ERROR(session->CatchUp());
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> fetched,
                      session->session->Run(control.options, feeds, fetches, targets,
                                            control.metadata ? &*control.metadata : nullptr));
  MR_RETURN_IF_ERROR(CheckFetched(fetched, fetches.size(), where));
  return Give(absl::MakeSpan(fetched), control, results);
}

ABSL_ATTRIBUTE_NOINLINE Status RunControlled(const StepObject& step, absl::Span<const Tensor> feeds,
                                             const MillraceRunOptions& options,
                                             absl::string_view where, MillraceTensor** results) {
  MR_ASSIGN_OR_RETURN(RunControl control, ControlOf(&options, where));
  MR_ASSIGN_OR_RETURN(
      std::vector<Tensor> fetched,
      step.step->Run(control.options, feeds, control.metadata ? &*control.metadata : nullptr));
  MR_RETURN_IF_ERROR(CheckFetched(fetched, step.num_fetches, where));
  return Give(absl::MakeSpan(fetched), control, results);
}

}  // namespace

StatusOr<SessionOptions> SessionOptionsOf(const MillraceSessionOptions* options,
                                          absl::string_view where) {
  MillraceSessionOptions given;
  MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &given));
  tensorflow::ConfigProto config;
  MR_ASSIGN_OR_RETURN(const absl::string_view bytes,
                      BytesOf(given.config, given.config_size, where, "options.config"));
  if (!config.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError(absl::StrCat(where,
                                            ": options.config must be a serialized ConfigProto, "
                                            "got ",
                                            bytes.size(), " bytes that are none"));
  }
  const auto check = [&](const char* field, int64_t value) -> Status {
    if (value >= 0) return absl::OkStatus();
    return InvalidArgument(where, ": options.", field, " must be >= 0, got ", value);
  };
  MR_RETURN_IF_ERROR(check("timeout_ms", given.timeout_ms));
  MR_RETURN_IF_ERROR(check("creation_timeout_ms", given.creation_timeout_ms));
  MR_RETURN_IF_ERROR(check("max_step_bytes", given.max_step_bytes));
  MR_RETURN_IF_ERROR(check("num_threads", given.num_threads));
  if (given.timeout_ms > 0) config.set_operation_timeout_in_ms(given.timeout_ms);
  if (given.num_threads > 0) config.set_intra_op_parallelism_threads(given.num_threads);
  if (given.allow_soft_placement != 0) config.set_allow_soft_placement(true);
  SessionOptions result;
  result.target = TextOrNone(given.target);
  result.config = SessionConfigOf(std::move(config));
  result.max_step_bytes = given.max_step_bytes;
  if (given.creation_timeout_ms > 0) {
    result.creation_timeout = absl::Milliseconds(given.creation_timeout_ms);
  }
  return result;
}

Status RunStep(SessionState* session, absl::Span<const Feed> feeds,
               absl::Span<const FetchName> fetches, absl::Span<const FetchName> targets,
               const MillraceRunOptions* options, absl::string_view where,
               MillraceTensor** results) {
  if (options != nullptr) {
    return RunControlled(session, feeds, fetches, targets, *options, where, results);
  }
  MR_RETURN_IF_ERROR(session->CatchUp());
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> fetched,
                      session->session->Run(tensorflow::RunOptions::default_instance(), feeds,
                                            fetches, targets, nullptr));
  MR_RETURN_IF_ERROR(CheckFetched(fetched, fetches.size(), where));
  return GiveTensors(absl::MakeSpan(fetched), results);
}

}  // namespace millrace::c_api

using namespace millrace;         // NOLINT: this file is the C face of it
using namespace millrace::c_api;  // NOLINT

MillraceSession* millrace_session_new(MillraceGraph* graph, const MillraceSessionOptions* options,
                                      MillraceStatus* status) {
  return CallFor<MillraceSession*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceSession*> {
        MR_ASSIGN_OR_RETURN(const GraphObject* object,
                            Handles<GraphObject>::Get(graph, where, "graph"));
        MR_ASSIGN_OR_RETURN(const SessionOptions session_options, SessionOptionsOf(options, where));
        auto state = std::make_shared<SessionState>();
        state->graph = object->state;
        MR_ASSIGN_OR_RETURN(state->session, NewSession(session_options));
        return Handles<SessionObject>::New({std::move(state)});
      });
}

void millrace_session_delete(MillraceSession* session) {
  DeleteHandle<SessionObject>(session, __func__);
}

MillraceCode millrace_session_close(MillraceSession* session, MillraceStatus* status) {
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const SessionObject* object,
                        Handles<SessionObject>::Get(session, where, "session"));
    return object->state->session->Close();
  });
}

MillraceCode millrace_session_run(MillraceSession* session, const char* const* feed_names,
                                  MillraceTensor* const* feeds, int num_feeds,
                                  const char* const* fetch_names, MillraceTensor** results,
                                  int num_fetches, const char* const* targets, int num_targets,
                                  const MillraceRunOptions* options, MillraceStatus* status) {
  ClearResults(results, num_fetches);
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const SessionObject* object,
                        Handles<SessionObject>::Get(session, where, "session"));
    MR_RETURN_IF_ERROR(CheckArray(feeds, num_feeds, where, "feeds"));
    MR_RETURN_IF_ERROR(CheckArray(feed_names, num_feeds, where, "feed_names"));
    MR_RETURN_IF_ERROR(CheckArray(results, num_fetches, where, "results"));
    absl::InlinedVector<Feed, 4> fed;
    fed.reserve(static_cast<size_t>(num_feeds));
    for (int i = 0; i < num_feeds; ++i) {
      const TensorObject* const tensor = Handles<TensorObject>::Find(feeds[i]);
      if (tensor == nullptr) {
        return Handles<TensorObject>::Refusal(feeds[i], where, absl::StrCat("feeds[", i, "]"));
      }
      if (feed_names[i] == nullptr) {
        return InvalidArgument(where, ": feed_names[", i, "] must be a text, got NULL");
      }
      fed.emplace_back(feed_names[i], tensor->tensor);
    }
    FetchNames fetched, run;
    MR_RETURN_IF_ERROR(TakeNames(fetch_names, num_fetches, where, "fetch_names", &fetched));
    MR_RETURN_IF_ERROR(TakeNames(targets, num_targets, where, "targets", &run));
    return RunStep(object->state.get(), fed, fetched, run, options, where, results);
  });
}

MillracePreparedStep* millrace_session_prepare(MillraceSession* session,
                                               const char* const* feed_names, int num_feeds,
                                               const char* const* fetch_names, int num_fetches,
                                               const char* const* targets, int num_targets,
                                               MillraceStatus* status) {
  return CallFor<MillracePreparedStep*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillracePreparedStep*> {
        MR_ASSIGN_OR_RETURN(const SessionObject* object,
                            Handles<SessionObject>::Get(session, where, "session"));
        StepObject made;
        made.session = object->state;
        Signature signature;
        MR_ASSIGN_OR_RETURN(signature.feeds, TextsOf(feed_names, num_feeds, where, "feed_names"));
        MR_ASSIGN_OR_RETURN(signature.fetches,
                            TextsOf(fetch_names, num_fetches, where, "fetch_names"));
        MR_ASSIGN_OR_RETURN(signature.targets, TextsOf(targets, num_targets, where, "targets"));
        made.num_feeds = signature.feeds.size();
        made.num_fetches = signature.fetches.size();
        MR_RETURN_IF_ERROR(made.session->CatchUp());
        MR_ASSIGN_OR_RETURN(made.step, made.session->session->Prepare(signature));
        return Handles<StepObject>::New(std::move(made));
      });
}

void millrace_prepared_step_delete(MillracePreparedStep* step) {
  DeleteHandle<StepObject>(step, __func__);
}

MillraceCode millrace_prepared_step_run(MillracePreparedStep* step, MillraceTensor* const* feeds,
                                        int num_feeds, MillraceTensor** results, int num_results,
                                        const MillraceRunOptions* options, MillraceStatus* status) {
  ClearResults(results, num_results);
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const StepObject* object, Handles<StepObject>::Get(step, where, "step"));
    if (ABSL_PREDICT_FALSE(num_feeds < 0 || static_cast<size_t>(num_feeds) != object->num_feeds)) {
      return InvalidArgument(where, ": the step has ", object->num_feeds, " feeds, got ",
                             num_feeds);
    }
    if (ABSL_PREDICT_FALSE(num_results < 0 ||
                           static_cast<size_t>(num_results) != object->num_fetches)) {
      return InvalidArgument(where, ": the step has ", object->num_fetches,
                             " results, got places for ", num_results);
    }
    MR_RETURN_IF_ERROR(CheckArray(results, num_results, where, "results"));
    TensorsOfHandles values;
    MR_RETURN_IF_ERROR(values.Take(feeds, num_feeds, where, "feeds"));
    if (options == nullptr) {
      absl::InlinedVector<Tensor, 4> fetched(object->num_fetches);
      MR_RETURN_IF_ERROR(object->step->RunInto(values.get(), absl::MakeSpan(fetched)));
      return GiveTensors(absl::MakeSpan(fetched), results);
    }
    return RunControlled(*object, values.get(), *options, where, results);
  });
}

MillraceCode millrace_session_initialize_variables(MillraceSession* session,
                                                   MillraceStatus* status) {
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const SessionObject* object,
                        Handles<SessionObject>::Get(session, where, "session"));
    const std::shared_ptr<SessionState> state = object->state;
    if (state->graph == nullptr) {
      return FailedPrecondition(
          where, ": the session must be one of a graph, got a loaded model's, whose variables are ",
          "restored");
    }
    // Local variables after the others, whose values theirs may be made of.
    for (const char* collection : {"variables", "local_variables"}) {
      std::vector<FetchName> initializers;
      MR_RETURN_IF_ERROR(state->graph->Read([&](const Scope& scope) -> Status {
        for (const Variable& variable : VariablesOf(scope, collection)) {
          if (variable.initializer.valid()) initializers.emplace_back(variable.initializer.name());
        }
        return absl::OkStatus();
      }));
      if (initializers.empty()) continue;
      MR_RETURN_IF_ERROR(RunStep(state.get(), {}, {}, initializers, nullptr, where, nullptr));
    }
    return absl::OkStatus();
  });
}

MillraceStrings* millrace_session_devices(MillraceSession* session, MillraceStatus* status) {
  return CallFor<MillraceStrings*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceStrings*> {
        MR_ASSIGN_OR_RETURN(const SessionObject* object,
                            Handles<SessionObject>::Get(session, where, "session"));
        const std::shared_ptr<SessionState> state = object->state;
        MR_ASSIGN_OR_RETURN(const auto devices, state->session->ListDevices());
        StringsObject names;
        for (const tensorflow::DeviceAttributes& device : devices) {
          names.strings.push_back(device.name());
        }
        return Handles<StringsObject>::New(std::move(names));
      });
}
