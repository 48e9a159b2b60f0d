// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/cancellation.h"
#include "core/coding.h"
#include "core/crc32c.h"
#include "core/dtype.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/paced_thread.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/table_reader.h"
#include "core/tensor.h"
#include "saver/block_checksums.h"
#include "saver/bundle_format.h"
#include "saver/file_parts.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"

namespace millrace {
namespace {

// What a thread takes at a time, and how many threads read the tensors of one call.
constexpr uint64_t kReadAtOnce = uint64_t{4} << 20;
constexpr int kReadThreads = 4;
// Entries of the index between two pace points: some 100 us.
constexpr size_t kEntriesAtOnce = 100;
// What one system call reads: it is still in the core's own cache when its checksum is computed,
// which costs a third of reading it from memory once more. A block with a checksum of its own is as
// large, and none reaches over what a thread takes.
constexpr uint64_t kBlockBytes = kChecksumBlockBytes;
static_assert(kReadAtOnce % kBlockBytes == 0);
// Runs of wanted bytes that are shorter are copied out of a block that has other bytes, too.
constexpr uint64_t kMinDirectBytes = uint64_t{64} << 10;

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

  struct Reading;

  Status Loss(absl::string_view name, absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("Checkpoint '", prefix, "': tensor '", name, "': ", what));
  }
  StatusOr<const Entry*> FindEntry(absl::string_view name) const;
  Status CheckEntry(absl::string_view name, const tensorflow::BundleEntryProto& proto) const;
  StatusOr<std::shared_ptr<RandomAccessFile>> DataFile(int shard) const;
  // Makes `ends`, of the data in each file, reach over an entry; and are the files that long?
  static void Reach(const tensorflow::BundleEntryProto& proto, std::map<int, uint64_t>* ends);
  Status CheckEnds(const std::map<int, uint64_t>& ends) const;
  // Are the bytes of an entry in its data file, and enough of them?
  Status CheckData(absl::string_view name, const tensorflow::BundleEntryProto& proto) const;
  // Checks what the index says about a part, allocates its tensor and adds what must be read.
  StatusOr<Tensor> Prepare(const Part& part, std::vector<std::unique_ptr<Reading>>* readings) const;
  // Of a stored tensor (or slice): what it and `slice` have in common goes to `out`.
  Status Add(absl::string_view name, const Shape& full, const TensorSlice& stored,
             const tensorflow::BundleEntryProto& proto, const TensorSlice& slice, Tensor* out,
             std::vector<std::unique_ptr<Reading>>* readings) const;
  Status ReadChunk(Reading* reading, int64_t chunk) const;
  Status ReadStringsOf(const Reading& reading) const;
  // Compares the checksum once all of the entry's data was read.
  Status CheckRange(absl::string_view name, const tensorflow::BundleEntryProto& proto,
                    Range range) const;
  Status ReadStrings(absl::string_view name, const tensorflow::BundleEntryProto& proto,
                     const std::string& bytes, Tensor* out) const;
};

// A stored tensor, or stored slice, of which a part is read, by several threads.
struct BundleReader::State::Reading {
  std::string name;
  const tensorflow::BundleEntryProto* proto;
  uint64_t begin, size;  // of its data: what is read
  // Of the blocks of its data, when a part is read: whole blocks then. Empty: it has none.
  std::vector<uint32_t> block_checksums;
  // Where what is wanted goes. Of numbers: by bytes; strings are put together first.
  Shape full;
  TensorSlice stored, slice;
  SliceRuns runs;
  uint64_t width = 0;
  Tensor* out;

  bool is_strings() const { return width == 0; }
  // Of kReadAtOnce bytes, the last one less; one at least, which has the checksum of no bytes.
  int64_t num_chunks() const {
    return is_strings()
               ? 1
               : std::max<int64_t>(static_cast<int64_t>((size + kReadAtOnce - 1) / kReadAtOnce), 1);
  }
  uint64_t chunk_size(int64_t i) const {
    return std::min(kReadAtOnce, size - static_cast<uint64_t>(i) * kReadAtOnce);
  }

  std::vector<uint32_t> crcs;     // of the chunks
  std::atomic<int64_t> num_left;  // chunks; acq_rel: the reader of the last one sees all of crcs
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
    // It would be taken for one without a place in a file, and that place not be checked.
    if (IsSliceKey(key) && proto.slices_size() > 0) {
      return state->Loss(
          name, absl::StrCat("it must have no slices of its own, got ", proto.slices_size()));
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
    if (state->protos.size() % kEntriesAtOnce == 0) PacePoint();
  }
  MR_RETURN_IF_ERROR(it->status());
  return std::unique_ptr<BundleReader>(new BundleReader(std::move(state)));
}

