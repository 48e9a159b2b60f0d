// SPDX-License-Identifier: Apache-2.0
#include "runtime/testing/variable_walk.h"

#include <algorithm>
#include <utility>

#include "core/dtype.h"

namespace millrace {

StatusOr<VariableWalk> VariableWalk::Begin(std::vector<std::shared_ptr<VariableStorage>> variables,
                                           const VariableWalkOptions& options) {
  if (variables.empty()) {
    return absl::InvalidArgumentError("A walk must have at least one variable, got none");
  }
  VariableWalk walk;
  walk.changed_since_ = options.changed_since;
  // Before the first row is looked at: what changes from here on is the next walk's.
  walk.epoch_ = VariableStorage::NextEpoch();
  size_t record_bytes = 0;
  for (const auto& variable : variables) {
    MR_ASSIGN_OR_RETURN(Shape shape, variable->shape());
    if (!IsMemcopyable(variable->dtype()) || shape.rank() < 1) {
      return InvalidArgument("Variable '", variable->name(),
                             "' must be numeric and have rows to be ", "walked, got ",
                             DTypeName(variable->dtype()), shape.ToString());
    }
    if (!walk.shapes_.empty() && shape.dim(0) != walk.shapes_[0].dim(0)) {
      return InvalidArgument("Variables '", variables[0]->name(), "' and '", variable->name(),
                             "' must have the same number of rows, got shapes ",
                             walk.shapes_[0].ToString(), " and ", shape.ToString());
    }
    Piece piece;
    piece.row_bytes =
        static_cast<size_t>(shape.NumElements(1, shape.rank())) * DTypeSize(variable->dtype());
    record_bytes += piece.row_bytes;
    walk.pieces_.push_back(std::move(piece));
    walk.pointers_.push_back(variable.get());
    walk.shapes_.push_back(std::move(shape));
  }
  const int64_t num_rows = walk.shapes_[0].dim(0);
  const size_t fitting = record_bytes == 0
                             ? static_cast<size_t>(num_rows)
                             : std::max<size_t>(options.piece_bytes / record_bytes, 1);
  walk.rows_at_once_ = static_cast<int64_t>(std::min(fitting, static_cast<size_t>(num_rows)));
  for (Piece& piece : walk.pieces_) {
    piece.memory = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(walk.rows_at_once_) *
                                                          piece.row_bytes);
  }
  walk.variables_ = std::move(variables);
  return walk;
}

StatusOr<VariableStorage::Range> VariableWalk::Next() {
  std::vector<char*> outs;
  for (Piece& piece : pieces_) outs.push_back(piece.memory.get());
  VariableStorage::Range copied{next_row_, next_row_};
  const int64_t num_rows = shapes_[0].dim(0);
  // Pieces without a change are passed over.
  while (copied.begin == copied.end && next_row_ < num_rows) {
    const int64_t end = std::min(next_row_ + rows_at_once_, num_rows);
    MR_ASSIGN_OR_RETURN(copied, VariableStorage::CopyRows(pointers_, shapes_, {next_row_, end},
                                                          changed_since_, outs));
    next_row_ = copied.end;
  }
  for (Piece& piece : pieces_) {
    piece.bytes = absl::MakeConstSpan(
        piece.memory.get(), static_cast<size_t>(copied.end - copied.begin) * piece.row_bytes);
  }
  return copied;
}

}  // namespace millrace
