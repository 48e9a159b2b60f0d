// SPDX-License-Identifier: Apache-2.0
//
// The session config of a RunConfig reaches the master that cuts an Estimator's graph: with
// enable_bfloat16_sendrecv the variable and its gradient travel as half the bytes.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/transport/peer_counts.h"
#include "estimator/estimator.h"
#include "estimator/input_fn.h"
#include "estimator/mode.h"
#include "estimator/model_fn.h"
#include "estimator/run_config.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "proto/config.pb.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"
#include "train/adam.h"

// covers: clusters: the session config of an Estimator's RunConfig halves the bytes that its floats
//   take between tasks

namespace millrace {
namespace {

constexpr int64_t kFloats = 10000, kSteps = 20;

EstimatorSpec OneVariable(const Scope& scope, const Features&, const Labels&, Mode mode) {
  const Variable w =
      MakeVariable(scope.WithName("w"), Shape{kFloats}, DT_FLOAT, ZerosInitializer());
  EstimatorSpec spec{.mode = mode, .predictions = w.value};
  spec.loss = ReduceMean(scope, Square(scope, w.value));
  spec.train_op = AdamOptimizer({.learning_rate = 0.1})
                      .Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
  return spec;
}

StatusOr<std::unique_ptr<Server>> Start(const std::string& tf_config) {
  MR_ASSIGN_OR_RETURN(const ClusterConfig config, ClusterConfig::Parse(tf_config));
  return Server::Start(config);
}

// What the parameter server has exchanged with the chief, which trains with it.
PeerCounts CountsOfTraining(bool bfloat16) {
  ClusterPorts ports = FreeClusterPorts(2, 0, 0);
  ports.host = "127.0.0.1";
  ports.chief = {ports.ps.back()};
  ports.ps.pop_back();
  const std::string chief_config = TfConfig(ports, "chief", 0);
  const auto ps = Start(TfConfig(ports, "ps", 0));
  EXPECT_OK(ps);
  const auto chief = Start(chief_config);
  EXPECT_OK(chief);
  if (!ps.ok() || !chief.ok()) return {};

  tensorflow::ConfigProto session;
  session.set_allow_soft_placement(true);
  session.mutable_graph_options()->set_enable_bfloat16_sendrecv(bfloat16);
  const auto config =
      RunConfig::Make({.model_dir = JoinPath(::testing::TempDir(), "bfloat16_" + RandomHexName()),
                       .session_config = SessionConfigOf(std::move(session)),
                       .session_creation_timeout_secs = 60.0},
                      chief_config);
  EXPECT_OK(config);
  const auto estimator = Estimator::Make(OneVariable, {.config = config.value_or(RunConfig())});
  EXPECT_OK(estimator);
  if (!estimator.ok()) return {};
  const InputFn input = [](const Scope& scope) {
    return Input({{"x", Const(scope, 1.0f)}}, Const(scope, 1.0f));
  };
  const auto trained = estimator->Train(input, {.steps = kSteps});
  EXPECT_OK(trained);
  if (!trained.ok()) return {};
  EXPECT_EQ(trained->own_steps, kSteps);
  return CountsOf(**ps).peers["/job:chief/replica:0/task:0"];
}

TEST(Bfloat16EstimatorTest, AVariableAndItsGradientTravelAsHalfTheBytes) {
  for (const bool bfloat16 : {false, true}) {
    SCOPED_TRACE(bfloat16);
    const PeerCounts counts = CountsOfTraining(bfloat16);
    // The rest (the step, what asks whether variables are there, a save) takes less than a quarter
    // of what the smaller one moves.
    const int64_t least = kSteps * kFloats * (bfloat16 ? 2 : 4);
    const int64_t most = least + kSteps * kFloats / 2;
    EXPECT_GE(counts.bytes_sent, least);
    EXPECT_LE(counts.bytes_sent, most);
    EXPECT_GE(counts.bytes_received, least);
    EXPECT_LE(counts.bytes_received, most);
  }
}

}  // namespace
}  // namespace millrace
