// SPDX-License-Identifier: Apache-2.0
#include "tools/remote_model.h"

#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/tensor.h"
#include "formats/json_nesting.h"
#include "google/protobuf/util/json_util.h"
#include "net/security.h"
#include "nlohmann/json.hpp"
#include "proto/meta_graph.pb.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "saver/loaded_model.h"
#include "serving/client/http_client.h"

namespace millrace {
namespace {

using nlohmann::json;

// Of the codes that a server's front maps to several, the most frequent.
absl::StatusCode CodeOfHttp(int status) {
  switch (status) {
    case 400:
      return absl::StatusCode::kInvalidArgument;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 408:
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    case 409:
      return absl::StatusCode::kAborted;
    case 413:
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 499:
      return absl::StatusCode::kCancelled;
    case 500:
      return absl::StatusCode::kInternal;
    case 501:
      return absl::StatusCode::kUnimplemented;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kUnknown;
  }
}

// JSON as servers write it, where floats may be NaN, Infinity and -Infinity: these as strings,
// which formats/json_value.h reads. Null for what is no JSON.
json ParsedReply(absl::string_view text) {
  if (JsonNesting(text) > kMaxJsonNesting) return nullptr;
  std::string plain;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const absl::string_view rest = text.substr(i);
    const struct {
      absl::string_view token, value;
    } tokens[] = {{"-Infinity", "\"-inf\""}, {"Infinity", "\"inf\""}, {"NaN", "\"nan\""}};
    bool replaced = false;
    for (const auto& one : tokens) {
      if (in_string || !absl::StartsWith(rest, one.token)) continue;
      absl::StrAppend(&plain, one.value);
      i += one.token.size() - 1;
      replaced = true;
      break;
    }
    if (replaced) continue;
    plain.push_back(text[i]);
    if (text[i] == '"') {
      in_string = !in_string;
    } else if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      plain.push_back(text[++i]);
    }
  }
  json parsed = json::parse(plain, nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? json() : parsed;
}

Status BadReply(absl::string_view rule, absl::string_view reply) {
  return InvalidArgument("The server's reply ", rule, ", got '", reply.substr(0, 100), "'");
}

// The body of an answer that is no error.
StatusOr<std::string> Body(const RemoteModel& model, const std::string& method,
                           const std::string& suffix, std::string body) {
  std::string target = absl::StrCat("/v1/models/", UrlEscaped(model.name));
  if (!model.version_name.empty()) {
    absl::StrAppend(&target, "/versions/", UrlEscaped(model.version_name));
  } else if (model.which.version) {
    absl::StrAppend(&target, "/versions/", *model.which.version);
  } else if (!model.which.label.empty()) {
    absl::StrAppend(&target, "/labels/", UrlEscaped(model.which.label));
  }
  MR_ASSIGN_OR_RETURN(const auto credentials, ClusterCredentials());
  // Who wants TLS does not want the token to be seen: these calls have none.
  const std::string token = credentials->is_tls() ? "" : credentials->token;
  MR_ASSIGN_OR_RETURN(HttpAnswer answer,
                      HttpCall(model.address, {.method = method,
                                               .target = target + suffix,
                                               .body = std::move(body),
                                               .token = token,
                                               .deadline = absl::Now() + model.timeout}));
  if (answer.status == 200) return std::move(answer.body);
  const json error = ParsedReply(answer.body);
  const bool has_text = error.is_object() && error.contains("error") && error["error"].is_string();
  return Status(CodeOfHttp(answer.status),
                has_text ? error["error"].get<std::string>()
                         : absl::StrCat("HTTP status ", answer.status, " of ", model.address, ": ",
                                        absl::string_view(answer.body).substr(0, 100)));
}

}  // namespace

StatusOr<LocalModel> OpenRemoteModel(const RemoteModel& model) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const ModelClient> client,
                      ModelClient::Connect(model.address, {.timeout = model.timeout}));
  MR_ASSIGN_OR_RETURN(const ServedModelMetadata metadata,
                      client->GetMetadata(model.name, model.which));
  MR_ASSIGN_OR_RETURN(const std::string signature,
                      ChosenSignature(metadata.signatures, model.signature, "--signature"));
  const ModelSignature& chosen = metadata.signatures.at(signature);
  LocalModel result = {.inputs = chosen.inputs(), .outputs = chosen.outputs()};
  result.predict = [client = std::move(client), name = model.name, which = model.which,
                    signature](const NamedTensors& inputs) -> StatusOr<NamedTensors> {
    MR_ASSIGN_OR_RETURN(ModelPrediction got,
                        client->Predict(name, inputs, {.which = which, .signature = signature}));
    return std::move(got.outputs);
  };
  return result;
}

StatusOr<std::map<std::string, ModelSignature>> RestSignatures(const RemoteModel& model) {
  MR_ASSIGN_OR_RETURN(const std::string reply, Body(model, "GET", "/metadata", ""));
  const json parsed = ParsedReply(reply);
  const json::json_pointer place("/metadata/signature_def");
  if (!parsed.is_object() || !parsed.contains(place)) {
    return BadReply("must be JSON with the model's signature_def", reply);
  }
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  tensorflow::serving::SignatureDefMap signatures;
  if (!google::protobuf::util::JsonStringToMessage(parsed[place].dump(), &signatures, options)
           .ok()) {
    return BadReply("must have signatures as protobuf writes them", reply);
  }
  std::map<std::string, ModelSignature> result;
  for (const auto& [key, def] : signatures.signature_def()) {
    if (key != kInitOpSignature) result.emplace(key, ModelSignature(def));
  }
  return result;
}

StatusOr<std::string> RestPredict(const RemoteModel& model, const std::string& signature,
                                  absl::Span<const std::string> instances) {
  // Values as they were given: a number keeps its digits.
  return Body(model, "POST", ":predict",
              absl::StrCat("{\"signature_name\": ", json(signature).dump(), ", \"instances\": [",
                           absl::StrJoin(instances, ",\n"), "]}"));
}

StatusOr<Instances> PredictionsOfReply(absl::string_view reply, const SignatureInputs& outputs) {
  const json parsed = ParsedReply(reply);
  const auto found = parsed.is_object() ? parsed.find("predictions") : parsed.end();
  if (found == parsed.end() || !found->is_array()) {
    return BadReply("must be JSON with a list of predictions", reply);
  }
  std::string lines;
  for (const json& one : *found) absl::StrAppend(&lines, one.dump(), "\n");
  const StatusOr<Instances> rows = JsonInstances(lines, outputs);
  if (!rows.ok()) return Prefixed("The predictions of the server's reply", rows.status());
  return rows;
}

}  // namespace millrace
