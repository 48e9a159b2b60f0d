// SPDX-License-Identifier: Apache-2.0
#include "stores/s3_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/clock.h"

namespace millrace {
namespace {

// S3 takes 10,000 parts and 5 TB. Parts double every so many numbers, so that 8 MB at first reach.
constexpr int kPartsOfOneSize = 1500;
constexpr int kMostParts = 10000;

constexpr uint64_t kLeastAhead = 64 << 10;
constexpr uint64_t kMostAhead = 8 << 20;
constexpr size_t kMaxBlocks = 4;
// One GET: above it an answer in memory costs more than another request.
constexpr uint64_t kMostAtOnce = 32 << 20;

uint64_t PartBytes(uint64_t first, int number) { return first << ((number - 1) / kPartsOfOneSize); }

// The part that has the byte at `offset`, and where that part begins.
std::pair<int, uint64_t> PartOf(uint64_t first, uint64_t offset) {
  uint64_t begin = 0;
  for (int number = 1; number <= kMostParts; number += kPartsOfOneSize) {
    const uint64_t size = PartBytes(first, number);
    if (offset - begin < size * kPartsOfOneSize) {
      const uint64_t index = (offset - begin) / size;
      return {number + static_cast<int>(index), begin + index * size};
    }
    begin += size * kPartsOfOneSize;
  }
  return {kMostParts + 1, begin};
}

}  // namespace

S3WritableFile::S3WritableFile(S3Service* service, S3Path path, bool exclusive)
    : service_(service), path_(std::move(path)), exclusive_(exclusive) {}

S3WritableFile::~S3WritableFile() {
  if (!closed_ && upload_.has_value()) service_->AbortUpload(path_, *upload_).IgnoreError();
}

Status S3WritableFile::Failed(Status status) {
  if (error_.ok()) error_ = std::move(status);
  return error_;
}

Status S3WritableFile::Append(absl::string_view data) { return WriteAt(end_, data); }

Status S3WritableFile::WriteAt(uint64_t offset, absl::string_view data) {
  MR_RETURN_IF_ERROR(error_);
  if (closed_) {
    return FailedPrecondition("File '", path_.ToString(),
                              "': a write must come before Close, got one after it");
  }
  Status status = Write(offset, data);
  return status.ok() ? status : Failed(std::move(status));
}

Status S3WritableFile::Write(uint64_t offset, absl::string_view data) {
  while (!data.empty()) {
    const auto [number, begin] = PartOf(service_->options().part_bytes, offset);
    if (number > kMostParts) {
      return absl::ResourceExhaustedError(
          absl::StrCat("File '", path_.ToString(), "': an object must have at most ", kMostParts,
                       " parts, got a write at offset ", offset));
    }
    const uint64_t size = PartBytes(service_->options().part_bytes, number);
    const uint64_t n = std::min<uint64_t>(data.size(), begin + size - offset);
    MR_RETURN_IF_ERROR(WriteInto(number, offset - begin, data.substr(0, n)));
    offset += n;
    end_ = std::max(end_, offset);
    data.remove_prefix(n);
  }
  return absl::OkStatus();
}

Status S3WritableFile::WriteInto(int number, uint64_t at, absl::string_view data) {
  const uint64_t size = PartBytes(service_->options().part_bytes, number);
  if (upload_.has_value() && upload_->etags.count(number) > 0) {
    return Unimplemented("File '", path_.ToString(),
                         "': a write must be into bytes that were not "
                         "sent, got one into part ",
                         number, ", which was");
  }
  // From where it is: no copy of what is a whole part.
  if (at == 0 && data.size() == size && parts_.count(number) == 0) return Send(number, data);

  Part& part = parts_[number];
  if (part.bytes.size() < at + data.size()) {
    const uint64_t more = at + data.size() - part.bytes.size();
    if (held_ + more > service_->options().max_held_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "File '", path_.ToString(), "': bytes in parts that are not whole must be at most ",
          service_->options().max_held_bytes, ", got ", held_ + more, "; write in order"));
    }
    held_ += more;
    part.bytes.resize(at + data.size());
  }
  std::memcpy(part.bytes.data() + at, data.data(), data.size());

  uint64_t begin = at;
  uint64_t end = at + data.size();
  auto next = part.written.upper_bound(begin);
  if (next != part.written.begin() && std::prev(next)->second >= begin) --next;
  while (next != part.written.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = part.written.erase(next);
  }
  part.written[begin] = end;
  if (begin != 0 || end != size) return absl::OkStatus();
  const std::string bytes = std::move(part.bytes);
  parts_.erase(number);
  held_ -= size;
  return Send(number, bytes);
}

Status S3WritableFile::Send(int number, absl::string_view bytes) {
  if (!upload_.has_value()) {
    MR_ASSIGN_OR_RETURN(upload_, service_->StartUpload(path_));
  }
  MR_ASSIGN_OR_RETURN(upload_->etags[number], service_->PutPart(path_, *upload_, number, bytes));
  return absl::OkStatus();
}

