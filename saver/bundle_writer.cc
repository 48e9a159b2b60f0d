// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/coding.h"
#include "core/crc32c.h"
#include "core/dcheck.h"
#include "core/dtype.h"
#include "core/fail_point.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "saver/block_checksums.h"
#include "saver/bundle_format.h"
#include "saver/bundle_place.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"

namespace millrace {

struct BundleWriter::State {
  FileSystem* fs;
  std::string prefix;
  std::string temporary_data;
  uint64_t whole_bytes = 0;  // larger tensors have checksums of their blocks
  std::unique_ptr<WritableFile> data;
  uint64_t offset = 0;    // where the next tensor begins
  uint64_t file_end = 0;  // behind the last byte that was written
  BundleEntries entries;
  // Tensors whose bytes come piece by piece.
  struct Place {
    std::string name;
    std::string key;
    uint64_t offset = 0;
    uint64_t size = 0;
    uint64_t filled = 0;
    BlockChecksums checksums;
  };
  std::vector<Place> places;
  Status status;  // the first error; every later call returns it
  bool finished = false;

  Status CheckName(absl::string_view name) const;
  // Appends the elements to the data file; what they are goes into the entry.
  Status Write(const Tensor& value, tensorflow::BundleEntryProto* entry);
  Status Put(uint64_t at, absl::string_view bytes);
  // dtype, shape and place of bytes that have been appended, with their checksum.
  void Describe(DType dtype, const Shape& shape, uint64_t size, uint32_t crc,
                tensorflow::BundleEntryProto* entry);
  // `write(entry)` puts the bytes into the data file. The key of the entry that they belong to.
  using WriteValue = absl::FunctionRef<Status(tensorflow::BundleEntryProto* entry)>;
  StatusOr<std::string> Add(absl::string_view name, WriteValue write);
  StatusOr<std::string> AddSlice(absl::string_view name, const Shape& full_shape,
                                 const TensorSlice& slice, DType dtype, const Shape& shape,
                                 WriteValue write);
  StatusOr<int> AddPlace(absl::string_view name,
                         absl::FunctionRef<StatusOr<std::string>(WriteValue write)> add,
                         DType dtype, const Shape& shape);
};

BundleWriter::BundleWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}

StatusOr<std::unique_ptr<BundleWriter>> BundleWriter::Open(FileSystem* fs, std::string prefix,
                                                           uint64_t whole_bytes) {
  if (Basename(prefix).empty()) {
    return InvalidArgument("Checkpoint '", prefix,
                           "': the prefix must name a file, got a directory");
  }
  if (!Dirname(prefix).empty()) MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(Dirname(prefix)));
  auto state = std::make_unique<State>();
  state->fs = fs;
  state->whole_bytes = whole_bytes;
  state->temporary_data = absl::StrCat(BundleDataPath(prefix, 0, 1), ".tempstate", RandomHexName());
  state->prefix = std::move(prefix);
  MR_ASSIGN_OR_RETURN(state->data, fs->NewExclusiveFile(state->temporary_data));
  return std::unique_ptr<BundleWriter>(new BundleWriter(std::move(state)));
}

BundleWriter::~BundleWriter() {
  if (state_->finished) return;
  state_->data.reset();
  // Also after an error that left the data under its own name: then this one is not there.
  state_->fs->DeleteFile(state_->temporary_data).IgnoreError();
}

void BundleWriter::State::Describe(DType dtype, const Shape& shape, uint64_t size, uint32_t crc,
                                   tensorflow::BundleEntryProto* entry) {
  entry->set_dtype(static_cast<tensorflow::DataType>(dtype));
  shape.ToProto(entry->mutable_shape());
  entry->set_offset(static_cast<int64_t>(offset));
  entry->set_size(static_cast<int64_t>(size));
  entry->set_crc32c(MaskCrc32c(crc));
  offset += size;
}

Status BundleWriter::State::Put(uint64_t at, absl::string_view bytes) {
  MR_RETURN_IF_ERROR(at == file_end ? data->Append(bytes) : data->WriteAt(at, bytes));
  file_end = std::max(file_end, at + bytes.size());
  return absl::OkStatus();
}

