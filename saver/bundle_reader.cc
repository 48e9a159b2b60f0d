// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/coding.h"
#include "core/crc32c.h"
#include "core/dtype.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/table_reader.h"
#include "core/tensor.h"
#include "saver/bundle_format.h"
#include "saver/file_parts.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"

namespace millrace {
namespace {

// What one thread reads in one call, and how many threads read one tensor.
constexpr uint64_t kReadAtOnce = uint64_t{4} << 20;
constexpr int kReadThreads = 4;

}  // namespace

struct BundleReader::State {
  FileSystem* fs;
  IoPool* pool;
  std::string prefix;
  uint64_t whole_bytes = 0;
  int num_shards = 0;
  std::vector<Entry> entries;
  absl::flat_hash_map<std::string, size_t> by_name;
  absl::flat_hash_map<std::string, tensorflow::BundleEntryProto> protos;  // with slice keys
  mutable Mutex mu;
  mutable absl::flat_hash_map<int, std::shared_ptr<RandomAccessFile>> files ABSL_GUARDED_BY(mu);
  // What was read of tensors that were not read at once, by place in the file: where it begins in
  // the tensor's data, how much it is, and its checksum.
  struct Range {
    uint64_t begin, size;
    uint32_t crc;
  };
  mutable std::map<std::pair<int, uint64_t>, std::vector<Range>> ranges ABSL_GUARDED_BY(mu);

  Status Loss(absl::string_view name, absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("Checkpoint '", prefix, "': tensor '", name, "': ", what));
  }
  Status CheckEntry(absl::string_view name, const tensorflow::BundleEntryProto& proto) const;
  StatusOr<std::shared_ptr<RandomAccessFile>> DataFile(int shard) const;
  // Makes `ends`, of the data in each file, reach over an entry; and are the files that long?
  static void Reach(const tensorflow::BundleEntryProto& proto, std::map<int, uint64_t>* ends);
  Status CheckEnds(const std::map<int, uint64_t>& ends) const;
  // Are the bytes of an entry in its data file, and enough of them?
  Status CheckData(absl::string_view name, const tensorflow::BundleEntryProto& proto) const;
  StatusOr<Tensor> ReadStored(absl::string_view name,
                              const tensorflow::BundleEntryProto& proto) const;
  // Bytes [begin, begin + size) of an entry's data.
  Status ReadBytes(absl::string_view name, const tensorflow::BundleEntryProto& proto,
                   uint64_t begin, uint64_t size, char* out) const;
  // Compares the checksum once all of the entry's data was read.
  Status CheckRange(absl::string_view name, const tensorflow::BundleEntryProto& proto,
                    Range range) const;
  // Copies what `part`, stored under `proto`, and `slice` have in common to `out`, of slice's
  // shape. Numbers of rank >= 1: reads only the rows that they have in common, of what is large and
  // of which no more than half is wanted.
  Status ReadPart(absl::string_view name, const Shape& full, const TensorSlice& part,
                  const tensorflow::BundleEntryProto& proto, const TensorSlice& slice,
                  Tensor* out) const;
  Status ReadStrings(absl::string_view name, const tensorflow::BundleEntryProto& proto,
                     const std::string& bytes, Tensor* out) const;
};

Status BundleReader::State::CheckEntry(absl::string_view name,
                                       const tensorflow::BundleEntryProto& proto) const {
  const StatusOr<DType> dtype = DTypeFromNumber(static_cast<int>(proto.dtype()));
  if (!dtype.ok() || *dtype == DT_INVALID || IsRef(*dtype)) {
    return Loss(name, absl::StrCat("its dtype must be one of TensorFlow's, got ",
                                   static_cast<int>(proto.dtype())));
  }
  const StatusOr<Shape> shape = Shape::FromProto(proto.shape());
  if (!shape.ok()) return Loss(name, shape.status().message());
  if (proto.slices_size() > 0) return absl::OkStatus();
  if (proto.shard_id() < 0 || proto.shard_id() >= num_shards) {
    return Loss(name,
                absl::StrCat("its shard must be in [0, ", num_shards, "), got ", proto.shard_id()));
  }
  if (proto.offset() < 0 || proto.size() < 0 ||
      proto.offset() > std::numeric_limits<int64_t>::max() - proto.size()) {
    return Loss(name, absl::StrCat("its place must be within a file, got offset ", proto.offset(),
                                   " size ", proto.size()));
  }
  const size_t width = DTypeSize(*dtype);
  if (width > 0 &&
      static_cast<uint64_t>(proto.size()) != static_cast<uint64_t>(shape->num_elements()) * width) {
    return Loss(
        name, absl::StrCat("its size must be ", shape->num_elements(), " x ", width, " bytes for ",
                           DTypeName(*dtype), shape->ToString(), ", got ", proto.size()));
  }
  return absl::OkStatus();
}

