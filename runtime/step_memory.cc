// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dcheck.h"

namespace millrace {
namespace {

constexpr size_t kHoldersInMessages = 5;
constexpr absl::string_view kOverLimit = "step memory must be at most ";

// What asks for the block that Tensor::Allocate is taking on this thread, and whether the limit
// (not the system) refused it.
struct Request {
  explicit Request(const std::string* name) : node(name), outer(current) { current = this; }
  ~Request() { current = outer; }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  const std::string* const node;
  Request* const outer;
  bool over_limit = false;
  static thread_local Request* current;
};
thread_local Request* Request::current = nullptr;

}  // namespace

std::shared_ptr<StepMemory> StepMemory::Make(int64_t limit_bytes, Allocator* allocator) {
  return std::shared_ptr<StepMemory>(new StepMemory(limit_bytes, allocator));
}

StatusOr<Tensor> StepMemory::Allocate(DType dtype, const Shape& shape, const std::string& node) {
  Request request(&node);
  StatusOr<Tensor> tensor = Tensor::Allocate(dtype, shape, this);
  if (tensor.ok() || !request.over_limit) return tensor;  // else the system has no more
  const int64_t wanted = shape.num_elements() * static_cast<int64_t>(DTypeSize(dtype));
  MutexLock lock(&mu_);
  return absl::ResourceExhaustedError(absl::StrCat(
      kOverLimit, limit_bytes_, " bytes, got ", in_use_, " in use and ", wanted, " more; held by ",
      absl::StrJoin(LargestHoldersLocked(kHoldersInMessages), ", ",
                    [](std::string* out, const Holder& holder) {
                      absl::StrAppend(out, "'", holder.node, "' (", holder.bytes, " bytes)");
                    })));
}

bool StepMemory::IsOverLimit(const Status& status) {
  return absl::IsResourceExhausted(status) && absl::StartsWith(status.message(), kOverLimit);
}

void* StepMemory::Allocate(size_t bytes) {
  MutexLock lock(&mu_);
  const int64_t size = static_cast<int64_t>(bytes);
  if (limit_bytes_ > 0 && in_use_ + size > limit_bytes_) {
    if (Request::current != nullptr) Request::current->over_limit = true;
    return nullptr;
  }
  void* const block = allocator_->Allocate(bytes);
  if (block == nullptr) return nullptr;
  try {
    blocks_[block] = {Request::current == nullptr ? std::string() : *Request::current->node, bytes};
  } catch (...) {
    allocator_->Deallocate(block, bytes);
    throw;
  }
  if (self_ == nullptr) self_ = shared_from_this();
  in_use_ += size;
  total_ += size;
  peak_ = std::max(peak_, in_use_);
  return block;
}

void StepMemory::Deallocate(void* block, size_t bytes) {
  Allocator* const allocator = allocator_;
  std::shared_ptr<StepMemory> last;  // let go of without the lock
  {
    // Before the block is free for others.
    MutexLock lock(&mu_);
    MR_DCHECK(blocks_.contains(block) && blocks_.at(block).bytes == bytes,
              "a buffer gives its block back once, as large as it was taken");
    in_use_ -= static_cast<int64_t>(bytes);
    blocks_.erase(block);
    MR_DCHECK(!blocks_.empty() || in_use_ == 0, "what is in use is in blocks");
    if (blocks_.empty()) last = std::move(self_);
  }
  allocator->Deallocate(block, bytes);
}

int64_t StepMemory::bytes_in_use() const {
  MutexLock lock(&mu_);
  return in_use_;
}

int64_t StepMemory::peak_bytes() const {
  MutexLock lock(&mu_);
  return peak_;
}

int64_t StepMemory::total_bytes() const {
  MutexLock lock(&mu_);
  return total_;
}

std::vector<StepMemory::Holder> StepMemory::LargestHolders(size_t count) const {
  MutexLock lock(&mu_);
  return LargestHoldersLocked(count);
}

std::vector<StepMemory::Holder> StepMemory::LargestHoldersLocked(size_t count) const {
  HashMap<std::string, int64_t> by_node;
  for (const auto& [block, owner] : blocks_)
    by_node[owner.node] += static_cast<int64_t>(owner.bytes);
  std::vector<Holder> holders;
  for (const auto& [node, bytes] : by_node) holders.push_back({node, bytes});
  std::sort(holders.begin(), holders.end(), [](const Holder& a, const Holder& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.node < b.node;
  });
  if (holders.size() > count) holders.resize(count);
  return holders;
}

}  // namespace millrace
