// SPDX-License-Identifier: Apache-2.0
//
// Bodies of REST requests (fuzz.h). Two oracles: what another parser takes as JSON is no parse
// error here; a request that was read, written as a reply and read again, is the same request.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/aliased_tensor.h"
#include "serving/rest/json_examples.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/json_tensors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutator.h"

// covers: programs: bodies of REST requests survive a seeded mutator: what another parser takes is
//   no parse error, and a request that is written and read again is the same

namespace millrace {
namespace {

const std::vector<std::string>& Bodies() {
  static const auto& bodies = *new std::vector<std::string>{
      R"({"instances": [[1, 2.5, -3], [4e1, NaN, Infinity]]})",
      R"({"signature_name": "serving_default", "instances": [1.0, 2.0, 5.0]})",
      R"({"instances": [{"x": [[true], [false]]}, {"x": [[false], [true]]}]})",
      R"({"inputs": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], "signature_name": "s"})",
      R"({"inputs": {"x": ["a\u00e9\n", "\\\"", ""], "other": {"deep": [[[null]]]}}})",
      R"({"instances": [{"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}]})",
      R"({"instances": [{"a": [1, 2], "x_bytes": "u"}, {"x_bytes": {"b64": ""}, "a": [3, 4]}]})",
      R"({"inputs": {"a": -128, "x_bytes": [["v"], [{"b64": "aGVsbG8="}]]}})",
      R"({"context": {"c": 1}, "examples": [{"x": [1, 2], "y": 2.5, "z": "s"}, {"x": []}]})"};
  return bodies;
}

// False: another parser takes the body, so it is JSON, and a parse error of ours is wrong.
bool MayBeParseError(const Status& status, const std::string& body) {
  if (!absl::StartsWith(status.message(), "JSON Parse error: ")) return true;
  if (absl::StrContains(status.message(), "nested deeper than") ||
      absl::StrContains(status.message(), "Number too big")) {
    return true;
  }
  return !nlohmann::json::accept(body);
}

void ReadTwice(const std::vector<JsonInput>& inputs, const std::string& body) {
  const JsonInputsOf inputs_of = [&](absl::string_view) -> StatusOr<absl::Span<const JsonInput>> {
    return absl::MakeConstSpan(inputs);
  };
  const StatusOr<JsonPredictRequest> request = ReadPredictRequest(body, inputs_of);
  if (!request.ok()) {
    EXPECT_TRUE(absl::IsInvalidArgument(request.status())) << request.status();
    EXPECT_TRUE(MayBeParseError(request.status(), body)) << request.status() << "\n" << body;
    return;
  }
  ASSERT_EQ(request->inputs.size(), inputs.size());
  for (const AliasedTensor& input : request->inputs) {
    ASSERT_LE(input.tensor.TotalBytes(), kMaxFuzzedTensorBytes);
  }
  const StatusOr<std::string> reply = PredictReply(request->inputs, request->form);
  ASSERT_TRUE(reply.ok()) << reply.status() << "\n" << body;
  const StatusOr<JsonPredictRequest> again = ReadPredictRequest(
      absl::StrReplaceAll(
          *reply, {{"\"predictions\":", "\"instances\":"}, {"\"outputs\":", "\"inputs\":"}}),
      inputs_of);
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << *reply;
  EXPECT_EQ(again->form, request->form);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(again->inputs[i].tensor, request->inputs[i].tensor) << body << "\n" << *reply;
  }
}

TEST(RestBodiesTest, PredictBodies) {
  // Doubles are not among them: RapidJSON does not read each of 17 digits back.
  const std::vector<std::vector<JsonInput>> signatures = {
      {{.alias = "x", .dtype = DT_FLOAT}},
      {{.alias = "x", .dtype = DT_INT64}},
      {{.alias = "x", .dtype = DT_BOOL}},
      {{.alias = "x_bytes", .dtype = DT_STRING}},
      {{.alias = "a", .dtype = DT_INT8}, {.alias = "x_bytes", .dtype = DT_STRING}}};
  int read = 0;
  Fuzz(20000, Bodies(), [&](const std::string& body, Mutator* mutator) {
    const size_t turn = static_cast<size_t>(mutator->Below(signatures.size()));
    ReadTwice(signatures[turn], body);
    ++read;
  });
  EXPECT_GE(read, 20000);
}

TEST(RestBodiesTest, ExampleBodies) {
  int read = 0;
  Fuzz(20000, Bodies(), [&](const std::string& body, Mutator*) {
    const StatusOr<JsonExamplesRequest> request = ReadExamplesRequest(body);
    if (request.ok()) {
      ++read;
      EXPECT_FALSE(request->examples.empty());
      return;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(request.status())) << request.status();
    EXPECT_TRUE(MayBeParseError(request.status(), body)) << request.status() << "\n" << body;
  });
  EXPECT_GT(read, 0);  // the last of the bodies is one
}

}  // namespace
}  // namespace millrace
