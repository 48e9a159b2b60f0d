// SPDX-License-Identifier: Apache-2.0
#include "estimator/remapped_variable.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "layers/initializers.h"
#include "layers/variable_update.h"
#include "ops/array/placeholder.h"
#include "saver/tensor_slice.h"

namespace millrace {
namespace {

Shape WholeShape(const Variable& variable) {
  if (!variable.slice.full_name.empty()) {
    const StatusOr<Shape> full = Shape::Make(variable.slice.full_shape);
    return full.ok() ? *full : Shape();
  }
  const StatusOr<Shape> shape = variable.shape.ToShape();
  return shape.ok() ? *shape : Shape();
}

// Rows [begin, begin + count) of a stored tensor.
StatusOr<Tensor> ReadRows(const BundleReader& reader, const BundleReader::Entry& entry,
                          int64_t begin, int64_t count) {
  std::string text = absl::StrCat(begin, ",", count);
  for (int i = 1; i < entry.shape.rank(); ++i) absl::StrAppend(&text, ":-");
  MR_ASSIGN_OR_RETURN(const TensorSlice slice, TensorSlice::Parse(text));
  return reader.ReadSlice(entry.name, slice);
}

}  // namespace

StatusOr<std::unique_ptr<RemappedVariable>> RemappedVariable::Make(
    const Scope& scope, std::string name, std::vector<Variable> parts, const VocabInfo& info,
    std::string name_in_checkpoint, FileSystem* fs) {
  auto result = std::unique_ptr<RemappedVariable>(new RemappedVariable());
  result->axis_ = info.axis;
  result->dtype_ = parts[0].dtype;
  result->full_shape_ = WholeShape(parts[0]);
  MR_ASSIGN_OR_RETURN(result->remap_, MakeVocabRemap(fs, info));
  const Shape& shape = result->full_shape_;
  if (shape.rank() < 1 || (info.axis == 1 && shape.rank() != 2)) {
    return InvalidArgument("a variable with a vocabulary along axis ", info.axis, " must be ",
                           info.axis == 1 ? "a matrix" : "of rank 1 or more", ", got shape ",
                           shape);
  }
  const int64_t rows = static_cast<int64_t>(result->remap_.old_of_new.size());
  if (shape.dim(info.axis) != rows) {
    return InvalidArgument("its dimension ", info.axis,
                           " must be new_vocab_size + num_oov_buckets, ", rows, ", got shape ",
                           shape);
  }
  if (!IsFloating(result->dtype_) && !IsInteger(result->dtype_)) {
    return InvalidArgument("it must be numbers, got ", result->dtype_);
  }
  if (!info.backup_initializer) {
    return InvalidArgument("backup_initializer must be a function, got none");
  }
  for (Variable& variable : parts) {
    Part part;
    MR_ASSIGN_OR_RETURN(const Shape part_shape, variable.shape.ToShape());
    if (!variable.slice.full_name.empty()) {
      for (int i = 1; i < shape.rank(); ++i) {
        if (part_shape.dim(i) == shape.dim(i)) continue;
        return InvalidArgument("parts of it must be rows of the whole, got ", part_shape, " of ",
                               shape);
      }
      part.first_row = variable.slice.var_offset[0];
    }
    part.num_rows = part_shape.dim(0);
    const Scope beside = scope.WithRootPrefix()
                             .WithoutControlDependencies()
                             .WithSubScope(absl::StrCat("warm_start/", variable.name))
                             .ColocatedWith(variable.handle.op());
    const Scope own = beside.BuiltWhereCalled();
    part.backup = info.backup_initializer(
        ScopeAt(own, ScopeAt(beside).where),
        InitialShape(part_shape, shape, variable.slice.var_offset), variable.dtype);
    part.values = Placeholder(beside.WithName("values"), variable.dtype, {});
    if (info.axis == 0) {
      part.rows = Placeholder(beside.WithName("rows"), DT_INT64, {-1});
      part.assign_backup = AssignVariable(beside, variable, part.backup);
      part.scatter = ScatterUpdateVariable(beside, variable, part.rows, part.values);
    } else {
      part.assign = AssignVariable(beside, variable, part.values);
    }
    part.variable = std::move(variable);
    result->parts_.push_back(std::move(part));
  }
  MR_RETURN_IF_ERROR(scope.status());
  result->name_ = std::move(name);
  result->name_in_checkpoint_ = std::move(name_in_checkpoint);
  return result;
}

Status RemappedVariable::Check(const BundleReader::Entry& entry) const {
  bool fits = entry.dtype == dtype_ && entry.shape.rank() == full_shape_.rank();
  for (int i = 0; fits && i < full_shape_.rank(); ++i) {
    fits = i == axis_ || entry.shape.dim(i) == full_shape_.dim(i);
  }
  if (!fits) {
    return InvalidArgument("'", entry.name, "' of the checkpoint must be ", dtype_, full_shape_,
                           " but for dimension ", axis_, ", got ", entry.dtype, entry.shape);
  }
  const int64_t last = *std::max_element(remap_.old_of_new.begin(), remap_.old_of_new.end());
  if (last < entry.shape.dim(axis_)) return absl::OkStatus();
  return InvalidArgument("'", entry.name, "' of the checkpoint must have a place for each of the ",
                         remap_.old_size, " words of the old vocabulary, got shape ", entry.shape);
}

Status RemappedVariable::Restore(Session* session, const BundleReader& reader,
                                 int64_t piece_bytes) const {
  MR_ASSIGN_OR_RETURN(const BundleReader::Entry entry, reader.Find(name_in_checkpoint_));
  MR_RETURN_IF_ERROR(Check(entry));
  return axis_ == 0 ? RestoreRows(session, reader, entry, piece_bytes)
                    : RestoreColumns(session, reader, entry);
}

Status RemappedVariable::RestoreRows(Session* session, const BundleReader& reader,
                                     const BundleReader::Entry& entry, int64_t piece_bytes) const {
  std::vector<FetchName> backups;
  for (const Part& part : parts_) backups.emplace_back(part.assign_backup);
  MR_RETURN_IF_ERROR(session->Run({}, {}, backups).status());

  const int64_t old_rows = entry.shape.dim(0);
  std::vector<int64_t> new_of_old(static_cast<size_t>(old_rows), -1);
  for (size_t row = 0; row < remap_.old_of_new.size(); ++row) {
    const int64_t old = remap_.old_of_new[row];
    if (old >= 0) new_of_old[static_cast<size_t>(old)] = static_cast<int64_t>(row);
  }
  const int64_t row_elements = old_rows > 0 ? entry.shape.num_elements() / old_rows : 0;
  const size_t row_bytes = static_cast<size_t>(row_elements) * DTypeSize(entry.dtype);
  const int64_t step =
      std::max<int64_t>(1, piece_bytes / std::max<int64_t>(1, static_cast<int64_t>(row_bytes)));
  for (int64_t begin = 0; begin < old_rows; begin += step) {
    const int64_t count = std::min(step, old_rows - begin);
    Tensor piece;  // read when a row of it is wanted
    for (const Part& part : parts_) {
      std::vector<int64_t> targets, sources;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = new_of_old[static_cast<size_t>(begin + i)] - part.first_row;
        if (row < 0 || row >= part.num_rows) continue;
        targets.push_back(row);
        sources.push_back(i);
      }
      if (targets.empty()) continue;
      if (piece.dtype() == DT_INVALID) {
        MR_ASSIGN_OR_RETURN(piece, ReadRows(reader, entry, begin, count));
      }
      std::vector<int64_t> dims(entry.shape.dims().begin(), entry.shape.dims().end());
      dims[0] = static_cast<int64_t>(targets.size());
      MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
      MR_ASSIGN_OR_RETURN(Tensor values, Tensor::Zeros(entry.dtype, shape));
      const absl::Span<char> to = values.mutable_bytes();
      const absl::Span<const char> from = piece.bytes();
      for (size_t i = 0; i < sources.size(); ++i) {
        std::memcpy(to.data() + i * row_bytes,
                    from.data() + static_cast<size_t>(sources[i]) * row_bytes, row_bytes);
      }
      MR_RETURN_IF_ERROR(
          session
              ->Run({{part.rows, Tensor::Vector<int64_t>(targets)}, {part.values, values}}, {},
                    {part.scatter})
              .status());
    }
  }
  return absl::OkStatus();
}

