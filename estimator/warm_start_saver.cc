// SPDX-License-Identifier: Apache-2.0
#include "estimator/warm_start_saver.h"

#include <re2/re2.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "layers/variable.h"
#include "saver/saved_model.h"

namespace millrace {

StatusOr<std::string> WarmStartCheckpoint(FileSystem* fs, const std::string& from) {
  if (CheckpointExists(fs, from)) return from;
  const std::string variables = absl::StrCat(from, "/", kVariablesDirectory, "/", kVariablesFile);
  if (CheckpointExists(fs, variables)) return variables;
  const std::optional<std::string> latest = LatestCheckpoint(fs, from);
  if (latest) return *latest;
  return absl::NotFoundError(absl::StrCat(
      "WarmStart: there must be a checkpoint, a directory of them or a SavedModel at '", from,
      "', got none"));
}

StatusOr<std::shared_ptr<WarmStartSaver>> WarmStartSaver::Make(const Scope& scope,
                                                               const WarmStart& from,
                                                               FileSystem* fs) {
  MR_ASSIGN_OR_RETURN(std::string checkpoint, WarmStartCheckpoint(fs, from.checkpoint));
  const RE2 pattern(from.vars_to_warm_start, RE2::Quiet);
  if (!pattern.ok()) {
    return InvalidArgument("WarmStart: vars_to_warm_start must be a regular expression, got '",
                           from.vars_to_warm_start, "' (", pattern.error(), ")");
  }
  SaverOptions options;
  for (const Variable& variable : VariablesOf(scope, "trainable_variables")) {
    // Parts of one variable have the name of the whole, in checkpoints.
    const std::string& name =
        variable.slice.full_name.empty() ? variable.name : variable.slice.full_name;
    re2::StringPiece text(name);
    if (!RE2::Consume(&text, pattern)) continue;
    const auto other = from.var_name_to_prev_var_name.find(name);
    options.named_variables.emplace_back(
        other == from.var_name_to_prev_var_name.end() ? name : other->second, variable);
  }
  if (options.named_variables.empty()) {
    LogWarning("WarmStart: no trainable variable matches '", from.vars_to_warm_start, "'");
    return std::shared_ptr<WarmStartSaver>(new WarmStartSaver(std::move(checkpoint), nullptr));
  }
  options.name = "warm_start";
  options.write_meta_graph = false;
  options.file_system = fs;
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Saver> saver, Saver::Make(scope, std::move(options)));
  return std::shared_ptr<WarmStartSaver>(
      new WarmStartSaver(std::move(checkpoint), std::move(saver)));
}

Status WarmStartSaver::Restore(Session* session) const {
  if (saver_ == nullptr) return absl::OkStatus();
  LogInfo("WarmStart: trainable variables are restored from '", checkpoint_, "'");
  return Prefixed("WarmStart", saver_->Restore(session, checkpoint_));
}

}  // namespace millrace