BundleReader::BundleReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
BundleReader::~BundleReader() = default;

StatusOr<std::unique_ptr<BundleReader>> BundleReader::Open(FileSystem* fs, std::string prefix,
                                                           IoPool* pool, uint64_t whole_bytes) {
  auto state = std::make_unique<State>();
  state->fs = fs;
  state->pool = pool;
  state->prefix = std::move(prefix);
  state->whole_bytes = whole_bytes;
  MR_ASSIGN_OR_RETURN(auto table, TableReader::Open(fs, BundleIndexPath(state->prefix)));
  MR_ASSIGN_OR_RETURN(const auto header, CheckedHeader(state->prefix, *table));
  state->num_shards = header.num_shards();
  auto it = table->NewIterator();
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    if (it->key().empty()) continue;
    const std::string key(it->key());
    const std::string name = IsSliceKey(key) ? "(a slice)" : key;
    tensorflow::BundleEntryProto proto;
    if (!proto.ParseFromArray(it->value().data(), static_cast<int>(it->value().size()))) {
      return state->Loss(name, "its entry cannot be parsed");
    }
    MR_RETURN_IF_ERROR(state->CheckEntry(name, proto));
    if (!IsSliceKey(key)) {
      Entry entry;
      entry.name = key;
      entry.dtype = static_cast<DType>(proto.dtype());
      MR_ASSIGN_OR_RETURN(entry.shape, Shape::FromProto(proto.shape()));
      for (const auto& slice_proto : proto.slices()) {
        StatusOr<TensorSlice> slice = TensorSlice::FromProto(slice_proto);
        if (!slice.ok()) return state->Loss(key, slice.status().message());
        const StatusOr<Shape> shape = slice->SliceShape(entry.shape);
        if (!shape.ok()) return state->Loss(key, shape.status().message());
        entry.slices.push_back(*std::move(slice));
      }
      state->by_name[key] = state->entries.size();
      state->entries.push_back(std::move(entry));
    }
    state->protos[key] = std::move(proto);
  }
  MR_RETURN_IF_ERROR(it->status());
  return std::unique_ptr<BundleReader>(new BundleReader(std::move(state)));
}

int BundleReader::num_shards() const { return state_->num_shards; }
const std::vector<BundleReader::Entry>& BundleReader::entries() const { return state_->entries; }
bool BundleReader::Contains(absl::string_view name) const { return state_->by_name.contains(name); }

StatusOr<BundleReader::Entry> BundleReader::Find(absl::string_view name) const {
  const auto found = state_->by_name.find(name);
  if (found == state_->by_name.end()) {
    return absl::NotFoundError(
        absl::StrCat("Key ", name, " not found in checkpoint '", state_->prefix, "'"));
  }
  return state_->entries[found->second];
}

StatusOr<std::shared_ptr<RandomAccessFile>> BundleReader::State::DataFile(int shard) const {
  MutexLock lock(&mu);
  auto& file = files[shard];
  if (file == nullptr) {
    const std::string path = BundleDataPath(prefix, shard, num_shards);
    StatusOr<std::unique_ptr<RandomAccessFile>> opened = fs->NewRandomAccessFile(path);
    if (!opened.ok()) {
      return Prefixed(absl::StrCat("Checkpoint '", prefix, "': data file ", shard),
                      opened.status());
    }
    file = *std::move(opened);
  }
  return file;
}

