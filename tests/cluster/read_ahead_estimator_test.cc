// SPDX-License-Identifier: Apache-2.0
//
// RunConfig's read_ahead: an Estimator's chief trains with a parameter server as without it.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "estimator/estimator.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "estimator/run_config.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/config.pb.h"
#include "runtime/session_config.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/process.h"
#include "train/adam.h"

// covers: training: an Estimator whose RunConfig asks for read-ahead trains to the same bits, also
//   where floats travel as bfloat16, and its log says what is read ahead

namespace millrace {
namespace {

constexpr int64_t kFloats = 50, kSteps = 20;

// Each element of w goes to that of x.
EstimatorSpec Follow(const Scope& scope, const Features& features, const Labels&, Mode mode) {
  const Variable w = MakeVariable(scope.WithName("w"), Shape{kFloats}, DT_FLOAT, OnesInitializer());
  EstimatorSpec spec{.mode = mode, .predictions = w.value};
  spec.loss = ReduceMean(scope, Square(scope, Sub(scope, w.value, features["x"])));
  spec.train_op = AdamOptimizer({.learning_rate = 0.1})
                      .Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
  return spec;
}

StatusOr<std::unique_ptr<Server>> Start(const std::string& tf_config) {
  MR_ASSIGN_OR_RETURN(const ClusterConfig config, ClusterConfig::Parse(tf_config));
  return Server::Start(config);
}

// The w that is saved at the end.
StatusOr<Tensor> Trained(bool read_ahead, bool bfloat16) {
  ClusterPorts ports = FreeClusterPorts(2, 0, 0);
  ports.host = "127.0.0.1";
  ports.chief = {ports.ps.back()};
  ports.ps.pop_back();
  const std::string chief_config = TfConfig(ports, "chief", 0);
  MR_ASSIGN_OR_RETURN(const auto ps, Start(TfConfig(ports, "ps", 0)));
  MR_ASSIGN_OR_RETURN(const auto chief, Start(chief_config));
  tensorflow::ConfigProto session;
  session.set_allow_soft_placement(true);
  session.mutable_graph_options()->set_enable_bfloat16_sendrecv(bfloat16);
  const std::string dir = JoinPath(::testing::TempDir(), "read_ahead_" + RandomHexName());
  MR_ASSIGN_OR_RETURN(const RunConfig config,
                      RunConfig::Make({.model_dir = dir,
                                       .session_config = SessionConfigOf(std::move(session)),
                                       .session_creation_timeout_secs = 60.0,
                                       .read_ahead = read_ahead},
                                      chief_config));
  MR_ASSIGN_OR_RETURN(auto estimator, Estimator::Make(Follow, {.config = config}));
  const InputFn input = [](const Scope& scope) {
    Tensor x = *Tensor::Zeros(DT_FLOAT, Shape{kFloats});
    for (int64_t i = 0; i < kFloats; ++i) {
      x.mutable_flat<float>()[static_cast<size_t>(i)] = 0.3f * static_cast<float>(i);
    }
    return Input({{"x", Const(scope, x)}}, Const(scope, 1.0f));
  };
  MR_ASSIGN_OR_RETURN(const auto trained, estimator.Train(input, {.steps = kSteps}));
  EXPECT_EQ(trained.own_steps, kSteps);
  const std::optional<std::string> latest = LatestCheckpoint(FileSystem::Posix(), dir);
  if (!latest) return absl::NotFoundError(absl::StrCat("no checkpoint in ", dir));
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(FileSystem::Posix(), *latest));
  return reader->Read("w");
}

TEST(ReadAheadEstimatorTest, TheWeightsAreTheSameBitByBit) {
  for (const bool bfloat16 : {false, true}) {
    SCOPED_TRACE(bfloat16);
    ASSERT_OK_AND_ASSIGN(const Tensor without, Trained(false, bfloat16));
    ::testing::internal::CaptureStderr();
    const StatusOr<Tensor> with = Trained(true, bfloat16);
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_OK(with);
    EXPECT_EQ(without, *with);
    EXPECT_TRUE(absl::StrContains(
        log, "ReadAheadHook: read_ahead: variables that come with the end of the step before: 1"))
        << log;
  }
}

}  // namespace
}  // namespace millrace
