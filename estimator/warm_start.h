// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_WARM_START_H_
#define MILLRACE_ESTIMATOR_WARM_START_H_

// WarmStart: values of another model's checkpoint for the variables of this one, before its first
// step. By default those of the trainable variables; everything else (slots, moving averages, the
// global step) begins anew.
//
//   {.warm_start_from = WarmStart{"other_model"}}
//   {.warm_start_from = WarmStart{
//        .checkpoint = "other_model",
//        .vars_to_warm_start = "dnn/.*",
//        .var_name_to_vocab_info = {{"dnn/…/occupation_embedding/embedding_weights",
//                                    {.new_vocab = "new.txt", .new_vocab_size = 120,
//                                     .old_vocab = "old.txt"}}}}}
//
// Names are those of whole variables, also of partitioned ones, which may have had another number
// of parts in the checkpoint.
//
// It is applied by the chief, once, when model_dir has no checkpoint.
//
// Failure: NotFound for a checkpoint or vocabulary that is not there, or lacks a variable;
// InvalidArgument for a bad pattern, a name in one of the maps that is no variable to be warm
// started, shapes and vocabularies that do not fit.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layers/initializers.h"

namespace millrace {

// A variable with a row (axis 0) or a column (axis 1) for each word of a vocabulary: its values
// follow their words from the old vocabulary to the new one. Both are files of a word a line.
struct VocabInfo {
  std::string new_vocab;
  int64_t new_vocab_size = 0;   // words of the new one that are used, > 0
  int64_t num_oov_buckets = 0;  // rows behind them
  std::string old_vocab;
  int64_t old_vocab_size = -1;  // words of the old one that were used; -1: all
  // Of words that are not in the old one, and of buckets.
  Initializer backup_initializer = ZerosInitializer();
  int axis = 0;
};

// Regular expressions (RE2) that names of variables begin with.
class WarmStartVariables {
 public:
  WarmStartVariables(const char* of_trainables) : patterns_{of_trainables} {}             // NOLINT
  WarmStartVariables(std::string of_trainables) : patterns_{std::move(of_trainables)} {}  // NOLINT
  // Of all variables: slots, moving averages, the global step, too.
  WarmStartVariables(std::initializer_list<std::string> of_all)  // NOLINT
      : patterns_(of_all), among_all_(true) {}
  WarmStartVariables(std::vector<std::string> of_all)  // NOLINT
      : patterns_(std::move(of_all)), among_all_(true) {}
  // Those with a VocabInfo alone.
  WarmStartVariables(std::nullopt_t) : only_with_vocab_info_(true) {}  // NOLINT

  const std::vector<std::string>& patterns() const { return patterns_; }
  bool among_all() const { return among_all_; }
  bool only_with_vocab_info() const { return only_with_vocab_info_; }

 private:
  std::vector<std::string> patterns_;
  bool among_all_ = false;
  bool only_with_vocab_info_ = false;
};

struct WarmStart {
  // A directory with checkpoints (the latest one), a checkpoint's path, or a SavedModel.
  std::string checkpoint;
  WarmStartVariables vars_to_warm_start = ".*";
  std::map<std::string, VocabInfo> var_name_to_vocab_info = {};
  // Name here -> name in the checkpoint, where they differ.
  std::map<std::string, std::string> var_name_to_prev_var_name = {};
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_WARM_START_H_
