// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/rest_path.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

// covers: programs: paths of the REST front are TensorFlow Serving's, and their refusals, too

namespace millrace {
namespace {

// "predict half 123", "status half label stable", or the message.
std::string Target(absl::string_view method, absl::string_view path) {
  const StatusOr<RestTarget> target = ParseRestPath(method, path);
  if (!target.ok()) {
    EXPECT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(target.status().message());
  }
  const char* const kinds[] = {"predict", "classify", "regress", "status", "metadata", "list"};
  std::string text = kinds[static_cast<size_t>(target->kind)];
  if (!target->model_name.empty()) absl::StrAppend(&text, " ", target->model_name);
  if (target->version.has_value()) absl::StrAppend(&text, " ", *target->version);
  if (target->label.has_value()) absl::StrAppend(&text, " label ", *target->label);
  return text;
}

TEST(RestPathTest, Posts) {
  const std::pair<const char*, const char*> cases[] = {
      {"/v1/models/half:predict", "predict half"},
      {"/v1/models/half:classify", "classify half"},
      {"/v1/models/half:regress", "regress half"},
      {"/v1/models/half/versions/123:predict", "predict half 123"},
      {"/v1/models/half/versions/00123:predict", "predict half 123"},
      {"/v1/models/half/labels/stable:predict", "predict half label stable"},
      {"/V1/Models/Half/Versions/1:predict", "predict Half 1"},
      {"/v1/models/versions/versions/1:predict", "predict versions 1"},
      {"/v1/models/"
       "modelname%21%23%24%25%26%27%28%29%2A%2B%2C%2F%3A%3B%3D%3F%40%5B%5D/labels/"
       "latest%21%23%24%25%26%27%28%29%2a%2b%2c%2f%3a%3b%3d%3f%40%5b%5d:predict",
       "predict modelname!#$%&'()*+,/:;=?@[] label latest!#$%&'()*+,/:;=?@[]"},
      {"/v1/models/a+b%2:predict", "predict a+b%2"},
      {"/v1/models/half/versions/18446744073709551615:predict",
       "Failed to convert version: 18446744073709551615 to numeric."},
  };
  for (const auto& [path, expected] : cases) EXPECT_EQ(Target("POST", path), expected) << path;
}

TEST(RestPathTest, Gets) {
  const std::pair<const char*, const char*> cases[] = {
      {"/v1/models", "list"},
      {"/V1/MODELS", "list"},
      {"/v1/models/half", "status half"},
      {"/v1/models/half/versions/99", "status half 99"},
      {"/v1/models/half/labels/stable", "status half label stable"},
      {"/v1/models/half/metadata", "metadata half"},
      {"/v1/models/half/versions/99/metadata", "metadata half 99"},
      {"/v1/models/half/labels/stable/metadata", "metadata half label stable"},
      {"/v1/models/half/METADATA", "status half"},
      {"/v1/models/metadata", "status metadata"},
      {"/v1/models/metadata/metadata", "metadata metadata"},
      {"/v1/models/versions/5", "Missing model name in request."},
      {"/v1/models/labels/x/metadata", "Missing model name in request."},
  };
  for (const auto& [path, expected] : cases) EXPECT_EQ(Target("GET", path), expected) << path;
}

TEST(RestPathTest, OtherPathsAreMalformed) {
  const std::pair<const char*, const char*> cases[] = {
      {"POST", "/v1/foo"},
      {"POST", "/v1/models"},
      {"POST", "/v1/models/half"},
      {"POST", "/v1/models/half:PREDICT"},
      {"POST", "/v1/models/half:predict/"},
      {"POST", "/v1/models/half:explain"},
      {"POST", "/v1/models/half/metadata"},
      {"POST", "/v1/models/half/version/50:predict"},
      {"POST", "/v1/models/half/versions/string:predict"},
      {"POST", "/v1/models/half/versions/50/labels/stable:regress"},
      {"POST", "/v1/models/:predict"},
      {"GET", "/v1/foo"},
      {"GET", "/v1/models/"},
      {"GET", "/v1/models/half/"},
      {"GET", "/v1/models/half:predict"},
      {"GET", "/v1/models/half/version/50:predict"},
      {"GET", "/v1/models/half/versions/-1"},
      {"PUT", "/v1/models/half:predict"},
      {"get", "/v1/models/half"},
      {"OPTIONS", "/v1/models/half:predict"},
  };
  for (const auto& [method, path] : cases) {
    EXPECT_EQ(Target(method, path), absl::StrCat("Malformed request: ", method, " ", path));
  }
}

TEST(RestPathTest, WhatIsNotBelowV1IsElsewhere) {
  EXPECT_TRUE(IsRestPath("/v1/"));
  EXPECT_TRUE(IsRestPath("/V1/anything"));
  EXPECT_TRUE(IsRestPath("/v1/models/half:predict"));
  for (const char* path : {"", "/", "/v1", "/v2/models", "/v10/x", "v1/models", "/v1/a\nb"}) {
    EXPECT_FALSE(IsRestPath(path)) << path;
  }
}

TEST(RestPathTest, PercentSignsAreDecodedWhereTwoDigitsFollow) {
  EXPECT_EQ(PercentDecoded(""), "");
  EXPECT_EQ(PercentDecoded("a%20b%"), "a b%");
  EXPECT_EQ(PercentDecoded("%4"), "%4");
  EXPECT_EQ(PercentDecoded("%4g%%41"), "%4g%A");
  EXPECT_EQ(PercentDecoded("%2541"), "%41");  // once
  EXPECT_EQ(PercentDecoded("%00"), std::string(1, '\0'));
}

TEST(RestPathTest, EachCodeHasItsStatus) {
  const std::pair<absl::StatusCode, int> cases[] = {
      {absl::StatusCode::kOk, 200},
      {absl::StatusCode::kCancelled, 499},
      {absl::StatusCode::kUnknown, 500},
      {absl::StatusCode::kInvalidArgument, 400},
      {absl::StatusCode::kDeadlineExceeded, 504},
      {absl::StatusCode::kNotFound, 404},
      {absl::StatusCode::kAlreadyExists, 409},
      {absl::StatusCode::kPermissionDenied, 403},
      {absl::StatusCode::kResourceExhausted, 429},
      {absl::StatusCode::kFailedPrecondition, 400},
      {absl::StatusCode::kAborted, 409},
      {absl::StatusCode::kOutOfRange, 400},
      {absl::StatusCode::kUnimplemented, 501},
      {absl::StatusCode::kInternal, 500},
      {absl::StatusCode::kUnavailable, 503},
      {absl::StatusCode::kDataLoss, 500},
      {absl::StatusCode::kUnauthenticated, 401},
  };
  for (const auto& [code, status] : cases) {
    EXPECT_EQ(HttpStatus(code), status) << absl::StatusCodeToString(code);
  }
}

TEST(RestPathTest, HeadersOfCorsAreThereWhenItIsOn) {
  EXPECT_EQ(ReplyHeaders(false), (RestHeaders{{"Content-Type", "application/json"}}));
  EXPECT_EQ(ReplyHeaders(true), (RestHeaders{{"Content-Type", "application/json"},
                                             {"Access-Control-Allow-Origin", "*"},
                                             {"Access-Control-Allow-Methods", "POST, GET"},
                                             {"Access-Control-Allow-Headers", "Content-Type"}}));
  EXPECT_TRUE(CheckCorsPreflight("http://localhost").ok());
  EXPECT_EQ(HttpStatus(CheckCorsPreflight("").code()), 400);
}

}  // namespace
}  // namespace millrace
