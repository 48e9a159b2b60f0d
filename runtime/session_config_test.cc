// SPDX-License-Identifier: Apache-2.0
#include "runtime/session_config.h"

#include <utility>

#include "gtest/gtest.h"
#include "proto/config.pb.h"

namespace millrace {
namespace {

TEST(SessionConfig, SaysNothingUnlessTold) { EXPECT_EQ(ConfigProtoOf({}).SerializeAsString(), ""); }

TEST(SessionConfig, FieldsAreThoseOfTheMessage) {
  const tensorflow::ConfigProto proto = ConfigProtoOf({.intra_op_parallelism_threads = 2,
                                                       .inter_op_parallelism_threads = -1,
                                                       .use_per_session_threads = true,
                                                       .device_count = {{"CPU", 3}},
                                                       .allow_soft_placement = true,
                                                       .log_device_placement = true,
                                                       .device_filters = {"/job:ps", "/job:worker"},
                                                       .operation_timeout_in_ms = 50});
  EXPECT_EQ(proto.intra_op_parallelism_threads(), 2);
  EXPECT_EQ(proto.inter_op_parallelism_threads(), -1);
  EXPECT_TRUE(proto.use_per_session_threads());
  EXPECT_EQ(proto.device_count().at("CPU"), 3);
  EXPECT_TRUE(proto.allow_soft_placement());
  EXPECT_TRUE(proto.log_device_placement());
  ASSERT_EQ(proto.device_filters_size(), 2);
  EXPECT_EQ(proto.device_filters(1), "/job:worker");
  EXPECT_EQ(proto.operation_timeout_in_ms(), 50);
}

TEST(SessionConfig, MessageComesBackWhole) {
  tensorflow::ConfigProto message;
  message.set_intra_op_parallelism_threads(4);
  message.set_allow_soft_placement(true);
  message.add_device_filters("/job:ps");
  (*message.mutable_device_count())["CPU"] = 2;
  message.set_isolate_session_state(true);
  message.mutable_graph_options()->mutable_optimizer_options()->set_opt_level(
      tensorflow::OptimizerOptions::L0);
  EXPECT_EQ(ConfigProtoOf(SessionConfigOf(message)).SerializeAsString(),
            message.SerializeAsString());
}

TEST(SessionConfig, FieldsComeBeforeTheMessage) {
  tensorflow::ConfigProto message;
  message.set_intra_op_parallelism_threads(4);
  message.set_inter_op_parallelism_threads(5);
  message.add_device_filters("/job:ps");
  (*message.mutable_device_count())["CPU"] = 2;
  (*message.mutable_device_count())["GPU"] = 1;
  SessionConfig config = SessionConfigOf(std::move(message));
  config.intra_op_parallelism_threads = 1;
  config.device_filters = {"/job:worker/task:1"};
  config.device_count["CPU"] = 7;
  const tensorflow::ConfigProto proto = ConfigProtoOf(config);
  EXPECT_EQ(proto.intra_op_parallelism_threads(), 1);
  EXPECT_EQ(proto.inter_op_parallelism_threads(), 5);
  ASSERT_EQ(proto.device_filters_size(), 1);
  EXPECT_EQ(proto.device_filters(0), "/job:worker/task:1");
  EXPECT_EQ(proto.device_count().at("CPU"), 7);
  EXPECT_EQ(proto.device_count().at("GPU"), 1);
}

}  // namespace
}  // namespace millrace
