// SPDX-License-Identifier: Apache-2.0
#include "saver/checkpoint_v1.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "core/tensor_proto.h"
#include "proto/saved_tensor_slice.pb.h"

namespace millrace {
namespace {

// '?' is any character, '*' any number of them.
bool Matches(absl::string_view pattern, absl::string_view text) {
  size_t p = 0, t = 0;
  size_t star = absl::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// How many elements the typed lists of `proto` hold; -1 when it has raw content, whose size is
// checked elsewhere.
int64_t NumValues(const tensorflow::TensorProto& proto, DType dtype) {
  if (!proto.tensor_content().empty()) return -1;
  switch (dtype) {
    case DT_FLOAT:
      return proto.float_val_size();
    case DT_DOUBLE:
      return proto.double_val_size();
    case DT_INT64:
      return proto.int64_val_size();
    case DT_STRING:
      return proto.string_val_size();
    case DT_BOOL:
      return proto.bool_val_size();
    case DT_COMPLEX64:
      return proto.scomplex_val_size() / 2;
    case DT_COMPLEX128:
      return proto.dcomplex_val_size() / 2;
    case DT_HALF:
    case DT_BFLOAT16:
      return proto.half_val_size();
    case DT_UINT32:
      return proto.uint32_val_size();
    case DT_UINT64:
      return proto.uint64_val_size();
    default:
      return proto.int_val_size();
  }
}

}  // namespace

std::vector<std::string> CheckpointV1Files(FileSystem* fs, const std::string& pattern) {
  std::vector<std::string> files;
  if (Basename(pattern).empty()) return files;
  const StatusOr<bool> is_directory = fs->IsDirectory(pattern);
  if (is_directory.ok() && !*is_directory) return {pattern};
  const StatusOr<std::vector<std::string>> names = fs->GetChildren(Dirname(pattern));
  if (!names.ok()) return files;
  const std::string base = Basename(pattern);
  for (const std::string& name : *names) {
    if (Matches(base, name)) files.push_back(JoinPath(Dirname(pattern), name));
  }
  if (!files.empty()) return files;
  for (const std::string& name : *names) {
    if (Matches(base + "-\?\?\?\?\?-of-\?\?\?\?\?", name)) {
      files.push_back(JoinPath(Dirname(pattern), name));
    }
  }
  return files;
}

StatusOr<std::unique_ptr<CheckpointV1Reader>> CheckpointV1Reader::Open(FileSystem* fs,
                                                                       const std::string& pattern) {
  const std::vector<std::string> files = CheckpointV1Files(fs, pattern);
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat("Checkpoint '", pattern, "': at least one file must match, got none"));
  }
  std::unique_ptr<CheckpointV1Reader> reader(new CheckpointV1Reader());
  reader->pattern_ = pattern;
  std::map<std::string, Entry> entries;
  for (const std::string& file : files) {
    // Its writers left gaps and padding that only matter to byte-exact readers.
    MR_ASSIGN_OR_RETURN(auto table, TableReader::Open(fs, file, {.lenient = true}));
    const auto loss = [&](absl::string_view what) {
      return absl::DataLossError(absl::StrCat("Checkpoint '", file, "': ", what));
    };
    MR_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, table->Get(""));
    tensorflow::SavedTensorSlices header;
    if (!bytes || !header.ParseFromString(*bytes)) return loss("the table has no list of tensors");
    for (const tensorflow::SavedSliceMeta& meta : header.meta().tensor()) {
      const StatusOr<DType> dtype = DTypeFromNumber(static_cast<int>(meta.type()));
      if (!dtype.ok() || *dtype == DT_INVALID || IsRef(*dtype)) {
        return loss(absl::StrCat("tensor '", meta.name(), "' must have a known dtype, got ",
                                 static_cast<int>(meta.type())));
      }
      const StatusOr<Shape> shape = Shape::FromProto(meta.shape());
      if (!shape.ok()) {
        return loss(absl::StrCat("tensor '", meta.name(), "': ", shape.status().message()));
      }
      Entry& entry = entries[meta.name()];
      if (entry.dtype == DT_INVALID) {
        entry = {meta.name(), *dtype, *shape, {}};
      } else if (entry.dtype != *dtype || entry.shape != *shape) {
        return loss(absl::StrCat("tensor '", meta.name(), "' must be ", DTypeName(entry.dtype),
                                 entry.shape.ToString(), " as in another file, got ",
                                 DTypeName(*dtype), shape->ToString()));
      }
      for (const tensorflow::TensorSliceProto& proto : meta.slice()) {
        const StatusOr<TensorSlice> slice = TensorSlice::FromProto(proto);
        if (!slice.ok() || !slice->SliceShape(*shape).ok()) {
          return loss(absl::StrCat("a slice of tensor '", meta.name(), "' must lie in shape ",
                                   shape->ToString()));
        }
        entry.slices.push_back(*slice);
      }
    }
    reader->tables_.push_back(std::move(table));
  }
  for (auto& [name, entry] : entries) {
    if (entry.slices.empty()) {
      return absl::DataLossError(
          absl::StrCat("Checkpoint '", pattern, "': tensor '", name, "' has no slices"));
    }
    reader->entries_.push_back(std::move(entry));
  }
  return reader;
}

