// SPDX-License-Identifier: Apache-2.0
#include "runtime/session_config.h"

#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/config.pb.h"

// covers: outside: `SessionConfig` says what a ConfigProto says, whole

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

// A message that says something of every field, and more.
tensorflow::ConfigProto FullMessage() {
  tensorflow::ConfigProto message;
  message.set_intra_op_parallelism_threads(4);
  message.set_inter_op_parallelism_threads(5);
  message.set_use_per_session_threads(true);
  (*message.mutable_device_count())["CPU"] = 2;
  message.set_allow_soft_placement(true);
  message.set_log_device_placement(true);
  message.add_device_filters("/job:ps");
  message.add_device_filters("/job:worker");
  message.set_operation_timeout_in_ms(1000);
  message.set_isolate_session_state(true);
  return message;
}

TEST(SessionConfig, FieldsOfAMessageAreWhatItSays) {
  const SessionConfig config = SessionConfigOf(FullMessage());
  EXPECT_EQ(config.intra_op_parallelism_threads, 4);
  EXPECT_EQ(config.inter_op_parallelism_threads, 5);
  EXPECT_TRUE(config.use_per_session_threads);
  EXPECT_EQ(config.device_count, (std::map<std::string, int>{{"CPU", 2}}));
  EXPECT_TRUE(config.allow_soft_placement);
  EXPECT_TRUE(config.log_device_placement);
  EXPECT_EQ(config.device_filters, (std::vector<std::string>{"/job:ps", "/job:worker"}));
  EXPECT_EQ(config.operation_timeout_in_ms, 1000);
}

// Each field: set to something else, and back to its default.
TEST(SessionConfig, FieldsComeBeforeTheMessage) {
  struct Case {
    std::function<void(SessionConfig*)> set;
    std::function<void(tensorflow::ConfigProto*)> want;
  };
  using Config = SessionConfig;
  using Proto = tensorflow::ConfigProto;
  const Case cases[] = {
      {[](Config* c) { c->intra_op_parallelism_threads = 1; },
       [](Proto* p) { p->set_intra_op_parallelism_threads(1); }},
      {[](Config* c) { c->intra_op_parallelism_threads = 0; },
       [](Proto* p) { p->clear_intra_op_parallelism_threads(); }},
      {[](Config* c) { c->inter_op_parallelism_threads = -1; },
       [](Proto* p) { p->set_inter_op_parallelism_threads(-1); }},
      {[](Config* c) { c->inter_op_parallelism_threads = 0; },
       [](Proto* p) { p->clear_inter_op_parallelism_threads(); }},
      {[](Config* c) { c->use_per_session_threads = false; },
       [](Proto* p) { p->clear_use_per_session_threads(); }},
      {[](Config* c) { c->device_count["CPU"] = 7; },
       [](Proto* p) { (*p->mutable_device_count())["CPU"] = 7; }},
      {[](Config* c) { c->device_count.erase("CPU"); },
       [](Proto* p) { p->mutable_device_count()->erase("CPU"); }},
      {[](Config* c) { c->device_count.clear(); }, [](Proto* p) { p->clear_device_count(); }},
      {[](Config* c) { c->allow_soft_placement = false; },
       [](Proto* p) { p->clear_allow_soft_placement(); }},
      {[](Config* c) { c->log_device_placement = false; },
       [](Proto* p) { p->clear_log_device_placement(); }},
      {[](Config* c) { c->device_filters = {"/job:worker/task:1"}; },
       [](Proto* p) {
         p->clear_device_filters();
         p->add_device_filters("/job:worker/task:1");
       }},
      {[](Config* c) { c->device_filters.clear(); }, [](Proto* p) { p->clear_device_filters(); }},
      {[](Config* c) { c->operation_timeout_in_ms = 50; },
       [](Proto* p) { p->set_operation_timeout_in_ms(50); }},
      {[](Config* c) { c->operation_timeout_in_ms = 0; },
       [](Proto* p) { p->clear_operation_timeout_in_ms(); }},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SessionConfig config = SessionConfigOf(FullMessage());
    cases[i].set(&config);
    tensorflow::ConfigProto want = FullMessage();
    cases[i].want(&want);
    EXPECT_EQ(ConfigProtoOf(config).SerializeAsString(), want.SerializeAsString()) << i;
  }
}

}  // namespace
}  // namespace millrace