Status BundleReader::State::ReadStrings(absl::string_view name,
                                        const tensorflow::BundleEntryProto& proto,
                                        const std::string& bytes, Tensor* out) const {
  absl::string_view rest = bytes;
  std::vector<uint64_t> lengths;
  std::string hashed;
  for (int64_t i = 0; i < out->num_elements(); ++i) {
    uint64_t length;
    // No string is longer than what is stored, which bounds all that follows.
    if (!GetVarint64(&rest, &length) || length > bytes.size()) {
      return Loss(name, absl::StrCat("the length of string ", i, " is not within its data"));
    }
    lengths.push_back(length);
    AppendLengthForCrc(length, &hashed);
  }
  uint32_t stored;
  const absl::string_view stored_bytes = rest.substr(0, 4);
  if (!GetFixed32(&rest, &stored)) return Loss(name, "the checksum of its lengths is cut off");
  uint32_t crc = Crc32c(hashed);
  if (UnmaskCrc32c(stored) != crc) {
    return Loss(name, absl::StrFormat("the lengths of its strings fail their checksum (stored "
                                      "%08x, computed %08x)",
                                      stored, MaskCrc32c(crc)));
  }
  crc = ExtendCrc32c(crc, stored_bytes);
  absl::Span<std::string> strings = out->mutable_raw<std::string>();
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > rest.size()) {
      return Loss(name, absl::StrCat("string ", i, " must be within its data, got length ",
                                     lengths[i], " of ", rest.size(), " bytes left"));
    }
    strings[i] = std::string(rest.substr(0, lengths[i]));
    rest.remove_prefix(lengths[i]);
    crc = ExtendCrc32c(crc, strings[i]);
  }
  if (!rest.empty()) {
    return Loss(name,
                absl::StrCat("its strings must fill its data, got ", rest.size(), " bytes more"));
  }
  if (MaskCrc32c(crc) != proto.crc32c()) {
    return Loss(name, absl::StrFormat("its data fails its checksum (stored %08x, computed %08x)",
                                      proto.crc32c(), MaskCrc32c(crc)));
  }
  return absl::OkStatus();
}

Status BundleReader::State::CheckData(absl::string_view name,
                                      const tensorflow::BundleEntryProto& proto) const {
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::FromProto(proto.shape()));
  MR_ASSIGN_OR_RETURN(const auto file, DataFile(proto.shard_id()));
  const uint64_t offset = static_cast<uint64_t>(proto.offset());
  const uint64_t size = static_cast<uint64_t>(proto.size());
  if (offset > file->size() || size > file->size() - offset) {
    return Loss(name, absl::StrCat("its data must lie within '",
                                   BundleDataPath(prefix, proto.shard_id(), num_shards), "' of ",
                                   file->size(), " bytes, got [", offset, ", ", offset + size,
                                   "); the file is cut off"));
  }
  // Each string takes at least one byte for its length.
  if (static_cast<DType>(proto.dtype()) == DT_STRING &&
      static_cast<uint64_t>(shape.num_elements()) > size) {
    return Loss(name, absl::StrCat("its ", shape.num_elements(), " strings do not fit into ", size,
                                   " bytes"));
  }
  return absl::OkStatus();
}

namespace {

// Another writer may have stored any non-zero byte.
void MakeBools(Tensor* values) {
  if (values->dtype() != DT_BOOL) return;
  for (char& byte : values->mutable_bytes()) byte = byte != 0;
}

}  // namespace

StatusOr<Tensor> BundleReader::State::ReadStored(absl::string_view name,
                                                 const tensorflow::BundleEntryProto& proto) const {
  MR_RETURN_IF_ERROR(CheckData(name, proto));
  const DType dtype = static_cast<DType>(proto.dtype());
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::FromProto(proto.shape()));
  if (dtype == DT_STRING) {
    MR_ASSIGN_OR_RETURN(const auto file, DataFile(proto.shard_id()));
    std::string bytes(static_cast<size_t>(proto.size()), '\0');
    MR_RETURN_IF_ERROR(
        file->Read(static_cast<uint64_t>(proto.offset()), bytes.size(), bytes.data()));
    MR_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(dtype, shape));
    MR_RETURN_IF_ERROR(ReadStrings(name, proto, bytes, &out));
    return out;
  }
  if (!IsMemcopyable(dtype)) {
    return Unimplemented("Checkpoint '", prefix, "': tensor '", name,
                         "' must hold numbers or strings, got dtype ", DTypeName(dtype));
  }
  MR_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(dtype, shape));
  const absl::Span<char> bytes = out.mutable_bytes();
  MR_RETURN_IF_ERROR(ReadBytes(name, proto, 0, bytes.size(), bytes.data()));
  MakeBools(&out);
  return out;
}

