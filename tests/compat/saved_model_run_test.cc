// SPDX-License-Identifier: Apache-2.0
//
// Models that real TensorFlow exported, run here: every case of cases.json whose ops exist. What
// cannot run yet is printed with the reason; the number of cases that can is asserted, so that none
// is lost in silence.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "examples/mnist/digits.h"
#include "graph/import_export.h"
#include "runtime/session.h"
#include "saver/meta_graph.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "tests/compat/json_tensor.h"

namespace millrace {
namespace {

using nlohmann::json;

// How many cases ran when this was written last: raise them as ops come.
constexpr int kMinRun = 36;
constexpr int kMinGraphs = 4;

// Ops of the whole language that later parts of this project bring.
bool IsMissingOp(const Status& status) {
  return absl::IsUnimplemented(status) ||
         (absl::IsNotFound(status) &&
          status.message().find("Op type not registered") != absl::string_view::npos);
}

// Feeds, fetches and what they must give, of one case.
struct Wanted {
  std::vector<Feed> feeds;
  std::vector<FetchName> fetches;
  std::vector<Tensor> expected;
};

StatusOr<Wanted> WantedOf(const json& one, const char* in, const char* out) {
  Wanted wanted;
  for (const auto& [name, value] : one.at(in).items()) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, TensorFromJson(value));
    // Two keys may stand for one tensor: the later one wins, as in a Python dictionary.
    const std::string fed = value.value("tensor", name);
    std::erase_if(wanted.feeds, [&](const Feed& feed) { return feed.name.name() == fed; });
    wanted.feeds.emplace_back(fed, std::move(tensor));
  }
  for (const auto& [name, value] : one.at(out).items()) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, TensorFromJson(value));
    wanted.fetches.emplace_back(value.value("tensor", name));
    wanted.expected.push_back(std::move(tensor));
  }
  return wanted;
}

// Sound, missing (why), or a failed test.
enum class Outcome { kRan, kMissing, kFailed };

Outcome Check(const std::string& name, Session* session, const json& one, const char* in,
              const char* out, std::string* why) {
  const StatusOr<Wanted> wanted = WantedOf(one, in, out);
  EXPECT_OK(wanted.status()) << name;
  if (!wanted.ok()) return Outcome::kFailed;
  const auto got = session->Run(wanted->feeds, wanted->fetches);
  if (!got.ok()) {
    *why = std::string(got.status().message());
    if (IsMissingOp(got.status())) return Outcome::kMissing;
    ADD_FAILURE() << name << ": " << got.status();
    return Outcome::kFailed;
  }
  Outcome outcome = Outcome::kRan;
  for (size_t i = 0; i < wanted->expected.size(); ++i) {
    const std::string difference = Difference((*got)[i], wanted->expected[i],
                                              one.value("rtol", 1e-4), one.value("atol", 1e-5));
    if (difference.empty()) continue;
    ADD_FAILURE() << name << ", " << wanted->fetches[i].name() << ": " << difference;
    outcome = Outcome::kFailed;
  }
  return outcome;
}

