// SPDX-License-Identifier: Apache-2.0
#include "distributed/replica_device_setter.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "graph/attr.h"
#include "graph/scope.h"
#include "graph/table_parts.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"

// covers: article 2-11: replica device setter: variables in turn on the ps, the rest here
// covers: clusters: variables are spread over the ps by bytes, in each task alike
// covers: clusters: tables above 64 MiB are cut into a part for each ps, unless the program says
//   otherwise; checkpoints do not depend on it

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

tensorflow::NodeDef Named(const std::string& name, const PartialShape& shape,
                          const std::vector<std::string>& with = {}) {
  tensorflow::NodeDef node = NodeOf("VarHandleOp", "", shape);
  node.set_name(name);
  if (!with.empty()) SetAttr(with, &(*node.mutable_attr())["_class"]);
  return node;
}

// Floats: 400, 40, 400, 80 bytes; the second ps has 40, then 440, then the first 480.
TEST(ReplicaDeviceSetterTest, BalancedIsGreedyByBytes) {
  const DeviceFunction device = BalancedDeviceSetter(TwoPs());
  EXPECT_EQ(device(Named("a", {100})), "/job:ps/task:0");
  EXPECT_EQ(device(Named("b", {10})), "/job:ps/task:1");
  EXPECT_EQ(device(Named("c", {10, 10})), "/job:ps/task:1");
  EXPECT_EQ(device(Named("d", {20})), "/job:ps/task:0");
  EXPECT_EQ(device(Named("e", {1})), "/job:ps/task:1");
  EXPECT_EQ(device(NodeOf("MatMul")), "/job:worker/task:1");
}

TEST(ReplicaDeviceSetterTest, TwoBuildsAndTwoTasksPlaceAlike) {
  const auto build = [](const ClusterConfig& cluster) {
    const DeviceFunction device = BalancedDeviceSetter(cluster);
    std::vector<std::string> places;
    for (int64_t i = 0; i < 40; ++i) {
      places.push_back(device(Named("v" + std::to_string(i), {1 + (i * 37) % 11, 3})));
    }
    return places;
  };
  constexpr char kThreePs[] = R"({"ps": ["a:1", "b:1", "e:1"], "worker": ["c:1", "d:1"]})";
  const std::vector<std::string> first = build(Cluster(kThreePs, "worker", 0));
  EXPECT_EQ(build(Cluster(kThreePs, "worker", 0)), first);
  EXPECT_EQ(build(Cluster(kThreePs, "worker", 1)), first);
}

// "a" is alone on the first ps; its slots go there, too, so that the next variables fill the other
// one: 4 * 100 * 3 = 1,200 bytes.
TEST(ReplicaDeviceSetterTest, SlotsCountWhereTheirVariableIs) {
  const DeviceFunction device = BalancedDeviceSetter(TwoPs());
  EXPECT_EQ(device(Named("a", {100})), "/job:ps/task:0");
  EXPECT_EQ(device(Named("a/Adam", {100}, {"loc:@a"})), "/job:ps/task:0");
  EXPECT_EQ(device(Named("a/Adam_1", {100}, {"loc:@a"})), "/job:ps/task:0");
  EXPECT_EQ(device(Named("b", {299})), "/job:ps/task:1");
  EXPECT_EQ(device(Named("c", {1})), "/job:ps/task:1");  // 1,196 bytes there
  EXPECT_EQ(device(Named("d", {1})), "/job:ps/task:0");  // a tie: the lowest
  // With what stands elsewhere: the scope says where that is, and nothing is counted.
  device(Named("e", {1000}, {"loc:@elsewhere"}));
  EXPECT_EQ(device(Named("f", {1})), "/job:ps/task:1");
}

TEST(ReplicaDeviceSetterTest, ATaskThatIsAskedForCounts) {
  const DeviceFunction device = BalancedDeviceSetter(TwoPs());
  tensorflow::NodeDef pinned = Named("a", {100});
  pinned.set_device("/job:ps/task:1");
  EXPECT_EQ(device(pinned), "/job:ps/task:1");
  EXPECT_EQ(device(Named("b", {50})), "/job:ps/task:0");
  EXPECT_EQ(device(Named("c", {50})), "/job:ps/task:0");
  EXPECT_EQ(device(Named("d", {1})), "/job:ps/task:0");  // a tie: the lowest
  EXPECT_EQ(device(Named("e", {1})), "/job:ps/task:1");
  // A task that there is not: the placer says so.
  pinned.set_device("/job:ps/task:7");
  EXPECT_EQ(device(pinned), "/job:ps/task:7");
}

