// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_REMAPPED_VARIABLE_H_
#define MILLRACE_ESTIMATOR_REMAPPED_VARIABLE_H_

// RemappedVariable: a variable whose rows (or columns) follow the words of a vocabulary from a
// checkpoint to here.
//
// First it gets the values of the backup initialiser as a whole; then those of the checkpoint are
// written over them. Along axis 0 the old tensor is read from front to back in pieces, whatever the
// order of the words.
//
// Lifetime: no longer than the graph of the scope. Thread-compatible.
// Failure: InvalidArgument for shapes and types that do not fit; of files and steps.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/vocab_remap.h"
#include "estimator/warm_start.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "saver/tensor_bundle.h"

namespace millrace {

class RemappedVariable {
 public:
  // `parts`: of one variable called `name`, or it as a whole. Adds the nodes.
  static StatusOr<std::unique_ptr<RemappedVariable>> Make(const Scope& scope, std::string name,
                                                          std::vector<Variable> parts,
                                                          const VocabInfo& info,
                                                          std::string name_in_checkpoint,
                                                          FileSystem* fs);
  // `piece_bytes`: of the old tensor at a time.
  Status Restore(Session* session, const BundleReader& reader,
                 int64_t piece_bytes = int64_t{4} << 20) const;
  const std::string& name() const { return name_; }

 private:
  struct Part {
    Variable variable;
    int64_t first_row = 0, num_rows = 0;  // of the whole
    Output backup;                        // the initialiser's value
    Operation assign_backup;
    Output rows, values;  // fed
    Operation scatter;    // axis 0
    Operation assign;     // axis 1: `values` as the whole part
  };
  RemappedVariable() = default;
  Status Check(const BundleReader::Entry& entry) const;
  Status RestoreRows(Session* session, const BundleReader& reader, const BundleReader::Entry& entry,
                     int64_t piece_bytes) const;
  Status RestoreColumns(Session* session, const BundleReader& reader,
                        const BundleReader::Entry& entry) const;

  std::string name_, name_in_checkpoint_;
  std::vector<Part> parts_;
  Shape full_shape_;
  DType dtype_ = DT_INVALID;
  int axis_ = 0;
  VocabRemap remap_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_REMAPPED_VARIABLE_H_
