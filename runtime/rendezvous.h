// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_RENDEZVOUS_H_
#define MILLRACE_RUNTIME_RENDEZVOUS_H_

// Rendezvous: where a Send and its Recv meet, within one step.
//
// A key names the edge (devices, incarnation, edge name, frame and iteration). What a step's plans
// exchange is known when they are built, except for the iterations of loops: a TransferTable
// numbers the edges, and a step's rendezvous has a slot for each number. In a loop a transfer is
// one of an edge, a frame and an iteration. Names are for what comes from outside of the plans
// (calls of other tasks and masters).
//
// Per transfer there is a queue of tensors sent or of receivers waiting, never of both. After
// StartAbort every waiting and later call gets the first abort's status.
//
// Thread-safety: all methods, from any thread; a TransferTable is filled by one thread before it is
// shared. `done` of RecvAsync is called exactly once, either before RecvAsync returns or later on
// the thread that sends or aborts, without a lock held.
// Lifetime: a rendezvous shares its table; a Transfer refers to its key during the call.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

class NodeAttrs;  // graph/attr.h

// "src device;src incarnation (16 hex digits);dst device;edge name;frame:iteration".
struct RendezvousKey {
  std::string text;  // the whole key, as it travels
  std::string src_device;
  uint64_t src_incarnation = 0;
  std::string dst_device;
  std::string edge_name;

  // InvalidArgument "Invalid rendezvous key: ..." unless it has the five parts.
  static StatusOr<RendezvousKey> Parse(absl::string_view text);
  // That of a _Send or _Recv in the root frame. InvalidArgument likewise, or for a missing attr.
  static StatusOr<RendezvousKey> Of(const NodeAttrs& node);
  static std::string Make(absl::string_view src_device, uint64_t src_incarnation,
                          absl::string_view dst_device, absl::string_view edge_name,
                          uint64_t frame_id, int64_t iteration);
  // The key `root`, which is one of the root frame, in an iteration of a loop.
  static std::string InFrame(absl::string_view root, uint64_t frame_id, int64_t iteration);
  // The other way: false for a key of the root frame and for a text that is none.
  static bool SplitFrame(absl::string_view text, std::string* root, uint64_t* frame_id,
                         int64_t* iteration);
};

// Under what a tensor is sent: the number that the step's TransferTable has for its edge, or its
// key; in a loop with the frame and the iteration.
struct Transfer {
  static constexpr uint32_t kUnnumbered = 0xffffffffu;

  // The key, one of the root frame, counts where the rendezvous has no slot of this number.
  explicit Transfer(uint32_t n, absl::string_view text = "") : number(n), key(text) {}
  Transfer(uint32_t n, absl::string_view text, uint64_t frame, int64_t round)
      : number(n), key(text), frame_id(frame), iteration(round) {}
  Transfer(const RendezvousKey& k) : key(k.text) {}  // NOLINT: found by its text

  bool in_loop() const { return frame_id != 0; }

  uint32_t number = kUnnumbered;
  absl::string_view key;
  uint64_t frame_id = 0;
  int64_t iteration = 0;
};

// The transfers of all plans that run in one step, numbered from 0. The two ends of an edge, which
// have one key, have one number.
class TransferTable {
 public:
  // The number of `node`, a _Send or _Recv of one of the plans; `in_loop`: it runs in iterations.
  uint32_t Add(const RendezvousKey& key, const std::string& node, bool in_loop = false);

  uint32_t size() const { return static_cast<uint32_t>(by_key_.size()); }
  bool IsInLoop(uint32_t number) const { return in_loop_[number]; }
  // kUnnumbered for one that is not there.
  uint32_t NumberOfKey(absl::string_view key) const;
  uint32_t NumberOfNode(absl::string_view node) const;

 private:
  HashMap<std::string, uint32_t> by_key_, by_node_;
  std::vector<bool> in_loop_;  // by number
};

class Rendezvous {
 public:
  // A dead tensor has no value and is_dead set.
  using DoneCallback = absl::AnyInvocable<void(const Status&, Tensor value, bool is_dead)>;

  virtual ~Rendezvous() = default;
  virtual Status Send(const Transfer& transfer, Tensor value, bool is_dead) = 0;
  virtual void RecvAsync(const Transfer& transfer, DoneCallback done) = 0;
  // The first status counts; it must not be OK.
  virtual void StartAbort(const Status& status) = 0;
  // What who receives the transfer of this number waits for and since when, for messages; "" when
  // there is no more to say than its key does.
  virtual std::string Describe(uint32_t /*number*/) const { return std::string(); }

  // Blocks; for clients and tests. DeadlineExceeded after `timeout`.
  StatusOr<Tensor> Recv(const Transfer& transfer, bool* is_dead,
                        absl::Duration timeout = absl::InfiniteDuration());
};

// Within one process. `transfers` may be null: then all are named. A transfer by number takes one
// lock, no other, and no memory besides its callback's as long as one tensor or receiver waits.
std::shared_ptr<Rendezvous> MakeLocalRendezvous(
    std::shared_ptr<const TransferTable> transfers = nullptr);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_RENDEZVOUS_H_
