// SPDX-License-Identifier: Apache-2.0
#include "estimator/warm_start_saver.h"

#include <re2/re2.h>

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/logging.h"
#include "estimator/remapped_variable.h"
#include "layers/variable.h"
#include "saver/checkpoint_name.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

// Parts of one variable have the name of the whole, in checkpoints.
const std::string& WholeName(const Variable& variable) {
  return variable.slice.full_name.empty() ? variable.name : variable.slice.full_name;
}

// By the name of the whole; with its parts in the order in which they were made.
using Selection = std::map<std::string, std::vector<Variable>>;

StatusOr<Selection> Select(const Scope& scope, const WarmStart& from) {
  const WarmStartVariables& wanted = from.vars_to_warm_start;
  std::vector<std::unique_ptr<RE2>> patterns;
  for (const std::string& text : wanted.patterns()) {
    patterns.push_back(std::make_unique<RE2>(text, RE2::Quiet));
    if (patterns.back()->ok()) continue;
    return InvalidArgument("WarmStart: vars_to_warm_start must be a regular expression, got '",
                           text, "' (", patterns.back()->error(), ")");
  }
  Selection selection;
  for (Variable& variable :
       VariablesOf(scope, wanted.among_all() ? "variables" : "trainable_variables")) {
    const std::string& name = WholeName(variable);
    bool matches = wanted.only_with_vocab_info() && from.var_name_to_vocab_info.count(name) > 0;
    for (const auto& pattern : patterns) {
      re2::StringPiece text(name);
      matches = matches || RE2::Consume(&text, *pattern);
    }
    if (matches) selection[name].push_back(std::move(variable));
  }
  return selection;
}

// A name that is misspelled would be warm started by nobody, in silence.
template <typename V>
Status CheckNames(const char* field, const std::map<std::string, V>& names,
                  const Selection& selection) {
  for (const auto& [name, value] : names) {
    if (selection.count(name) > 0) continue;
    return InvalidArgument("WarmStart: ", field, " must name variables that are warm started (",
                           absl::StrJoin(selection, ", ",
                                         [](std::string* out, const auto& group) {
                                           absl::StrAppend(out, "'", group.first, "'");
                                         }),
                           "), got '", name, "'");
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::string> WarmStartCheckpoint(FileSystem* fs, const std::string& from) {
  const StatusOr<std::string> named = CheckpointNamed(fs, from);
  if (named.ok() && CheckpointExists(fs, *named)) return *named;
  return absl::NotFoundError(absl::StrCat(
      "WarmStart: there must be a checkpoint, a directory of them or a SavedModel at '", from,
      "', got none"));
}

WarmStartSaver::WarmStartSaver(std::string checkpoint, FileSystem* fs)
    : checkpoint_(std::move(checkpoint)), fs_(fs) {}
WarmStartSaver::~WarmStartSaver() = default;

StatusOr<std::shared_ptr<WarmStartSaver>> WarmStartSaver::Make(const Scope& scope,
                                                               const WarmStart& from,
                                                               FileSystem* fs) {
  MR_ASSIGN_OR_RETURN(std::string checkpoint, WarmStartCheckpoint(fs, from.checkpoint));
  MR_ASSIGN_OR_RETURN(Selection selection, Select(scope, from));
  MR_RETURN_IF_ERROR(CheckNames("var_name_to_vocab_info", from.var_name_to_vocab_info, selection));
  MR_RETURN_IF_ERROR(
      CheckNames("var_name_to_prev_var_name", from.var_name_to_prev_var_name, selection));
  std::shared_ptr<WarmStartSaver> result(new WarmStartSaver(std::move(checkpoint), fs));
  SaverOptions options;
  for (auto& [name, parts] : selection) {
    const auto renamed = from.var_name_to_prev_var_name.find(name);
    const std::string& previous =
        renamed == from.var_name_to_prev_var_name.end() ? name : renamed->second;
    const auto info = from.var_name_to_vocab_info.find(name);
    if (info == from.var_name_to_vocab_info.end()) {
      for (Variable& part : parts) options.named_variables.emplace_back(previous, std::move(part));
      continue;
    }
    auto remapped =
        RemappedVariable::Make(scope, name, std::move(parts), info->second, previous, fs);
    if (!remapped.ok()) {
      return Prefixed(absl::StrCat("WarmStart: variable '", name, "'"), remapped.status());
    }
    result->remapped_.push_back(*std::move(remapped));
  }
  if (selection.empty()) {
    LogWarning("WarmStart: no ", from.vars_to_warm_start.among_all() ? "" : "trainable ",
               "variable matches '", absl::StrJoin(from.vars_to_warm_start.patterns(), "', '"),
               "'");
  }
  if (options.named_variables.empty()) return result;
  options.name = "warm_start";
  options.write_meta_graph = false;
  options.file_system = fs;
  MR_ASSIGN_OR_RETURN(result->saver_, Saver::Make(scope, std::move(options)));
  return result;
}

Status WarmStartSaver::Restore(Session* session) const {
  if (saver_ != nullptr) {
    LogInfo("WarmStart: variables are restored from '", checkpoint_, "'");
    MR_RETURN_IF_ERROR(Prefixed("WarmStart", saver_->Restore(session, checkpoint_)));
  }
  if (remapped_.empty()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(fs_, checkpoint_));
  for (const auto& variable : remapped_) {
    LogInfo("WarmStart: '", variable->name(), "' follows its vocabulary from '", checkpoint_, "'");
    MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("WarmStart: variable '", variable->name(), "'"),
                                variable->Restore(session, *reader)));
  }
  return absl::OkStatus();
}

}  // namespace millrace
