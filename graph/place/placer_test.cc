// SPDX-License-Identifier: Apache-2.0
#include "graph/place/placer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "graph/testing/tiny_ops.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"

// covers: graphs: graphs that ask for a GPU run on the CPU where soft placement allows, with one
//   warning per session

namespace millrace {
namespace {

using ::testing::AllOf;
using testing::Call;
using testing::Constant;
using ::testing::HasSubstr;
using testing::Input;
using testing::NoOp;
using testing::Read;
using testing::Variable;

void SetClass(const std::string& group, const Output& output) {
  output.node()->EditAttr("_class", [&](tensorflow::AttrValue* attr) {
    SetAttr(std::vector<std::string>{group}, attr);
  });
}

std::vector<DeviceInfo> Devices(const std::vector<std::string>& names) {
  std::vector<DeviceInfo> devices;
  for (const std::string& name : names) {
    const size_t end = name.rfind(':');
    const size_t begin = name.rfind(':', end - 1) + 1;
    devices.push_back({name, name.substr(begin, end - begin), 1});
  }
  return devices;
}

const char kLocal0[] = "/job:localhost/replica:0/task:0/device:CPU:0";
const char kLocal1[] = "/job:localhost/replica:0/task:0/device:CPU:1";
const char kLocalGpu[] = "/job:localhost/replica:0/task:0/device:GPU:0";
const char kPs0[] = "/job:ps/replica:0/task:0/device:CPU:0";
const char kPs1[] = "/job:ps/replica:0/task:1/device:CPU:0";
const char kWorker0[] = "/job:worker/replica:0/task:0/device:CPU:0";
const char kWorker1[] = "/job:worker/replica:0/task:1/device:CPU:0";

// Kernels for everything except the pairs "Op@TYPE" and the ops named alone.
class Kernels : public KernelSupport {
 public:
  explicit Kernels(std::set<std::string> missing = {}) : missing_(std::move(missing)) {}
  bool HasKernel(const tensorflow::NodeDef& node, absl::string_view type) const override {
    return missing_.count(node.op()) == 0 &&
           missing_.count(absl::StrCat(node.op(), "@", type)) == 0;
  }
  std::string DescribeKernels(absl::string_view op) const override {
    return op == "Opaque" ? "T=double" : "";
  }

 private:
  const std::set<std::string> missing_;
};

class PlacerTest : public ::testing::Test {
 protected:
  Output X(const Scope& scope, const char* name) {
    return Input(scope.WithName(name), DT_FLOAT, {3});
  }
  Status Place(const std::vector<std::string>& devices, const PlacementOptions& options = {},
               const Kernels& kernels = Kernels()) {
    EXPECT_TRUE(root_.ok()) << root_.status();
    return PlaceGraph(root_.graph(), Devices(devices), &kernels, options);
  }
  std::string DeviceOf(const Output& output) { return output.node()->assigned_device(); }

