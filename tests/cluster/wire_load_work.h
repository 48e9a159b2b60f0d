// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_WIRE_LOAD_WORK_H_
#define MILLRACE_TESTS_CLUSTER_WIRE_LOAD_WORK_H_

// What the processes of wire_load_benchmark do: a ps, and trainers that make whole steps with it.
//
// A trainer makes its steps in sections; whoever started it begins and counts each. It prints, as
// lines with kLoadLine before them,
//
//   ready <section>                              then waits for SIGUSR1
//   figure <name> <unit> <value>                 of the section
//   times <line of StepTimes>                    any number of them
//   done <steps> <seconds> <switches> <us of CPU>
//   over                                         after the last section
//
// with context switches and CPU time of its process in the section. A ps answers SIGUSR1 by
// "used <switches> <us of CPU>", of its process so far.
//
// Threads: one call in a process, from its first thread. Failure: what sessions and servers say.

#include <cstdint>
#include <string>

#include "core/status.h"

namespace millrace {

inline constexpr char kLoadLine[] = "wire-load ";

struct LoadWork {
  // null      steps of one node on the ps: NoOp; then a scalar that is fetched
  // tensor    a float tensor goes from the ps to the trainer, which takes its first element
  // params    16 variables on the ps: all are read, and the trainer sends as much back, which the
  //           ps subtracts
  // rows      rows of tables are looked up on the ps, and it subtracts what the trainer sends back
  // sessions  many sessions, opened one by one; then each makes null steps in a thread of its own
  // beside    null steps alone, and while another session moves a tensor, either way
  std::string work;
  double seconds = 0;      // of a section
  int64_t bytes = 0;       // tensor, params (of all variables), beside; a multiple of 64
  bool is_filled = false;  // tensor: made anew in each step, by Fill; else a variable is read
  int64_t tables = 0, rows = 0, table_rows = 0, width = 0;  // `rows` of each table in a step
  int64_t sessions = 0;
  bool clients = false;  // sessions: at the ps' master, over gRPC; else at the trainer's own
};

// Of this process so far; kernel included.
struct ProcessUse {
  double switches = 0, cpu_us = 0;

  ProcessUse operator-(const ProcessUse& other) const {
    return {.switches = switches - other.switches, .cpu_us = cpu_us - other.cpu_us};
  }
};

// The task that TF_CONFIG says. The ps serves until it is killed.
Status ServeLoad();
Status TrainLoad(const LoadWork& work);

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_WIRE_LOAD_WORK_H_
