// SPDX-License-Identifier: Apache-2.0
#include "estimator/run_config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "estimator/tf_config.h"
#include "graph/table_parts.h"

namespace millrace {
namespace {

constexpr char kChief[] = "chief";
constexpr char kMaster[] = "master";
constexpr char kWorker[] = "worker";
constexpr char kPs[] = "ps";
constexpr char kEvaluator[] = "evaluator";
constexpr char kMasterAsChief[] = "MILLRACE_MASTER_AS_CHIEF";
constexpr double kDefaultSaveSecs = 600;

Status CheckAtLeast(const char* field, double value, double least) {
  if (value >= least) return absl::OkStatus();
  return InvalidArgument("RunConfig: ", field, " must be >= ", least, ", got ", value);
}
Status CheckAbove(const char* field, double value, double bound) {
  if (value > bound && std::isfinite(value)) return absl::OkStatus();
  return InvalidArgument("RunConfig: ", field, " must be > ", bound, ", got ", value);
}

// The tasks that a session of this one talks to.
std::vector<std::string> DeviceFilters(const std::string& job, int task) {
  if (job == kMaster || job == kChief) return {"/job:ps", absl::StrCat("/job:", job)};
  if (job == kWorker) return {"/job:ps", absl::StrCat("/job:worker/task:", task)};
  if (job == kPs) return {"/job:ps", "/job:worker", "/job:chief", "/job:master"};
  return {};
}

// Of all tasks but the ps by the names of their jobs, the chief first; then the ps.
int GlobalId(const ClusterSpec& cluster, const std::string& job, int task) {
  std::vector<std::string> order;
  for (const char* chief : {kChief, kMaster}) {
    if (cluster.num_tasks(chief) > 0) order.push_back(chief);
  }
  for (const std::string& other : cluster.jobs()) {
    if (other != kChief && other != kMaster && other != kPs) order.push_back(other);
  }
  order.push_back(kPs);
  int id = 0;
  for (const std::string& one : order) {
    for (const int number : cluster.tasks(one)) {
      if (one == job && number == task) return id;
      ++id;
    }
  }
  return id;
}

}  // namespace

struct RunConfig::Values {
  std::string model_dir;
  std::optional<int64_t> tf_random_seed;
  int64_t save_summary_steps = 100;
  std::optional<int64_t> save_checkpoints_steps;
  std::optional<double> save_checkpoints_secs = kDefaultSaveSecs;
  std::optional<SessionConfig> given_session_config;
  SessionConfig session_config;
  std::optional<int64_t> keep_checkpoint_max = 5;
  double keep_checkpoint_every_n_hours = 10000;
  std::optional<int64_t> log_step_count_steps = 100;
  DeviceFunction device_fn;
  int64_t partition_tables_above = kTablePartBytes;
  std::string protocol = "grpc";
  std::optional<double> experimental_max_worker_delay_secs;
  double session_creation_timeout_secs = 7200;
  bool checkpoint_save_graph_def = true;
  bool portable_graph = false;
  bool read_ahead = false;
  std::optional<SyncTraining> sync;

  // Of TF_CONFIG.
  TfConfigExtras extras;
  ClusterConfig cluster;
  std::string task_type = kWorker;
  int task_id = 0;
  std::string master, evaluation_master;
  int num_ps_replicas = 0, num_worker_replicas = 1;
  bool is_chief = true;
  std::optional<int> global_id = 0;