  Scope root_;
};

TEST_F(PlacerTest, RequestsChooseAmongTheDevicesThatExist) {
  const Output any = Call(root_, "Floor", {X(root_.WithDevice("/cpu:1"), "x")});
  const Output one = X(root_.WithDevice("/job:localhost/cpu:1"), "one");
  const Output legacy = X(root_.WithDevice("/task:0/cpu:0"), "legacy");
  ASSERT_TRUE(Place({kLocal1, kLocal0}, {.default_device = kLocal0}).ok());
  EXPECT_EQ(DeviceOf(any), kLocal0);
  EXPECT_EQ(DeviceOf(one), kLocal1);
  EXPECT_EQ(DeviceOf(legacy), kLocal0);
}

TEST_F(PlacerTest, TheOrderIsTypeThenDefaultDeviceThenItsTaskThenName) {
  const Output free = Call(root_, "Floor", {X(root_, "x")});
  const Output ps = Call(root_.WithDevice("/job:ps"), "Floor", {free});
  const Output worker = Call(root_.WithDevice("/job:worker"), "Floor", {free});
  ASSERT_TRUE(Place({kPs1, kPs0, kWorker0, kWorker1}, {.default_device = kWorker1}).ok());
  EXPECT_EQ(DeviceOf(free), kWorker1);
  EXPECT_EQ(DeviceOf(ps), kPs0);
  EXPECT_EQ(DeviceOf(worker), kWorker1);

  Scope other;
  const Output y = Input(other, DT_FLOAT, {});
  const Output z = Call(other, "Floor", {y});
  const Kernels no_gpu_floor({"Floor@GPU"});
  ASSERT_TRUE(PlaceGraph(other.graph(), Devices({kLocal0, kLocalGpu}), &no_gpu_floor,
                         {.default_device = kLocal0})
                  .ok());
  EXPECT_EQ(z.node()->assigned_device(), kLocal0);
}

TEST_F(PlacerTest, TenDevicesAreOrderedByNumber) {
  const Output x = Call(root_.WithDevice("/job:ps"), "Floor", {X(root_, "x")});
  ASSERT_TRUE(Place({"/job:ps/replica:0/task:10/device:CPU:0",
                     "/job:ps/replica:0/task:9/device:CPU:0", kWorker0},
                    {.default_device = kWorker0})
                  .ok());
  EXPECT_EQ(DeviceOf(x), "/job:ps/replica:0/task:9/device:CPU:0");
}

TEST_F(PlacerTest, WhatSharesStateIsPlacedTogether) {
  const Output w = Variable(root_.WithDevice("/job:ps/task:1").WithName("w"), DT_FLOAT, {3});
  // Requests of users of the handle give way to where it is.
  const Output read = Read(root_.WithDevice("/job:worker/task:1"), w, DT_FLOAT);
  const Output ref = NodeBuilder(root_.WithDevice("/job:ps/task:0").WithName("v"), "VariableV2")
                         .Attr("shape", PartialShape({3}))
                         .Attr("dtype", DT_FLOAT)
                         .Finish()
                         .output(0);
  const Output assign = Call(root_.WithName("assign"), "Assign", {ref, read});
  const Output value = Call(root_.WithDevice("/job:worker/task:1"), "Identity", {assign});
  ASSERT_TRUE(Place({kPs0, kPs1, kWorker0, kWorker1}, {.default_device = kWorker0}).ok());
  EXPECT_EQ(DeviceOf(w), kPs1);
  EXPECT_EQ(DeviceOf(read), kPs1);
  EXPECT_EQ(DeviceOf(ref), kPs0);
  EXPECT_EQ(DeviceOf(assign), kPs0);
  EXPECT_EQ(DeviceOf(value), kWorker1);
}

TEST_F(PlacerTest, ColocationClassesMergePartialRequests) {
  const Output a = Call(root_.WithDevice("/job:ps").WithName("a"), "Floor", {X(root_, "x")});
  const Output b = Call(root_.ColocatedWith(a.op()), "Floor", {a});
  b.node()->set_requested_device("/task:1");
  const Output c = Call(root_.ColocatedWith(b.op()), "Floor", {b});
  ASSERT_TRUE(Place({kPs0, kPs1, kWorker0}).ok());
  EXPECT_EQ(DeviceOf(a), kPs1);
  EXPECT_EQ(DeviceOf(b), kPs1);
  EXPECT_EQ(DeviceOf(c), kPs1);
}

TEST_F(PlacerTest, NodesOfOneAbsentClassStayTogether) {
  const Output a = Call(root_.WithDevice("/job:ps/task:1"), "Floor", {X(root_, "x")});
  const Output b = Call(root_, "Floor", {a});
  for (const Output& o : {a, b}) {
    SetClass("loc:@pruned", o);
  }
  ASSERT_TRUE(Place({kPs0, kPs1, kWorker0}).ok());
  EXPECT_EQ(DeviceOf(b), kPs1);
}

TEST_F(PlacerTest, MetadataFollowsItsInputAndGeneratorsTheirConsumers) {
  const Output x = Call(root_.WithDevice("/job:ps/task:1"), "Floor", {X(root_, "x")});
  const Output shape = Call(root_.WithName("shape"), "Shape", {x});
  const Output two = Constant(root_.WithName("two"), Tensor::Scalar<float>(2));
  Call(root_.WithDevice("/job:ps/task:0"), "Mul", {x, two});
  const Output shared = Constant(root_.WithName("shared"), Tensor::Scalar<float>(2));
  Call(root_.WithDevice("/job:ps/task:0"), "Mul", {x, shared});
  Call(root_.WithDevice("/job:ps/task:1"), "Mul", {x, shared});
  const Output asked = Constant(root_.WithDevice("/job:worker"), Tensor::Scalar<float>(2));
  Call(root_.WithDevice("/job:ps/task:0"), "Mul", {x, asked});
  ASSERT_TRUE(Place({kPs0, kPs1, kWorker0}, {.default_device = kWorker0}).ok());
  EXPECT_EQ(DeviceOf(shape), kPs1);
  EXPECT_EQ(DeviceOf(two), kPs0);
  EXPECT_EQ(DeviceOf(shared), kWorker0);
  EXPECT_EQ(DeviceOf(asked), kWorker0);
}

TEST_F(PlacerTest, SoftPlacementFallsBackWithOneWarning) {
  const Scope gpu = root_.WithDevice("/job:worker/task:1/gpu:0");
  const Output a = Call(gpu, "Floor", {X(gpu, "x")});
  const Output b = Call(root_.WithDevice("/job:worker/task:1/cpu:7"), "Floor", {a});
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(Place({kWorker0, kWorker1}, {.allow_soft_placement = true}).ok());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(DeviceOf(a), kWorker1);
  EXPECT_EQ(DeviceOf(b), kWorker1);
  EXPECT_THAT(
      log,
      HasSubstr(
          "2 nodes ask for a GPU that does not exist or cannot run the op ('x' is the first)"));
  EXPECT_EQ(log.find(" GPU "), log.rfind(" GPU "));
}

TEST_F(PlacerTest, OneSessionWarnsOfAMissingGpuOnce) {
  bool warned = false;
  for (const bool silent : {false, true}) {
    X(root_.WithDevice("/job:worker/task:1/gpu:0"), silent ? "second" : "first");
    ::testing::internal::CaptureStderr();
    const Status placed = Place({kWorker0, kWorker1},
                                {.allow_soft_placement = true, .warned_of_missing_gpu = &warned});
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(placed.ok());
    EXPECT_EQ(log.find(" GPU ") == std::string::npos, silent) << log;
    EXPECT_TRUE(warned);
  }
}

TEST_F(PlacerTest, SoftPlacementNeverLeavesTheTask) {
  X(root_.WithDevice("/job:worker/task:7/gpu:0"), "x");
  EXPECT_FALSE(Place({kWorker0, kWorker1}, {.allow_soft_placement = true}).ok());
}

TEST_F(PlacerTest, ARequestWithoutKernelFallsBackOnlyWhenSoft) {
  const Output x = Call(root_.WithDevice("/gpu:0").WithName("floor"), "Floor", {X(root_, "x")});
  const Kernels kernels({"Floor@GPU"});
  const Status hard = Place({kLocal0, kLocalGpu}, {}, kernels);
  EXPECT_EQ(hard.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(hard.message(),
            "Cannot assign a device for operation floor: it was explicitly assigned to "
            "/device:GPU:0, but op 'Floor' has no kernel for device type GPU; registered kernels "
            "are for CPU");
  EXPECT_EQ(DeviceOf(x), "");
  ASSERT_TRUE(Place({kLocal0, kLocalGpu}, {.allow_soft_placement = true}, kernels).ok());
  EXPECT_EQ(DeviceOf(x), kLocal0);
}

TEST_F(PlacerTest, AnOpWithoutAnyKernelIsUnimplementedByName) {
  Call(root_.WithName("dark"), "Opaque", {X(root_, "x")});
  const Status status = Place({kLocal0}, {}, Kernels({"Opaque"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "Op 'Opaque' of node 'dark' has no kernel registered for device type CPU (T=float); "
            "registered kernels: T=double");
}

TEST_F(PlacerTest, AssignedDevicesStay) {
  const Output x = X(root_, "x");
  x.node()->set_assigned_device(kWorker1);
  const Output y = Call(root_.ColocatedWith(x.op()), "Floor", {x});
  ASSERT_TRUE(Place({kWorker0, kWorker1}).ok());
  EXPECT_EQ(DeviceOf(x), kWorker1);
  EXPECT_EQ(DeviceOf(y), kWorker1);
}

TEST_F(PlacerTest, StatefulNodesStayWhereTheyWerePut) {
  StatefulPlacements placed;
  Variable(root_.WithName("w"), DT_FLOAT, {3});
  ASSERT_TRUE(Place({kPs0, kPs1}, {.default_device = kPs1, .stateful_placements = &placed}).ok());
  EXPECT_EQ(placed.at("w"), kPs1);

  // Another graph of the session, another default: the variable stays, and so do its users.
  Scope next;
  const Output again = Variable(next.WithName("w"), DT_FLOAT, {3});
  const Output read = Read(next.WithDevice("/task:0"), again, DT_FLOAT);
  ASSERT_TRUE(PlaceGraph(next.graph(), Devices({kPs0, kPs1}), nullptr,
                         {.default_device = kPs0, .stateful_placements = &placed})
                  .ok());
  EXPECT_EQ(DeviceOf(again), kPs1);
  EXPECT_EQ(DeviceOf(read), kPs1);

  // Its class keeps others there even when it is pruned.
  Scope pruned;
  const Output slot = Variable(pruned.WithName("slot"), DT_FLOAT, {3});
  SetClass("loc:@w", slot);
  ASSERT_TRUE(PlaceGraph(pruned.graph(), Devices({kPs0, kPs1}), nullptr,
                         {.default_device = kPs0, .stateful_placements = &placed})
                  .ok());
  EXPECT_EQ(DeviceOf(slot), kPs1);

  Scope moved;
  Variable(moved.WithDevice("/task:0").WithName("w"), DT_FLOAT, {3});
  const Status status =
      PlaceGraph(moved.graph(), Devices({kPs0, kPs1}), nullptr, {.stateful_placements = &placed});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("Stateful placement mismatch. Current assignment of w to "),
                    HasSubstr(kPs1), HasSubstr("does not match /task:0")));

  const Status gone =
      PlaceGraph(next.graph(), Devices({kPs0}), nullptr, {.stateful_placements = &placed});
  EXPECT_FALSE(gone.ok());
}

TEST_F(PlacerTest, ImpossibleRequestsNameWhatWasAskedAndWhatExists) {
  const struct {
    const char* device;
    const char* message;
  } kCases[] = {
      {"/job:ps/task:7",
       "it was explicitly assigned to /job:ps/task:7 but available devices are [ "},
      {"/gpu:0", "it was explicitly assigned to /device:GPU:0 but available devices are [ "},
      {"/cpu:3", "it was explicitly assigned to /device:CPU:3"},
      {"/job:nowhere", kPs0},
      {"/jbo:ps", "Malformed device specification '/jbo:ps'"},
  };
  for (const auto& c : kCases) {
    Scope root;
    const Output x = Input(root.WithName("x"), DT_FLOAT, {});
    x.node()->set_requested_device(c.device);
    const Status status = PlaceGraph(root.graph(), Devices({kPs0, kWorker0}), nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.device;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("Cannot assign a device for operation x: "), HasSubstr(c.message)));
    EXPECT_EQ(x.node()->assigned_device(), "");
  }
}

TEST_F(PlacerTest, ContradictionsInAGroupNameBothNodes) {
  const Output a = Call(root_.WithDevice("/job:ps").WithName("a"), "Floor", {X(root_, "x")});
  const Output b = Call(root_.WithName("b"), "Floor", {a});
  SetClass("loc:@a", b);
  b.node()->set_requested_device("/job:worker");
  const Status status = Place({kPs0, kWorker0});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "Cannot assign a device for operation b: it must be on one device with 'a', which asks "
            "for '/job:ps', but it asks for '/job:worker' itself");
}

TEST_F(PlacerTest, AGroupThatNoTypeCanRunIsRefused) {
  const Output a = Call(root_.WithName("a"), "Floor", {X(root_, "x")});
  Call(root_.ColocatedWith(a.op()).WithName("b"), "Identity", {a});
  const Status status = Place({kLocal0, kLocalGpu}, {}, Kernels({"Floor@CPU", "Identity@GPU"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no device type has kernels for all nodes"));
}

TEST_F(PlacerTest, BadDeviceListsAreRefused) {
  NoOp(root_);
  EXPECT_THAT(std::string(PlaceGraph(root_.graph(), {}, nullptr).message()),
              HasSubstr("devices must not be empty"));
  for (const DeviceInfo& device :
       {DeviceInfo{"/job:ps", "CPU", 1}, DeviceInfo{kPs0, "GPU", 1}, DeviceInfo{"x", "CPU", 1}}) {
    EXPECT_EQ(PlaceGraph(root_.graph(), {device}, nullptr).code(),
              absl::StatusCode::kInvalidArgument)
        << device.name;
  }
  EXPECT_FALSE(Place({kPs0}, {.default_device = "/jbo:x"}).ok());
}

TEST_F(PlacerTest, PlacementCanBeLogged) {
  NoOp(root_.WithName("init"));
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(Place({kPs0}, {.log_device_placement = true}).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(absl::StrCat("init: (NoOp): ", kPs0)));
}

}  // namespace
}  // namespace millrace
