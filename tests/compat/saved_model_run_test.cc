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
#include "saver/freeze_graph.h"
#include "saver/meta_graph.h"
#include "saver/saved_model.h"
#include "saver/saved_model_reader.h"
#include "saver/saver.h"
#include "tests/compat/json_tensor.h"
#include "tools/saved_model_check.h"

// covers: values: SavedModels run: 45 of 45 cases
// covers: programs: the verdict of `saved_model_cli check` is what loading and running give on
//   TensorFlow's models
// covers: article 0-42: files of TensorFlow's formats
// covers: scenario F12: saved_model_cli, C programs, models of TensorFlow

namespace millrace {
namespace {

using nlohmann::json;

// How many cases ran when this was written last: raise them as ops come.
constexpr int kMinRun = 45;
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
enum class CaseOutcome { kRan, kMissing, kFailed };

CaseOutcome Check(const std::string& name, Session* session, const json& one, const char* in,
                  const char* out, std::string* why) {
  const StatusOr<Wanted> wanted = WantedOf(one, in, out);
  EXPECT_OK(wanted.status()) << name;
  if (!wanted.ok()) return CaseOutcome::kFailed;
  const auto got = session->Run(wanted->feeds, wanted->fetches);
  if (!got.ok()) {
    *why = std::string(got.status().message());
    if (IsMissingOp(got.status())) return CaseOutcome::kMissing;
    ADD_FAILURE() << name << ": " << got.status();
    return CaseOutcome::kFailed;
  }
  CaseOutcome outcome = CaseOutcome::kRan;
  for (size_t i = 0; i < wanted->expected.size(); ++i) {
    const std::string difference = Difference((*got)[i], wanted->expected[i],
                                              one.value("rtol", 1e-4), one.value("atol", 1e-5));
    if (difference.empty()) continue;
    ADD_FAILURE() << name << ", " << wanted->fetches[i].name() << ": " << difference;
    outcome = CaseOutcome::kFailed;
  }
  return outcome;
}

// `saved_model_cli check` knows without running anything.
void ExpectCheckSays(const json& one, bool runs) {
  const std::string path = SharedDataPath(one.at("path").get<std::string>());
  ASSERT_OK_AND_ASSIGN(const auto model, ReadSavedModel(FileSystem::Posix(), path));
  ASSERT_OK_AND_ASSIGN(const auto* meta,
                       FindMetaGraph(model, one.at("tags").get<std::vector<std::string>>()));
  const std::string key = one.at("signature");
  ASSERT_OK_AND_ASSIGN(const ModelCheck check, CheckModel(FileSystem::Posix(), path, *meta, &key));
  EXPECT_EQ(check.runnable(), runs) << one.at("name") << ":\n" << CheckText(check);
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
      options.config.allow_soft_placement = true;
      model = models
                  .emplace(path, LoadSavedModel(options, SharedDataPath(path),
                                                one.at("tags").get<std::vector<std::string>>()))
                  .first;
    }
    if (!model->second.ok()) {
      const Status& status = model->second.status();
      if (!IsMissingOp(status)) ADD_FAILURE() << name << ": " << status;
      std::printf("cannot run %s: %s\n", name.c_str(), std::string(status.message()).c_str());
      ExpectCheckSays(one, false);
      ++missing;
      continue;
    }
    // The case and the model name the same tensors.
    ASSERT_OK_AND_ASSIGN(const auto signature, model->second->Signature(one.at("signature")));
    for (const auto& [key, value] : one.at("outputs").items()) {
      EXPECT_EQ(signature.outputs().at(key).name(), value.at("tensor").get<std::string>()) << name;
    }
    std::string why;
    const CaseOutcome outcome =
        Check(name, model->second->session.get(), one, "inputs", "outputs", &why);
    ExpectCheckSays(one, outcome == CaseOutcome::kRan);
    switch (outcome) {
      case CaseOutcome::kRan:
        ++ran;
        break;
      case CaseOutcome::kMissing:
        std::printf("cannot run %s: %s\n", name.c_str(), why.c_str());
        ++missing;
        break;
      case CaseOutcome::kFailed:
        break;
    }
  }
  std::printf("%d of %zu cases ran\n", ran, cases.size());
  RecordProperty("ran", ran);
  RecordProperty("missing", missing);
  EXPECT_GE(ran, kMinRun);
}

// The same cases with the variables made constants, each from a file and in a session of its own.
TEST(SavedModelsOfTensorFlow, ComputeTheSameWhenFrozen) {
  const std::vector<json> cases = CasesOfKind("saved_model_run");
  if (cases.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no cases.json";
  const std::string file = JoinPath(::testing::TempDir(), "saved_model_run_test_frozen.pb");
  int ran = 0, variables = 0;
  for (const json& one : cases) {
    const std::string name = one.at("name");
    auto model = LoadSavedModel({}, SharedDataPath(one.at("path").get<std::string>()),
                                one.at("tags").get<std::vector<std::string>>());
    std::string why;
    if (!model.ok() ||
        Check(name, model->session.get(), one, "inputs", "outputs", &why) != CaseOutcome::kRan) {
      continue;  // ComputeWhatTheyComputedThere says so
    }
    FreezeOptions options;
    for (const auto& [key, value] : one.at("outputs").items()) {
      options.outputs.push_back(value.at("tensor"));
    }
    ASSERT_OK_AND_ASSIGN(
        const FrozenGraph frozen,
        FreezeGraph(model->session.get(), model->meta_graph_def->graph_def(), options));
    variables += static_cast<int>(frozen.variables.size());
    ASSERT_OK(WriteGraphDef(FileSystem::Posix(), file, frozen.graph, GraphFormat::kBinary));
    ASSERT_OK_AND_ASSIGN(const auto graph, ReadGraphDef(FileSystem::Posix(), file));
    for (const auto& node : graph.node()) {
      EXPECT_TRUE(node.op() != "VariableV2" && node.op() != "VarHandleOp" &&
                  node.op() != "RestoreV2")
          << name << ": " << node.name();
    }
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    ASSERT_OK(session->Extend(graph)) << name;
    // An input that no output needs is not in the frozen graph.
    json needed = one;
    for (const auto& [key, value] : one.at("inputs").items()) {
      const std::string tensor = value.value("tensor", key);
      const bool is_there = std::any_of(
          graph.node().begin(), graph.node().end(),
          [&](const auto& node) { return node.name() == tensor.substr(0, tensor.find(':')); });
      if (!is_there) needed["inputs"].erase(key);
    }
    EXPECT_EQ(Check(name, session.get(), needed, "inputs", "outputs", &why), CaseOutcome::kRan)
        << name << ": " << why;
    ++ran;
  }
  std::printf("%d frozen cases ran, with %d constants that were variables\n", ran, variables);
  EXPECT_GE(ran, kMinRun);
  EXPECT_GT(variables, 0);
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
    const CaseOutcome outcome = Check(name, session.get(), one, "feeds", "fetches", &why);
    if (outcome == CaseOutcome::kRan) ++ran;
    if (outcome == CaseOutcome::kMissing) {
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
