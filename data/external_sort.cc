// SPDX-License-Identifier: Apache-2.0
#include "data/external_sort.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/byte_reader.h"
#include "core/coding.h"
#include "core/random_bits.h"

namespace millrace::data {
namespace {

// Written at a time.
constexpr size_t kWriteBytes = size_t{64} << 10;

}  // namespace

// --- Runs ----------------------------------------------------------------------------------------

// A file of records in order, each with its length in front, from front to back.
class ExternalSort::Run {
 public:
  static StatusOr<std::unique_ptr<Run>> Open(FileSystem* fs, const std::string& path) {
    MR_ASSIGN_OR_RETURN(auto bytes, ByteReader::Open(fs, path, absl::StrCat("Run '", path, "'"),
                                                     Compression::kNone, 0, kMergeBytes));
    return std::unique_ptr<Run>(new Run(path, std::move(bytes)));
  }

  // False at the end.
  StatusOr<bool> Next() {
    bytes_->Consume(consumed_);
    consumed_ = 0;
    MR_RETURN_IF_ERROR(bytes_->Fill(kMaxVarint64Bytes).status());
    absl::string_view unread = bytes_->unread();
    if (unread.empty()) return false;
    uint64_t size = 0;
    if (!GetVarint64(&unread, &size)) return Loss();
    const size_t head = bytes_->unread().size() - unread.size();
    if (size > bytes_->BytesLeft() - head) return Loss();
    MR_ASSIGN_OR_RETURN(const bool whole, bytes_->Fill(head + size));
    if (!whole) return Loss();
    record_ = bytes_->unread().substr(head, size);
    consumed_ = head + size;
    return true;
  }
  absl::string_view record() const { return record_; }

 private:
  Run(std::string path, std::unique_ptr<ByteReader> bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}
  Status Loss() const {
    return absl::DataLossError(absl::StrCat("Run '", path_, "': it must be as it was written, got ",
                                            "a wrong length at ", bytes_->offset()));
  }

  const std::string path_;
  const std::unique_ptr<ByteReader> bytes_;
  size_t consumed_ = 0;
  absl::string_view record_;
};

// Several runs as one.
class ExternalSort::Merge {
 public:
  explicit Merge(std::vector<std::unique_ptr<Run>> runs) : runs_(std::move(runs)) {}
  Status Begin() {
    for (size_t i = 0; i < runs_.size(); ++i) MR_RETURN_IF_ERROR(Advance(i));
    return absl::OkStatus();
  }
  // The record is that of a run: valid until the next call.
  StatusOr<bool> Next(absl::string_view* record) {
    if (last_ != kNone) MR_RETURN_IF_ERROR(Advance(std::exchange(last_, kNone)));
    if (heads_.empty()) return false;
    last_ = heads_.top().run;
    *record = heads_.top().record;
    heads_.pop();
    return true;
  }

 private:
  static constexpr size_t kNone = ~size_t{0};
  struct Head {
    absl::string_view record;
    size_t run;
    bool operator<(const Head& other) const {  // the least comes first
      return record != other.record ? record > other.record : run > other.run;
    }
  };
  Status Advance(size_t i) {
    MR_ASSIGN_OR_RETURN(const bool more, runs_[i]->Next());
    if (more) heads_.push({runs_[i]->record(), i});
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<Run>> runs_;
  std::priority_queue<Head> heads_;
  size_t last_ = kNone;  // whose record was given
};

namespace {

// A run that is being written.
class RunWriter {
 public:
  static StatusOr<RunWriter> Open(FileSystem* fs, const std::string& path) {
    MR_ASSIGN_OR_RETURN(auto file, fs->NewWritableFile(path));
    return RunWriter(std::move(file));
  }
  Status Write(absl::string_view record) {
    PutVarint64(&bytes_, record.size());
    bytes_.append(record.data(), record.size());
    if (bytes_.size() < kWriteBytes) return absl::OkStatus();
    MR_RETURN_IF_ERROR(file_->Append(bytes_));
    bytes_.clear();
    return absl::OkStatus();
  }
  Status Close() {
    MR_RETURN_IF_ERROR(file_->Append(bytes_));
    return file_->Close();
  }

