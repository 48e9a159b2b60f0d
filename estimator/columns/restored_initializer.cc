// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/restored_initializer.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "saver/checkpoint_name.h"
#include "saver/save_restore.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

// What SaveV2 and RestoreV2 call the part: "4 3 0,2:0,3".
std::string SliceSpec(const InitialShape& shape) {
  if (shape.shape == shape.full_shape) return "";
  std::vector<std::string> dims;
  for (int i = 0; i < shape.shape.rank(); ++i) {
    dims.push_back(absl::StrCat(shape.var_offset[static_cast<size_t>(i)], ",", shape.shape.dim(i)));
  }
  return absl::StrCat(absl::StrJoin(shape.full_shape.dims(), " "), " ", absl::StrJoin(dims, ":"));
}

}  // namespace

StatusOr<Initializer> RestoredInitializer(const std::string& checkpoint, const std::string& tensor,
                                          const Shape& shape, DType dtype) {
  FileSystem* fs = FileSystem::Default();
  MR_ASSIGN_OR_RETURN(const std::string prefix, CheckpointNamed(fs, checkpoint));
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<BundleReader> reader, BundleReader::Open(fs, prefix));
  MR_ASSIGN_OR_RETURN(const BundleReader::Entry entry, reader->Find(tensor));
  if (entry.shape != shape || entry.dtype != dtype) {
    return InvalidArgument("tensor_name_in_ckpt must name a tensor ", dtype, shape, ", got '",
                           tensor, "' of ", entry.dtype, entry.shape, " in '", prefix, "'");
  }
  return Initializer([prefix, tensor](ScopeAt at, const InitialShape& part, DType type) {
    const Output file = Const(at, prefix), names = ConstVector<std::string>(at, {tensor});
    const Output specs = ConstVector<std::string>(at, {SliceSpec(part)});
    const std::vector<Output> restored = RestoreV2(at, file, names, specs, {type});
    const Output value = restored.empty() ? Output() : restored[0];
    if (value.valid()) at.scope.SetShape(value, PartialShape(part.shape), at.where);
    return value;
  });
}

}  // namespace millrace
