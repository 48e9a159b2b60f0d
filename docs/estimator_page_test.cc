// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/estimator.md, as it stands there, in one process.

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/train_and_evaluate.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/losses.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "saver/saver.h"
#include "train/adam.h"
#include "train/metrics.h"

namespace millrace {
namespace {

#include "docs/estimator_program.inc"

TEST(EstimatorPageTest, TheProgramTrainsEvaluatesAndExports) {
  const std::string directory = JoinPath(std::getenv("TEST_TMPDIR"), RandomHexName());
  unsetenv("TF_CONFIG");
  ASSERT_OK(RunLine(directory));
  FileSystem* const fs = FileSystem::Posix();
  EXPECT_EQ(LatestCheckpoint(fs, directory), directory + "/model.ckpt-1000");
  ASSERT_OK_AND_ASSIGN(const auto exports, fs->GetChildren(directory + "/export/final"));
  EXPECT_EQ(exports.size(), 1u);
  EXPECT_TRUE(fs->FileExists(directory + "/eval"));
}

}  // namespace
}  // namespace millrace
