// SPDX-License-Identifier: Apache-2.0
//
// Each SavedModel of TensorFlow 1.x in the shared data that has trainable variables is trained on:
// the graph is imported, a loss is built over an output of its signature, an optimizer adds slots
// of the variables' kind (references, most of them), and a few steps make the loss smaller.

#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "runtime/session.h"
#include "saver/load_plan.h"
#include "saver/meta_graph.h"
#include "saver/saved_model_reader.h"
#include "tests/compat/json_tensor.h"
#include "train/optimizer.h"
#include "train/optimizers.h"

// covers: values: each SavedModel of TensorFlow 1.x with trainable variables, most of them
//   references, is trained on by an optimizer with slots

namespace millrace {
namespace {

using nlohmann::json;

// How many models were trained on when this was written last.
constexpr int kMinTrained = 12;

struct NamedOptimizer {
  const char* name;
  std::function<std::unique_ptr<Optimizer>()> make;
};

// In turns, one for each model.
const NamedOptimizer kOptimizers[] = {
    {"Adam", [] { return std::make_unique<AdamOptimizer>(AdamOptions{.learning_rate = 1e-5}); }},
    {"Momentum",
     [] { return std::make_unique<MomentumOptimizer>(MomentumOptions{.learning_rate = 1e-6}); }},
    {"Adagrad",
     [] { return std::make_unique<AdagradOptimizer>(AdagradOptions{.learning_rate = 1e-5}); }},
    {"RMSProp",
     [] { return std::make_unique<RMSPropOptimizer>(RMSPropOptions{.learning_rate = 1e-6}); }},
};

// The outcome for one output of a signature: what the loss was, or why there was no training.
struct Outcome {
  bool trained = false;
  float before = 0, after = 0;
  int references = 0, variables = 0;
  std::string why;
};

std::vector<Feed> FeedsOf(const json& one) {
  std::vector<Feed> feeds;
  for (const auto& [name, value] : one.at("inputs").items()) {
    StatusOr<Tensor> tensor = TensorFromJson(value);
    EXPECT_OK(tensor.status()) << name;
    if (!tensor.ok()) continue;
    const std::string fed = value.value("tensor", name);
    std::erase_if(feeds, [&](const Feed& feed) { return feed.name.name() == fed; });
    feeds.emplace_back(fed, *std::move(tensor));
  }
  return feeds;
}

Outcome TrainOn(const json& one, const tensorflow::MetaGraphDef& meta, const std::string& dir,
                const std::string& output, Optimizer* optimizer) {
  Outcome outcome;
  const auto no = [&](absl::string_view why) {
    outcome.why = std::string(why);
    return outcome;
  };
  const StatusOr<Scope> scope = ImportMetaGraph(meta);
  if (!scope.ok()) return no(scope.status().message());
  const std::vector<Variable> trainable = VariablesOf(*scope, "trainable_variables");
  outcome.variables = static_cast<int>(trainable.size());
  for (const Variable& variable : trainable) outcome.references += variable.is_reference() ? 1 : 0;
  if (trainable.empty()) return no("no trainable variables");

  const StatusOr<TensorName> name = ParseTensorName(output);
  EXPECT_OK(name.status());
  const Output y(scope->graph()->FindNode(name->node), name->index);
  if (!IsFloating(y.dtype())) return no("the output is no floating tensor");
  const Output loss = ReduceSum(*scope, Square(*scope, y));
  const auto gradients = optimizer->ComputeGradients(*scope, loss);
  if (!scope->ok()) return no(scope->status().message());
  bool any = false;
  for (const GradientAndVariable& pair : gradients) any |= HasGradient(pair.gradient);
  if (!any) return no("no variable has a gradient");
  const Operation train = optimizer->ApplyGradients(*scope, gradients);
  std::vector<FetchName> slots;
  for (const Variable& variable : optimizer->Variables(*scope)) {
    slots.emplace_back(variable.initializer);
  }
  EXPECT_OK(scope->status()) << dir;
  if (!scope->ok()) return no(scope->status().message());

  SessionOptions options;
  options.config.allow_soft_placement = true;
  const auto session = NewSession(options);
  EXPECT_OK(session.status());
  const auto run = [&](const Status& status) {
    EXPECT_OK(status) << dir << ", " << output;
    if (!status.ok()) outcome.why = std::string(status.message());
    return status.ok();
  };
  if (!run((*session)->Extend(*scope))) return outcome;
  const LoadPlan plan = PlanLoading(FileSystem::Posix(), dir, meta);
  if (plan.restore &&
      !run((*session)->Run(plan.restore->feeds, {}, {plan.restore->target}).status())) {
    return outcome;
  }
  if (plan.init && !run((*session)->Run(plan.init->feeds, {}, {plan.init->target}).status())) {
    return outcome;
  }
  if (!slots.empty() && !run((*session)->Run({}, {}, slots).status())) return outcome;
  const std::vector<Feed> feeds = FeedsOf(one);
  const auto loss_now = [&](float* value) {
    const auto got = (*session)->Run(feeds, {loss});
    if (!run(got.status())) return false;
    *value = (*got)[0].dtype() == DT_DOUBLE ? static_cast<float>((*got)[0].scalar<double>())
                                            : (*got)[0].scalar<float>();
    return true;
  };
  if (!loss_now(&outcome.before)) return outcome;
  for (int step = 0; step < 5; ++step) {
    if (!run((*session)->Run(feeds, {}, {train}).status())) return outcome;
  }
  outcome.trained = loss_now(&outcome.after);
  return outcome;
}

TEST(FineTuneModels, EachModelWithTrainableVariablesLearns) {
  const std::vector<json> cases = CasesOfKind("saved_model_run");
  if (cases.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no cases.json";
  std::set<std::string> seen;
  int trained = 0, with_references = 0;
  size_t next_optimizer = 0;
  for (const json& one : cases) {
    const std::string path = one.at("path");
    if (seen.count(path) > 0) continue;
    const std::string dir = SharedDataPath(path);
    ASSERT_OK_AND_ASSIGN(const auto model, ReadSavedModel(FileSystem::Posix(), dir));
    ASSERT_OK_AND_ASSIGN(const auto* meta,
                         FindMetaGraph(model, one.at("tags").get<std::vector<std::string>>()));
    const NamedOptimizer& optimizer = kOptimizers[next_optimizer % std::size(kOptimizers)];
    for (const auto& [key, value] : one.at("outputs").items()) {
      const Outcome outcome = TrainOn(one, *meta, dir, value.at("tensor"), optimizer.make().get());
      if (!outcome.trained) {
        std::printf("%s, %s: %s\n", path.c_str(), key.c_str(), outcome.why.c_str());
        continue;
      }
      std::printf("%s, %s: %s, %d variables, %d of them references: %g -> %g\n", path.c_str(),
                  key.c_str(), optimizer.name, outcome.variables, outcome.references,
                  static_cast<double>(outcome.before), static_cast<double>(outcome.after));
      EXPECT_TRUE(std::isfinite(outcome.before) && std::isfinite(outcome.after)) << path;
      EXPECT_LT(outcome.after, outcome.before) << path << ", " << key << ", " << optimizer.name;
      seen.insert(path);
      ++trained;
      ++next_optimizer;
      with_references += outcome.references > 0 ? 1 : 0;
      break;
    }
  }
  RecordProperty("trained", trained);
  EXPECT_GE(trained, kMinTrained);
  EXPECT_GT(with_references, 0);
}

}  // namespace
}  // namespace millrace