int BundleReader::num_shards() const { return state_->num_shards; }
const std::vector<BundleReader::Entry>& BundleReader::entries() const { return state_->entries; }
bool BundleReader::Contains(absl::string_view name) const { return state_->by_name.contains(name); }

StatusOr<const BundleReader::Entry*> BundleReader::State::FindEntry(absl::string_view name) const {
  const auto found = by_name.find(name);
  if (found == by_name.end()) {
    return absl::NotFoundError(
        absl::StrCat("Key ", name, " not found in checkpoint '", prefix, "'"));
  }
  return &entries[found->second];
}

StatusOr<BundleReader::Entry> BundleReader::Find(absl::string_view name) const {
  MR_ASSIGN_OR_RETURN(const Entry* const entry, state_->FindEntry(name));
  return *entry;
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
  uint64_t since_pause = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > rest.size()) {
      return Loss(name, absl::StrCat("string ", i, " must be within its data, got length ",
                                     lengths[i], " of ", rest.size(), " bytes left"));
    }
    strings[i] = std::string(rest.substr(0, lengths[i]));
    rest.remove_prefix(lengths[i]);
    crc = ExtendCrc32c(crc, strings[i]);
    if ((since_pause += lengths[i] + sizeof(std::string)) >= kBlockBytes) {
      since_pause = 0;
      PacePoint();
    }
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

Status BundleReader::State::Add(absl::string_view name, const Shape& full,
                                const TensorSlice& stored,
                                const tensorflow::BundleEntryProto& proto, const TensorSlice& slice,
                                Tensor* out,
                                std::vector<std::unique_ptr<Reading>>* readings) const {
  const DType dtype = out->dtype();
  MR_ASSIGN_OR_RETURN(const Shape stored_shape, stored.SliceShape(full));
  auto reading = std::make_unique<Reading>();
  reading->name = std::string(name);
  reading->proto = &proto;
  reading->begin = 0;
  reading->size = static_cast<uint64_t>(proto.size());
  reading->full = full;
  reading->stored = stored;
  reading->slice = slice;
  reading->out = out;
  if (dtype != DT_STRING) {
    reading->width = DTypeSize(dtype);
    MR_ASSIGN_OR_RETURN(reading->runs, SliceRuns::Make(full, stored, slice));
  }
  // Of what is large, and of which no more than half is wanted, only the rows in it.
  if (dtype != DT_STRING && full.rank() >= 1 && reading->size > whole_bytes) {
    const auto begin = [](const TensorSlice& s) {
      return s.length(0) == TensorSlice::kFull ? 0 : s.start(0);
    };
    const int64_t first = std::max(begin(stored), begin(slice));
    const int64_t last =
        std::min(begin(stored) + stored_shape.dim(0), begin(slice) + out->shape().dim(0));
    const uint64_t row_bytes =
        static_cast<uint64_t>(stored_shape.NumElements(1, full.rank())) * reading->width;
    const uint64_t wanted =
        reading->runs.count() == 0 ? 0 : static_cast<uint64_t>(last - first) * row_bytes;
    if (wanted == 0) return absl::OkStatus();
    if (wanted <= reading->size / 2) {
      reading->begin = static_cast<uint64_t>(first - begin(stored)) * row_bytes;
      reading->size = wanted;
      reading->block_checksums = BlockChecksumsOf(proto);
      if (!reading->block_checksums.empty()) {
        uint64_t end = reading->begin + wanted;
        reading->begin -= reading->begin % kBlockBytes;
        end += (kBlockBytes - end % kBlockBytes) % kBlockBytes;
        reading->size = std::min(end, static_cast<uint64_t>(proto.size())) - reading->begin;
      }
    }
  }
  reading->crcs.resize(static_cast<size_t>(reading->num_chunks()));
  reading->num_left.store(reading->num_chunks(), std::memory_order_relaxed);
  readings->push_back(std::move(reading));
  return absl::OkStatus();
}

Status BundleReader::State::ReadStringsOf(const Reading& r) const {
  MR_ASSIGN_OR_RETURN(const auto file, DataFile(r.proto->shard_id()));
  std::string bytes(static_cast<size_t>(r.size), '\0');
  for (uint64_t at = 0; at < r.size; at += kBlockBytes) {
    MR_RETURN_IF_ERROR(file->Read(static_cast<uint64_t>(r.proto->offset()) + at,
                                  std::min(kBlockBytes, r.size - at), bytes.data() + at));
    PacePoint();
  }
  MR_ASSIGN_OR_RETURN(const Shape shape, r.stored.SliceShape(r.full));
  MR_ASSIGN_OR_RETURN(Tensor strings, Tensor::Allocate(DT_STRING, shape));
  MR_RETURN_IF_ERROR(ReadStrings(r.name, *r.proto, bytes, &strings));
  return CopySliceOverlap(r.full, r.stored, strings, r.slice, r.out).status();
}

