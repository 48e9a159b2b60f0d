// SPDX-License-Identifier: Apache-2.0
#include "core/shared_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/dcheck.h"
#include "core/logging.h"

namespace millrace {
namespace {

// Younger than some headers.
constexpr int kSealFutureWrite = 0x0010;  // F_SEAL_FUTURE_WRITE, Linux 5.1
constexpr int kPopulateWrite = 23;        // MADV_POPULATE_WRITE, Linux 5.14

int64_t PageBytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}
int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
// The exponent of the largest power of two that is not above `bytes`, which are above 0.
size_t PowerOfTwo(int64_t bytes) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(bytes))) - 1;
}
int64_t RoundDown(int64_t bytes, int64_t unit) { return bytes / unit * unit; }
// Of a large block's segment: a sixteenth of a power of two more at most, so that the next block,
// which is a little larger, fits in. What is never used of it takes no memory.
int64_t RoundUpLarge(int64_t bytes, int64_t page) {
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  return RoundUp(bytes, std::max(whole / 16, page));
}

// Of descriptors; there may be some again at once.
bool LacksDescriptors() { return errno == EMFILE || errno == ENFILE; }

Status SystemRefuses(const char* call) {
  return absl::UnavailableError(
      absl::StrCat("Shared pool: the system must give sealed memory files, got ",
                   std::generic_category().message(errno), " of ", call));
}

}  // namespace

// One memory file, mapped to be written.
class SharedPool::Segment {
 public:
  // `budget` has `bytes` for it already, or is null.
  static StatusOr<std::unique_ptr<Segment>> Make(uint64_t number, int64_t bytes,
                                                 std::shared_ptr<ByteBudget> budget,
                                                 std::shared_ptr<const OwnedFd>* fd) {
    // Gives the bytes back when something fails.
    std::unique_ptr<Segment> segment(new Segment(number, bytes, std::move(budget)));
    auto owned = std::make_shared<const OwnedFd>(
        ::memfd_create("millrace-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!owned->open()) {
      return LacksDescriptors() ? absl::ResourceExhaustedError("Shared pool: no descriptor is left")
                                : SystemRefuses("memfd_create");
    }
    if (::ftruncate(owned->get(), bytes) != 0) return SystemRefuses("ftruncate");
    void* const data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                              MAP_SHARED, owned->get(), 0);
    if (data == MAP_FAILED) return SystemRefuses("mmap");
    segment->data_ = static_cast<char*>(data);
    // From here on this mapping is the only way to write.
    if (::fcntl(owned->get(), F_ADD_SEALS,
                F_SEAL_SHRINK | F_SEAL_GROW | kSealFutureWrite | F_SEAL_SEAL) != 0) {
      return SystemRefuses("F_ADD_SEALS");
    }
    segment->extents[0] = {bytes, Use::kFree};
    segment->most_free = bytes;
    *fd = std::move(owned);
    return segment;
  }
  ~Segment() {
    if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes));
    ReturnToBudget();
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  char* data() const { return data_; }
  // Once, when it is going.
  void ReturnToBudget() {
    if (budget_ != nullptr) std::exchange(budget_, nullptr)->Return(bytes);
  }

  const uint64_t number;
  const int64_t bytes;
  std::map<int64_t, Extent> extents;  // by offset: all bytes, in each exactly one
  int64_t blocks = 0;                 // extents that are not free
  int64_t most_free = 0;              // no free extent is larger
  bool was_used = true;               // since the last Trim
  absl::Time used_at;                 // the last Trim that found it so
  uint64_t last_use = 0;              // while it is empty: higher than of those empty for longer
  int64_t asked = 0;                  // the pages below were asked of the system, or are being

 private:
  Segment(uint64_t n, int64_t size, std::shared_ptr<ByteBudget> budget)
      : number(n), bytes(size), budget_(std::move(budget)) {}

  char* data_ = nullptr;
  std::shared_ptr<ByteBudget> budget_;  // null: it was returned
};

bool SharedPool::MeansNoMemory(int error) {
  return error == ENOMEM || error == EFAULT || error == EHWPOISON;
}

SharedPool::SharedPool(Options options) : options_(std::move(options)) {}

SharedPool::~SharedPool() {
  if (options_.block_bytes != nullptr) {
    options_.block_bytes->fetch_sub(block_bytes_, std::memory_order_relaxed);
  }
}