  Status ReadTask(const ClusterConfig& config);
  Status CheckSync() const;
};

Status RunConfig::Values::CheckSync() const {
  if (!sync) return absl::OkStatus();
  const auto check = [](const char* field, int64_t value, int64_t least) {
    return CheckAtLeast(field, static_cast<double>(value), static_cast<double>(least));
  };
  MR_RETURN_IF_ERROR(check("sync.replicas_to_aggregate", sync->replicas_to_aggregate, 0));
  MR_RETURN_IF_ERROR(check("sync.backup_workers", sync->backup_workers, 0));
  if (sync->start_wait < absl::ZeroDuration()) {
    return InvalidArgument("RunConfig: sync.start_wait must be >= 0, got ",
                           absl::FormatDuration(sync->start_wait));
  }
  if (read_ahead) {
    return InvalidArgument(
        "RunConfig: sync and read_ahead must not both be given, got both; what is read ahead is of "
        "the step before");
  }
  if (portable_graph) {
    return InvalidArgument(
        "RunConfig: sync and portable_graph must not both be given, got both; synchronous steps "
        "have ops that TensorFlow has not");
  }
  // An evaluator does not know how many train.
  if (cluster.is_local()) return absl::OkStatus();
  const int64_t least = std::max<int64_t>(1, sync->replicas_to_aggregate);
  if (sync->backup_workers > num_worker_replicas - least) {
    return InvalidArgument(
        "RunConfig: sync.replicas_to_aggregate + sync.backup_workers must be <= the trainers "
        "(chief and workers), ",
        num_worker_replicas, ", got ", least, " + ", sync->backup_workers);
  }
  return absl::OkStatus();
}

// What the table of the header says.
Status RunConfig::Values::ReadTask(const ClusterConfig& config) {
  const TfConfigExtras& extras = config.extras();
  if (extras.model_dir && extras.model_dir->empty()) {
    return InvalidArgument("TF_CONFIG: model_dir must not be empty, got ''");
  }
  if (config.is_local()) {
    cluster = config;
    master = extras.session_master.value_or("");
    evaluation_master = extras.eval_session_master.value_or("");
    return absl::OkStatus();
  }
  const ClusterSpec& spec = config.cluster();
  const bool has_master = spec.num_tasks(kMaster) > 0;
  if (spec.num_tasks(kChief) == 0 && !has_master) {
    return InvalidArgument("TF_CONFIG: cluster must have one task of job 'chief', got only ",
                           absl::StrJoin(spec.jobs(), ", "));
  }
  task_type = config.job();
  task_id = config.task();
  if (task_type == kEvaluator) {
    if (has_master) {
      return InvalidArgument(
          "TF_CONFIG: task.type must not be 'evaluator' in a cluster with a master, which "
          "evaluates itself, got 'evaluator'; name the master's job 'chief', or set ",
          kMasterAsChief, "=1 for all tasks");
    }
    is_chief = false;
    num_ps_replicas = num_worker_replicas = 0;
    global_id = std::nullopt;
    evaluation_master = extras.eval_session_master.value_or("");
    return absl::OkStatus();
  }
  cluster = config;
  is_chief = task_type == kChief || task_type == kMaster;
  num_ps_replicas = spec.num_tasks(kPs);
  num_worker_replicas = spec.num_tasks(kWorker) + 1;
  global_id = GlobalId(spec, task_type, task_id);
  int nodes = 0;
  for (const std::string& job : spec.jobs()) nodes += spec.num_tasks(job);
  if (extras.session_master) {
    master = *extras.session_master;
  } else if (nodes > 1) {
    MR_ASSIGN_OR_RETURN(const std::string address, spec.address(task_type, task_id));
    master = absl::StrCat("grpc://", address);
  }
  return absl::OkStatus();
}

RunConfig::RunConfig() : RunConfig(std::make_shared<Values>()) {}
RunConfig::RunConfig(std::shared_ptr<const Values> values) : values_(std::move(values)) {}

Status RunConfig::SetFields(const RunConfigFields& fields, Values* values) {
  const auto take = [](const auto& given, auto* value) {
    if (given) *value = *given;
  };
  if (fields.model_dir) {
    const std::optional<std::string>& said = values->extras.model_dir;
    if (fields.model_dir->empty()) {
      return InvalidArgument("RunConfig: model_dir must not be empty, got ''");
    }
    if (said && *said != *fields.model_dir) {
      return InvalidArgument("RunConfig: model_dir must be that of TF_CONFIG, '", *said, "', got '",
                             *fields.model_dir, "'");
    }
    values->model_dir = *fields.model_dir;
  }
  take(fields.tf_random_seed, &values->tf_random_seed);
  take(fields.save_summary_steps, &values->save_summary_steps);
  // The one that is given alone replaces the other.
  if (fields.save_checkpoints_steps && !fields.save_checkpoints_secs) {
    values->save_checkpoints_secs = std::nullopt;
  } else if (fields.save_checkpoints_secs && !fields.save_checkpoints_steps) {
    values->save_checkpoints_steps = std::nullopt;
  }
  take(fields.save_checkpoints_steps, &values->save_checkpoints_steps);
  take(fields.save_checkpoints_secs, &values->save_checkpoints_secs);
  take(fields.keep_checkpoint_max, &values->keep_checkpoint_max);
  take(fields.keep_checkpoint_every_n_hours, &values->keep_checkpoint_every_n_hours);
  take(fields.log_step_count_steps, &values->log_step_count_steps);
  take(fields.device_fn, &values->device_fn);
  take(fields.partition_tables_above, &values->partition_tables_above);
  take(fields.protocol, &values->protocol);
  take(fields.session_creation_timeout_secs, &values->session_creation_timeout_secs);
  take(fields.checkpoint_save_graph_def, &values->checkpoint_save_graph_def);
  take(fields.portable_graph, &values->portable_graph);
  take(fields.read_ahead, &values->read_ahead);
  take(fields.sync, &values->sync);
  if (fields.experimental_max_worker_delay_secs) {
    values->experimental_max_worker_delay_secs = fields.experimental_max_worker_delay_secs;
  }
  if (fields.session_config) values->given_session_config = fields.session_config;
  if (values->given_session_config) {
    values->session_config = *values->given_session_config;
  } else {
    values->session_config = SessionConfig();
    values->session_config.allow_soft_placement = true;
    if (!values->cluster.is_local()) {
      values->session_config.device_filters = DeviceFilters(values->task_type, values->task_id);
    }
  }
  return Check(*values);
}

Status RunConfig::Check(const Values& values) {
  const auto check = [](const char* field, const auto& value, double least) {
    return value ? CheckAtLeast(field, static_cast<double>(*value), least) : absl::OkStatus();
  };
  if (values.save_checkpoints_steps && values.save_checkpoints_secs) {
    return InvalidArgument(
        "RunConfig: save_checkpoints_steps and save_checkpoints_secs must not both be given, got ",
        *values.save_checkpoints_steps, " and ", *values.save_checkpoints_secs);
  }
  MR_RETURN_IF_ERROR(
      CheckAtLeast("save_summary_steps", static_cast<double>(values.save_summary_steps), 0));
  MR_RETURN_IF_ERROR(check("save_checkpoints_steps", values.save_checkpoints_steps, 0));
  MR_RETURN_IF_ERROR(check("save_checkpoints_secs", values.save_checkpoints_secs, 0));
  MR_RETURN_IF_ERROR(check("keep_checkpoint_max", values.keep_checkpoint_max, 0));
  MR_RETURN_IF_ERROR(
      CheckAbove("keep_checkpoint_every_n_hours", values.keep_checkpoint_every_n_hours, 0));
  MR_RETURN_IF_ERROR(CheckAtLeast("partition_tables_above",
                                  static_cast<double>(values.partition_tables_above), 0));
  if (values.log_step_count_steps) {
    MR_RETURN_IF_ERROR(
        CheckAbove("log_step_count_steps", static_cast<double>(*values.log_step_count_steps), 0));
  }
  MR_RETURN_IF_ERROR(
      check("experimental_max_worker_delay_secs", values.experimental_max_worker_delay_secs, 0));
  MR_RETURN_IF_ERROR(
      CheckAbove("session_creation_timeout_secs", values.session_creation_timeout_secs, 0));
  MR_RETURN_IF_ERROR(values.CheckSync());
  if (values.protocol == "grpc+verbs") {
    return Unimplemented("RunConfig: protocol must be 'grpc' here, got 'grpc+verbs'");
  }
  if (values.protocol != "grpc") {
    return InvalidArgument("RunConfig: protocol must be 'grpc' or 'grpc+verbs', got '",
                           values.protocol, "'");
  }
  return absl::OkStatus();
}

StatusOr<RunConfig> RunConfig::Make(const RunConfigFields& fields) {
  MR_ASSIGN_OR_RETURN(std::string tf_config, ClusterConfig::TextOfEnvironment());
  const char* const as_chief = std::getenv(kMasterAsChief);
  if (as_chief != nullptr && absl::string_view(as_chief) == "1") {
    MR_ASSIGN_OR_RETURN(tf_config, MasterAsChief(tf_config));
  }
  return Make(fields, tf_config);
}

StatusOr<RunConfig> RunConfig::Make(const RunConfigFields& fields, absl::string_view tf_config) {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::Parse(tf_config));
  auto values = std::make_shared<Values>();
  MR_RETURN_IF_ERROR(values->ReadTask(cluster));
  values->extras = cluster.extras();
  if (values->extras.model_dir) values->model_dir = *values->extras.model_dir;
  MR_RETURN_IF_ERROR(SetFields(fields, values.get()));
  return RunConfig(std::move(values));
}

