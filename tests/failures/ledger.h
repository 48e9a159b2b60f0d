// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_FAILURES_LEDGER_H_
#define MILLRACE_TESTS_FAILURES_LEDGER_H_

// The ledger: what trainers have asked for, heard and saved, and whether checkpoints agree with it.
//
// Each step of ledger_train (the program) has a number of its own, the index of a row. It adds 1 to
// that row of `marks`, AmountOf(row) to `sum` and 1 to `global_step`. A trainer appends a line to
// its own file before and after each step, so the right values are known from the files, whatever
// has died:
//
//   a try that was acknowledged is applied once              fewer: a hole
//   a try whose answer was lost is applied once or not at all
//   nothing else is applied                                  more: a double step
//
// Variables *live* from the moment when a chief has initialised or restored them. What a life
// begins with is in the checkpoint that it was restored from; steps of the former life that came
// after it are lost, and they alone: a life must begin with the newest checkpoint that was
// committed.
//
// In synchronous training (ledger_train --sync=N) a global step takes the gradients of the n <= N
// trainers that gave, and each of them adds its share, 1 / n, to its row and of its amount. So
//
//   a row has one share of a step at most for each try, and what a row has is some 1 / n
//   the shares of all rows are as many as the global steps, and as all rows their amounts are `sum`
//   n rows have 1 / n of the same step: there are k * n rows with 1 / n
//
// but for steps that were cut off, whose trainers have not heard of their end. A try that was
// acknowledged and is not there came too late, or in a round that was given up: these are counted.
//
// Times are of CLOCK_MONOTONIC, which all processes of a machine share, so "before" is certain; a
// step that was under way while a checkpoint was written may be in it or not.
//
// Lines: "<ns> <what> <fields>", written by one system call each.
//
//   start <task>                        a process begins
//   session <how> <step> <checkpoint>   its session is ready: initialized, restored, adopted,
//   waited try <row> ack <row> <global step> lost <row> <code> <message>         the step failed
//   save <step>                         a checkpoint is begun
//   saved <path>                        it is committed
//   unsaved <code> <message>
//   end <code> <message>                the program ends
//
// Thread-safety: Ledger from one thread; the rest are functions of files.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// The checkpoint's names.
inline constexpr char kMarksName[] = "marks";
inline constexpr char kSumName[] = "sum";

// Neighbours differ, so that no two wrong rows make a right sum by chance.
inline int64_t AmountOf(int64_t row) { return 1 + row % 97; }

// What one trainer writes.
class Ledger {
 public:
  // Appends to `path`. The rows of one trainer are [first_row, first_row + num_rows): those that an
  // earlier process has tried are not tried again.
  static StatusOr<Ledger> Open(const std::string& path, int64_t first_row, int64_t num_rows);
  Ledger(Ledger&& other) noexcept;
  ~Ledger();

  // OutOfRange when there is none left.
  StatusOr<int64_t> NextRow();
  // Ends the program where the line cannot be written: what follows would prove nothing.
  void Write(absl::string_view what, absl::string_view fields = "");

 private:
  Ledger(int fd, int64_t next_row, int64_t end_row)
      : fd_(fd), next_row_(next_row), end_row_(end_row) {}
  int fd_;
  int64_t next_row_, end_row_;
};

struct LedgerEvent {
  int64_t time_ns = 0;
  std::string what;
  std::vector<std::string> fields;
  int64_t row() const;  // of try, ack, lost
};
// The whole lines of one file; none when there is no such file.
StatusOr<std::vector<LedgerEvent>> ReadLedger(const std::string& path);

struct LedgerReport {
  int64_t tries = 0, acked = 0;
  int64_t lost = 0;         // steps and saves that failed
  int64_t lives = 0;        // of the variables
  int64_t checkpoints = 0;  // that were compared, row by row
  int64_t rolled_back = 0;  // acknowledged steps that were lost with a life
  int64_t uncertain = 0;    // tries that the last checkpoint may have or not
  int64_t repeated = 0;     // times that a step is in the last checkpoint beyond the first
  int64_t final_step = 0;   // of the last checkpoint
  // In synchronous training, of the last checkpoint: acknowledged tries that are not there, and
  // those that are there in a step of several trainers.
  int64_t dropped = 0, shared = 0;
  std::string ToString() const;
};
// Compares every checkpoint of `directory` that the files of chiefs tell of with all files, by the
// rules above. `files`: task's name -> path. DataLoss names the first checkpoint that does not
// agree, the rule and the row; also where a checkpoint was committed by a chief that had been
// succeeded, or a life did not begin with the newest one.
// `sync`: the trainers that a synchronous step can have; 0: training is asynchronous.
StatusOr<LedgerReport> AuditLedger(const std::string& directory,
                                   const std::map<std::string, std::string>& files,
                                   int64_t sync = 0);

}  // namespace millrace

#endif  // MILLRACE_TESTS_FAILURES_LEDGER_H_
