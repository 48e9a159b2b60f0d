// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_CLUSTER_IN_PROCESS_H_
#define MILLRACE_TESTS_CLUSTER_CLUSTER_IN_PROCESS_H_

// ClusterInProcessTest: a test on a "ps", a "master" and a "worker" that are servers of this
// process, over loopback, with a folder of its own.
//
// The servers ask for a token, which this process has: who resets a cluster that trains must show
// that it belongs to it.

#include <map>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "gtest/gtest.h"

namespace millrace {

class ClusterInProcessTest : public ::testing::Test {
 protected:
  // `name`: how the folder's name begins. Of several parameter servers the second is "ps1".
  explicit ClusterInProcessTest(absl::string_view name, int num_ps = 1);
  ~ClusterInProcessTest() override;

  const std::string dir_;
  // By job.
  std::map<std::string, ClusterConfig> configs_;
  std::map<std::string, std::unique_ptr<Server>> servers_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_CLUSTER_IN_PROCESS_H_
