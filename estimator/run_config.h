// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_RUN_CONFIG_H_
#define MILLRACE_ESTIMATOR_RUN_CONFIG_H_

// RunConfig: how an Estimator runs: where it keeps its files, how often it saves, and, from
// TF_CONFIG, which task of which cluster this process is.
//
//   MR_ASSIGN_OR_RETURN(RunConfig config, RunConfig::Make({.model_dir = "run",
//                                                          .save_checkpoints_steps = 500}));
//   MR_ASSIGN_OR_RETURN(config, config.Replace({.keep_checkpoint_max = 3}));
//
// TF_CONFIG is read by Make, at that moment. Fields and defaults are TensorFlow's. What is not
// given has its default in Make and stays in Replace, except that save_checkpoints_steps alone
// clears save_checkpoints_secs, and the other way round.
//
// What TF_CONFIG means:
//
//                      chief, master, worker, ps      evaluator             no cluster
//   cluster_spec       as given                       empty                 empty
//   task_type, _id     of the task                    "evaluator", index    "worker", 0
//   master             grpc://<own address>; "" when  ""                    session_master or ""
//                      the cluster is one node;
//                      session_master before both
//   evaluation_master  ""                             eval_session_master   eval_session_master
//   num_ps_replicas    tasks of ps                    0                     0
//   num_worker_...     workers and the chief          0                     1
//   is_chief           chief or master                false                 true
//   global_id          chief 0, then by names, ps     none                  0
//                      last
//
// Synchronous training (.sync) is of a job with several trainers; a program of one process, or a
// cluster with one trainer, trains as without it.
//
// Sessions in a cluster talk to the tasks that device_filters names, when the program gives no
// session_config: ps and itself; a ps to everybody.
//
// An immutable value; thread-compatible.
// Failure: InvalidArgument, naming the field of RunConfig or TF_CONFIG, its rule and the value.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "graph/scope.h"
#include "runtime/session.h"

namespace millrace {

// A field that may be given as "none": .save_checkpoints_steps = kNoValue.
template <typename T>
using MaybeNone = std::optional<std::optional<T>>;
struct None {
  template <typename T>
  operator MaybeNone<T>() const {  // NOLINT
    return MaybeNone<T>(std::optional<T>());
  }
};
inline constexpr None kNoValue = {};

// Each global step applies the mean of the gradients of several trainers
// (train/sync_replicas.h).
struct SyncTraining {
  // Gradients of a step. 0: as many as the cluster has trainers (chief and workers), without the
  // backup workers.
  int64_t replicas_to_aggregate = 0;
  // So many trainers more may run: a step takes the first gradients, later ones are dropped.
  int64_t backup_workers = 0;
  // The longest wait for the trainers before the first step.
  absl::Duration start_wait = absl::Seconds(30);
};

// What is given of a RunConfig. Fields without a value are not given.
struct RunConfigFields {
  std::optional<std::string> model_dir = {};  // none: the Estimator makes a temporary one
  std::optional<int64_t> tf_random_seed = {};
  std::optional<int64_t> save_summary_steps = {};  // 100; 0: none
  // At most one of them. Neither: 600 s. Both none: no checkpoints, as with 0.
  MaybeNone<int64_t> save_checkpoints_steps = {};
  MaybeNone<double> save_checkpoints_secs = {};
  std::optional<SessionConfig> session_config = {};
  MaybeNone<int64_t> keep_checkpoint_max = {};               // 5; 0, none: all
  std::optional<double> keep_checkpoint_every_n_hours = {};  // 10,000
  MaybeNone<int64_t> log_step_count_steps = {};              // 100; none: not logged
  // None: BalancedDeviceSetter where there are ps, which gives each about as many bytes.
  std::optional<DeviceFunction> device_fn = {};
  // 64 MiB. Tables of more bytes are cut into parts where there are ps, one for each at most, of as
  // many bytes at least, whatever function places them (graph/table_parts.h); 0: none. Checkpoints
  // do not depend on it.
  std::optional<int64_t> partition_tables_above = {};
  std::optional<std::string> protocol = {};  // "grpc"
  // The longest that a worker waits before it begins; 60.
  std::optional<double> experimental_max_worker_delay_secs = {};
  std::optional<double> session_creation_timeout_secs = {};  // 7,200
  std::optional<bool> checkpoint_save_graph_def = {};        // true: <checkpoint>.meta
  // false. true: graphs of pre-made estimators, also those that train (and with them
  // <checkpoint>.meta), have no ops but TensorFlow's; they are slower.
  std::optional<bool> portable_graph = {};
  // false. true: with parameter servers, the variables of a training step come with the end of the
  // one before (train/read_ahead.h).
  std::optional<bool> read_ahead = {};
  // None: asynchronous. Pre-made estimators train synchronously by it; a model function of one's
  // own gives its optimizer to SyncedOptimizer (estimator/synced_optimizer.h). Not with read_ahead
  // and portable_graph.
  MaybeNone<SyncTraining> sync = {};
};

class RunConfig {
 public:
  // One process and the defaults, whatever TF_CONFIG says.
  RunConfig();

  // With the environment variable TF_CONFIG, or what stands for it
  // (ClusterConfig::TextOfEnvironment); of a chief that is called master,
  // MILLRACE_MASTER_AS_CHIEF=1 (estimator/tf_config.h).
  static StatusOr<RunConfig> Make(const RunConfigFields& fields = {});
  // With this text in its place; "": one process.
  static StatusOr<RunConfig> Make(const RunConfigFields& fields, absl::string_view tf_config);

  // A copy with other fields; the task stays.
  StatusOr<RunConfig> Replace(const RunConfigFields& fields) const;

  const std::string& model_dir() const;  // "": none
  std::optional<int64_t> tf_random_seed() const;
  int64_t save_summary_steps() const;
  std::optional<int64_t> save_checkpoints_steps() const;
  std::optional<double> save_checkpoints_secs() const;
  // As sessions get it: with the default filters.
  const SessionConfig& session_config() const;
  std::optional<int64_t> keep_checkpoint_max() const;
  double keep_checkpoint_every_n_hours() const;
  std::optional<int64_t> log_step_count_steps() const;
  const DeviceFunction& device_fn() const;  // as given
  int64_t partition_tables_above() const;
  const std::string& protocol() const;
  std::optional<double> experimental_max_worker_delay_secs() const;
  double session_creation_timeout_secs() const;
  bool checkpoint_save_graph_def() const;
  bool portable_graph() const;
  bool read_ahead() const;
  const std::optional<SyncTraining>& sync() const;

  // Of the task; local for an evaluator.
  const ClusterConfig& cluster() const;
  const ClusterSpec& cluster_spec() const;
  const std::string& task_type() const;
  int task_id() const;
  const std::string& master() const;
  const std::string& evaluation_master() const;
  int num_ps_replicas() const;
  int num_worker_replicas() const;
  bool is_chief() const;
  std::optional<int> global_id_in_cluster() const;
  // TF_CONFIG["service"]: names and values, as JSON texts.
  const std::map<std::string, std::string>& service() const;
  // TF_CONFIG["environment"].
  std::string environment() const;

 private:
  struct Values;
  explicit RunConfig(std::shared_ptr<const Values> values);
  static Status Check(const Values& values);
  static Status SetFields(const RunConfigFields& fields, Values* values);

  std::shared_ptr<const Values> values_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_RUN_CONFIG_H_