Status BundleWriter::State::Write(const Tensor& value, tensorflow::BundleEntryProto* entry) {
  uint32_t crc = 0;
  uint64_t size = 0;
  if (value.dtype() == DT_STRING) {
    std::string lengths;
    std::string hashed;
    for (const std::string& s : value.raw<std::string>()) {
      PutVarint64(&lengths, s.size());
      AppendLengthForCrc(s.size(), &hashed);
    }
    crc = Crc32c(hashed);
    std::string length_crc;
    PutFixed32(&length_crc, MaskCrc32c(crc));
    crc = ExtendCrc32c(crc, length_crc);
    lengths += length_crc;
    MR_RETURN_IF_ERROR(Put(offset, lengths));
    size = lengths.size();
    for (const std::string& s : value.raw<std::string>()) {
      MR_RETURN_IF_ERROR(Put(offset + size, s));
      crc = ExtendCrc32c(crc, s);
      size += s.size();
    }
  } else if (IsMemcopyable(value.dtype())) {
    const absl::Span<const char> bytes = value.bytes();
    const absl::string_view view(bytes.data(), bytes.size());
    if (view.size() > whole_bytes) data->WillNotBeReadSoon();
    MR_RETURN_IF_ERROR(Put(offset, view));
    size = bytes.size();
    BlockChecksums checksums;
    checksums.Add(view);
    crc = checksums.total();
    if (size > whole_bytes) checksums.Store(entry);
  } else {
    return Unimplemented("a checkpoint holds numbers and strings, got dtype ",
                         DTypeName(value.dtype()));
  }
  Describe(value.dtype(), value.shape(), size, crc, entry);
  return absl::OkStatus();
}

// Key "" is the header's, keys that begin with NUL are those of slices.
Status BundleWriter::State::CheckName(absl::string_view name) const {
  if (!name.empty() && !IsSliceKey(name)) return absl::OkStatus();
  return InvalidArgument("Checkpoint '", prefix, "': tensor '", name,
                         "' must have a name that does not begin with NUL");
}

StatusOr<std::string> BundleWriter::State::Add(absl::string_view name, WriteValue write) {
  MR_RETURN_IF_ERROR(status);
  MR_RETURN_IF_ERROR(CheckName(name));
  const auto where = [&] { return absl::StrCat("Checkpoint '", prefix, "': tensor '", name, "'"); };
  if (entries.contains(std::string(name))) {
    return InvalidArgument(where(), " must be added once, got it twice");
  }
  tensorflow::BundleEntryProto entry;
  const Status written = write(&entry);
  if (absl::IsUnimplemented(written)) return Prefixed(where(), written);
  if (!written.ok()) return status = written;
  entries[std::string(name)] = std::move(entry);
  return std::string(name);
}

StatusOr<std::string> BundleWriter::State::AddSlice(absl::string_view name, const Shape& full_shape,
                                                    const TensorSlice& slice, DType dtype,
                                                    const Shape& shape, WriteValue write) {
  MR_RETURN_IF_ERROR(status);
  MR_RETURN_IF_ERROR(CheckName(name));
  const std::string where = absl::StrCat("Checkpoint '", prefix, "': tensor '", name, "'");
  StatusOr<Shape> slice_shape = slice.SliceShape(full_shape);
  if (!slice_shape.ok()) return Prefixed(where, slice_shape.status());
  if (shape != *slice_shape) {
    return InvalidArgument(where, ": slice '", slice.ToString(), "' must have shape ",
                           slice_shape->ToString(), ", got ", shape.ToString());
  }
  if (*slice_shape == full_shape) return Add(name, write);
  auto& full = entries[std::string(name)];
  if (full.dtype() == tensorflow::DT_INVALID) {
    full.set_dtype(static_cast<tensorflow::DataType>(dtype));
    full_shape.ToProto(full.mutable_shape());
  } else {
    StatusOr<Shape> known = Shape::FromProto(full.shape());
    if (static_cast<int>(full.dtype()) != static_cast<int>(dtype) || !known.ok() ||
        *known != full_shape || full.slices_size() == 0) {
      return InvalidArgument(where, " must be saved with one dtype and full shape, got also ",
                             DTypeName(dtype), full_shape.ToString());
    }
  }
  const std::string key = slice.BundleKey(name);
  if (entries.contains(key)) {
    return InvalidArgument(where, ": slice '", slice.ToString(),
                           "' must be added once, got it twice");
  }
  tensorflow::BundleEntryProto entry;
  const Status written = write(&entry);
  if (!written.ok()) return status = Prefixed(where, written);
  slice.ToProto(entries[std::string(name)].add_slices());
  entries[key] = std::move(entry);
  return key;
}

