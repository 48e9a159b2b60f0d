// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_CLUSTER_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_CLUSTER_H_

// ClusterSpec: which jobs there are and where their tasks listen.
// ClusterConfig: a ClusterSpec and who this process is in it, as TF_CONFIG says.
//
// TF_CONFIG = {"cluster": {"ps": ["host:port", ...], "master"|"chief": [...], "worker": [...]},
//              "task": {"type": "...", "index": n}, ...}
// Absent, empty or without a cluster: one process, no server; a task, if there is one then, is
// worker 0. In a cluster the task says both its type and its index. An evaluator is in no cluster,
// and is told of it all the same.
//
// Besides these two TF_CONFIG may say "session_master", "eval_session_master", "model_dir",
// "environment" (texts) and "service" (an object); other fields are left alone.
//
// Values; thread-compatible. Failure: InvalidArgument names the field and the value.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace tensorflow {
class ClusterDef;
}  // namespace tensorflow

namespace millrace {

class ClusterSpec {
 public:
  ClusterSpec() = default;
  // Addresses must be "host:port" and unique; task numbers may be sparse.
  static StatusOr<ClusterSpec> Make(const std::map<std::string, std::vector<std::string>>& jobs);
  static StatusOr<ClusterSpec> FromProto(const tensorflow::ClusterDef& def);
  // Of the text of TF_CONFIG's "cluster" alone: {"ps": ["host:port", ...], ...}. Any jobs; an
  // evaluator is left out. `where` names the text in messages.
  static StatusOr<ClusterSpec> Parse(absl::string_view json,
                                     absl::string_view where = "ClusterSpec");
  tensorflow::ClusterDef ToProto() const;

  bool empty() const { return jobs_.empty(); }
  std::vector<std::string> jobs() const;                // sorted
  std::vector<int> tasks(absl::string_view job) const;  // sorted; empty for an unknown job
  int num_tasks(absl::string_view job) const;
  // NotFound.
  StatusOr<std::string> address(absl::string_view job, int task) const;

 private:
  std::map<std::string, std::map<int, std::string>> jobs_;
};

// What TF_CONFIG says besides cluster and task; nullopt: nothing.
struct TfConfigExtras {
  std::optional<std::string> session_master = {};
  std::optional<std::string> eval_session_master = {};
  std::optional<std::string> model_dir = {};
  std::optional<std::string> environment = {};
  std::map<std::string, std::string> service = {};  // values as JSON
};

class ClusterConfig {
 public:
  ClusterConfig() = default;  // one process
  // Parses the text of TF_CONFIG.
  static StatusOr<ClusterConfig> Parse(absl::string_view json);
  // Parses TextOfEnvironment().
  static StatusOr<ClusterConfig> FromEnvironment();
  // The environment variable TF_CONFIG. Where it is not set, or blank, and MILLRACE_CLUSTER is
  // "slurm": the text that Slurm's and Open MPI's variables make (slurm_environment.h).
  static StatusOr<std::string> TextOfEnvironment();

  const ClusterSpec& cluster() const { return cluster_; }
  bool is_local() const { return cluster_.empty(); }
  // "ps", "worker", "master", "chief", "evaluator"; "" for one process.
  const std::string& job() const { return job_; }
  int task() const { return task_; }
  // The task that initialises, saves and exports: chief or master, else worker 0; true for one
  // process.
  bool is_chief() const;
  // "/job:worker/task:1"; "" for one process.
  std::string task_device() const;
  const TfConfigExtras& extras() const { return extras_; }

 private:
  ClusterSpec cluster_;
  TfConfigExtras extras_;
  std::string job_;
  int task_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_CLUSTER_H_
