// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_RENDEZVOUS_H_
#define MILLRACE_RUNTIME_RENDEZVOUS_H_

// Rendezvous: where a Send and its Recv meet, within one step.
//
// A key names the edge (devices, incarnation, edge name, frame and iteration). Per
// key there is a queue of tensors sent or of receivers waiting, never of both. After
// StartAbort every waiting and later call gets the first abort's status.
//
// Thread-safety: all methods, from any thread. `done` of RecvAsync is called exactly once, either
// before RecvAsync returns or later on the thread that sends or aborts, without a lock held.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// "src device;src incarnation (16 hex digits);dst device;edge name;frame:iteration".
struct RendezvousKey {
  std::string text;   // the whole key, as it travels
  uint64_t hash = 0;  // of the text
  std::string src_device;
  uint64_t src_incarnation = 0;
  std::string dst_device;
  std::string edge_name;

  // InvalidArgument "Invalid rendezvous key: ..." unless it has the five parts.
  static StatusOr<RendezvousKey> Parse(absl::string_view text);
  static std::string Make(absl::string_view src_device, uint64_t src_incarnation,
                          absl::string_view dst_device, absl::string_view edge_name,
                          uint64_t frame_id, int64_t iteration);
};

class Rendezvous {
 public:
  // A dead tensor has no value and is_dead set.
  using DoneCallback = absl::AnyInvocable<void(const Status&, Tensor value, bool is_dead)>;

  virtual ~Rendezvous() = default;
  virtual Status Send(const RendezvousKey& key, Tensor value, bool is_dead) = 0;
  virtual void RecvAsync(const RendezvousKey& key, DoneCallback done) = 0;
  // The first status counts; it must not be OK.
  virtual void StartAbort(const Status& status) = 0;

  // Blocks; for clients and tests. DeadlineExceeded after `timeout`.
  StatusOr<Tensor> Recv(const RendezvousKey& key, bool* is_dead,
                        absl::Duration timeout = absl::InfiniteDuration());
};

// Within one process.
std::shared_ptr<Rendezvous> MakeLocalRendezvous();

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_RENDEZVOUS_H_