TEST(SavedModelsOfTensorFlow, ComputeWhatTheyComputedThere) {
  const std::vector<json> cases = CasesOfKind("saved_model_run");
  if (cases.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no cases.json";
  std::map<std::string, StatusOr<SavedModelBundle>> models;
  int ran = 0, missing = 0;
  for (const json& one : cases) {
    const std::string name = one.at("name");
    const std::string path = one.at("path");
    auto model = models.find(path);
    if (model == models.end()) {
      SessionOptions options;
      options.config.set_allow_soft_placement(true);
      model = models
                  .emplace(path, LoadSavedModel(options, SharedDataPath(path),
                                                one.at("tags").get<std::vector<std::string>>()))
                  .first;
    }
    if (!model->second.ok()) {
      const Status& status = model->second.status();
      if (!IsMissingOp(status)) ADD_FAILURE() << name << ": " << status;
      std::printf("cannot run %s: %s\n", name.c_str(), std::string(status.message()).c_str());
      ++missing;
      continue;
    }
    // The case and the model name the same tensors.
    ASSERT_OK_AND_ASSIGN(const auto signature, model->second->Signature(one.at("signature")));
    for (const auto& [key, value] : one.at("outputs").items()) {
      EXPECT_EQ(signature.outputs().at(key).name(), value.at("tensor").get<std::string>()) << name;
    }
    std::string why;
    switch (Check(name, model->second->session.get(), one, "inputs", "outputs", &why)) {
      case Outcome::kRan:
        ++ran;
        break;
      case Outcome::kMissing:
        std::printf("cannot run %s: %s\n", name.c_str(), why.c_str());
        ++missing;
        break;
      case Outcome::kFailed:
        break;
    }
  }
  std::printf("%d of %zu cases ran\n", ran, cases.size());
  RecordProperty("ran", ran);
  RecordProperty("missing", missing);
  EXPECT_GE(ran, kMinRun);
}

TEST(GraphsOfTensorFlow, ComputeWhatTheyComputedThere) {
  const std::vector<json> cases = CasesOfKind("graph_run");
  if (cases.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no cases.json";
  int ran = 0;
  for (const json& one : cases) {
    const std::string name = one.at("name");
    ASSERT_OK_AND_ASSIGN(
        const auto graph,
        ReadGraphDef(FileSystem::Posix(), SharedDataPath(one.at("path").get<std::string>())));
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    ASSERT_OK(session->Extend(graph)) << name;
    std::string why;
    const Outcome outcome = Check(name, session.get(), one, "feeds", "fetches", &why);
    if (outcome == Outcome::kRan) ++ran;
    if (outcome == Outcome::kMissing) {
      std::printf("cannot run %s: %s\n", name.c_str(), why.c_str());
    }
  }
  std::printf("%d of %zu graphs ran\n", ran, cases.size());
  EXPECT_GE(ran, kMinGraphs);
}

// Two of the models classify MNIST's 10,000 test images.
TEST(SavedModelsOfTensorFlow, ClassifyAsManyDigitsRightAsThere) {
  const std::vector<json> cases = CasesOfKind("saved_model_accuracy");
  const std::string mnist = SharedDataPath("mnist");
  if (cases.empty() || mnist.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no mnist";
  ASSERT_OK_AND_ASSIGN(const DigitSets digits, ReadDigits(mnist));
  for (const json& one : cases) {
    const std::string name = one.at("name");
    const std::vector<std::string> tags = one.at("tags");
    ASSERT_OK_AND_ASSIGN(
        SavedModelBundle model,
        LoadSavedModel({}, SharedDataPath(one.at("path").get<std::string>()), tags));
    ASSERT_OK_AND_ASSIGN(const auto signature, model.Signature(one.at("signature")));
    ASSERT_EQ(digits.test.size(), one.at("total").get<int64_t>());
    ASSERT_OK_AND_ASSIGN(const DigitBatch batch, MakeBatch(digits.test, 0, digits.test.size()));
    ASSERT_OK_AND_ASSIGN(
        const auto out,
        model.session->Run({{signature.inputs().at(one.at("input_key")).name(), batch.images}},
                           {signature.outputs().at(one.at("output_key")).name()}));
    const absl::Span<const float> scores = out[0].flat<float>();
    ASSERT_EQ(scores.size(), digits.test.labels.size() * kDigitClasses);
    int64_t correct = 0;
    for (size_t i = 0; i < digits.test.labels.size(); ++i) {
      const float* row = scores.data() + i * kDigitClasses;
      const auto best = std::max_element(row, row + kDigitClasses) - row;
      if (best == digits.test.labels[i]) ++correct;
    }
    EXPECT_NEAR(static_cast<double>(correct), one.at("correct").get<double>(),
                one.at("tolerance_correct").get<double>())
        << name;
  }
}

// The export format before SavedModel, with a checkpoint of the first format: y = 0.5 x + 2.
TEST(SessionBundleOfTensorFlow, RestoresItsOldCheckpointAndRuns) {
  const std::string directory = SharedDataPath("session_bundle/half_plus_two");
  if (directory.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no session_bundle/half_plus_two";
  ASSERT_OK_AND_ASSIGN(const auto meta,
                       ReadMetaGraph(FileSystem::Posix(), JoinPath(directory, "export.meta")));
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(meta.graph_def()));
  auto saver = Saver::FromDef(meta.saver_def());
  ASSERT_OK(saver->Restore(session.get(), JoinPath(directory, "export-\?\?\?\?\?-of-00001")));
  ASSERT_OK_AND_ASSIGN(const auto out,
                       session->Run({{"x:0", TensorOf<float>({2, 1}, {1, 4})}}, {"y:0"}));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 1}, {2.5f, 4}));
}

}  // namespace
}  // namespace millrace