std::shared_ptr<SharedPool> SharedPool::Make(Options options) {
  return std::shared_ptr<SharedPool>(new SharedPool(std::move(options)));
}

bool SharedPool::IsLarge(int64_t bytes) const {
  return bytes > RoundUp(options_.segment_bytes, PageBytes());
}

void SharedPool::CountBlock(int64_t bytes) {
  block_bytes_ += bytes;
  // Relaxed: a sum.
  if (options_.block_bytes != nullptr) {
    options_.block_bytes->fetch_add(bytes, std::memory_order_relaxed);
  }
}

SharedPool::Segments::iterator SharedPool::LeastRecentlyUsed() {
  auto found = segments_.end();
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    if (it->second->blocks > 0) continue;
    if (found == segments_.end() || it->second->last_use < found->second->last_use) found = it;
  }
  return found;
}

SharedPool::Segments::iterator SharedPool::SmallestEmptyLarge(int64_t bytes) {
  auto found = segments_.end();
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    const Segment& segment = *it->second;
    if (segment.blocks > 0 || !IsLarge(segment.bytes)) continue;
    if (PowerOfTwo(segment.bytes) != PowerOfTwo(bytes)) continue;
    const bool is_better =
        found == segments_.end() || segment.bytes < found->second->bytes ||
        (segment.bytes == found->second->bytes && segment.last_use < found->second->last_use);
    if (is_better) found = it;
  }
  return found;
}

SharedPool::LargeBytes& SharedPool::LargeBytesOf(int64_t bytes) {
  return large_[PowerOfTwo(bytes)];
}

SharedPool::Segment* SharedPool::MakeSegment(int64_t bytes, Segments* gone) {
  const int64_t page = PageBytes();
  const int64_t least = RoundUp(bytes, page);
  // No empty one is large enough. As many go as make room for one that is, if all of them do.
  int64_t empty_bytes = 0;
  for (const auto& [number, segment] : segments_) {
    if (segment->blocks == 0) empty_bytes += segment->bytes;
  }
  if (least <= LeftForSegments(empty_bytes)) {
    while (least > LeftForSegments(0)) {
      const auto next = LeastRecentlyUsed();
      if (next == segments_.end()) break;
      TakeOut(next, gone);
    }
  }
  if (segments_.size() >= kMaxSegments) return nullptr;
  const int64_t left = LeftForSegments(0);
  if (least > left) {
    if (options_.budget != nullptr && least <= options_.max_bytes - segment_bytes_) {
      options_.budget->NoteRefusal();
    }
    return nullptr;
  }
  const int64_t wanted = IsLarge(bytes)
                             ? RoundUpLarge(bytes, page)
                             : RoundUp(std::min(next_bytes_, options_.segment_bytes), page);
  const int64_t size = std::max(least, std::min(wanted, RoundDown(left, page)));
  if (options_.budget != nullptr && !options_.budget->Take(size)) return nullptr;
  News made;
  StatusOr<std::unique_ptr<Segment>> segment =
      Segment::Make(last_segment_ + 1, size, options_.budget, &made.fd);
  if (!segment.ok()) {
    if (!absl::IsResourceExhausted(segment.status())) SwitchOff(segment.status());
    return nullptr;
  }
  made.segment = (*segment)->number;
  made.bytes = size;
  // And that each is gone: nothing is allocated to free a block.
  news_.reserve(news_.size() + segments_.size() + 2);
  Segment* const result = segment->get();
  segments_.emplace(result->number, *std::move(segment));
  news_.push_back(std::move(made));
  has_news_.store(true, std::memory_order_relaxed);
  ++last_segment_;
  segment_bytes_ += size;
  if (IsLarge(size)) {
    LargeBytesOf(size).empty += size;
  } else {
    next_bytes_ = std::min(2 * next_bytes_, kSegmentBytes);
  }
  return result;
}

int64_t SharedPool::LeftForSegments(int64_t returned) const {
  const int64_t own = segment_bytes_ - returned;
  const int64_t left = options_.max_bytes - own;
  if (options_.budget == nullptr) return left;
  // When this pool has taken that, as much is left for others as it has.
  return std::min(left, (options_.budget->left() + returned - own) / 2);
}

