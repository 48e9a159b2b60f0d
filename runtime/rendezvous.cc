// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous.h"

#include <array>
#include <charconv>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/hash64.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "graph/place/device_name.h"
#include "runtime/done_callback.h"

namespace millrace {
namespace {

// Takes one or more digits off the front.
bool ConsumeDigits(absl::string_view* text) {
  size_t n = 0;
  while (n < text->size() && absl::ascii_isdigit(static_cast<unsigned char>((*text)[n]))) ++n;
  text->remove_prefix(n);
  return n > 0;
}

// The one form that this project writes; anything else takes the general parser.
bool IsCanonicalFullDevice(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "/job:")) return false;
  const size_t slash = text.find('/');
  if (slash == absl::string_view::npos || slash == 0) return false;
  for (const char c : text.substr(0, slash)) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  text.remove_prefix(slash);
  return absl::ConsumePrefix(&text, "/replica:") && ConsumeDigits(&text) &&
         absl::ConsumePrefix(&text, "/task:") && ConsumeDigits(&text) &&
         absl::ConsumePrefix(&text, "/device:CPU:") && ConsumeDigits(&text) && text.empty();
}

bool IsFullDevice(absl::string_view text) {
  if (IsCanonicalFullDevice(text)) return true;
  const StatusOr<DeviceName> name = DeviceName::Parse(text);
  return name.ok() && name->IsFull();
}

class LocalRendezvous : public Rendezvous {
 public:
  ~LocalRendezvous() override {
    // Nobody can send any more: whoever still waits is told so.
    Abort(absl::CancelledError("The step has ended: its rendezvous was destroyed"));
  }

  Status Send(const RendezvousKey& key, Tensor value, bool is_dead) override {
    Shard& shard = ShardOf(key);
    DoneCallback waiter;
    {
      MutexLock lock(&shard.mu);
      if (!shard.aborted.ok()) return shard.aborted;
      Queue& queue = shard.table[key.hash];
      if (!queue.HasWaiter()) {
        Item item;
        item.value = std::move(value);
        item.is_dead = is_dead;
        queue.items.push_back(std::move(item));
        return absl::OkStatus();
      }
      waiter = std::move(queue.Pop().waiter);
      if (queue.empty()) shard.table.erase(key.hash);
    }
    waiter(absl::OkStatus(), std::move(value), is_dead);
    return absl::OkStatus();
  }

  void RecvAsync(const RendezvousKey& key, DoneCallback done) override {
    Shard& shard = ShardOf(key);
    Item found;
    Status aborted;
    {
      MutexLock lock(&shard.mu);
      aborted = shard.aborted;
      if (aborted.ok()) {
        Queue& queue = shard.table[key.hash];
        if (queue.empty() || queue.HasWaiter()) {
          Item item;
          item.waiter = std::move(done);
          queue.items.push_back(std::move(item));
          return;
        }
        found = queue.Pop();
        if (queue.empty()) shard.table.erase(key.hash);
      }
    }
    if (!aborted.ok()) {
      done(aborted, Tensor(), false);
    } else {
      done(absl::OkStatus(), std::move(found.value), found.is_dead);
    }
  }

  void StartAbort(const Status& status) override {
    Abort(status.ok() ? absl::InternalError("Rendezvous: a status that aborts must not be OK")
                      : status);
  }

 private:
  // A tensor sent and not received yet, or (waiter set) a receiver that waits.
  struct Item {
    Tensor value;
    bool is_dead = false;
    DoneCallback waiter;
  };
  // First in, first out; all items are of one kind. Nearly always of length one.
  struct Queue {
    absl::InlinedVector<Item, 1> items;
    size_t head = 0;
    bool empty() const { return head == items.size(); }
    bool HasWaiter() const { return !empty() && items[head].waiter; }
    Item Pop() { return std::move(items[head++]); }
  };
  struct alignas(64) Shard {
    Mutex mu;
    Status aborted ABSL_GUARDED_BY(mu);
    // By the hash of the key, as TensorFlow matches; an entry goes when its queue is empty. Of
    // nodes: absl's tables are broken by an allocation that fails while they grow.
    std::unordered_map<uint64_t, Queue> table ABSL_GUARDED_BY(mu);
  };
  // Two threads of an arena of 16 seldom meet; small enough to make one per step.
  static constexpr size_t kShards = 8;

