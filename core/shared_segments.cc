// SPDX-License-Identifier: Apache-2.0
#include "core/shared_segments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/shared_pool.h"

namespace millrace {
namespace {

// Younger than some headers.
constexpr int kSealFutureWrite = 0x0010;  // F_SEAL_FUTURE_WRITE, Linux 5.1
constexpr int kPopulateRead = 22;         // MADV_POPULATE_READ, Linux 5.14
// TMPFS_MAGIC. Memory files of huge pages are another system's, and may have no page to give.
constexpr long kTmpfs = 0x01021994;

Status SystemRefuses(const char* call) {
  return absl::UnavailableError(absl::StrCat("Shared segment: the system must let it be read, got ",
                                             std::generic_category().message(errno), " of ", call));
}

Status CheckFile(int fd, int64_t bytes) {
  // First: another file is not asked anything else, as its system may never answer.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  const Status other = InvalidArgument("Shared segment: it must be a memory file, got another one");
  if (seals < 0) return other;
  struct stat file = {};
  struct statfs system = {};
  if (::fstat(fd, &file) != 0) return SystemRefuses("fstat");
  if (::fstatfs(fd, &system) != 0) return SystemRefuses("fstatfs");
  if (!S_ISREG(file.st_mode) || static_cast<long>(system.f_type) != kTmpfs) return other;
  if (file.st_size != bytes) {
    return InvalidArgument("Shared segment: it must have the ", bytes,
                           " bytes that were said, got ", file.st_size);
  }
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if ((seals & kSeals) != kSeals || (seals & (kSealFutureWrite | F_SEAL_WRITE)) == 0) {
    return InvalidArgument("Shared segment: it must be sealed against another size and other ",
                           "writers, got seals ", seals);
  }
  return absl::OkStatus();
}

}  // namespace

// To be read.
class SharedSegments::Mapping {
 public:
  static StatusOr<std::shared_ptr<const Mapping>> Make(int fd, int64_t bytes) {
    auto mapping = std::make_shared<Mapping>();
    // Not MAP_POPULATE: of a segment of 64 MiB it would ask for all 16,384 pages, also those that
    // the owner has never written. The system would zero them here, in the thread that reads the
    // link, and count them as this process's. Take asks for what a block needs, once.
    void* const data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return SystemRefuses("mmap");
    mapping->data_ = static_cast<const char*>(data);
    mapping->bytes_ = static_cast<size_t>(bytes);
    return mapping;
  }
  Mapping() = default;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // An error instead of a signal later when the owner has not given a page its memory. Also cheaper
  // than a fault for each.
  Status Ask(uint64_t from, uint64_t to) const {
    static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    from -= from % page;
    if (::madvise(const_cast<char*>(data_) + from, static_cast<size_t>(to - from), kPopulateRead) ==
            0 ||
        !SharedPool::MeansNoMemory(errno)) {
      return absl::OkStatus();
    }
    return SystemRefuses("MADV_POPULATE_READ");
  }

 private:
  const char* data_ = nullptr;
  size_t bytes_ = 0;
};

std::shared_ptr<SharedSegments> SharedSegments::Make(int64_t max_bytes) {
  return std::shared_ptr<SharedSegments>(new SharedSegments(max_bytes));
}

SharedSegments::~SharedSegments() = default;

Status SharedSegments::Add(uint64_t segment, int64_t bytes, OwnedFd fd) {
  {
    MutexLock lock(&mu_);
    if (segment <= last_segment_) {
      return InvalidArgument("Shared segment: its number must be above ", last_segment_, ", got ",
                             segment);
    }
    if (segments_.size() >= SharedPool::kMaxSegments) {
      return InvalidArgument("Shared segment: there must be at most ", SharedPool::kMaxSegments,
                             ", got one more");
    }
    if (bytes <= 0 || bytes > max_bytes_ - segment_bytes_) {
      return InvalidArgument("Shared segment: all must have at most ", max_bytes_, " bytes, got ",
                             bytes, " next to ", segment_bytes_);
    }
  }
  MR_RETURN_IF_ERROR(CheckFile(fd.get(), bytes));
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> mapping, Mapping::Make(fd.get(), bytes));
  MutexLock lock(&mu_);
  segments_[segment].mapping = std::move(mapping);
  last_segment_ = segment;
  segment_bytes_ += bytes;
  return absl::OkStatus();
}

