// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_TF_CONFIG_H_
#define MILLRACE_ESTIMATOR_TF_CONFIG_H_

// TF_CONFIG made of something else: of a program's own flags, or of a TF_CONFIG with a master.
//
//   int main(int argc, char** argv) {
//     // --ps-hosts=a:1,b:1 --worker-hosts='c:1;d:1' --chief-hosts=e:1 --worker-type=worker
//     // --worker-index=1
//     Status status = SetTfConfigFromFlags(&argc, argv);
//     ...
//
// Failure: InvalidArgument, naming the flag or field.

#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// Takes --ps-hosts, --worker-hosts, --chief-hosts, --evaluator(-hosts), --worker-type and
// --worker-index (with '-' or '_', one dash or two, the value behind '=' or as the next argument)
// out of the arguments and sets the environment variable TF_CONFIG to what they say. Hosts are
// separated by ';' or ','. The evaluator is in no cluster, whatever hosts it is given. Without any
// of these flags nothing changes. --ps-tasks alone sets MILLRACE_PS_TASKS, for a cluster that Slurm
// says (distributed/cluster/slurm_environment.h). Other arguments stay, in their order. Call it
// before threads are started: it changes the environment.
Status SetTfConfigFromFlags(int* argc, char** argv);

// The same job with a chief in the place of the master: the cluster's job "master" and the task's
// type are renamed. A master trains and evaluates in one process; as a chief it trains, and an
// evaluator of its own (a further process with the task {"type": "evaluator", "index": 0})
// evaluates next to it. Without a master the text is returned as it is.
StatusOr<std::string> MasterAsChief(absl::string_view tf_config);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_TF_CONFIG_H_