  Shard& ShardOf(const RendezvousKey& key) { return shards_[(key.hash >> 56) % kShards]; }

  void Abort(Status status) {
    {
      MutexLock lock(&abort_mu_);
      if (first_abort_.ok()) first_abort_ = status;
      status = first_abort_;
    }
    for (Shard& shard : shards_) {
      std::unordered_map<uint64_t, Queue> dropped;
      {
        MutexLock lock(&shard.mu);
        shard.aborted = status;
        dropped.swap(shard.table);
      }
      for (auto& [hash, queue] : dropped) {
        while (queue.HasWaiter()) queue.Pop().waiter(status, Tensor(), false);
      }
    }
  }

  Mutex abort_mu_;
  Status first_abort_ ABSL_GUARDED_BY(abort_mu_);
  std::array<Shard, kShards> shards_;
};

}  // namespace

StatusOr<RendezvousKey> RendezvousKey::Parse(absl::string_view text) {
  const auto invalid = [text](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("Invalid rendezvous key: ", why, ", got '", text, "'"));
  };
  absl::string_view parts[5];
  size_t begin = 0;
  for (int i = 0; i < 5; ++i) {
    const size_t end = text.find(';', begin);
    if ((end == absl::string_view::npos) != (i == 4)) {
      return invalid("it must have five parts between ';'");
    }
    parts[i] = text.substr(begin, i == 4 ? absl::string_view::npos : end - begin);
    begin = end + 1;
  }
  RendezvousKey key;
  if (!IsFullDevice(parts[0]) || !IsFullDevice(parts[2])) {
    return invalid("parts 1 and 3 must be full device names");
  }
  const char* const hex_end = parts[1].data() + parts[1].size();
  const auto hex = std::from_chars(parts[1].data(), hex_end, key.src_incarnation, 16);
  if (parts[1].size() != 16 || hex.ec != std::errc() || hex.ptr != hex_end) {
    return invalid("part 2 must be 16 hexadecimal digits");
  }
  absl::string_view frame = parts[4];
  if (!ConsumeDigits(&frame) || !absl::ConsumePrefix(&frame, ":") || !ConsumeDigits(&frame) ||
      !frame.empty()) {
    return invalid("part 5 must be <frame>:<iteration>");
  }
  key.text = std::string(text);
  key.hash = Hash64(text);
  key.src_device = std::string(parts[0]);
  key.dst_device = std::string(parts[2]);
  key.edge_name = std::string(parts[3]);
  return key;
}

std::string RendezvousKey::Make(absl::string_view src_device, uint64_t src_incarnation,
                                absl::string_view dst_device, absl::string_view edge_name,
                                uint64_t frame_id, int64_t iteration) {
  return absl::StrCat(src_device, ";", absl::Hex(src_incarnation, absl::kZeroPad16), ";",
                      dst_device, ";", edge_name, ";", frame_id, ":", iteration);
}

StatusOr<Tensor> Rendezvous::Recv(const RendezvousKey& key, bool* is_dead, absl::Duration timeout) {
  // Shared with the callback, which may come after the time is over.
  struct State {
    Notification done;
    Status status;
    Tensor value;
    bool is_dead = false;
  };
  auto state = std::make_shared<State>();
  RecvAsync(key, [state](const Status& status, Tensor value, bool dead) {
    state->status = status;
    state->value = std::move(value);
    state->is_dead = dead;
    state->done.Notify();
  });
  if (timeout == absl::InfiniteDuration()) {
    state->done.Wait();
  } else if (!state->done.WaitFor(timeout)) {
    return absl::DeadlineExceededError(absl::StrCat("Rendezvous: nothing was sent for key '",
                                                    key.text, "' within ",
                                                    absl::FormatDuration(timeout)));
  }
  MR_RETURN_IF_ERROR(state->status);
  if (is_dead != nullptr) *is_dead = state->is_dead;
  return std::move(state->value);
}

std::shared_ptr<Rendezvous> MakeLocalRendezvous() { return std::make_shared<LocalRendezvous>(); }

}  // namespace millrace
