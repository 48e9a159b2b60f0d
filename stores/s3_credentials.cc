// SPDX-License-Identifier: Apache-2.0
#include "stores/s3_credentials.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

constexpr absl::Duration kBeforeEnd = absl::Minutes(5);
constexpr uint64_t kMaxFileBytes = 1 << 20;
constexpr uint64_t kMaxAnswerBytes = 64 << 10;
constexpr absl::string_view kContainerHost = "http://169.254.170.2";
constexpr absl::string_view kInstanceHost = "http://169.254.169.254";

// "key = value" -> key and value.
std::pair<std::string, std::string> Assignment(absl::string_view line) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(line, absl::MaxSplits('=', 1));
  return {absl::AsciiStrToLower(absl::StripAsciiWhitespace(parts.first)),
          std::string(absl::StripAsciiWhitespace(parts.second))};
}

std::string TextAt(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string ProcessEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

S3Credentials::S3Credentials(EnvironmentOf environment, HttpOptions http)
    : environment_(std::move(environment)), http_([&] {
        // Both endpoints are of this machine: where there is none, nobody should wait long.
        http.connect_timeout = absl::Seconds(2);
        http.stall_timeout = absl::Seconds(5);
        http.max_attempts = 3;
        return http;
      }()) {}

StatusOr<S3Keys> S3Credentials::Keys() {
  const MutexLock lock(&mu_);
  const absl::Time now = http_.clock()->Now();
  if (found_ != nullptr && now < found_->end - kBeforeEnd) return found_->keys;
  StatusOr<Found> found = Find();
  if (found.ok()) {
    found_ = std::make_unique<Found>(*std::move(found));
  } else if (found_ != nullptr && now < found_->end) {
    LogWarning("S3: keys must be renewed before ", absl::FormatTime(found_->end), ", got '",
               found.status().message(), "'");
  } else {
    return found.status();
  }
  return found_->keys;
}

StatusOr<S3Credentials::Found> S3Credentials::Find() {
  const std::string id = environment_("AWS_ACCESS_KEY_ID");
  const std::string secret = environment_("AWS_SECRET_ACCESS_KEY");
  if (id.empty() != secret.empty()) {
    return FailedPrecondition(
        "S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set together, got ",
        id.empty() ? "the second" : "the first", " alone");
  }
  if (!id.empty()) return Found{{id, secret, environment_("AWS_SESSION_TOKEN")}};

  std::string file = environment_("AWS_SHARED_CREDENTIALS_FILE");
  const bool must = !file.empty() || !environment_("AWS_PROFILE").empty();
  const std::string home = environment_("HOME");
  if (file.empty() && !home.empty()) file = JoinPath(home, ".aws/credentials");
  if (!file.empty()) {
    StatusOr<Found> found = FromFile(file, must);
    if (found.ok() || !absl::IsNotFound(found.status())) return found;
  }

  std::string url = environment_("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  const std::string relative = environment_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  if (!relative.empty()) url = absl::StrCat(kContainerHost, relative);
  if (!url.empty()) return FromContainer(url);

  const std::string why =
      "S3: keys must be in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a credentials file, or at "
      "the endpoint of a container or instance, got none";
  if (absl::EqualsIgnoreCase(environment_("AWS_EC2_METADATA_DISABLED"), "true")) {
    return absl::PermissionDeniedError(why);
  }
  StatusOr<Found> found = FromInstance();
  if (found.ok()) return found;
  return absl::PermissionDeniedError(absl::StrCat(why, " (", found.status().message(), ")"));
}

StatusOr<S3Credentials::Found> S3Credentials::FromFile(const std::string& path, bool must) {
  StatusOr<std::string> text = ReadFileToString(FileSystem::Posix(), path, kMaxFileBytes);
  if (!text.ok()) {
    if (!must && absl::IsNotFound(text.status())) return text.status();
    return Status(must ? absl::StatusCode::kFailedPrecondition : text.status().code(),
                  absl::StrCat("S3: credentials: ", text.status().message()));
  }
  std::string profile = environment_("AWS_PROFILE");
  if (profile.empty()) profile = "default";
  Found found;
  bool inside = false;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line.front() == '[') {
      inside = line.back() == ']' &&
               absl::StripAsciiWhitespace(line.substr(1, line.size() - 2)) == profile;
      continue;
    }
    if (!inside) continue;
    const auto [name, value] = Assignment(line);
    if (name == "aws_access_key_id") found.keys.access_key_id = value;
    if (name == "aws_secret_access_key") found.keys.secret_access_key = value;
    if (name == "aws_session_token") found.keys.session_token = value;
  }
  if (!found.keys.access_key_id.empty() && !found.keys.secret_access_key.empty()) return found;
  const std::string why =
      absl::StrCat("File '", path, "': profile '", profile,
                   "' must have aws_access_key_id and aws_secret_access_key, got none or one");
  if (must) return FailedPrecondition(why);
  return absl::NotFoundError(why);
}