 private:
  explicit RunWriter(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  std::unique_ptr<WritableFile> file_;
  std::string bytes_;
};

}  // namespace

// --- ExternalSort --------------------------------------------------------------------------------

ExternalSort::ExternalSort(ExternalSortOptions options)
    : options_(std::move(options)), name_(absl::StrCat("sort-", RandomHexName(), "-")) {}

ExternalSort::~ExternalSort() {
  merge_ = nullptr;
  for (const std::string& path : paths_) options_.file_system->DeleteFile(path).IgnoreError();
}

size_t ExternalSort::BlockBytes() const {
  return std::clamp(options_.max_bytes / 16, size_t{1} << 10, size_t{1} << 20);
}

size_t ExternalSort::BytesWith(size_t size) const {
  size_t places = records_.capacity();
  if (records_.size() == places) places = places == 0 ? 1 : 3 * places;  // old and new ones
  size_t blocks = block_bytes_;
  if (size > free_bytes_) blocks += std::max(size, BlockBytes());
  return blocks + places * sizeof(absl::string_view);
}

Status ExternalSort::Add(absl::string_view record) {
  if (!records_.empty() && BytesWith(record.size()) > options_.max_bytes) {
    MR_RETURN_IF_ERROR(Spill());
  }
  if (record.size() > free_bytes_) {
    const size_t bytes = std::max(record.size(), BlockBytes());
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(bytes));
    free_ = blocks_.back().get();
    free_bytes_ = bytes;
    block_bytes_ += bytes;
  }
  std::copy(record.begin(), record.end(), free_);
  records_.emplace_back(free_, record.size());
  free_ += record.size();
  free_bytes_ -= record.size();
  ++num_records_;
  return absl::OkStatus();
}

StatusOr<std::string> ExternalSort::NewRun() {
  if (num_runs_ == 0) {
    MR_RETURN_IF_ERROR(options_.file_system->RecursivelyCreateDirectory(options_.directory));
  }
  return JoinPath(options_.directory, absl::StrCat(name_, num_runs_++));
}

Status ExternalSort::Spill() {
  std::sort(records_.begin(), records_.end());
  MR_ASSIGN_OR_RETURN(const std::string path, NewRun());
  paths_.push_back(path);
  MR_ASSIGN_OR_RETURN(RunWriter writer, RunWriter::Open(options_.file_system, path));
  for (const absl::string_view record : records_) MR_RETURN_IF_ERROR(writer.Write(record));
  records_.clear();
  blocks_.clear();
  free_bytes_ = block_bytes_ = 0;
  return writer.Close();
}

StatusOr<std::unique_ptr<ExternalSort::Merge>> ExternalSort::OpenMerge(size_t count) {
  std::vector<std::unique_ptr<Run>> runs;
  for (size_t i = 0; i < count; ++i) {
    MR_ASSIGN_OR_RETURN(auto run, Run::Open(options_.file_system, paths_[i]));
    runs.push_back(std::move(run));
  }
  auto merge = std::make_unique<Merge>(std::move(runs));
  MR_RETURN_IF_ERROR(merge->Begin());
  return merge;
}

Status ExternalSort::MergeRuns(size_t count) {
  MR_ASSIGN_OR_RETURN(auto merge, OpenMerge(count));
  MR_ASSIGN_OR_RETURN(const std::string path, NewRun());
  paths_.push_back(path);
  MR_ASSIGN_OR_RETURN(RunWriter writer, RunWriter::Open(options_.file_system, path));
  while (true) {
    absl::string_view record;
    MR_ASSIGN_OR_RETURN(const bool more, merge->Next(&record));
    if (!more) break;
    MR_RETURN_IF_ERROR(writer.Write(record));
  }
  MR_RETURN_IF_ERROR(writer.Close());
  merge = nullptr;
  for (size_t i = 0; i < count; ++i) {
    MR_RETURN_IF_ERROR(options_.file_system->DeleteFile(paths_[i]));
  }
  paths_.erase(paths_.begin(), paths_.begin() + static_cast<std::ptrdiff_t>(count));
  return absl::OkStatus();
}

Status ExternalSort::Finish() {
  if (paths_.empty()) {
    std::sort(records_.begin(), records_.end());
    return absl::OkStatus();
  }
  if (!records_.empty()) MR_RETURN_IF_ERROR(Spill());
  std::vector<absl::string_view>().swap(records_);
  // First as few as leaves whole merges, so that no run is copied more often than it must.
  while (paths_.size() > kFanIn) {
    const size_t over = paths_.size() - kFanIn + 1;
    MR_RETURN_IF_ERROR(MergeRuns(std::min(over, kFanIn)));
  }
  MR_ASSIGN_OR_RETURN(merge_, OpenMerge(paths_.size()));
  return absl::OkStatus();
}

StatusOr<bool> ExternalSort::Next() {
  if (merge_ != nullptr) return merge_->Next(&record_);
  if (next_ == records_.size()) return false;
  record_ = records_[next_++];
  return true;
}

}  // namespace millrace::data
