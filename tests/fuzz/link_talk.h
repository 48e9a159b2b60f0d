// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_FUZZ_LINK_TALK_H_
#define MILLRACE_TESTS_FUZZ_LINK_TALK_H_

// LinkTalk: a ByteLink at end 0 of a simulated way, whose peer at end 1 is a fuzzer, for one input
// of a test. Whatever is said, it holds that
//   * the link opens once at most, is lost once, and calls its end no more then;
//   * each tensor that it gives was said, with that shape and these bytes (link_arrivals.h);
//   * what it says is frames: HELLO first, nothing behind BYE, which says why it is lost;
//   * it returns no credit that was not taken, and takes no more than it has;
//   * it comes to rest, and of a lost one nothing is left.
//
// Threads: one. Lifetime: the random numbers outlive it. Failure: fails the test.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/byte_budget.h"
#include "core/owned_fd.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/link.h"
#include "distributed/link/link_pools.h"
#include "distributed/link/testing/byte_link_ends.h"
#include "tests/fuzz/link_arrivals.h"
#include "tests/fuzz/mutator.h"

namespace millrace {

// The task behind the link.
class FuzzedEnd : public LinkEnd {
 public:
  // `said` outlives it.
  explicit FuzzedEnd(Arrivals* said) : said_(said) {}

  std::function<void(Link*)> on_open;                // may be null
  std::function<void(const SentTensor&)> on_tensor;  // may be null

  std::shared_ptr<Link> link;
  int num_opens = 0, num_losses = 0;
  Status lost;
  bool by_peer = false;
  int64_t num_tensors = 0, num_refused = 0, num_messages = 0;

  void OnOpen(std::shared_ptr<Link> opened) override;
  void OnBind(BindFrame) override { HearMessage(); }
  void OnUnbind(uint64_t) override { HearMessage(); }
  void OnRun(RunFrame) override { HearMessage(); }
  void OnEnd(EndFrame) override { HearMessage(); }
  void OnCancel(int64_t step_id, const Status& status) override;
  void OnReceived(int64_t, uint64_t) override { Hear(); }
  void OnRefused(int64_t step_id, const Status& status) override;
  void OnTensors(SentTensors tensors) override;
  void OnLost(const Status& status, bool peer) override;

 private:
  void Hear();
  void HearMessage();
  void ExpectSaid(const SentTensors& message, const SentTensor& got);

  Arrivals* const said_;
};

// What the link says.
class FuzzingPeer : public ByteWire::User {
 public:
  FuzzingPeer();

  Arrivals heard;
  std::function<void(const LinkFrame&, int64_t num_bytes)> on_frame;  // may be null
  OwnedFd descriptor;  // of the SEGMENT that comes next; closed when nobody takes it
  int64_t num_hellos = 0, num_frames = 0, num_pongs = 0;
  Status bye;  // OK until it comes

  void OnBytes(absl::string_view bytes) override;
  absl::Span<char> Place() override { return {}; }
  void OnFilled(size_t num_bytes) override;
  void OnDescriptor(OwnedFd came) override;
  void OnWritten() override {}
  void OnClosed(const Status&, bool) override {}

 private:
  void Hear(const LinkFrame& frame, int64_t num_bytes);
};

class LinkTalk {
 public:
  static constexpr int64_t kWindowBytes = kMinWindowBytes;    // of the link
  static constexpr int64_t kPoolBytes = int64_t{1024} << 10;  // of each end, with pools
  static constexpr char kPs[] = "/job:ps/replica:0/task:0";   // the fuzzer

  LinkTalk(Mutator* random, bool has_pools);
  ~LinkTalk();
  LinkTalk(const LinkTalk&) = delete;
  LinkTalk& operator=(const LinkTalk&) = delete;

  uint64_t Below(uint64_t n) { return random_->Below(n); }
  bool OneIn(uint64_t n) { return random_->Below(n) == 0; }
  // Bytes that are nearly those.
  std::string Mutated(const std::string& bytes);

  // With the window above.
  static HelloFrame PsHello();
  // The link, which waits for HELLO.
  void Open();
  // By HELLO, after which it must be open.
  void Open(const HelloFrame& hello);
  // And all that comes of it. `fd` comes with the first byte.
  void Say(const std::string& bytes, std::shared_ptr<const OwnedFd> fd = nullptr);
  void Run();
  // And a Tick.
  void PassSeconds(int64_t seconds);
  bool is_lost() const { return end->num_losses > 0; }
  // Nothing but what is right was said: the link goes on, and its end has all of it.
  void ExpectAllTaken() const;
  // The link is ended, if it is not over: by the peer, by its owner or by silence.
  void Finish();

  // Of the link's window, for what is said.
  int64_t left_of_window() const { return kWindowBytes - said_bytes_; }
  // By the link, of the peer's window.
  int64_t taken() const { return taken_; }

  std::function<void(const LinkFrame&)> on_said, on_heard;  // may be null
  int64_t num_pings = 0, num_messages = 0;                  // said

  const std::shared_ptr<LinkPools> pools = std::make_shared<LinkPools>(2 * kPoolBytes);

 private:
  Mutator* const random_;
  const std::shared_ptr<ByteBudget> pending_ =
      std::make_shared<ByteBudget>(Arrivals::kMaxPendingBytes);
  ByteLinkEnds pair_;
  const std::unique_ptr<ByteWire> wire_;

 public:
  Arrivals said;
  const std::shared_ptr<FuzzedEnd> end = std::make_shared<FuzzedEnd>(&said);
  const std::shared_ptr<FuzzingPeer> peer = std::make_shared<FuzzingPeer>();
  std::shared_ptr<ByteLink> link;
  // Of the link; before Open.
  ByteLinkOptions& options = pair_.options[0];

 private:
  void NoteSaid(const LinkFrame& frame, int64_t num_bytes);
  void NoteHeard(const LinkFrame& frame, int64_t num_bytes);
  void End();

  int64_t peer_window_ = 0;  // by the first HELLO
  int64_t said_bytes_ = 0;   // of the window, which the link has not returned
  int64_t taken_ = 0;        // which the peer has not returned
};

Tensor FloatsOf(int64_t elements, float value);
// Indices count from `first_index` on.
SentTensors MessageOf(int64_t step_id, std::vector<Tensor> values, uint32_t first_index = 0);
// A tensor that lies in its frame.
TensorEntry WholeEntry(uint32_t index, const Tensor& tensor);

// Fuzz() of fuzz.h by structured inputs, `corpus` next to them, until one fails. Descriptors and
// mappings of memory files stay as many as there were.
void FuzzTalks(
    int n, std::vector<std::string> corpus,
    const std::function<void(int64_t number, const std::string& mutated, Mutator* random)>& talk);

}  // namespace millrace

#endif  // MILLRACE_TESTS_FUZZ_LINK_TALK_H_