void SharedPool::TakeOut(Segments::iterator segment, Segments* gone) {
  Segment* const taken = segment->second.get();
  gone->insert(segments_.extract(segment));
  segment_bytes_ -= taken->bytes;
  if (IsLarge(taken->bytes)) LargeBytesOf(taken->bytes).empty -= taken->bytes;
  taken->ReturnToBudget();
  if (segments_.empty()) next_bytes_ = kFirstSegmentBytes;
  news_.push_back({taken->number, 0, nullptr});
  has_news_.store(true, std::memory_order_relaxed);
}

bool SharedPool::Trim(absl::Time now) {
  Segments gone;  // unmapped without the lock
  MutexLock lock(&mu_);
  const int64_t refusals = options_.budget == nullptr ? 0 : options_.budget->refusals();
  const bool others_want = std::exchange(refusals_, refusals) != refusals;
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto next = it++;
    Segment* const segment = next->second.get();
    if (std::exchange(segment->was_used, segment->blocks > 0)) {
      segment->used_at = now;
    } else if (others_want || now - segment->used_at >= kKeepFor) {
      TakeOut(next, &gone);
    }
  }
  for (LargeBytes& large : large_) large.most_before = std::exchange(large.most, large.used);
  return !gone.empty();
}

void SharedPool::SwitchOff(const Status& why) {
  is_off_ = true;
  LogWarning(absl::StrCat(why.message(), "; tensors go through the socket"));
}

SharedPool::Segment* SharedPool::FindFree(int64_t size, ExtentOf* extent) {
  for (const auto& [number, candidate] : segments_) {
    // A small block would keep a segment from the next large one.
    if (candidate->most_free < size || IsLarge(candidate->bytes)) continue;
    int64_t most_free = 0;
    for (auto it = candidate->extents.begin(); it != candidate->extents.end(); ++it) {
      if (it->second.use != Use::kFree) continue;
      if (it->second.bytes >= size) {
        *extent = it;
        return candidate.get();
      }
      most_free = std::max(most_free, it->second.bytes);
    }
    candidate->most_free = most_free;
  }
  return nullptr;
}

SharedPool::Segment* SharedPool::FindFreeLarge(int64_t size) const {
  Segment* found = nullptr;
  for (const auto& [number, candidate] : segments_) {
    const int64_t bytes = candidate->bytes;
    if (!IsLarge(bytes) || candidate->blocks > 0 || bytes < size || bytes / 2 > size) continue;
    const bool is_better = found == nullptr || bytes < found->bytes ||
                           (bytes == found->bytes && candidate->last_use > found->last_use);
    if (is_better) found = candidate.get();
  }
  return found;
}

SharedBlock SharedPool::Allocate(int64_t bytes) {
  if (bytes <= 0 || bytes > options_.max_bytes) return {};
  const int64_t size = RoundUp(bytes, kAlignment);
  const bool is_large = IsLarge(size);
  SharedBlock block;
  int64_t ask_from = 0, ask_to = 0;
  Segments gone;  // unmapped without the lock
  {
    MutexLock lock(&mu_);
    if (is_off_) return {};
    ExtentOf extent;
    Segment* segment = is_large ? FindFreeLarge(size) : FindFree(size, &extent);
    if (segment == nullptr) segment = MakeSegment(size, &gone);
    if (segment == nullptr) return {};
    if (segment->blocks == 0) extent = segment->extents.begin();
    const int64_t offset = extent->first;
    if (extent->second.bytes > size) {
      segment->extents.emplace(offset + size, Extent{extent->second.bytes - size, Use::kFree});
      extent->second.bytes = size;
    }
    extent->second.use = Use::kHeld;
    ++segment->blocks;
    segment->was_used = true;
    CountBlock(size);
    if (is_large) {
      LargeBytes& large = LargeBytesOf(segment->bytes);
      large.empty -= segment->bytes;
      large.used += segment->bytes;
      large.most = std::max(large.most, large.used);
    }
    block = SharedBlock(shared_from_this(), segment->data() + offset, segment->number, offset);
    ask_to = std::min(RoundUp(offset + size, PageBytes()), segment->bytes);
    ask_from = std::min(segment->asked, ask_to);
    segment->asked = std::max(segment->asked, ask_to);
    ask_to -= offset;
    ask_from -= offset;
  }
  if (ask_from == ask_to) return block;
  // Each page once: the system finds it, zeroes it and maps it here, in one call instead of a fault
  // for each. fallocate would find them and leave the faults. What a segment never uses is not
  // asked for. Without an answer, as from older systems, the pages come as they are written.
  if (::madvise(block.data() + ask_from, static_cast<size_t>(ask_to - ask_from), kPopulateWrite) !=
          0 &&
      MeansNoMemory(errno)) {
    const Status why = SystemRefuses("MADV_POPULATE_WRITE");
    MutexLock lock(&mu_);
    SwitchOff(why);
    return {};  // the block goes after the lock
  }
  return block;
}