Status S3WritableFile::Finish() {
  const uint64_t first = service_->options().part_bytes;
  if (!upload_.has_value() && end_ <= first) {
    std::string& bytes = parts_[1].bytes;
    bytes.resize(end_);
    return service_->Put(path_, bytes, exclusive_);
  }
  const auto [last, last_begin] = PartOf(first, end_ - 1);
  for (int number = 1; number <= last; ++number) {
    if (upload_.has_value() && upload_->etags.count(number) > 0) continue;
    std::string bytes = std::move(parts_[number].bytes);
    parts_.erase(number);
    bytes.resize(number == last ? end_ - last_begin : PartBytes(first, number));
    MR_RETURN_IF_ERROR(Send(number, bytes));
  }
  return service_->FinishUpload(path_, *upload_, exclusive_);
}

Status S3WritableFile::Close() {
  if (closed_) return error_;
  if (error_.ok()) error_ = Finish();
  closed_ = true;
  if (!error_.ok() && upload_.has_value()) service_->AbortUpload(path_, *upload_).IgnoreError();
  parts_.clear();
  return error_;
}

S3AppendableFile::S3AppendableFile(S3Service* service, S3Path path, std::string bytes)
    : service_(service), path_(std::move(path)), bytes_(std::move(bytes)) {
  if (!bytes_.empty()) put_bytes_ = bytes_.size();
}

S3AppendableFile::~S3AppendableFile() { Close().IgnoreError(); }

Status S3AppendableFile::Append(absl::string_view data) {
  MR_RETURN_IF_ERROR(error_);
  if (closed_) {
    return FailedPrecondition("File '", path_.ToString(),
                              "': a write must come before Close, got one after it");
  }
  if (bytes_.size() + data.size() > service_->options().max_held_bytes) {
    error_ = absl::ResourceExhaustedError(
        absl::StrCat("File '", path_.ToString(), "': a file that is appended must have at most ",
                     service_->options().max_held_bytes, " bytes in a store, got ",
                     bytes_.size() + data.size(), "; begin another file"));
    return error_;
  }
  bytes_.append(data.data(), data.size());
  return absl::OkStatus();
}

Status S3AppendableFile::Put() {
  MR_RETURN_IF_ERROR(error_);
  if (closed_ || put_bytes_ == bytes_.size()) return absl::OkStatus();
  const absl::Time begin = service_->clock()->Now();
  error_ = service_->Put(path_, bytes_, /*exclusive=*/false);
  MR_RETURN_IF_ERROR(error_);
  put_bytes_ = bytes_.size();
  const absl::Time end = service_->clock()->Now();
  // At most a tenth of the time, however long the file grows.
  next_put_ = end + std::max(service_->options().append_period, 10 * (end - begin));
  return absl::OkStatus();
}

Status S3AppendableFile::Flush() {
  if (service_->clock()->Now() < next_put_) return error_;
  return Put();
}

Status S3AppendableFile::Close() {
  const Status status = Put();
  closed_ = true;
  return status;
}

S3RandomAccessFile::S3RandomAccessFile(S3Service* service, S3Path path, S3Object object)
    : service_(service), path_(std::move(path)), object_(std::move(object)) {}

std::shared_ptr<const std::string> S3RandomAccessFile::Cached(uint64_t offset,
                                                              uint64_t* begin) const {
  const MutexLock lock(&mu_);
  for (const Block& block : blocks_) {
    if (offset >= block.begin && offset - block.begin < block.bytes->size()) {
      *begin = block.begin;
      return block.bytes;
    }
  }
  return nullptr;
}

Status S3RandomAccessFile::Read(uint64_t offset, size_t n, char* out) const {
  if (offset > object_.size || n > object_.size - offset) {
    return OutOfRange("File '", path_.ToString(), "': read of ", n, " bytes at offset ", offset,
                      " must be within the file, got a file of ", object_.size);
  }
  while (n > 0) {
    uint64_t begin = 0;
    std::shared_ptr<const std::string> bytes = Cached(offset, &begin);
    if (bytes == nullptr) {
      uint64_t fetch = 0;
      {
        const MutexLock lock(&mu_);
        // Not in order: what is asked for, and a little for what is next to it.
        if (offset != next_offset_) ahead_bytes_ = 0;
        ahead_bytes_ = std::clamp(ahead_bytes_ * 2, kLeastAhead, kMostAhead);
        fetch = std::min({std::max<uint64_t>(n, ahead_bytes_), kMostAtOnce, object_.size - offset});
        next_offset_ = offset + fetch;
      }
      MR_ASSIGN_OR_RETURN(std::string fetched, service_->Get(path_, offset, fetch, object_.etag));
      begin = offset;
      if (fetch <= n) {  // nothing is left of it for the next read
        std::memcpy(out, fetched.data(), fetch);
        offset += fetch;
        out += fetch;
        n -= fetch;
        continue;
      }
      bytes = std::make_shared<const std::string>(std::move(fetched));
      const MutexLock lock(&mu_);
      blocks_.push_back({begin, bytes});
      if (blocks_.size() > kMaxBlocks) blocks_.pop_front();
    }
    const size_t part = std::min<size_t>(n, bytes->size() - (offset - begin));
    std::memcpy(out, bytes->data() + (offset - begin), part);
    offset += part;
    out += part;
    n -= part;
  }
  return absl::OkStatus();
}

}  // namespace millrace