StatusOr<int> BundleWriter::State::AddPlace(
    absl::string_view name, absl::FunctionRef<StatusOr<std::string>(WriteValue write)> add,
    DType dtype, const Shape& shape) {
  Place place;
  place.name = std::string(name);
  place.size = static_cast<uint64_t>(shape.num_elements()) * DTypeSize(dtype);
  const auto keep_room = [&](tensorflow::BundleEntryProto* entry) -> Status {
    if (!IsMemcopyable(dtype)) {
      return Unimplemented("a tensor that is written in pieces holds numbers, got dtype ",
                           DTypeName(dtype));
    }
    place.offset = offset;
    if (place.size > whole_bytes) data->WillNotBeReadSoon();
    Describe(dtype, shape, place.size, /*crc=*/0, entry);
    return absl::OkStatus();
  };
  MR_ASSIGN_OR_RETURN(place.key, add(keep_room));
  places.push_back(std::move(place));
  return static_cast<int>(places.size() - 1);
}

Status BundleWriter::Add(absl::string_view name, const Tensor& value) {
  State& s = *state_;
  return s.Add(name, [&](tensorflow::BundleEntryProto* entry) { return s.Write(value, entry); })
      .status();
}

Status BundleWriter::AddSlice(absl::string_view name, const Shape& full_shape,
                              const TensorSlice& slice, const Tensor& value) {
  State& s = *state_;
  return s
      .AddSlice(name, full_shape, slice, value.dtype(), value.shape(),
                [&](tensorflow::BundleEntryProto* entry) { return s.Write(value, entry); })
      .status();
}

StatusOr<int> BundleWriter::Reserve(absl::string_view name, DType dtype, const Shape& shape) {
  State& s = *state_;
  return s.AddPlace(
      name, [&](State::WriteValue write) { return s.Add(name, write); }, dtype, shape);
}

StatusOr<int> BundleWriter::ReserveSlice(absl::string_view name, const Shape& full_shape,
                                         const TensorSlice& slice, DType dtype,
                                         const Shape& shape) {
  State& s = *state_;
  return s.AddPlace(
      name,
      [&](State::WriteValue write) {
        return s.AddSlice(name, full_shape, slice, dtype, shape, write);
      },
      dtype, shape);
}

Status BundleWriter::Fill(int place, absl::string_view bytes) {
  State& s = *state_;
  MR_RETURN_IF_ERROR(s.status);
  if (place < 0 || static_cast<size_t>(place) >= s.places.size()) {
    return Internal("Checkpoint '", s.prefix, "': a place must be in [0, ", s.places.size(),
                    "), got ", place);
  }
  State::Place& at = s.places[static_cast<size_t>(place)];
  if (bytes.size() > at.size - at.filled) {
    return s.status = Internal("Checkpoint '", s.prefix, "': the pieces of tensor '", at.name,
                               "' must be ", at.size, " bytes, got ", at.filled + bytes.size());
  }
  if (Status put = s.Put(at.offset + at.filled, bytes); !put.ok()) return s.status = put;
  at.filled += bytes.size();
  MR_DCHECK(at.filled <= at.size, "a piece that has no room is refused before it is written");
  at.checksums.Add(bytes);
  return absl::OkStatus();
}

Status BundleWriter::Finish(const std::function<Status()>& stop) {
  State& s = *state_;
  MR_RETURN_IF_ERROR(s.status);
  MR_DCHECK(!s.finished, "a writer that has finished has a status that refuses everything");
  for (const State::Place& place : s.places) {
    if (place.filled != place.size) {
      return s.status = Internal("Checkpoint '", s.prefix, "': the pieces of tensor '", place.name,
                                 "' must be ", place.size, " bytes, got ", place.filled);
    }
    MR_DCHECK(s.entries.contains(place.key), "a place has its entry from the beginning");
    tensorflow::BundleEntryProto& entry = s.entries[place.key];
    entry.set_crc32c(MaskCrc32c(place.checksums.total()));
    if (place.size > s.whole_bytes) place.checksums.Store(&entry);
  }
  MR_RETURN_IF_ERROR(FailPoint("saver/before_data_sync"));
  MR_RETURN_IF_ERROR(s.data->Sync());
  MR_RETURN_IF_ERROR(s.data->Close());
  s.status =
      GiveBundleItsNames(s.fs, s.prefix, absl::MakeConstSpan(&s.temporary_data, 1), s.entries,
                         "saver/before_data_rename", "saver/after_data_rename", stop);
  MR_RETURN_IF_ERROR(s.status);
  s.finished = true;
  s.status = FailedPrecondition("Checkpoint '", s.prefix, "': the writer has been finished");
  return absl::OkStatus();
}

}  // namespace millrace
