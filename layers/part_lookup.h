// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_PART_LOOKUP_H_
#define MILLRACE_LAYERS_PART_LOOKUP_H_

// What look-ups share that ask several parts of a table on other tasks, in few nodes and few bytes
// (ops/state/part_rows.h): those of layers/embedding.h and layers/embedding_sparse.h.
//
// Failure: errors of the scope; invalid outputs.

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

// Rows `ids` of one part, looked up on its device.
Output GatherRows(const ScopeAt& at, const Variable& part, const Output& ids);

// Does one of the parts stand on another task than `beside`, which is valid? Invalid parts do not.
bool CrossTasks(const std::vector<Variable>& parts, const Output& beside);

// Behind the last row of each part, in the whole table; nothing where a part's rows are not known.
std::optional<std::vector<int64_t>> RowEnds(const std::vector<Variable>& parts);

// Rows of `ids`, a vector. `ends` as PartRows takes them.
Output LookUpInParts(const ScopeAt& at, const std::vector<Variable>& parts, const Output& ids,
                     const std::vector<int64_t>& ends);

// Numbers [n, row...] that, added up by example, are the sums of the rows of each example's ids.
struct PartSums {
  Output numbers;
  Output examples;  // of each; sorted where those of the ids are
};
// Nothing where it is no gain (one part, columns, none on another task) or cannot be done: parts
// that are reference variables, are no matrices of one width, or not known in shape; no float or
// double.
std::optional<PartSums> SumsOfParts(const ScopeAt& at, const std::vector<Variable>& parts,
                                    const Output& ids, const Output& examples);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_PART_LOOKUP_H_
