// SPDX-License-Identifier: Apache-2.0
#include "graph/device_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

using ::testing::HasSubstr;

DeviceName Name(absl::string_view text) {
  StatusOr<DeviceName> name = DeviceName::Parse(text);
  EXPECT_TRUE(name.ok()) << name.status();
  return name.ok() ? *name : DeviceName();
}

TEST(DeviceNameTest, EveryLegalFormHasOneCanonicalText) {
  const struct {
    const char* text;
    const char* canonical;
  } kCases[] = {
      {"", ""},
      {"/job:ps/replica:0/task:1/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0"},
      {"/task:1/job:ps", "/job:ps/task:1"},
      {"/cpu:0", "/device:CPU:0"},
      {"/gpu:1", "/device:GPU:1"},
      {"/GPU:1/job:w", "/job:w/device:GPU:1"},
      {"cpu:0", "/device:CPU:0"},
      {"job:ps/task:3", "/job:ps/task:3"},
      {"/device:cpu:2", "/device:CPU:2"},
      {"/device:GPU", "/device:GPU:*"},
      {"/device:GPU:*", "/device:GPU:*"},
      {"/cpu:*", "/device:CPU:*"},
      {"/device:*:0", "/device:*:0"},
      {"/device:*:*", ""},
      {"/job:*/replica:*/task:*", ""},
      {"/job:a_1/device:XLA_CPU:0", "/job:a_1/device:XLA_CPU:0"},
      {"/task:2147483647", "/task:2147483647"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(Name(c.text).ToString(), c.canonical) << c.text;
    EXPECT_EQ(Name(Name(c.text).ToString()), Name(c.text)) << c.text;
  }
}

TEST(DeviceNameTest, MalformedNamesAreRefusedWithTheirBadPart) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"/", "got ''"},
      {"//job:ps", "got ''"},
      {"/job:ps/", "got ''"},
      {"/job:", "job must be a letter"},
      {"/job:1ps", "got '1ps'"},
      {"/job:p-s", "got 'p-s'"},
      {"/jbo:ps", "got 'jbo'"},
      {"/task:x", "task must be a number >= 0"},
      {"/task:", "got ''"},
      {"/task:-1", "got '-1'"},
      {"/task:+1", "got '+1'"},
      {"/task: 1", "got ' 1'"},
      {"/replica:99999999999", "got '99999999999'"},
      {"/task:2147483648", "got '2147483648'"},
      {"/job:a/job:b", "job must be given once"},
      {"/job:*/job:b", "job must be given once"},
      {"/task:1/task:1", "task must be given once"},
      {"/cpu:0/device:GPU:0", "device must be given once"},
      {"/device:", "device type must be a letter"},
      {"/device:CPU:", "device id must be a number"},
      {"/device:CPU:0:1", "got '0:1'"},
      {"/cpu", "each part must be KEY:VALUE, got 'cpu'"},
      {"/job", "got 'job'"},
  };
  for (const auto& c : kCases) {
    const StatusOr<DeviceName> name = DeviceName::Parse(c.text);
    ASSERT_FALSE(name.ok()) << c.text;
    EXPECT_EQ(name.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(name.status().message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(name.status().message()),
                HasSubstr("Malformed device specification '" + std::string(c.text) + "'"));
  }
}

TEST(DeviceNameTest, InnerFieldsWinWhenMerged) {
  EXPECT_EQ(*MergeDeviceNames("/job:ps/task:0", "/cpu:0"), "/job:ps/task:0/device:CPU:0");
  EXPECT_EQ(*MergeDeviceNames("/job:ps/task:0/cpu:0", "/task:1/gpu:2"),
            "/job:ps/task:1/device:GPU:2");
  EXPECT_EQ(*MergeDeviceNames("", "/task:1"), "/task:1");
  EXPECT_EQ(*MergeDeviceNames("/job:ps", ""), "/job:ps");
  EXPECT_EQ(MergeDeviceNames("/job:ps", "/x").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MergeDeviceNames("/x", "/job:ps").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DeviceNameTest, CompatibleNamesShareADeviceAndMatchesIsOneSided) {
  const DeviceName device = Name("/job:ps/replica:0/task:1/device:CPU:0");
  EXPECT_TRUE(device.IsFull());
  EXPECT_TRUE(device.Matches(Name("/job:ps")));
  EXPECT_TRUE(device.Matches(Name("")));
  EXPECT_FALSE(device.Matches(Name("/job:worker")));
  EXPECT_FALSE(Name("/job:ps").Matches(device));
  EXPECT_TRUE(Name("/job:ps").IsCompatible(Name("/task:1")));
  EXPECT_FALSE(Name("/job:ps/task:1").IsCompatible(Name("/task:2")));
  EXPECT_TRUE(device.IsSameTask(Name("/job:ps/replica:0/task:1/device:CPU:7")));
  EXPECT_FALSE(device.IsSameTask(Name("/job:ps/replica:0/task:2/device:CPU:0")));
  EXPECT_FALSE(Name("/job:ps").IsSameTask(Name("/job:ps")));
}

TEST(DeviceNameTest, IntersectionKeepsBothOrChangesNothing) {
  DeviceName name = Name("/job:ps");
  ASSERT_TRUE(name.Intersect(Name("/task:1/cpu:0")).ok());
  EXPECT_EQ(name.ToString(), "/job:ps/task:1/device:CPU:0");
  const Status conflict = name.Intersect(Name("/replica:0/gpu:0"));
  EXPECT_EQ(conflict.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(name.ToString(), "/job:ps/task:1/device:CPU:0");
  ASSERT_TRUE(name.Intersect(Name("/replica:0/gpu:0"), /*allow_soft_placement=*/true).ok());
  EXPECT_EQ(name.ToString(), "/job:ps/replica:0/task:1");
  EXPECT_FALSE(name.Intersect(Name("/job:worker"), /*allow_soft_placement=*/true).ok());
}

TEST(DeviceNameTest, TaskOfDeviceNamesTheProcess) {
  EXPECT_EQ(*TaskOfDevice("/job:ps/replica:0/task:1/device:CPU:0"), "/job:ps/replica:0/task:1");
  EXPECT_EQ(*TaskOfDevice("/job:ps/task:1"), "/job:ps/replica:0/task:1");
  EXPECT_FALSE(TaskOfDevice("/job:ps").ok());
  EXPECT_FALSE(TaskOfDevice("/task:1").ok());
  EXPECT_EQ(FullDeviceName("ps", 0, 1, "CPU", 2), "/job:ps/replica:0/task:1/device:CPU:2");
}

TEST(DeviceNameTest, FiltersAgreeFieldByField) {
  const std::string device = "/job:worker/replica:0/task:1/device:CPU:0";
  const std::vector<std::string> kTwo = {"/job:ps", "/job:worker/task:1"};
  EXPECT_TRUE(*PassesDeviceFilters(device, {}));
  EXPECT_TRUE(*PassesDeviceFilters(device, kTwo));
  EXPECT_TRUE(*PassesDeviceFilters("/job:worker/task:1", kTwo));
  EXPECT_FALSE(*PassesDeviceFilters("/job:worker/task:2", kTwo));
  EXPECT_FALSE(PassesDeviceFilters(device, {"/job:ps", "/jbo:ps"}).ok());
}

}  // namespace
}  // namespace millrace