// Block by block: those of wanted bytes alone go to where they belong, the others pass through
// memory of this thread. Every byte is read once, and its checksum computed from the block that has
// just been read.
Status BundleReader::State::ReadChunk(Reading* reading, int64_t chunk) const {
  const Reading& r = *reading;
  if (r.is_strings()) return ReadStringsOf(r);
  MR_ASSIGN_OR_RETURN(const auto file, DataFile(r.proto->shard_id()));
  const uint64_t offset = static_cast<uint64_t>(r.proto->offset());
  uint64_t at = r.begin + static_cast<uint64_t>(chunk) * kReadAtOnce;
  const uint64_t end = at + r.chunk_size(chunk);
  if (end - at > kBlockBytes) file->WillRead(offset + at, end - at);
  const uint64_t run_bytes = static_cast<uint64_t>(r.runs.length()) * r.width;
  const auto run_begin = [&](int64_t i) { return static_cast<uint64_t>(r.runs.from(i)) * r.width; };
  char* const out = r.runs.count() == 0 ? nullptr : r.out->mutable_bytes().data();
  const auto place = [&](int64_t i) { return out + static_cast<uint64_t>(r.runs.to(i)) * r.width; };
  // The first run that ends behind `at`.
  int64_t run = 0;
  for (int64_t behind = r.runs.count(); run < behind;) {
    const int64_t middle = run + (behind - run) / 2;
    run_begin(middle) + run_bytes > at ? behind = middle : run = middle + 1;
  }
  uint32_t crc = 0;
  BufferRef aside;
  while (at < end) {
    uint64_t n = std::min(kBlockBytes, end - at);
    if (!r.block_checksums.empty()) n = std::min(n, kBlockBytes - at % kBlockBytes);
    const uint64_t next = run < r.runs.count() ? run_begin(run) : end;
    const char* block;
    if (next <= at && next + run_bytes - at >= std::min(n, kMinDirectBytes)) {
      n = std::min(n, next + run_bytes - at);
      char* const to = place(run) + (at - next);
      MR_RETURN_IF_ERROR(file->Read(offset + at, n, to));
      block = to;
    } else {
      if (next > at && run_bytes >= kMinDirectBytes) n = std::min(n, next - at);
      if (!aside) aside = Buffer::Allocate(DefaultAllocator(), kBlockBytes);
      if (!aside) return absl::ResourceExhaustedError("out of memory");
      char* const to = static_cast<char*>(aside->data());
      MR_RETURN_IF_ERROR(file->Read(offset + at, n, to));
      block = to;
      for (int64_t i = run; i < r.runs.count() && run_begin(i) < at + n; ++i) {
        const uint64_t from = std::max(run_begin(i), at);
        const uint64_t until = std::min(run_begin(i) + run_bytes, at + n);
        std::memcpy(place(i) + (from - run_begin(i)), to + (from - at), until - from);
      }
    }
    crc = ExtendCrc32c(crc, absl::string_view(block, n));
    at += n;
    PacePoint();
    if (!r.block_checksums.empty() && (at % kBlockBytes == 0 || at == end)) {
      const uint64_t number = (at - 1) / kBlockBytes;
      const uint32_t stored = r.block_checksums[number];
      if (MaskCrc32c(crc) != stored) {
        return Loss(r.name,
                    absl::StrFormat("bytes [%d, %d) of its data fail their checksum (stored "
                                    "%08x, computed %08x)",
                                    number * kBlockBytes, at, stored, MaskCrc32c(crc)));
      }
      crc = 0;
    }
    while (run < r.runs.count() && run_begin(run) + run_bytes <= at) ++run;
  }
  if (!r.block_checksums.empty()) return absl::OkStatus();
  reading->crcs[static_cast<size_t>(chunk)] = crc;
  if (reading->num_left.fetch_sub(1, std::memory_order_acq_rel) > 1) return absl::OkStatus();
  crc = r.crcs[0];
  for (int64_t i = 1; i < r.num_chunks(); ++i) {
    crc = JoinCrc32c(crc, r.crcs[static_cast<size_t>(i)], r.chunk_size(i));
  }
  return CheckRange(r.name, *r.proto, {r.begin, r.size, crc});
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

StatusOr<Tensor> BundleReader::State::Prepare(
    const Part& part, std::vector<std::unique_ptr<Reading>>* readings) const {
  const std::string& name = part.name;
  const TensorSlice& slice = part.slice;
  MR_ASSIGN_OR_RETURN(const Entry* const entry, FindEntry(name));
  const Shape& full = entry->shape;
  StatusOr<Shape> shape = slice.SliceShape(full);
  if (!shape.ok()) {
    return Prefixed(absl::StrCat("Checkpoint '", prefix, "': tensor '", name, "'"), shape.status());
  }
  // What the index says is checked before anything is allocated for it.
  using Stored = std::pair<TensorSlice, const tensorflow::BundleEntryProto*>;
  std::vector<Stored> stored;  // that hold elements of `slice`; the others are not read
  if (entry->slices.empty()) {
    const auto& proto = protos.at(name);
    MR_RETURN_IF_ERROR(CheckData(name, proto));
    stored.push_back({TensorSlice::Full(full.rank()), &proto});
  }
  std::vector<const TensorSlice*> slices;
  int64_t covered = 0;
  for (const TensorSlice& one : entry->slices) {
    MR_ASSIGN_OR_RETURN(const int64_t common, SliceOverlap(full, one, slice));
    if (common == 0) continue;
    const auto proto = protos.find(one.BundleKey(name));
    if (proto == protos.end()) {
      return Loss(name, absl::StrCat("slice '", one.ToString(), "' has no entry"));
    }
    const StatusOr<Shape> stored_shape = one.SliceShape(full);
    const StatusOr<Shape> entry_shape = Shape::FromProto(proto->second.shape());
    if (!stored_shape.ok() || !entry_shape.ok() || *stored_shape != *entry_shape ||
        static_cast<DType>(proto->second.dtype()) != entry->dtype) {
      return Loss(name, absl::StrCat("slice '", one.ToString(),
                                     "' does not have the dtype and shape of its tensor"));
    }
    MR_RETURN_IF_ERROR(CheckData(name, proto->second));
    stored.push_back({one, &proto->second});
    slices.push_back(&one);
    covered += std::min(common, std::numeric_limits<int64_t>::max() - covered);
  }
  // Overlapping slices would hide a hole in what they cover.
  if (const auto twice = FindOverlap(full, slices)) {
    return Loss(name, absl::StrCat("its slices must not overlap, got '", twice->first->ToString(),
                                   "' and '", twice->second->ToString(), "'"));
  }
  if (!entry->slices.empty() && covered != shape->num_elements()) {
    return absl::DataLossError(absl::StrCat(
        "Checkpoint '", prefix, "': Does not have sufficient slices for partitioned tensor ", name,
        " to restore in slice: ", slice.ToString(), " (", covered, " of ", shape->num_elements(),
        " elements)"));
  }
  if (!IsMemcopyable(entry->dtype) && entry->dtype != DT_STRING) {
    return Unimplemented("Checkpoint '", prefix, "': tensor '", name,
                         "' must hold numbers or strings, got dtype ", DTypeName(entry->dtype));
  }
  MR_ASSIGN_OR_RETURN(auto out, Tensor::Allocate(entry->dtype, *shape));
  for (const auto& [one, proto] : stored) {
    MR_RETURN_IF_ERROR(Add(name, full, one, *proto, slice, &out, readings));
  }
  return out;
}

StatusOr<std::vector<Tensor>> BundleReader::ReadParts(absl::Span<const Part> parts,
                                                      const std::function<Status()>& stop) const {
  std::vector<Tensor> tensors(parts.size());
  std::vector<std::unique_ptr<State::Reading>> readings;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t first = readings.size();
    MR_ASSIGN_OR_RETURN(tensors[i], state_->Prepare(parts[i], &readings));
    for (size_t k = first; k < readings.size(); ++k) readings[k]->out = &tensors[i];
  }
  // The chunks of all of them, in the order of the parts: small tensors are read side by side, too.
  std::vector<int64_t> ends;  // of each reading's chunks
  int64_t num_chunks = 0;
  for (const auto& reading : readings) ends.push_back(num_chunks += reading->num_chunks());
  const CancellationManager* const cancellation = CancellationOfPace();
  const auto read = [&](int64_t i) -> Status {
    if (stop) MR_RETURN_IF_ERROR(stop());
    // On another thread; the caller waits for all of them.
    const PaceUntilCancelled pace(cancellation);
    const size_t at =
        static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), i) - ends.begin());
    return state_->ReadChunk(readings[at].get(), i - (at == 0 ? 0 : ends[at - 1]));
  };
  MR_RETURN_IF_ERROR(RunParts(state_->pool, kReadThreads, num_chunks, read));
  for (Tensor& tensor : tensors) MakeBools(&tensor);
  return tensors;
}

StatusOr<Tensor> BundleReader::Read(absl::string_view name) const {
  MR_ASSIGN_OR_RETURN(const Entry* const entry, state_->FindEntry(name));
  return ReadSlice(name, TensorSlice::Full(entry->shape.rank()));
}

StatusOr<Tensor> BundleReader::ReadSlice(absl::string_view name, const TensorSlice& slice) const {
  const Part part = {std::string(name), slice};
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, ReadParts(absl::MakeConstSpan(&part, 1)));
  return std::move(tensors[0]);
}

}  // namespace millrace