Status SharedSegments::Remove(uint64_t segment) {
  std::shared_ptr<const Mapping> gone;  // unmapped without the lock
  MutexLock lock(&mu_);
  const auto found = segments_.find(segment);
  if (found == segments_.end()) {
    return InvalidArgument("Shared segment: one that goes must be there, got number ", segment);
  }
  if (!found->second.blocks.empty()) {
    return InvalidArgument("Shared segment: one that goes must have no block in use, got ",
                           found->second.blocks.size(), " in number ", segment);
  }
  gone = std::move(found->second.mapping);
  segments_.erase(found);
  segment_bytes_ -= static_cast<int64_t>(gone->bytes());
  return absl::OkStatus();
}

StatusOr<BufferRef> SharedSegments::Take(uint64_t segment, uint64_t offset, int64_t bytes) {
  std::shared_ptr<const Mapping> mapping;
  uint64_t ask_from = offset;
  {
    MutexLock lock(&mu_);
    const auto found = segments_.find(segment);
    if (found == segments_.end()) {
      return InvalidArgument("Shared block: its segment must be there, got number ", segment);
    }
    Segment& of = found->second;
    const uint64_t size = of.mapping->bytes();
    if (bytes <= 0 || static_cast<uint64_t>(bytes) > size ||
        offset > size - static_cast<uint64_t>(bytes) || offset % SharedPool::kAlignment != 0) {
      return InvalidArgument("Shared block: it must lie within its ", size,
                             " bytes, at a multiple ", "of ", SharedPool::kAlignment, ", got ",
                             bytes, " bytes at ", offset);
    }
    const auto after = of.blocks.lower_bound(offset);
    const bool overlaps_next =
        after != of.blocks.end() && after->first - offset < static_cast<uint64_t>(bytes);
    bool overlaps_last = false;
    if (after != of.blocks.begin()) {
      const auto before = std::prev(after);
      overlaps_last = offset - before->first < static_cast<uint64_t>(before->second);
    }
    if (overlaps_next || overlaps_last) {
      return InvalidArgument("Shared block: it must lie apart from those in use, got ", bytes,
                             " bytes at ", offset, " of segment ", segment);
    }
    // Nothing is allocated to release one.
    if (released_.capacity() < num_taken_ + 1) released_.reserve(2 * (num_taken_ + 1));
    of.blocks.emplace_hint(after, offset, bytes);
    ++num_taken_;
    mapping = of.mapping;
    const uint64_t end = offset + static_cast<uint64_t>(bytes);
    // What lies between is not asked for: the owner may not have used it yet.
    if (offset <= of.asked) {
      ask_from = of.asked;
      of.asked = std::max(of.asked, end);
    }
  }
  const char* const data = mapping->data() + offset;
  const Mapping* const asked = mapping.get();
  BufferRef block = Buffer::ReadOnly(data, static_cast<size_t>(bytes),
                                     [self = shared_from_this(), mapping = std::move(mapping),
                                      segment, offset] { self->Release(segment, offset); });
  const uint64_t end = offset + static_cast<uint64_t>(bytes);
  if (ask_from < end) MR_RETURN_IF_ERROR(asked->Ask(ask_from, end));
  return block;
}

void SharedSegments::Release(uint64_t segment, uint64_t offset) {
  MutexLock lock(&mu_);
  if (is_closed_) return;
  // Both are there: a segment stays while it has blocks.
  const int64_t bytes = segments_.find(segment)->second.blocks.find(offset)->second;
  released_.push_back({segment, offset});
  released_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

std::vector<SharedSegments::Block> SharedSegments::TakeReleased() {
  std::vector<Block> next, released;
  MutexLock lock(&mu_);
  if (released_.empty()) return released;
  next.reserve(num_taken_ - released_.size());
  for (const Block& block : released_) {
    segments_.find(block.segment)->second.blocks.erase(block.offset);
  }
  num_taken_ -= released_.size();
  released_bytes_.store(0, std::memory_order_relaxed);
  released = std::exchange(released_, std::move(next));
  return released;
}

void SharedSegments::Close() {
  std::map<uint64_t, Segment> gone;  // unmapped without the lock, but for what buffers refer to
  MutexLock lock(&mu_);
  is_closed_ = true;
  gone.swap(segments_);
  released_.clear();
  released_bytes_.store(0, std::memory_order_relaxed);
}

}  // namespace millrace
