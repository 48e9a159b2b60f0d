// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/supervisor.md, as it stands there, as a cluster of one task and without
// one.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/adam.h"
#include "train/optimizer.h"
#include "train/supervisor.h"

// covers: values: the program of `docs/supervisor.md`, built from its text, trains and keeps its
//   model

namespace millrace {
namespace {

std::pair<Tensor, Tensor> NextBatch() {
  return {Tensor::Vector<float>({-1, 0, 1}), Tensor::Vector<float>({-2, 1, 4})};
}

#include "docs/supervisor_program.inc"

// In a directory of its own; the model must be there with its last step.
void ExpectTrained(const ClusterConfig& cluster) {
  const std::string directory = JoinPath(std::getenv("TEST_TMPDIR"), RandomHexName());
  std::filesystem::create_directory(directory);
  std::filesystem::current_path(directory);
  EXPECT_OK(TrainLine(cluster));
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), "run"), "run/model.ckpt-1000");
}

TEST(SupervisorPageTest, TheProgramTrainsAndKeepsItsModel) {
  const std::string text = absl::StrCat("{\"cluster\": {\"master\": [\"127.0.0.1:", FreePort(),
                                        "\"]}, \"task\": {\"type\": \"master\", \"index\": 0}}");
  setenv("TF_CONFIG", text.c_str(), 1);
  ASSERT_OK_AND_ASSIGN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  ExpectTrained(cluster);
}

TEST(SupervisorPageTest, TheSameTextRunsInOneProcess) { ExpectTrained(ClusterConfig()); }

}  // namespace
}  // namespace millrace
