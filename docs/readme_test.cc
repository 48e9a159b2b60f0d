// SPDX-License-Identifier: Apache-2.0
//
// The program of the top README, as it stands there, as a cluster of one task.

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adam.h"
#include "train/supervisor.h"

namespace millrace {
namespace {

std::pair<Tensor, Tensor> NextBatch() {
  return {Tensor::Vector<float>({-1, 0, 1}), Tensor::Vector<float>({-2, 1, 4})};
}

#include "docs/readme_program.inc"

TEST(ReadmeTest, TheProgramTrains) {
  std::filesystem::current_path(std::getenv("TEST_TMPDIR"));
  const std::string text = absl::StrCat("{\"cluster\": {\"master\": [\"127.0.0.1:", FreePort(),
                                        "\"]}, \"task\": {\"type\": \"master\", \"index\": 0}}");
  setenv("TF_CONFIG", text.c_str(), 1);
  ASSERT_OK_AND_ASSIGN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  EXPECT_OK(Train(cluster));
}

}  // namespace
}  // namespace millrace
