// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_SLURM_ENVIRONMENT_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_SLURM_ENVIRONMENT_H_

// TF_CONFIG made of what srun, or mpirun in an allocation of Slurm, says of a task.
//
//   export MILLRACE_CLUSTER=slurm MILLRACE_PS_TASKS=2
//   srun --ntasks=8 census --train-steps 5000
//
// The tasks' roles go by rank, as TensorFlow's SlurmClusterResolver gives them: chief, evaluator,
// ps, workers. Each listens at its host and the port base + its number on that host.
//
//   variable                   what
//   MILLRACE_CLUSTER           "slurm": read the variables below; not set or "": do not
//   MILLRACE_PS_TASKS          how many tasks are parameter servers; needed with two tasks or more
//   MILLRACE_EVALUATOR_TASKS   1: one task is the evaluator (0)
//   MILLRACE_CHIEF_JOB         what the first task is called: "chief", or "master"
//   MILLRACE_PORT              the port of a host's first task (8888; SLURM_STEP_RESV_PORTS of
//                              srun --resv-ports counts more)
//   MILLRACE_TASKS_PER_NODE    in place of Slurm's: "2(x3),1"
//
//   hosts      SLURM_STEP_NODELIST, else SLURM_JOB_NODELIST, else SLURM_NODELIST
//   tasks      SLURM_STEP_NUM_TASKS, else SLURM_NTASKS, else SLURM_NPROCS
//   of a host  SLURM_STEP_TASKS_PER_NODE, else SLURM_TASKS_PER_NODE, else SLURM_NTASKS_PER_NODE
//   rank       SLURM_PROCID
//
// A step of all groups of a heterogeneous job (SLURM_HET_SIZE; srun --het-group=0-1) has
// SLURM_JOB_NODELIST_HET_GROUP_<n> and SLURM_TASKS_PER_NODE_HET_GROUP_<n> in their place: its ranks
// go through the groups, while the lists of the step are sorted by host. A step of one group is
// like any other.
//
// OMPI_COMM_WORLD_RANK and _SIZE count more than Slurm's: mpirun starts the tasks then, and the
// step is of its own daemons. Hosts are those of the job; as many tasks as OMPI_COMM_WORLD_LOCAL_
// SIZE are on each, unless Slurm's numbers add up to the size.
//
// Ranks go over the hosts as SLURM_DISTRIBUTION says: block (also without it, and in each group of
// a heterogeneous job), cyclic, plane. Where
// Slurm says the number of this task on its host (SLURM_LOCALID) or of its host (SLURM_NODEID), the
// result has to agree: a task that would listen where nobody looks for it is an error now.
//
// Thread-safety: a pure function of what `get` says. Failure: InvalidArgument, naming the variable,
// its rule and the value.

#include <string>

#include "absl/functional/function_ref.h"
#include "core/status.h"

namespace millrace {

inline constexpr int kSlurmPort = 8888;  // as TensorFlow's

// The value of an environment variable; null when it is not set. Like getenv.
using EnvironmentLookup = absl::FunctionRef<const char*(const char*)>;

// Whether MILLRACE_CLUSTER asks for it.
StatusOr<bool> WantsSlurm(EnvironmentLookup get);

// The value of TF_CONFIG for this task; "" where it is the only one.
StatusOr<std::string> TfConfigOfSlurm(EnvironmentLookup get);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_SLURM_ENVIRONMENT_H_