StatusOr<RunConfig> RunConfig::Replace(const RunConfigFields& fields) const {
  auto values = std::make_shared<Values>(*values_);
  MR_RETURN_IF_ERROR(SetFields(fields, values.get()));
  return RunConfig(std::move(values));
}

const std::string& RunConfig::model_dir() const { return values_->model_dir; }
std::optional<int64_t> RunConfig::tf_random_seed() const { return values_->tf_random_seed; }
int64_t RunConfig::save_summary_steps() const { return values_->save_summary_steps; }
std::optional<int64_t> RunConfig::save_checkpoints_steps() const {
  return values_->save_checkpoints_steps;
}
std::optional<double> RunConfig::save_checkpoints_secs() const {
  return values_->save_checkpoints_secs;
}
const SessionConfig& RunConfig::session_config() const { return values_->session_config; }
std::optional<int64_t> RunConfig::keep_checkpoint_max() const {
  return values_->keep_checkpoint_max;
}
double RunConfig::keep_checkpoint_every_n_hours() const {
  return values_->keep_checkpoint_every_n_hours;
}
std::optional<int64_t> RunConfig::log_step_count_steps() const {
  return values_->log_step_count_steps;
}
const DeviceFunction& RunConfig::device_fn() const { return values_->device_fn; }
int64_t RunConfig::partition_tables_above() const { return values_->partition_tables_above; }
const std::string& RunConfig::protocol() const { return values_->protocol; }
std::optional<double> RunConfig::experimental_max_worker_delay_secs() const {
  return values_->experimental_max_worker_delay_secs;
}
double RunConfig::session_creation_timeout_secs() const {
  return values_->session_creation_timeout_secs;
}
bool RunConfig::checkpoint_save_graph_def() const { return values_->checkpoint_save_graph_def; }
bool RunConfig::portable_graph() const { return values_->portable_graph; }
bool RunConfig::read_ahead() const { return values_->read_ahead; }
const std::optional<SyncTraining>& RunConfig::sync() const { return values_->sync; }
const ClusterConfig& RunConfig::cluster() const { return values_->cluster; }
const ClusterSpec& RunConfig::cluster_spec() const { return values_->cluster.cluster(); }
const std::string& RunConfig::task_type() const { return values_->task_type; }
int RunConfig::task_id() const { return values_->task_id; }
const std::string& RunConfig::master() const { return values_->master; }
const std::string& RunConfig::evaluation_master() const { return values_->evaluation_master; }
int RunConfig::num_ps_replicas() const { return values_->num_ps_replicas; }
int RunConfig::num_worker_replicas() const { return values_->num_worker_replicas; }
bool RunConfig::is_chief() const { return values_->is_chief; }
std::optional<int> RunConfig::global_id_in_cluster() const { return values_->global_id; }
const std::map<std::string, std::string>& RunConfig::service() const {
  return values_->extras.service;
}
std::string RunConfig::environment() const { return values_->extras.environment.value_or(""); }

}  // namespace millrace