void SharedPool::Give(uint64_t segment, int64_t offset) {
  MutexLock lock(&mu_);
  Extent& extent = segments_.at(segment)->extents.at(offset);
  MR_DCHECK(extent.use == Use::kHeld, "a Block is held");
  extent.use = Use::kGiven;
}

void SharedPool::Free(uint64_t segment, int64_t offset) {
  Segments gone;  // unmapped without the lock
  MutexLock lock(&mu_);
  Segment* const found = segments_.at(segment).get();
  FreeExtent(found, found->extents.find(offset), &gone);
}

Status SharedPool::Release(uint64_t segment, uint64_t offset) {
  Segments gone;  // unmapped without the lock
  MutexLock lock(&mu_);
  const auto found = segments_.find(segment);
  if (found != segments_.end() && offset < static_cast<uint64_t>(found->second->bytes)) {
    const auto extent = found->second->extents.find(static_cast<int64_t>(offset));
    if (extent != found->second->extents.end() && extent->second.use == Use::kGiven) {
      FreeExtent(found->second.get(), extent, &gone);
      return absl::OkStatus();
    }
  }
  return InvalidArgument("Shared pool: a block that is released must have been given, got offset ",
                         offset, " of segment ", segment);
}

void SharedPool::FreeExtent(Segment* segment, ExtentOf extent, Segments* gone) {
  std::map<int64_t, Extent>& extents = segment->extents;
  CountBlock(-extent->second.bytes);
  extent->second.use = Use::kFree;
  --segment->blocks;
  if (extent != extents.begin()) {
    const auto before = std::prev(extent);
    if (before->second.use == Use::kFree) {
      before->second.bytes += extent->second.bytes;
      extents.erase(extent);
      extent = before;
    }
  }
  const auto after = std::next(extent);
  if (after != extents.end() && after->second.use == Use::kFree) {
    extent->second.bytes += after->second.bytes;
    extents.erase(after);
  }
  segment->most_free = std::max(segment->most_free, extent->second.bytes);
  if (segment->blocks > 0) return;
  segment->last_use = ++last_use_;
  if (!IsLarge(segment->bytes)) return;
  // Between two powers of two each larger segment serves the blocks of each smaller one, so those
  // that stay settle on what is needed. Without the powers, or by last use, sizes that take turns
  // would lose the one that is next.
  const int64_t bytes = segment->bytes;  // it may be the one that goes
  LargeBytes& large = LargeBytesOf(bytes);
  large.used -= bytes;
  large.empty += bytes;
  while (large.empty > std::max(large.most, large.most_before)) {
    TakeOut(SmallestEmptyLarge(bytes), gone);
  }
}

std::vector<SharedPool::News> SharedPool::TakeNews() {
  std::vector<News> news;
  if (!has_news_.load(std::memory_order_relaxed)) return news;  // no lock for each write of a link
  MutexLock lock(&mu_);
  has_news_.store(false, std::memory_order_relaxed);
  std::vector<News> next;
  next.reserve(segments_.size());  // that they are gone
  news = std::exchange(news_, std::move(next));
  return news;
}

SharedPool::Counts SharedPool::counts() const {
  Counts counts;
  MutexLock lock(&mu_);
  counts.segments = static_cast<int64_t>(segments_.size());
  counts.segment_bytes = segment_bytes_;
  counts.made_segments = static_cast<int64_t>(last_segment_);
  for (const auto& [number, segment] : segments_) {
    for (const auto& [offset, extent] : segment->extents) {
      counts.held += extent.use == Use::kHeld ? 1 : 0;
      counts.given += extent.use == Use::kGiven ? 1 : 0;
    }
  }
  return counts;
}

}  // namespace millrace