TEST(ReplicaDeviceSetterTest, WhatHasNoKnownSizeCountsAByte) {
  const DeviceFunction device = BalancedDeviceSetter(TwoPs());
  EXPECT_EQ(device(Named("a", {-1, 3})), "/job:ps/task:0");
  EXPECT_EQ(device(Named("b", PartialShape::Unknown())), "/job:ps/task:1");
  EXPECT_EQ(device(NodeOf("MutableHashTableV2")), "/job:ps/task:0");
  EXPECT_EQ(device(Named("c", {-1})), "/job:ps/task:1");
}

TEST(ReplicaDeviceSetterTest, BalancedTasksMayHaveGaps) {
  const DeviceFunction device = BalancedDeviceSetter(
      Cluster(R"({"ps": {"1": "a:1", "4": "b:1"}, "worker": ["c:1"]})", "worker", 0));
  tensorflow::NodeDef pinned = Named("a", {100});
  pinned.set_device("/job:ps/task:1");
  EXPECT_EQ(device(pinned), "/job:ps/task:1");
  EXPECT_EQ(device(Named("b", {10})), "/job:ps/task:4");
  EXPECT_EQ(device(Named("c", {10})), "/job:ps/task:4");
}

TEST(ReplicaDeviceSetterTest, BalancedWithoutParameterServersIsNoFunction) {
  EXPECT_FALSE(BalancedDeviceSetter(ClusterConfig()));
  EXPECT_FALSE(BalancedDeviceSetter(Cluster(R"({"worker": ["a:1"]})", "worker", 0)));
  EXPECT_FALSE(
      BalancedDeviceSetter(Cluster(R"({"worker": ["a:1"], "ps": ["b:1"]})", "evaluator", 0)));
  // A strategy without tasks has one place.
  EXPECT_EQ(GreedyByteStrategy(0)(Named("a", {1})), 0);
  EXPECT_EQ(GreedyByteStrategy(-1)(Named("a", {1})), 0);
}

TEST(ReplicaDeviceSetterTest, TasksMayHaveGaps) {
  const DeviceFunction device = ReplicaDeviceSetter(
      Cluster(R"({"ps": {"1": "a:1", "4": "b:1"}, "worker": ["c:1"]})", "worker", 0));
  EXPECT_EQ(device(NodeOf("VarHandleOp")), "/job:ps/task:1");
  EXPECT_EQ(device(NodeOf("VarHandleOp")), "/job:ps/task:4");
}

TEST(ReplicaDeviceSetterTest, LargeTablesHaveAPartForEachPs) {
  const auto tables = [](const DeviceFunction& device) {
    const TablesInParts found = TablesInPartsOf(Scope().WithDevice(device));
    return std::pair(found.max_parts, found.min_part_bytes);
  };
  const ClusterConfig one = Cluster(R"({"ps": ["a:1"], "worker": ["c:1"]})", "worker", 0);
  const ClusterConfig none = Cluster(R"({"worker": ["c:1"]})", "worker", 0);
  const int64_t default_bytes = int64_t{64} << 20;
  EXPECT_EQ(tables(ReplicaDeviceSetter(TwoPs())), std::pair(int64_t{2}, default_bytes));
  EXPECT_EQ(tables(BalancedDeviceSetter(TwoPs())), std::pair(int64_t{2}, default_bytes));
  EXPECT_EQ(tables(ReplicaDeviceSetter(TwoPs(), {.partition_tables_above = 1000})),
            std::pair(int64_t{2}, int64_t{1000}));
  EXPECT_EQ(tables(ReplicaDeviceSetter(TwoPs(), {.partition_tables_above = 0})).first, 1);
  EXPECT_EQ(tables(ReplicaDeviceSetter(one)).first, 1);
  EXPECT_EQ(tables(ReplicaDeviceSetter(none)).first, 1);
}

// The innermost says it; a task, inside of it, that all tables stand.
TEST(ReplicaDeviceSetterTest, TheProgramSaysOtherwise) {
  const Scope scope = Scope().WithDevice(ReplicaDeviceSetter(TwoPs()));
  const auto parts = [](const Scope& at) { return TablesInPartsOf(at).max_parts; };
  EXPECT_EQ(parts(scope.WithDevice(TablesInParts{.max_parts = 5})), 5);
  EXPECT_EQ(parts(scope.WithDevice(TablesInParts{})), 1);
  EXPECT_EQ(parts(scope.WithDevice("/job:ps/task:1")), 1);
  EXPECT_EQ(parts(scope.WithDevice("/device:CPU:0")), 2);
  EXPECT_EQ(parts(scope.WithDevice("")), 1);
  // Names and devices that a composite chooses do not matter.
  EXPECT_EQ(parts(scope.CompositeScope("layer").WithSubScope("a").WithRootPrefix()), 2);
  // It changes no device.
  EXPECT_EQ(TablesInParts{}(NodeOf("VarHandleOp", "/job:ps")), "/job:ps");
}

}  // namespace
}  // namespace millrace
