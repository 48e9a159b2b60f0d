// SPDX-License-Identifier: Apache-2.0
#include "estimator/shared_files.h"

#include <string>
#include <utility>
#include <vector>

#include "data/row_files.h"
#include "data/share_out.h"
#include "train/hooks/share_out_hook.h"

namespace millrace {
namespace {

StatusOr<std::vector<data::Shard>> ShardsOf(const SharedFiles& shared, FileSystem* file_system) {
  std::vector<data::Shard> shards;
  if (!shared.files.empty()) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                        data::FindFiles(file_system, shared.files));
    for (const std::string& file : files) shards.push_back({file});
  }
  shards.insert(shards.end(), shared.shards.begin(), shared.shards.end());
  return shards;
}

}  // namespace

StatusOr<SharedDataset> MakeSharedDataset(const Scope& root, const SharedFiles& shared,
                                          bool is_training, const RunConfig& config,
                                          FileSystem* file_system) {
  if (shared.files.empty() && shared.shards.empty()) {
    return InvalidArgument("Input: shared files must have files or shards, got none");
  }
  if (shared.read == nullptr) {
    return InvalidArgument("Input: shared files must have a function that reads them, got none");
  }
  // A description reads nothing, so any file tells what the elements are.
  MR_ASSIGN_OR_RETURN(
      const data::Dataset any,
      shared.read(shared.shards.empty() ? data::Shard{shared.files[0]} : shared.shards[0]));
  MR_RETURN_IF_ERROR(any.status());
  std::vector<data::Shard> shards;
  if (!is_training || config.is_chief()) {
    MR_ASSIGN_OR_RETURN(shards, ShardsOf(shared, file_system));
  }
  if (!is_training) {
    return SharedDataset{data::ReadAllShards(shards, shared.read, any.spec()), nullptr};
  }
  const bool has_ps = config.num_ps_replicas() > 0;
  if (!has_ps && config.num_worker_replicas() > 1) {
    return FailedPrecondition("Input: ", config.num_worker_replicas(),
                              " trainers must have a parameter server that shares files out, got "
                              "none");
  }
  const auto source = std::make_shared<ShardsInHand>();
  MR_ASSIGN_OR_RETURN(
      auto hook, ShareOutHook::Make(root, {.source = source,
                                           .is_chief = config.is_chief(),
                                           .shards = std::move(shards),
                                           .num_epochs = shared.num_epochs,
                                           .shuffle_seed = shared.shuffle_seed,
                                           .device = has_ps ? "/job:ps/task:0/device:CPU:0" : "",
                                           .file_system = file_system}));
  return SharedDataset{data::ReadShards(source, shared.read, any.spec()), std::move(hook)};
}

}  // namespace millrace