Status RemappedVariable::RestoreColumns(Session* session, const BundleReader& reader,
                                        const BundleReader::Entry& entry) const {
  const size_t size = DTypeSize(entry.dtype);
  const size_t old_columns = static_cast<size_t>(entry.shape.dim(1));
  const size_t columns = remap_.old_of_new.size();
  for (const Part& part : parts_) {
    if (part.num_rows == 0) continue;
    MR_ASSIGN_OR_RETURN(const Tensor old, ReadRows(reader, entry, part.first_row, part.num_rows));
    MR_ASSIGN_OR_RETURN(auto backup, session->Run({}, {part.backup}));
    Tensor values = std::move(backup[0]);
    const absl::Span<char> to = values.mutable_bytes();
    const absl::Span<const char> from = old.bytes();
    for (size_t row = 0; row < static_cast<size_t>(part.num_rows); ++row) {
      for (size_t column = 0; column < columns; ++column) {
        if (remap_.old_of_new[column] < 0) continue;
        const size_t source = static_cast<size_t>(remap_.old_of_new[column]);
        std::memcpy(to.data() + (row * columns + column) * size,
                    from.data() + (row * old_columns + source) * size, size);
      }
    }
    MR_RETURN_IF_ERROR(session->Run({{part.values, values}}, {}, {part.assign}).status());
  }
  return absl::OkStatus();
}

}  // namespace millrace
