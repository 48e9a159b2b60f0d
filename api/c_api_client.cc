// SPDX-License-Identifier: Apache-2.0
//
// Calls to model servers. A target of its own: programs in C that make none need no gRPC.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "api/c_api.h"
#include "api/c_api_handle.h"
#include "api/c_api_internal.h"
#include "core/status.h"
#include "core/tensor.h"
#include "net/security.h"
#include "serving/client/model_client.h"

namespace millrace::c_api {
namespace {

struct ModelClientObject {
  using Opaque = MillraceModelClient;
  static constexpr uint32_t kKind = 0x4d52000c;
  static constexpr char kName[] = "MillraceModelClient";
  std::shared_ptr<const ModelClient> client;
};

// `seconds` 0: `fallback`.
StatusOr<absl::Duration> TimeoutOf(double seconds, absl::Duration fallback,
                                   absl::string_view where) {
  if (seconds == 0) return fallback;
  if (std::isfinite(seconds) && seconds > 0) return absl::Seconds(seconds);
  return InvalidArgument(where, ": options.timeout_seconds must be >= 0 and finite, got ", seconds);
}

// Keeps the client during a call.
StatusOr<std::shared_ptr<const ModelClient>> ClientOf(MillraceModelClient* client,
                                                      absl::string_view where) {
  MR_ASSIGN_OR_RETURN(const ModelClientObject* object,
                      Handles<ModelClientObject>::Get(client, where, "client"));
  return object->client;
}

StatusOr<ModelPredictOptions> PredictOptionsOf(const MillracePredictOptions* options,
                                               absl::string_view where) {
  MillracePredictOptions given;
  MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &given));
  ModelPredictOptions result = {.which = {.label = TextOrNone(given.label)},
                                .signature = TextOrNone(given.signature)};
  if (given.has_version != 0) result.which.version = given.version;
  if (given.timeout_seconds != 0) {
    MR_ASSIGN_OR_RETURN(result.timeout,
                        TimeoutOf(given.timeout_seconds, absl::ZeroDuration(), where));
  }
  return result;
}

}  // namespace
}  // namespace millrace::c_api

using namespace millrace;         // NOLINT: this file is the C face of it
using namespace millrace::c_api;  // NOLINT

MillraceModelClient* millrace_model_client_new(const char* address,
                                               const MillraceModelClientOptions* options,
                                               MillraceStatus* status) {
  return CallFor<MillraceModelClient*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceModelClient*> {
        MR_RETURN_IF_ERROR(CheckText(address, where, "address"));
        MillraceModelClientOptions given;
        MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &given));
        ModelClientOptions result;
        const SecurityOptions security = {.token_file = TextOrNone(given.token_file),
                                          .ca_file = TextOrNone(given.ca_file),
                                          .certificate_file = TextOrNone(given.certificate_file),
                                          .key_file = TextOrNone(given.key_file)};
        if (!security.token_file.empty() || !security.ca_file.empty() ||
            !security.certificate_file.empty() || !security.key_file.empty()) {
          MR_ASSIGN_OR_RETURN(result.credentials, Credentials::Load(security));
        }
        MR_ASSIGN_OR_RETURN(result.timeout,
                            TimeoutOf(given.timeout_seconds, result.timeout, where));
        if (given.max_retries < -1) {
          return InvalidArgument(where, ": options.max_retries must be >= -1, got ",
                                 given.max_retries);
        }
        if (given.max_retries != 0) result.max_retries = std::max(given.max_retries, 0);
        MR_ASSIGN_OR_RETURN(std::shared_ptr<const ModelClient> client,
                            ModelClient::Connect(address, result));
        return Handles<ModelClientObject>::New({std::move(client)});
      });
}

void millrace_model_client_delete(MillraceModelClient* client) {
  DeleteHandle<ModelClientObject>(client, __func__);
}

MillraceCode millrace_model_client_predict(MillraceModelClient* client, const char* model,
                                           const char* const* input_names,
                                           MillraceTensor* const* inputs, int num_inputs,
                                           const char* const* output_names,
                                           MillraceTensor** results, int num_outputs,
                                           const MillracePredictOptions* options, int64_t* version,
                                           MillraceStatus* status) {
  if (results != nullptr) std::fill_n(results, std::max(num_outputs, 0), nullptr);
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const ModelClient> asked, ClientOf(client, where));
    MR_RETURN_IF_ERROR(CheckText(model, where, "model"));
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        TextsOf(input_names, num_inputs, where, "input_names"));
    TensorsOfHandles values;
    MR_RETURN_IF_ERROR(values.Take(inputs, num_inputs, where, "inputs"));
    MR_ASSIGN_OR_RETURN(ModelPredictOptions given, PredictOptionsOf(options, where));
    MR_ASSIGN_OR_RETURN(given.outputs, TextsOf(output_names, num_outputs, where, "output_names"));
    MR_RETURN_IF_ERROR(CheckArray(results, num_outputs, where, "results"));
    std::map<std::string, Tensor> fed;
    for (size_t i = 0; i < names.size(); ++i) {
      if (fed.emplace(names[i], values.get()[i]).second) continue;
      return InvalidArgument(where, ": input_names must be different, got '", names[i], "' twice");
    }
    MR_ASSIGN_OR_RETURN(const ModelPrediction got, asked->Predict(model, fed, given));
    std::vector<Tensor> fetched;
    for (const std::string& name : given.outputs) {
      const auto found = got.outputs.find(name);
      if (found == got.outputs.end()) {
        return InvalidArgument(where, ": the server's reply must have output '", name,
                               "', got none");
      }
      fetched.push_back(found->second);
    }
    MR_RETURN_IF_ERROR(GiveTensors(absl::MakeSpan(fetched), results));
    if (version != nullptr) *version = got.version;
    return absl::OkStatus();
  });
}

int millrace_model_client_versions(MillraceModelClient* client, const char* model,
                                   int64_t* versions, MillraceVersionState* states,
                                   int max_versions, MillraceStatus* status) {
  return CallFor<int>(status, __func__, -1, [&](absl::string_view where) -> StatusOr<int> {
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const ModelClient> asked, ClientOf(client, where));
    MR_RETURN_IF_ERROR(CheckText(model, where, "model"));
    MR_RETURN_IF_ERROR(CheckArray(versions, max_versions, where, "versions"));
    MR_RETURN_IF_ERROR(CheckArray(states, max_versions, where, "states"));
    MR_ASSIGN_OR_RETURN(const std::vector<ServedVersionStatus> found, asked->GetModelStatus(model));
    for (size_t i = 0; i < std::min(found.size(), static_cast<size_t>(max_versions)); ++i) {
      versions[i] = found[i].version;
      states[i] = static_cast<MillraceVersionState>(found[i].state);
    }
    return static_cast<int>(found.size());
  });
}

MillraceStrings* millrace_model_client_signatures(MillraceModelClient* client, const char* model,
                                                  MillraceStatus* status) {
  return CallFor<MillraceStrings*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceStrings*> {
        MR_ASSIGN_OR_RETURN(const std::shared_ptr<const ModelClient> asked,
                            ClientOf(client, where));
        MR_RETURN_IF_ERROR(CheckText(model, where, "model"));
        MR_ASSIGN_OR_RETURN(const ServedModelMetadata metadata, asked->GetMetadata(model));
        StringsObject keys;
        for (const auto& [key, signature] : metadata.signatures) keys.strings.push_back(key);
        return Handles<StringsObject>::New(std::move(keys));
      });
}