StatusOr<S3Credentials::Found> S3Credentials::FromContainer(const std::string& url) {
  HttpRequest request{.url = url, .max_body_bytes = kMaxAnswerBytes};
  std::string token = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string file = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!file.empty()) {
    MR_ASSIGN_OR_RETURN(token, ReadFileToString(FileSystem::Posix(), file, kMaxFileBytes));
    token = std::string(absl::StripAsciiWhitespace(token));
  }
  if (!token.empty()) request.headers["authorization"] = token;
  MR_ASSIGN_OR_RETURN(const HttpResponse response, http_.Call(request));
  return FromJson("the container's endpoint", response);
}

StatusOr<S3Credentials::Found> S3Credentials::FromInstance() {
  std::string host = environment_("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  while (absl::EndsWith(host, "/")) host.pop_back();
  if (host.empty()) host = std::string(kInstanceHost);
  MR_ASSIGN_OR_RETURN(const HttpResponse token,
                      http_.Call({.method = "PUT",
                                  .url = absl::StrCat(host, "/latest/api/token"),
                                  .headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}},
                                  .max_body_bytes = kMaxAnswerBytes}));
  if (token.status != 200) {
    return absl::PermissionDeniedError(
        absl::StrCat("S3: the instance's endpoint must give a token, got ", token.status));
  }
  const std::string roles = absl::StrCat(host, "/latest/meta-data/iam/security-credentials/");
  HttpRequest request{.url = roles, .max_body_bytes = kMaxAnswerBytes};
  request.headers["x-aws-ec2-metadata-token"] = token.body;
  MR_ASSIGN_OR_RETURN(const HttpResponse role, http_.Call(request));
  if (role.status != 200 || role.body.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("S3: the instance must have a role, got ", role.status));
  }
  const std::vector<std::string> names = absl::StrSplit(role.body, '\n');
  request.url = absl::StrCat(roles, UriEncode(absl::StripAsciiWhitespace(names[0]), false));
  MR_ASSIGN_OR_RETURN(const HttpResponse response, http_.Call(request));
  return FromJson("the instance's endpoint", response);
}

StatusOr<S3Credentials::Found> S3Credentials::FromJson(absl::string_view where,
                                                       const HttpResponse& response) {
  const nlohmann::json object = nlohmann::json::parse(response.body, nullptr, false);
  Found found;
  if (object.is_object()) {
    found.keys = {TextAt(object, "AccessKeyId"), TextAt(object, "SecretAccessKey"),
                  TextAt(object, "Token")};
    std::string error;
    const std::string end = TextAt(object, "Expiration");
    if (!end.empty() && !absl::ParseTime(absl::RFC3339_full, end, &found.end, &error)) {
      return absl::PermissionDeniedError(
          absl::StrCat("S3: ", where, " must say when keys end, got '", end, "'"));
    }
  }
  if (response.status == 200 && !found.keys.access_key_id.empty() &&
      !found.keys.secret_access_key.empty()) {
    return found;
  }
  // Not the body: it may hold what is secret.
  return absl::PermissionDeniedError(
      absl::StrCat("S3: ", where, " must give AccessKeyId and SecretAccessKey, got an answer ",
                   response.status, " of ", response.body.size(), " bytes"));
}

}  // namespace millrace