Status BundleReader::State::ReadBytes(absl::string_view name,
                                      const tensorflow::BundleEntryProto& proto, uint64_t begin,
                                      uint64_t size, char* out) const {
  MR_ASSIGN_OR_RETURN(const auto file, DataFile(proto.shard_id()));
  const uint64_t offset = static_cast<uint64_t>(proto.offset()) + begin;
  const uint64_t count = std::max<uint64_t>((size + kReadAtOnce - 1) / kReadAtOnce, 1);
  std::vector<uint32_t> crcs(count);
  const auto size_of = [&](uint64_t i) { return std::min(kReadAtOnce, size - i * kReadAtOnce); };
  MR_RETURN_IF_ERROR(
      RunParts(pool, kReadThreads, static_cast<int64_t>(count), [&](int64_t part) -> Status {
        const uint64_t i = static_cast<uint64_t>(part);
        char* const to = out + i * kReadAtOnce;
        if (size_of(i) > 0) {
          MR_RETURN_IF_ERROR(file->Read(offset + i * kReadAtOnce, size_of(i), to));
        }
        crcs[i] = Crc32c(absl::string_view(to, size_of(i)));
        return absl::OkStatus();
      }));
  uint32_t crc = crcs[0];
  for (uint64_t i = 1; i < count; ++i) crc = JoinCrc32c(crc, crcs[i], size_of(i));
  return CheckRange(name, proto, {begin, size, crc});
}

