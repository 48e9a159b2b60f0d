// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_TESTING_VARIABLE_WALK_H_
#define MILLRACE_RUNTIME_TESTING_VARIABLE_WALK_H_

// VariableWalk: passes over the rows of a variable, or of a variable and its slots, piece by piece,
// in bounded memory and beside gathers and updates. For tests and benchmarks: VariableStorage's
// CopyRows as savers use it (saver/variable_rows.h), without files.
//
//   MR_ASSIGN_OR_RETURN(auto walk, VariableWalk::Begin({table, accumulator}));
//   for (;;) {
//     MR_ASSIGN_OR_RETURN(const auto rows, walk.Next());
//     if (rows.begin == rows.end) break;
//     Write(rows, walk.bytes(0), walk.bytes(1));
//   }
//
// What it sees is row-consistent: every record (the rows of equal number) as it was at one moment,
// each at another. Read gives all rows of one moment; that may cost a copy of
// what is written meanwhile, one table at most.
//
// Walks of changes: a walk with changed_since = epoch() of an earlier one passes only over stripes
// with a row that changed after the earlier walk passed it. A change comes, at the latest, with the
// first walk that begins after its update has returned; some come twice.
//
// Thread-safety: thread-compatible; the variables may be used by anyone meanwhile.
// Failure: FailedPrecondition for a variable without value, InvalidArgument for one without rows;
// Aborted when one gets another shape during the walk.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/shape.h"
#include "core/status.h"
#include "runtime/variable_storage.h"

namespace millrace {

struct VariableWalkOptions {
  // Memory of the walk, shared by the variables; at least one record.
  size_t piece_bytes = size_t{256} << 10;
  // Of an earlier walk; 0: all rows.
  uint64_t changed_since = 0;
};

class VariableWalk {
 public:
  // InvalidArgument: no variable, or different numbers of rows.
  static StatusOr<VariableWalk> Begin(std::vector<std::shared_ptr<VariableStorage>> variables,
                                      const VariableWalkOptions& options = {});

  // Copies the next rows; empty after the last. InvalidArgument: a variable comes twice.
  StatusOr<VariableStorage::Range> Next();
  // The rows of variable `k` that Next copied; until the next call of Next.
  absl::Span<const char> bytes(size_t k) const { return pieces_[k].bytes; }

  const Shape& shape(size_t k) const { return shapes_[k]; }
  // For a later walk of what has changed since this one.
  uint64_t epoch() const { return epoch_; }

 private:
  struct Piece {
    std::unique_ptr<char[]> memory;
    size_t row_bytes = 0;
    absl::Span<const char> bytes;
  };
  VariableWalk() = default;

  std::vector<std::shared_ptr<VariableStorage>> variables_;
  std::vector<VariableStorage*> pointers_;  // to variables_
  std::vector<Shape> shapes_;
  std::vector<Piece> pieces_;
  int64_t rows_at_once_ = 0;
  int64_t next_row_ = 0;
  uint64_t changed_since_ = 0;
  uint64_t epoch_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_TESTING_VARIABLE_WALK_H_
