// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_WARM_START_H_
#define MILLRACE_ESTIMATOR_WARM_START_H_

// WarmStart: values of another model's checkpoint for the trainable variables of this one, before
// its first step. Everything else (slots, moving averages, the global step) begins anew.
//
// It is applied by the chief, once, when model_dir has no checkpoint.
//
// Failure: NotFound for a checkpoint that is not there or lacks a variable; InvalidArgument for a
// bad pattern.

#include <map>
#include <string>
#include <utility>

namespace millrace {

struct WarmStart {
  WarmStart(const char* from) : checkpoint(from) {}             // NOLINT
  WarmStart(std::string from) : checkpoint(std::move(from)) {}  // NOLINT
  WarmStart(std::string from, std::string vars,
            std::map<std::string, std::string> previous_names = {})
      : checkpoint(std::move(from)),
        vars_to_warm_start(std::move(vars)),
        var_name_to_prev_var_name(std::move(previous_names)) {}

  // A directory with checkpoints (the latest one), a checkpoint's path, or a SavedModel.
  std::string checkpoint;
  // A regular expression that names of trainable variables begin with (RE2).
  std::string vars_to_warm_start = ".*";
  // Name here -> name in the checkpoint, where they differ.
  std::map<std::string, std::string> var_name_to_prev_var_name = {};
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_WARM_START_H_
