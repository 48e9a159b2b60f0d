// SPDX-License-Identifier: Apache-2.0
#include "saver/save_restore.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/paced_thread.h"
#include "saver/checkpoint_v1.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"

namespace millrace {
namespace {

std::string Where(const std::string& prefix, const std::string& name) {
  return absl::StrCat("Checkpoint '", prefix, "': tensor '", name, "'");
}

// Of the path of one of a checkpoint's files: its prefix. (Directories are looked into before the
// op is run: tasks that restore parts of one checkpoint must not choose one each.)
std::string NamedByFile(FileSystem* fs, const std::string& prefix) {
  return fs->FileExists(BundleIndexPath(prefix)) ? prefix : CheckpointOfFile(prefix);
}

// What both formats have in common: an Entry by name, and its parts. Everything that the index can
// tell is checked before the first tensor is read.
template <typename Reader>
StatusOr<std::vector<ShapeAndSlice>> Wanted(const Reader& reader, const std::string& prefix,
                                            absl::Span<const std::string> names,
                                            absl::Span<const std::string> specs,
                                            absl::Span<const DType> dtypes) {
  std::vector<ShapeAndSlice> wanted;
  for (size_t i = 0; i < names.size(); ++i) {
    StatusOr<ShapeAndSlice> spec = ParseShapeAndSlice(specs[i]);
    if (!spec.ok()) return Prefixed(Where(prefix, names[i]), spec.status());
    MR_ASSIGN_OR_RETURN(const auto entry, reader.Find(names[i]));
    if (entry.dtype != dtypes[i]) {
      return InvalidArgument(Where(prefix, names[i]),
                             " must have the dtype that the graph expects, ", DTypeName(dtypes[i]),
                             ", got ", DTypeName(entry.dtype), " in the checkpoint");
    }
    if (!spec->is_whole && spec->full_shape != entry.shape) {
      return InvalidArgument(
          Where(prefix, names[i]), " must have the full shape that the graph expects, ",
          spec->full_shape.ToString(), ", got ", entry.shape.ToString(), " in the checkpoint");
    }
    wanted.push_back(*std::move(spec));
  }
  return wanted;
}

StatusOr<std::vector<BundleReader::Part>> WantedParts(const BundleReader& reader,
                                                      const std::string& prefix,
                                                      absl::Span<const std::string> names,
                                                      absl::Span<const std::string> specs,
                                                      absl::Span<const DType> dtypes) {
  MR_ASSIGN_OR_RETURN(std::vector<ShapeAndSlice> wanted,
                      Wanted(reader, prefix, names, specs, dtypes));
  std::vector<BundleReader::Part> parts;
  for (size_t i = 0; i < names.size(); ++i) {
    MR_ASSIGN_OR_RETURN(const auto entry, reader.Find(names[i]));
    parts.push_back({names[i], wanted[i].is_whole ? TensorSlice::Full(entry.shape.rank())
                                                  : std::move(wanted[i].slice)});
  }
  return parts;
}

}  // namespace

Status SaveTensors(FileSystem* fs, const std::string& prefix, absl::Span<const std::string> names,
                   absl::Span<const std::string> specs, absl::Span<const ValueToSave> values,
                   const StopCheck& stop, InFront in_front) {
  MR_ASSIGN_OR_RETURN(auto writer, BundleWriter::Open(fs, prefix));
  struct Place {
    int place;
    int member;
  };
  std::vector<std::pair<RowSource*, std::vector<Place>>> sources;
  for (size_t i = 0; i < names.size(); ++i) {
    if (stop) MR_RETURN_IF_ERROR(stop());
    StatusOr<ShapeAndSlice> spec = ParseShapeAndSlice(specs[i]);
    if (!spec.ok()) return Prefixed(Where(prefix, names[i]), spec.status());
    if (const Tensor* const value = std::get_if<Tensor>(&values[i])) {
      MR_RETURN_IF_ERROR(spec->is_whole
                             ? writer->Add(names[i], *value)
                             : writer->AddSlice(names[i], spec->full_shape, spec->slice, *value));
      continue;
    }
    const RowsToSave& rows = std::get<RowsToSave>(values[i]);
    const DType dtype = rows.source->dtype(rows.member);
    const Shape& shape = rows.source->shape(rows.member);
    MR_ASSIGN_OR_RETURN(const int place, spec->is_whole
                                             ? writer->Reserve(names[i], dtype, shape)
                                             : writer->ReserveSlice(names[i], spec->full_shape,
                                                                    spec->slice, dtype, shape));
    auto source = std::find_if(sources.begin(), sources.end(),
                               [&](const auto& known) { return known.first == rows.source.get(); });
    if (source == sources.end()) source = sources.insert(source, {rows.source.get(), {}});
    source->second.push_back({place, rows.member});
  }
  for (const auto& [source, places] : sources) {
    for (bool more = true; more;) {
      if (stop) MR_RETURN_IF_ERROR(stop());
      StatusOr<absl::Span<const absl::string_view>> next;
      in_front([&, rows = source] {
        bool keep = false;
        for (const auto& other : sources) keep = other.first->LetGo() || keep;
        next = rows->Next(keep ? RowSource::kSmallPieceBytes : RowSource::kPieceBytes);
      });
      MR_ASSIGN_OR_RETURN(const absl::Span<const absl::string_view> pieces, next);
      more = false;
      for (const auto& [place, member] : places) {
        const absl::string_view piece = pieces[static_cast<size_t>(member)];
        if (piece.empty()) continue;
        MR_RETURN_IF_ERROR(writer->Fill(place, piece));
        more = true;
      }
    }
  }
  if (stop) MR_RETURN_IF_ERROR(stop());
  return writer->Finish(stop);
}

StatusOr<std::vector<Tensor>> RestoreTensors(FileSystem* fs, const std::string& path,
                                             absl::Span<const std::string> names,
                                             absl::Span<const std::string> specs,
                                             absl::Span<const DType> dtypes, const StopCheck& stop,
                                             IoPool* pool) {
  const std::string prefix = NamedByFile(fs, path);
  if (!fs->FileExists(BundleIndexPath(prefix)) && !CheckpointV1Files(fs, prefix).empty()) {
    MR_ASSIGN_OR_RETURN(const auto reader, CheckpointV1Reader::Open(fs, prefix));
    MR_ASSIGN_OR_RETURN(const std::vector<ShapeAndSlice> wanted,
                        Wanted(*reader, prefix, names, specs, dtypes));
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < names.size(); ++i) {
      if (stop) MR_RETURN_IF_ERROR(stop());
      StatusOr<Tensor> tensor = wanted[i].is_whole ? reader->Read(names[i])
                                                   : reader->ReadSlice(names[i], wanted[i].slice);
      if (!tensor.ok()) return tensor.status();
      tensors.push_back(*std::move(tensor));
      PacePoint();
    }
    return tensors;
  }
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(fs, prefix, pool));
  MR_ASSIGN_OR_RETURN(const std::vector<BundleReader::Part> parts,
                      WantedParts(*reader, prefix, names, specs, dtypes));
  return reader->ReadParts(parts, stop);
}

Status CheckRestores(FileSystem* fs, const std::string& prefix,
                     absl::Span<const RestoreRequest> requests) {
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(fs, prefix));
  std::vector<BundleReader::Part> parts;
  for (const RestoreRequest& request : requests) {
    MR_ASSIGN_OR_RETURN(const std::vector<BundleReader::Part> wanted,
                        WantedParts(*reader, prefix, request.names, request.specs, request.dtypes));
    parts.insert(parts.end(), wanted.begin(), wanted.end());
  }
  return reader->CheckFilesOf(parts);
}

StatusOr<std::string> ShardedName(const std::string& basename, int shard, int num_shards) {
  if (shard < 0 || shard >= num_shards) {
    return InvalidArgument("shard must be in [0, num_shards = ", num_shards, "), got ", shard);
  }
  return absl::StrFormat("%s-%05d-of-%05d", basename, shard, num_shards);
}

}  // namespace millrace
