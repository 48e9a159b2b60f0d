// SPDX-License-Identifier: Apache-2.0
#include "distributed/replica_device_setter.h"

#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "graph/attr.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"

// covers: article 2-11: replica device setter: variables in turn on the ps, the rest here

namespace millrace {
namespace {

ClusterConfig Cluster(const std::string& cluster, const std::string& type, int index) {
  const auto config =
      ClusterConfig::Parse("{\"cluster\": " + cluster + ", \"task\": {\"type\": \"" + type +
                           "\", \"index\": " + std::to_string(index) + "}}");
  EXPECT_OK(config);
  return config.value_or(ClusterConfig());
}

ClusterConfig TwoPs() {
  return Cluster(R"({"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]})", "worker", 1);
}

tensorflow::NodeDef NodeOf(const std::string& op, const std::string& device = "",
                           const PartialShape& shape = {}) {
  tensorflow::NodeDef node;
  node.set_name("n");
  node.set_op(op);
  node.set_device(device);
  SetAttr(DT_FLOAT, &(*node.mutable_attr())["dtype"]);
  SetAttr(shape, &(*node.mutable_attr())["shape"]);
  return node;
}

TEST(ReplicaDeviceSetterTest, VariablesGoRoundAndTheRestToThisWorker) {
  const DeviceFunction device = ReplicaDeviceSetter(TwoPs());
  EXPECT_EQ(device(NodeOf("VarHandleOp")), "/job:ps/task:0");
  EXPECT_EQ(device(NodeOf("MatMul")), "/job:worker/task:1");
  EXPECT_EQ(device(NodeOf("VariableV2")), "/job:ps/task:1");
  EXPECT_EQ(device(NodeOf("Variable")), "/job:ps/task:0");
  EXPECT_EQ(device(NodeOf("Assign")), "/job:worker/task:1");
}

TEST(ReplicaDeviceSetterTest, TablesThatChangeAreShared) {
  const DeviceFunction device = ReplicaDeviceSetter(TwoPs());
  for (const char* op : {"HashTableV2", "HashTable", "InitializeTableV2",
                         "InitializeTableFromTextFileV2", "LookupTableFindV2"}) {
    EXPECT_EQ(device(NodeOf(op)), "/job:worker/task:1") << op;
  }
  for (const char* op : {"MutableHashTableV2", "MutableHashTableOfTensorsV2",
                         "MutableDenseHashTableV2", "MutableHashTable"}) {
    EXPECT_THAT(device(NodeOf(op)), ::testing::StartsWith("/job:ps/task:")) << op;
  }
}

TEST(ReplicaDeviceSetterTest, TheOpsOwnFieldsWin) {
  const DeviceFunction device = ReplicaDeviceSetter(TwoPs());
  EXPECT_EQ(device(NodeOf("VarHandleOp", "/cpu:0")), "/job:ps/task:0/device:CPU:0");
  EXPECT_EQ(device(NodeOf("MatMul", "/device:CPU:1")), "/job:worker/task:1/device:CPU:1");
  // Another job: the strategy is not asked, so the rotation stays where it is.
  EXPECT_EQ(device(NodeOf("VarHandleOp", "/job:worker/task:0")), "/job:worker/task:0");
  EXPECT_EQ(device(NodeOf("VarHandleOp", "/job:ps/task:0")), "/job:ps/task:0");
  EXPECT_EQ(device(NodeOf("VarHandleOp")), "/job:ps/task:0");
}

TEST(ReplicaDeviceSetterTest, WithoutMergingADeviceIsLeftAlone) {
  const DeviceFunction device = ReplicaDeviceSetter(TwoPs(), {.merge_devices = false});
  EXPECT_EQ(device(NodeOf("VarHandleOp", "/cpu:0")), "/cpu:0");
  EXPECT_EQ(device(NodeOf("VarHandleOp")), "/job:ps/task:0");
}

TEST(ReplicaDeviceSetterTest, NoParameterServersNoFunction) {
  EXPECT_FALSE(ReplicaDeviceSetter(ClusterConfig()));
  EXPECT_FALSE(ReplicaDeviceSetter(Cluster(R"({"worker": ["a:1"]})", "worker", 0)));
  EXPECT_FALSE(
      ReplicaDeviceSetter(Cluster(R"({"worker": ["a:1"], "ps": ["b:1"]})", "evaluator", 0)));
}

TEST(ReplicaDeviceSetterTest, GreedyTakesTheTaskWithTheFewestBytes) {
  const DeviceFunction device = ReplicaDeviceSetter(TwoPs(), {.strategy = GreedyByteStrategy(2)});
  EXPECT_EQ(device(NodeOf("VarHandleOp", "", {100, 10})), "/job:ps/task:0");
  EXPECT_EQ(device(NodeOf("VarHandleOp", "", {10})), "/job:ps/task:1");
  EXPECT_EQ(device(NodeOf("VarHandleOp", "", {989})), "/job:ps/task:1");
  EXPECT_EQ(device(NodeOf("VarHandleOp", "", {1})), "/job:ps/task:1");
  EXPECT_EQ(device(NodeOf("VarHandleOp", "", {1})), "/job:ps/task:0");  // a tie: the lowest
}

TEST(ReplicaDeviceSetterTest, TasksMayHaveGaps) {
  const DeviceFunction device = ReplicaDeviceSetter(
      Cluster(R"({"ps": {"1": "a:1", "4": "b:1"}, "worker": ["c:1"]})", "worker", 0));
  EXPECT_EQ(device(NodeOf("VarHandleOp")), "/job:ps/task:1");
  EXPECT_EQ(device(NodeOf("VarHandleOp")), "/job:ps/task:4");
}

}  // namespace
}  // namespace millrace
