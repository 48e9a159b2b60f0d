// SPDX-License-Identifier: Apache-2.0
#include "runtime/session_config.h"

#include <utility>

#include "proto/config.pb.h"

namespace millrace {

SessionConfig SessionConfigOf(tensorflow::ConfigProto message) {
  SessionConfig config;
  config.intra_op_parallelism_threads = message.intra_op_parallelism_threads();
  config.inter_op_parallelism_threads = message.inter_op_parallelism_threads();
  config.use_per_session_threads = message.use_per_session_threads();
  config.device_count = {message.device_count().begin(), message.device_count().end()};
  config.allow_soft_placement = message.allow_soft_placement();
  config.log_device_placement = message.log_device_placement();
  config.device_filters = {message.device_filters().begin(), message.device_filters().end()};
  config.operation_timeout_in_ms = message.operation_timeout_in_ms();
  config.message = std::make_shared<const tensorflow::ConfigProto>(std::move(message));
  return config;
}

tensorflow::ConfigProto ConfigProtoOf(const SessionConfig& config) {
  tensorflow::ConfigProto proto;
  if (config.message != nullptr) proto = *config.message;
  proto.set_intra_op_parallelism_threads(config.intra_op_parallelism_threads);
  proto.set_inter_op_parallelism_threads(config.inter_op_parallelism_threads);
  proto.set_use_per_session_threads(config.use_per_session_threads);
  proto.mutable_device_count()->clear();
  for (const auto& [type, count] : config.device_count) {
    (*proto.mutable_device_count())[type] = count;
  }
  proto.set_allow_soft_placement(config.allow_soft_placement);
  proto.set_log_device_placement(config.log_device_placement);
  proto.mutable_device_filters()->Assign(config.device_filters.begin(),
                                         config.device_filters.end());
  proto.set_operation_timeout_in_ms(config.operation_timeout_in_ms);
  return proto;
}

}  // namespace millrace