Status BundleReader::State::CheckRange(absl::string_view name,
                                       const tensorflow::BundleEntryProto& proto,
                                       Range range) const {
  const uint64_t wanted = static_cast<uint64_t>(proto.size());
  uint32_t crc = range.crc;
  if (range.size != wanted) {
    MutexLock lock(&mu);
    std::vector<Range>& known = ranges[{proto.shard_id(), static_cast<uint64_t>(proto.offset())}];
    const auto before = std::find_if(known.begin(), known.end(), [&](const Range& other) {
      return other.begin == range.begin && other.size == range.size;
    });
    if (before == known.end()) {
      known.push_back(range);
    } else if (before->crc != range.crc) {
      return Loss(name,
                  absl::StrFormat("bytes [%d, %d) of its data must be the same whenever they are "
                                  "read, got checksums %08x and %08x",
                                  range.begin, range.begin + range.size, before->crc, range.crc));
    }
    std::sort(known.begin(), known.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    uint64_t end = 0;
    crc = 0;
    for (const Range& next : known) {
      if (next.begin != end) return absl::OkStatus();  // a hole, or ranges that overlap
      crc = JoinCrc32c(crc, next.crc, next.size);
      end += next.size;
    }
    if (end != wanted) return absl::OkStatus();
  }
  if (MaskCrc32c(crc) == proto.crc32c()) return absl::OkStatus();
  return Loss(name, absl::StrFormat("its data fails its checksum (stored %08x, computed %08x)",
                                    proto.crc32c(), MaskCrc32c(crc)));
}

Status BundleReader::State::ReadPart(absl::string_view name, const Shape& full,
                                     const TensorSlice& part,
                                     const tensorflow::BundleEntryProto& proto,
                                     const TensorSlice& slice, Tensor* out) const {
  const DType dtype = out->dtype();
  MR_ASSIGN_OR_RETURN(const Shape part_shape, part.SliceShape(full));
  if (!IsMemcopyable(dtype) || full.rank() < 1 || out->num_elements() == 0) {
    MR_ASSIGN_OR_RETURN(const Tensor stored, ReadStored(name, proto));
    return CopySliceOverlap(full, part, stored, slice, out).status();
  }
  MR_RETURN_IF_ERROR(CheckData(name, proto));
  const auto begin = [](const TensorSlice& s, int d) {
    return s.length(d) == TensorSlice::kFull ? 0 : s.start(d);
  };
  const int64_t first = std::max(begin(part, 0), begin(slice, 0));
  const int64_t last =
      std::min(begin(part, 0) + part_shape.dim(0), begin(slice, 0) + out->shape().dim(0));
  const uint64_t row_bytes =
      static_cast<uint64_t>(part_shape.NumElements(1, full.rank())) * DTypeSize(dtype);
  const auto bytes_to = [&](const TensorSlice& s, int64_t row) {
    return static_cast<uint64_t>(row - begin(s, 0)) * row_bytes;
  };
  bool same_columns = true;
  for (int d = 1; d < full.rank(); ++d) {
    same_columns = same_columns && begin(part, d) == begin(slice, d) &&
                   part_shape.dim(d) == out->shape().dim(d);
  }
  const uint64_t wanted = static_cast<uint64_t>(std::max<int64_t>(last - first, 0)) * row_bytes;
  const uint64_t stored_bytes = static_cast<uint64_t>(proto.size());
  if (wanted < stored_bytes && (stored_bytes <= whole_bytes || wanted > stored_bytes / 2)) {
    MR_ASSIGN_OR_RETURN(const Tensor stored, ReadStored(name, proto));
    return CopySliceOverlap(full, part, stored, slice, out).status();
  }
  if (same_columns) {
    return ReadBytes(name, proto, bytes_to(part, first),
                     bytes_to(part, last) - bytes_to(part, first),
                     out->mutable_bytes().data() + bytes_to(slice, first));
  }
  // Whole rows, a few at a time, of which some columns are copied.
  const int64_t at_once =
      std::max<int64_t>(static_cast<int64_t>(kReadAtOnce / std::max<uint64_t>(row_bytes, 1)), 1);
  for (int64_t row = first; row < last; row += at_once) {
    const int64_t count = std::min(at_once, last - row);
    const TensorSlice rows = part.WithRows(row, count);
    MR_ASSIGN_OR_RETURN(const Shape shape, rows.SliceShape(full));
    MR_ASSIGN_OR_RETURN(Tensor stored, Tensor::Allocate(dtype, shape));
    MR_RETURN_IF_ERROR(ReadBytes(name, proto, bytes_to(part, row),
                                 static_cast<uint64_t>(count) * row_bytes,
                                 stored.mutable_bytes().data()));
    MR_RETURN_IF_ERROR(CopySliceOverlap(full, rows, stored, slice, out).status());
  }
  return absl::OkStatus();
}

void BundleReader::State::Reach(const tensorflow::BundleEntryProto& proto,
                                std::map<int, uint64_t>* ends) {
  uint64_t& end = (*ends)[proto.shard_id()];
  end = std::max(end, static_cast<uint64_t>(proto.offset() + proto.size()));
}

Status BundleReader::State::CheckEnds(const std::map<int, uint64_t>& ends) const {
  for (const auto& [shard, end] : ends) {
    const std::string path = BundleDataPath(prefix, shard, num_shards);
    const StatusOr<uint64_t> size = fs->GetFileSize(path);
    if (!size.ok()) return Prefixed(absl::StrCat("Checkpoint '", prefix, "'"), size.status());
    if (*size < end) {
      return absl::DataLossError(absl::StrCat("Checkpoint '", prefix, "': data file '", path,
                                              "' must have ", end, " bytes, got ", *size,
                                              "; it is cut off"));
    }
  }
  return absl::OkStatus();
}

Status BundleReader::CheckFiles() const {
  std::map<int, uint64_t> ends;
  for (int i = 0; i < state_->num_shards; ++i) ends[i] = 0;
  for (const auto& [key, proto] : state_->protos) {
    if (proto.slices_size() == 0) State::Reach(proto, &ends);
  }
  return state_->CheckEnds(ends);
}

Status BundleReader::CheckFilesOf(absl::Span<const Part> parts) const {
  std::map<int, uint64_t> ends;
  for (const Part& part : parts) {
    MR_ASSIGN_OR_RETURN(const Entry entry, Find(part.name));
    if (entry.slices.empty()) State::Reach(state_->protos.at(part.name), &ends);
    for (const TensorSlice& stored : entry.slices) {
      const StatusOr<int64_t> common = SliceOverlap(entry.shape, stored, part.slice);
      const auto proto = state_->protos.find(stored.BundleKey(part.name));
      // What is wrong with these the read says.
      if (common.value_or(0) > 0 && proto != state_->protos.end()) {
        State::Reach(proto->second, &ends);
      }
    }
  }
  return state_->CheckEnds(ends);
}

StatusOr<Tensor> BundleReader::Read(absl::string_view name) const {
  MR_ASSIGN_OR_RETURN(const Entry entry, Find(name));
  if (entry.slices.empty()) return state_->ReadStored(name, state_->protos.at(name));
  return ReadSlice(name, TensorSlice::Full(entry.shape.rank()));
}

namespace {

// Two of the slices that have an element in common, if there are any.
std::optional<std::pair<const TensorSlice*, const TensorSlice*>> FindOverlap(
    const Shape& full, std::vector<const TensorSlice*> slices) {
  if (slices.size() < 2) return std::nullopt;
  const auto begin = [](const TensorSlice* s, int d) {
    return s->length(d) == TensorSlice::kFull ? 0 : s->start(d);
  };
  const auto end = [&](const TensorSlice* s, int d) {
    return s->length(d) == TensorSlice::kFull ? full.dim(d) : s->start(d) + s->length(d);
  };
  // Along the dimension in which they begin at most places: each is compared with those that begin
  // before it ends, which are few in any partition.
  int along = 0;
  size_t most = 0;
  for (int d = 0; d < full.rank(); ++d) {
    std::set<int64_t> places;
    for (const TensorSlice* s : slices) places.insert(begin(s, d));
    if (places.size() > most) {
      most = places.size();
      along = d;
    }
  }
  if (full.rank() > 0) {
    std::sort(slices.begin(), slices.end(), [&](const TensorSlice* a, const TensorSlice* b) {
      return begin(a, along) < begin(b, along);
    });
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    for (size_t k = i + 1; k < slices.size(); ++k) {
      if (full.rank() > 0 && begin(slices[k], along) >= end(slices[i], along)) break;
      const StatusOr<int64_t> common = SliceOverlap(full, *slices[i], *slices[k]);
      if (!common.ok() || *common > 0) return std::make_pair(slices[i], slices[k]);
    }
  }
  return std::nullopt;
}

}  // namespace

StatusOr<Tensor> BundleReader::ReadSlice(absl::string_view name, const TensorSlice& slice) const {
  MR_ASSIGN_OR_RETURN(const Entry entry, Find(name));
  StatusOr<Shape> shape = slice.SliceShape(entry.shape);
  if (!shape.ok()) {
    return Prefixed(absl::StrCat("Checkpoint '", state_->prefix, "': tensor '", name, "'"),
                    shape.status());
  }
  if (entry.slices.empty()) {
    const auto& proto = state_->protos.at(name);
    if (*shape == entry.shape) return state_->ReadStored(name, proto);
    MR_RETURN_IF_ERROR(state_->CheckData(name, proto));
    MR_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(entry.dtype, *shape));
    MR_RETURN_IF_ERROR(state_->ReadPart(name, entry.shape, TensorSlice::Full(entry.shape.rank()),
                                        proto, slice, &out));
    MakeBools(&out);
    return out;
  }
  // What the index says is checked before anything is allocated for it.
  using Part = std::pair<const TensorSlice*, const tensorflow::BundleEntryProto*>;
  std::vector<Part> parts;  // that hold elements of `slice`; the others are not read
  std::vector<const TensorSlice*> slices;
  int64_t covered = 0;
  for (const TensorSlice& stored : entry.slices) {
    MR_ASSIGN_OR_RETURN(const int64_t common, SliceOverlap(entry.shape, stored, slice));
    if (common == 0) continue;
    const auto proto = state_->protos.find(stored.BundleKey(name));
    if (proto == state_->protos.end()) {
      return state_->Loss(name, absl::StrCat("slice '", stored.ToString(), "' has no entry"));
    }
    const StatusOr<Shape> stored_shape = stored.SliceShape(entry.shape);
    const StatusOr<Shape> entry_shape = Shape::FromProto(proto->second.shape());
    if (!stored_shape.ok() || !entry_shape.ok() || *stored_shape != *entry_shape ||
        static_cast<DType>(proto->second.dtype()) != entry.dtype) {
      return state_->Loss(name, absl::StrCat("slice '", stored.ToString(),
                                             "' does not have the dtype and shape of its tensor"));
    }
    MR_RETURN_IF_ERROR(state_->CheckData(name, proto->second));
    parts.push_back({&stored, &proto->second});
    slices.push_back(&stored);
    covered += std::min(common, std::numeric_limits<int64_t>::max() - covered);
  }
  // Overlapping slices would hide a hole in what they cover.
  if (const auto twice = FindOverlap(entry.shape, slices)) {
    return state_->Loss(name,
                        absl::StrCat("its slices must not overlap, got '", twice->first->ToString(),
                                     "' and '", twice->second->ToString(), "'"));
  }
  if (covered != shape->num_elements()) {
    return absl::DataLossError(
        absl::StrCat("Checkpoint '", state_->prefix,
                     "': Does not have sufficient slices for partitioned tensor ", name,
                     " to restore in slice: ", slice.ToString(), " (", covered, " of ",
                     shape->num_elements(), " elements)"));
  }
  MR_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(entry.dtype, *shape));
  for (const auto& [stored, proto] : parts) {
    MR_RETURN_IF_ERROR(state_->ReadPart(name, entry.shape, *stored, *proto, slice, &out));
  }
  MakeBools(&out);
  return out;
}

}  // namespace millrace
