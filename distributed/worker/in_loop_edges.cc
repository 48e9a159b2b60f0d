// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/in_loop_edges.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "net/call_limits.h"

namespace millrace {

InLoopEdges::InLoopEdges(int64_t step_id, std::shared_ptr<ParkedBytes> parked)
    : step_id_(step_id), parked_(std::move(parked)) {}

void InLoopEdges::Acknowledge(Link* link) const {
  if (link != nullptr) link->Acknowledge(step_id_, 1);
}

bool InLoopEdges::Keep(const Key& key, Entry* entry, SentTensor* tensor,
                       const std::shared_ptr<Link>& link, std::shared_ptr<const HeldCredit> held) {
  if (parked_ == nullptr) return false;
  const int64_t bytes =
      PushedMessage::kOverheadBytes + (tensor->is_dead ? 0 : tensor->value.TotalBytes());
  const bool has_room = parked_->Take(bytes);
  if (!has_room) {
    entry->share = link == nullptr ? 0 : parked_->TakeHeld(bytes);
    if (entry->share == 0) return false;
  }
  entry->bytes = bytes;
  kept_bytes_ += bytes;
  entry->value = std::move(tensor->value);
  entry->is_dead = tensor->is_dead;
  entry->link = link;
  if (has_room) return true;
  // Last: they may find no memory.
  beyond_.emplace(++last_order_, key);
  entry->order = last_order_;
  entry->held = held != nullptr ? std::move(held) : std::make_shared<const HeldCredit>(link, bytes);
  return true;
}

Status InLoopEdges::NoRoom() const {
  const int64_t limit = parked_ == nullptr ? 0 : parked_->limit();
  const Status beyond =
      BeyondLimit(absl::StrCat("Step ", step_id_, ": what other tasks push in loops"),
                  "bytes that no iteration has asked for", "max_parked_bytes", limit,
                  parked_ == nullptr ? 0 : parked_->bytes());
  // A loop that has most of the room itself runs as far ahead at each try.
  if (parked_ == nullptr || kept_bytes_ > (limit + parked_->held_room()) / 2) return beyond;
  // It passes: what other steps keep is taken, and the next try has room.
  return absl::UnavailableError(beyond.message());
}

Status InLoopEdges::Came(uint32_t number, SentTensor tensor, std::shared_ptr<Link> link,
                         std::shared_ptr<const HeldCredit> held) {
  Rendezvous::DoneCallback waiter;
  Status refused;
  bool has_ended = false;
  {
    MutexLock lock(&mu_);
    has_ended = !ended_.ok();
    if (!has_ended) {
      const Key key(number, tensor.frame_id, tensor.iteration);
      const auto [it, is_new] = entries_.try_emplace(key);
      Entry& entry = it->second;
      if (is_new) {
        if (Keep(key, &entry, &tensor, link, std::move(held))) return absl::OkStatus();
        entries_.erase(it);
        refused = NoRoom();
      } else if (entry.waiter) {
        waiter = std::move(entry.waiter);
        entries_.erase(it);
      } else {
        refused = Internal("Step ", step_id_, ": a tensor of a loop must come once, got that of ",
                           "iteration ", tensor.iteration, " of frame ", tensor.frame_id, " twice");
      }
    }
  }
  Acknowledge(link.get());
  if (has_ended) {
    // The step has no more messages to its sender, who may wait to stop.
    if (link != nullptr) link->Flush();
    return absl::OkStatus();
  }
  if (waiter) waiter(absl::OkStatus(), std::move(tensor.value), tensor.is_dead);
  return refused;
}

void InLoopEdges::Return(const Entry& taken,
                         std::vector<std::shared_ptr<const HeldCredit>>* let_go) {
  MR_DCHECK(parked_ != nullptr, "without room nothing is kept");
  parked_->Return(taken.bytes, taken.share);
  kept_bytes_ -= taken.bytes;
  beyond_.erase(taken.order);
  while (!beyond_.empty()) {
    const auto oldest = entries_.find(beyond_.begin()->second);
    MR_DCHECK(oldest != entries_.end(), "what holds credit is kept");
    Entry& entry = oldest->second;
    let_go->emplace_back();  // first: it may find no memory
    if (!parked_->LetGo(entry.bytes, entry.share)) return;
    let_go->back() = std::move(entry.held);
    entry.share = 0;
    entry.order = 0;
    beyond_.erase(beyond_.begin());
  }
}

void InLoopEdges::RecvAsync(const Transfer& transfer, Rendezvous::DoneCallback done) {
  Status refused;
  Entry taken;
  std::vector<std::shared_ptr<const HeldCredit>> let_go;
  {
    MutexLock lock(&mu_);
    refused = ended_;
    if (refused.ok()) {
      const auto [it, is_new] =
          entries_.try_emplace(Key(transfer.number, transfer.frame_id, transfer.iteration));
      if (is_new) {
        it->second.waiter = std::move(done);
        return;
      }
      if (it->second.waiter) {
        refused = Internal("Step ", step_id_, ": a tensor of a loop must be received once, got ",
                           "two that wait for iteration ", transfer.iteration, " of frame ",
                           transfer.frame_id);
      } else {
        taken = std::move(it->second);
        entries_.erase(it);
        Return(taken, &let_go);
      }
    }
  }
  if (!refused.ok()) return done(refused, Tensor(), false);
  Acknowledge(taken.link.get());
  taken.held = nullptr;  // the sender goes on
  let_go.clear();
  done(absl::OkStatus(), std::move(taken.value), taken.is_dead);
}

bool InLoopEdges::End(const Status& status) {
  MR_DCHECK(!status.ok(), "who waits gets it as the error");
  HashMap<Key, Entry> entries;
  {
    MutexLock lock(&mu_);
    if (!ended_.ok()) return false;
    ended_ = status;
    entries.swap(entries_);
    beyond_.clear();
  }
  std::set<std::shared_ptr<Link>> links;
  for (auto& [key, entry] : entries) {
    if (entry.waiter) {
      entry.waiter(status, Tensor(), false);
      continue;
    }
    if (parked_ != nullptr) parked_->Return(entry.bytes, entry.share);
    if (entry.link == nullptr) continue;
    Acknowledge(entry.link.get());
    links.insert(entry.link);
  }
  entries.clear();
  for (const auto& link : links) link->Flush();
  return true;
}

}  // namespace millrace