StatusOr<CheckpointV1Reader::Entry> CheckpointV1Reader::Find(absl::string_view name) const {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const Entry& entry, absl::string_view n) { return entry.name < n; });
  if (found == entries_.end() || found->name != name) {
    return absl::NotFoundError(
        absl::StrCat("Key ", name, " not found in checkpoint '", pattern_, "'"));
  }
  return *found;
}

StatusOr<Tensor> CheckpointV1Reader::Read(absl::string_view name) const {
  MR_ASSIGN_OR_RETURN(const Entry entry, Find(name));
  return ReadSlice(name, TensorSlice::Full(entry.shape.rank()));
}

StatusOr<Tensor> CheckpointV1Reader::ReadSlice(absl::string_view name,
                                               const TensorSlice& slice) const {
  MR_ASSIGN_OR_RETURN(const Entry entry, Find(name));
  const std::string where = absl::StrCat("Checkpoint '", pattern_, "': tensor '", name, "'");
  StatusOr<Shape> shape = slice.SliceShape(entry.shape);
  if (!shape.ok()) return Prefixed(where, shape.status());
  std::vector<Tensor> parts;
  for (const TensorSlice& stored : entry.slices) {
    const std::string key = stored.BundleKey(name);
    std::optional<std::string> bytes;
    for (const auto& table : tables_) {
      MR_ASSIGN_OR_RETURN(bytes, table->Get(key));
      if (bytes) break;
    }
    tensorflow::SavedTensorSlices message;
    if (!bytes || !message.ParseFromString(*bytes)) {
      return absl::DataLossError(
          absl::StrCat(where, ": slice '", stored.ToString(), "' has no data"));
    }
    // The writer leaves dtype and shape to the list of tensors.
    tensorflow::TensorProto* data = message.mutable_data()->mutable_data();
    data->set_dtype(static_cast<tensorflow::DataType>(entry.dtype));
    MR_ASSIGN_OR_RETURN(const Shape part_shape, stored.SliceShape(entry.shape));
    part_shape.ToProto(data->mutable_tensor_shape());
    const int64_t values = NumValues(*data, entry.dtype);
    if (values >= 0 && values != part_shape.num_elements()) {
      return absl::DataLossError(absl::StrCat(where, ": slice '", stored.ToString(), "' must have ",
                                              part_shape.num_elements(), " values, got ", values));
    }
    StatusOr<Tensor> part = TensorFromProto(*data);
    if (!part.ok()) {
      return absl::DataLossError(absl::StrCat(where, ": ", part.status().message()));
    }
    parts.push_back(*std::move(part));
  }
  MR_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(entry.dtype, *shape));
  int64_t covered = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    MR_ASSIGN_OR_RETURN(const int64_t copied,
                        CopySliceOverlap(entry.shape, entry.slices[i], parts[i], slice, &out));
    covered += copied;
  }
  if (covered != shape->num_elements()) {
    return absl::DataLossError(absl::StrCat(where, ": its slices must cover it, got ", covered,
                                            " of ", shape->num_elements(), " elements"));
  }
  return out;
}

}  // namespace millrace
