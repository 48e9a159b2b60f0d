// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/kept_tensors.h"

#include <algorithm>
#include <utility>

#include "core/buffer.h"
#include "core/dcheck.h"
#include "core/dtype.h"

namespace millrace {
namespace {

std::shared_ptr<KeptCounts> OrOwn(std::shared_ptr<KeptCounts> counts) {
  return counts != nullptr ? std::move(counts) : std::make_shared<KeptCounts>();
}

// False, and takes nothing, when that is not left of `most`.
bool TakeOf(int64_t most, int64_t bytes, std::atomic<int64_t>* taken) {
  int64_t before = taken->load(std::memory_order_relaxed);
  do {
    if (bytes > most - before) return false;
  } while (!taken->compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
  return true;
}

// The first links get most; each of them gets something.
int64_t Offer(int64_t most, KeptCounts* counts) {
  int64_t offered = counts->offered_bytes.load(std::memory_order_relaxed);
  int64_t bytes;
  do {
    bytes = std::min(most, (counts->max_bytes - offered) / 4);
  } while (!counts->offered_bytes.compare_exchange_weak(offered, offered + bytes,
                                                        std::memory_order_relaxed));
  return bytes;
}

}  // namespace

// --- KeptByPeer ----------------------------------------------------------------------------------

KeptByPeer::Entry::~Entry() {
  std::list<Held> gone;  // freed without the lock
  MutexLock lock(&table_->mu_);
  if (is_listed_) table_->Unlist(this, &gone);
}

bool KeptByPeer::Entry::IsLocked(const Tensor& value) const {
  if (!is_listed_) return false;
  const Tensor& own = held_->value;
  return own.SharesBufferWith(value) && own.raw_data() == value.raw_data() &&
         own.dtype() == value.dtype() && own.shape() == value.shape();
}

bool KeptByPeer::Entry::Is(const Tensor& value) const {
  MutexLock lock(&table_->mu_);
  return IsLocked(value);
}

bool KeptByPeer::Entry::Use(const Tensor& value) {
  MutexLock lock(&table_->mu_);
  if (!IsLocked(value) || !is_there()) return false;
  ++uses_;
  idle_ = 0;
  return true;
}

void KeptByPeer::Entry::EndUse() {
  MutexLock lock(&table_->mu_);
  MR_DCHECK(uses_ > 0, "each message that names it ends its own use");
  --uses_;
}

KeptByPeer::KeptByPeer(std::shared_ptr<KeptCounts> counts) : counts_(OrOwn(std::move(counts))) {}

KeptByPeer::~KeptByPeer() { Close(); }

void KeptByPeer::Open(int64_t max_bytes) {
  MutexLock lock(&mu_);
  max_bytes_ = max_bytes;
}

bool KeptByPeer::MayKeep(const Tensor& value) {
  if (!IsMemcopyable(value.dtype()) || value.is_reference() || !value.buffer()) return false;
  if (value.num_elements() * static_cast<int64_t>(DTypeSize(value.dtype())) < kMinKeptBytes) {
    return false;
  }
  return !value.buffer()->is_external() && !value.buffer()->is_read_only();
}

std::shared_ptr<KeptByPeer::Entry> KeptByPeer::Keep(const Tensor& value) {
  const int64_t cost = std::max(static_cast<int64_t>(value.buffer()->size()), value.TotalBytes());
  std::list<Held> held;
  held.push_back({value, nullptr});
  // Before the lock, which its end takes.
  std::shared_ptr<Entry> entry(new Entry(shared_from_this(), cost, held.begin()));
  MutexLock lock(&mu_);
  if (is_closed_ || cost > max_bytes_ - bytes_) return nullptr;
  const size_t most = values_.size() + forgotten_.size() + 1;
  if (forgotten_.capacity() < most) forgotten_.reserve(2 * most);
  if (!TakeOf(counts_->max_bytes, cost, &counts_->bytes_at_peers)) return nullptr;
  held.front().entry = entry.get();
  values_.splice(values_.end(), held);
  entry->number_ = ++last_number_;
  entry->is_listed_ = true;
  bytes_ += cost;
  return entry;
}

void KeptByPeer::Unlist(Entry* entry, std::list<Held>* gone) {
  entry->is_listed_ = false;
  gone->splice(gone->end(), values_, entry->held_);
  bytes_ -= entry->cost_;
  counts_->bytes_at_peers.fetch_sub(entry->cost_, std::memory_order_relaxed);
  forgotten_.push_back(entry->number_);
  forgotten_bytes_.fetch_add(entry->cost_, std::memory_order_relaxed);
}

void KeptByPeer::Age() {
  std::list<Held> gone;  // freed without the lock
  MutexLock lock(&mu_);
  for (auto it = values_.begin(); it != values_.end();) {
    Entry* const entry = it++->entry;
    if (entry->uses_ > 0 || ++entry->idle_ < kMaxIdle) continue;
    entry->MayNotCome();  // as for who sends it next
    Unlist(entry, &gone);
  }
}

std::vector<uint64_t> KeptByPeer::TakeForgotten(size_t most) {
  MutexLock lock(&mu_);
  const auto begin =
      forgotten_.end() - static_cast<std::ptrdiff_t>(std::min(most, forgotten_.size()));
  std::vector<uint64_t> taken(begin, forgotten_.end());
  forgotten_.erase(begin, forgotten_.end());
  if (forgotten_.empty()) forgotten_bytes_.store(0, std::memory_order_relaxed);
  return taken;
}

void KeptByPeer::Close() {
  std::list<Held> gone;  // freed without the lock
  MutexLock lock(&mu_);
  is_closed_ = true;
  for (const Held& held : values_) held.entry->is_listed_ = false;
  gone.swap(values_);
  forgotten_.clear();
  counts_->bytes_at_peers.fetch_sub(std::exchange(bytes_, 0), std::memory_order_relaxed);
  forgotten_bytes_.store(0, std::memory_order_relaxed);
}

bool KeptByPeer::is_closed() const {
  MutexLock lock(&mu_);
  return is_closed_;
}

int64_t KeptByPeer::bytes() const {
  MutexLock lock(&mu_);
  return bytes_;
}

// --- KeptForPeer ---------------------------------------------------------------------------------

KeptForPeer::KeptForPeer(int64_t max_bytes, std::shared_ptr<KeptCounts> counts)
    : counts_(OrOwn(std::move(counts))), max_bytes_(Offer(max_bytes, counts_.get())) {}

KeptForPeer::~KeptForPeer() {
  Clear();
  counts_->offered_bytes.fetch_sub(max_bytes_, std::memory_order_relaxed);
}

void KeptForPeer::Count(int64_t bytes) {
  bytes_ += bytes;
  counts_->bytes_for_peers.fetch_add(bytes, std::memory_order_relaxed);
}

Status KeptForPeer::Keep(uint64_t number, const Tensor& value) {
  const int64_t bytes = value.TotalBytes();
  if (bytes < kMinKeptBytes) {
    return InvalidArgument("Link: a tensor to be kept must have at least ", kMinKeptBytes,
                           " bytes, got ", bytes);
  }
  if (bytes > max_bytes_ - bytes_) {
    return InvalidArgument("Link: the bytes of tensors to be kept must be at most ", max_bytes_,
                           " (max_kept_bytes), got ", bytes, " beyond ", bytes_);
  }
  if (!tensors_.emplace(number, value).second) {
    return InvalidArgument("Link: the number of a tensor to be kept must be a new one, got ",
                           number, " again");
  }
  Count(bytes);
  return absl::OkStatus();
}

StatusOr<Tensor> KeptForPeer::Find(uint64_t number) const {
  const auto it = tensors_.find(number);
  if (it != tensors_.end()) return it->second;
  return InvalidArgument("Link: a kept tensor must be one that was sent to be kept, got number ",
                         number);
}

void KeptForPeer::Forget(uint64_t number) {
  const auto it = tensors_.find(number);
  if (it == tensors_.end()) return;
  Count(-it->second.TotalBytes());
  tensors_.erase(it);
}

void KeptForPeer::Clear() {
  tensors_.clear();
  Count(-bytes_);
}

}  // namespace millrace
