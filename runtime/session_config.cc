// SPDX-License-Identifier: Apache-2.0
#include "runtime/session_config.h"

#include <utility>

#include "proto/config.pb.h"

namespace millrace {

SessionConfig SessionConfigOf(tensorflow::ConfigProto message) {
  SessionConfig config;
  config.message = std::make_shared<const tensorflow::ConfigProto>(std::move(message));
  return config;
}

tensorflow::ConfigProto ConfigProtoOf(const SessionConfig& config) {
  tensorflow::ConfigProto proto;
  if (config.message != nullptr) proto = *config.message;
  if (config.intra_op_parallelism_threads != 0) {
    proto.set_intra_op_parallelism_threads(config.intra_op_parallelism_threads);
  }
  if (config.inter_op_parallelism_threads != 0) {
    proto.set_inter_op_parallelism_threads(config.inter_op_parallelism_threads);
  }
  if (config.use_per_session_threads) proto.set_use_per_session_threads(true);
  for (const auto& [type, count] : config.device_count) {
    (*proto.mutable_device_count())[type] = count;
  }
  if (config.allow_soft_placement) proto.set_allow_soft_placement(true);
  if (config.log_device_placement) proto.set_log_device_placement(true);
  if (!config.device_filters.empty()) {
    proto.mutable_device_filters()->Assign(config.device_filters.begin(),
                                           config.device_filters.end());
  }
  if (config.operation_timeout_in_ms != 0) {
    proto.set_operation_timeout_in_ms(config.operation_timeout_in_ms);
  }
  return proto;
}

}  // namespace millrace
