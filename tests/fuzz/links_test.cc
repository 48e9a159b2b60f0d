// SPDX-License-Identifier: Apache-2.0
//
// Links whose peer is a fuzzer (link_talk.h): HELLO, shared memory in both directions, tensors in
// parts, tensors that are kept. Mutated bytes rarely get past the head of a frame, so most inputs
// are made of frames: right ones, then one that breaks a rule, or some whose bytes were mutated.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/coding.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/kept_tensors.h"
#include "distributed/link/link.h"
#include "distributed/link/outgoing_tensors.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/wire_tensor.h"
#include "gtest/gtest.h"
#include "tests/fuzz/link_arrivals.h"
#include "tests/fuzz/link_talk.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/pool_peers.h"

namespace millrace {
namespace {

constexpr int64_t kLeastPooled = OutgoingTensors::kMinPooledBytes;

// --- HELLO

// What is right behind a HELLO, on a link with pools or without.
std::vector<std::string> RightFrames() {
  TensorsFrame tensors;
  tensors.step_id = 7;
  tensors.tensors = {WholeEntry(0, Tensor::Vector<float>({1, 2, 3})),
                     WholeEntry(1, Tensor::Vector<std::string>({"a", "", "of the heap, this one"})),
                     WholeEntry(2, FloatsOf(5000, 1))};
  TensorEntry dead;
  dead.index = 3;
  dead.is_dead = true;
  tensors.tensors.push_back(dead);
  TensorsFrame parts;
  parts.step_id = 8;
  TensorEntry& entry = parts.tensors.emplace_back();
  entry.transfer = 1;
  entry.dtype = DT_FLOAT;
  entry.shape = Shape{100'000 / 4};
  entry.num_bytes = 100'000;
  const Status error = absl::AbortedError("the run is over");
  return {
      FrameBytes(BindFrame{3, "session", "graph"}),
      FrameBytes(RunFrame{7, 3, true, false, 1'000'000, 2}),
      FrameBytes(tensors),
      FrameBytes(parts),
      FrameBytes(EndFrame{7, error, 2, true}),
      FrameBytes(CancelFrame{8, error}),
      FrameBytes(ReceivedFrame{0, {{1, 2}, {-1, std::numeric_limits<uint64_t>::max()}}}),
      FrameBytes(PingFrame{1}),
      FrameBytes(PongFrame{1, 2}),
  };
}

std::vector<std::string> Greetings() {
  HelloFrame plain = LinkTalk::PsHello(), offers = plain, takes = plain, pools = plain;
  offers.offer = std::string(62, 'o');
  takes.takes_offer = true;
  pools.pool_bytes = LinkTalk::kPoolBytes;
  std::vector<std::string> greetings;
  const std::vector<std::string> frames = RightFrames();
  for (const HelloFrame& hello : {plain, offers, takes, pools}) {
    std::string& bytes = greetings.emplace_back(FrameBytes(hello));
    for (const std::string& frame : frames) bytes += frame;
    greetings.push_back(FrameBytes(hello) + FrameBytes(PingFrame{1}));
  }
  greetings.push_back(FrameBytes(ByeFrame{absl::UnavailableError("not now")}));
  return greetings;
}

// Each field right most of the time.
HelloFrame DrawnHello(Mutator* random) {
  const auto is_odd = [random] { return random->Below(12) == 0; };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  HelloFrame hello = LinkTalk::PsHello();
  if (is_odd()) {
    const uint32_t versions[] = {0, 1, kLinkVersion - 1, kLinkVersion + 1,
                                 std::numeric_limits<uint32_t>::max()};
    hello.version = versions[random->Below(std::size(versions))];
  }
  if (is_odd()) {
    const std::string names[] = {"", "x", "/job:worker/replica:0/task:0",
                                 std::string(LinkTalk::kPs) + '\0',
                                 std::string(kMaxFrameNameBytes, 'n')};
    hello.task = names[random->Below(std::size(names))];
  }
  if (is_odd()) hello.incarnation = random->Below(2) == 0 ? 0 : ~uint64_t{0};
  if (is_odd()) hello.clock_ns = random->Below(2) == 0 ? kMost : -kMost;
  const int64_t windows[] = {0,    1, kMinWindowBytes - 1, kMinWindowBytes + 1, int64_t{64} << 20,
                             kMost};
  if (random->Below(3) == 0) hello.window_bytes = windows[random->Below(std::size(windows))];
  const int64_t pools[] = {
      0, 1, kLeastPooled - 1, kLeastPooled, LinkTalk::kPoolBytes, 2 * LinkTalk::kPoolBytes, kMost};
  hello.pool_bytes = pools[random->Below(std::size(pools))];
  const size_t offers[] = {0, 0, 1, 62, kMaxFrameOfferBytes};
  hello.offer = std::string(offers[random->Below(std::size(offers))], 'o');
  hello.takes_offer = random->Below(8) == 0;
  return hello;
}

// covers: clusters: HELLO of a stranger under a seeded mutator, and what follows it: a link opens
//   exactly when it should, hears of its loss once and last, tells the peer why, and nothing of it
//   is left
TEST(LinksTest, AnyHello) {
  constexpr int kInputs = 16'000;
  const std::vector<std::string> frames = RightFrames();
  const auto admits = [](const std::string& task) {
    return task.size() == sizeof(LinkTalk::kPs) - 1;
  };
  int64_t opened = 0, refused = 0, drawn_and_opened = 0;
  FuzzTalks(kInputs, Greetings(), [&](int64_t, const std::string& mutated, Mutator* random) {
    const bool has_pools = random->Below(2) == 0, was_dialled = random->Below(2) == 0;
    LinkTalk talk(random, has_pools);
    ByteLinkOptions& options = talk.options;
    if (was_dialled) {
      options.peer_task = "";
      options.waits_for_hello = true;
      options.admit = [&](const LinkPeer& peer) -> Status {
        if (admits(peer.task)) return absl::OkStatus();
        return absl::PermissionDeniedError("a stranger");
      };
      options.takes_offer = [&](const LinkPeer&, const std::string& offer) {
        EXPECT_FALSE(offer.empty());
        return offer.size() == 62;
      };
    } else {
      if (random->Below(2) == 0) options.peer_incarnation = 42;
      if (random->Below(2) == 0) options.offer = std::string(62, 'o');
    }
    // What the first frame is decides.
    bool is_first = true, opens = false, hears_bye = false;
    HelloFrame greeting;
    talk.on_said = [&](const LinkFrame& frame) {
      if (!std::exchange(is_first, false)) return;
      hears_bye = std::holds_alternative<ByeFrame>(frame);
      const auto* const hello = std::get_if<HelloFrame>(&frame);
      if (hello == nullptr) return;
      greeting = *hello;
      opens = hello->version == kLinkVersion &&
              (was_dialled ? admits(hello->task) : hello->task == LinkTalk::kPs) &&
              (options.peer_incarnation == 0 || hello->incarnation == 42) &&
              (!hello->takes_offer || !options.offer.empty()) &&
              hello->window_bytes >= kMinWindowBytes;
    };
    // The answer to HELLO, with a tensor in the pool if there is one.
    talk.end->on_open = [](Link* link) {
      EXPECT_OK(link->Send(RunFrame{1, 1}));
      EXPECT_OK(link->Send(MessageOf(1, {FloatsOf(kLeastPooled / 4, 1), FloatsOf(10, 2)})));
    };
    talk.Open();
    // What waits for HELLO leaves with it, or never.
    if (random->Below(2) == 0) {
      EXPECT_OK(talk.link->Send(RunFrame{2, 1}));
    }
    EXPECT_EQ(talk.peer->num_frames, was_dialled ? 0 : 1);
    if (random->Below(2) == 0) {
      talk.Say(mutated);
    } else {
      std::string bytes = FrameBytes(DrawnHello(random));
      for (uint64_t i = random->Below(4); i > 0; --i) {
        const std::string& frame = frames[random->Below(frames.size())];
        bytes += random->Below(16) == 0 ? talk.Mutated(frame) : frame;
      }
      talk.Say(bytes);
      drawn_and_opened += talk.end->num_opens;
    }
    EXPECT_EQ(talk.end->num_opens, opens ? 1 : 0) << talk.end->lost;
    if (opens) {
      ++opened;
      EXPECT_EQ(talk.link->peer().task, greeting.task);
      EXPECT_EQ(talk.link->peer().incarnation, greeting.incarnation);
      const int64_t pooled = 2 * LinkTalk::kPoolBytes - talk.pools->budget->left();
      EXPECT_LE(pooled, has_pools ? std::min(greeting.pool_bytes, LinkTalk::kPoolBytes) : 0);
      const bool has_room = has_pools && greeting.pool_bytes >= kLeastPooled;
      EXPECT_EQ(talk.pools->sent_tensors.load(), has_room ? 1 : 0);
      EXPECT_EQ(talk.peer->num_hellos, 1);
    } else {
      // HELLO and BYE, of which one that was dialled says BYE alone.
      EXPECT_EQ(talk.peer->num_hellos, was_dialled ? 0 : 1);
      EXPECT_LE(talk.peer->num_frames, was_dialled ? 1 : 2);
      if (!is_first) {
        ++refused;
        EXPECT_TRUE(talk.is_lost());
        EXPECT_EQ(talk.end->by_peer, hears_bye) << talk.end->lost;
      }
    }
    talk.Finish();
  });
  // More than the valid ones of Fuzz(), which are one in 16.
  EXPECT_GT(opened, kInputs / 16);
  EXPECT_GT(drawn_and_opened, kInputs / 16);
  EXPECT_GT(refused, kInputs / 16);
}

// --- Sequences of frames

struct Outcomes {
  int64_t wrong_and_lost = 0, mutated_and_lost = 0, mutated_and_open = 0;
  int64_t num_tensors = 0, num_refused = 0;  // that came
};

// A third of the inputs is right, a third ends with something wrong, and a third has mutated bytes.
template <typename Peer>
void TalkWith(Peer* peer, int64_t number, Outcomes* outcomes) {
  LinkTalk& talk = peer->talk();
  const bool is_right = number % 3 == 0, may_be_mutated = number % 3 == 1;
  for (uint64_t acts = 4 + talk.Below(8); acts > 0 && !talk.is_lost(); --acts) {
    peer->SayRight(may_be_mutated && talk.OneIn(3));
  }
  if (is_right) {
    peer->ExpectAllTaken();
  } else if (may_be_mutated) {
    ++(talk.is_lost() ? outcomes->mutated_and_lost : outcomes->mutated_and_open);
  } else {
    EXPECT_FALSE(talk.is_lost()) << talk.end->lost;
    const uint64_t wrong = talk.Below(Peer::kWrongs);
    SCOPED_TRACE(absl::StrCat("wrong ", wrong));
    peer->SayWrong(wrong);
    EXPECT_TRUE(talk.is_lost());
    EXPECT_FALSE(talk.end->by_peer) << talk.end->lost;
    if (talk.is_lost()) ++outcomes->wrong_and_lost;
  }
  outcomes->num_tensors += talk.end->num_tensors;
  outcomes->num_refused += talk.end->num_refused;
  peer->Finish();
}

// Those that are right or wrong are asserted one by one; of mutated bytes most are refused.
void ExpectBoth(int inputs, const Outcomes& outcomes) {
  EXPECT_GE(outcomes.wrong_and_lost, inputs / 3);
  EXPECT_GT(outcomes.mutated_and_lost, inputs / 12);
  EXPECT_GT(outcomes.mutated_and_open, 0);
}

// covers: clusters: a stranger's shared memory under a seeded fuzzer: segments of any size and
//   seals, or of other files, and tensors anywhere in them; what is handed over is what lies there,
//   what breaks a rule ends the link, and no memory, descriptor or mapping is left
TEST(LinksTest, AnySharedMemory) {
  constexpr int kInputs = 6'000;
  const SharedFiles files;
  Outcomes outcomes;
  FuzzTalks(kInputs, {"-"}, [&](int64_t number, const std::string&, Mutator* random) {
    PoolOwner owner(&files, random);
    TalkWith(&owner, number, &outcomes);
  });
  ExpectBoth(kInputs, outcomes);
  EXPECT_GT(outcomes.num_tensors, kInputs);
  EXPECT_GT(outcomes.num_refused, kInputs / 100);
}

// covers: clusters: a stranger that reads this task's shared memory, under a seeded fuzzer: what it
//   releases or returns in credit is checked, all that is sent arrives, and nothing is left
TEST(LinksTest, AnyReaderOfSharedMemory) {
  constexpr int kInputs = 6'000;
  int64_t num_pooled = 0;
  Outcomes outcomes;
  FuzzTalks(kInputs, {"-"}, [&](int64_t number, const std::string&, Mutator* random) {
    PoolReader reader(random);
    TalkWith(&reader, number, &outcomes);
    num_pooled += reader.num_pooled;
  });
  ExpectBoth(kInputs, outcomes);
  EXPECT_GT(num_pooled, kInputs);
}

// --- Tensors in parts

// A peer without pools, which sends and receives tensors in parts.
class PartsPeer {
 public:
  static constexpr uint64_t kWrongs = 14;

  explicit PartsPeer(Mutator* random) : talk_(random, /*has_pools=*/false) {
    talk_.Open(LinkTalk::PsHello());
  }

  LinkTalk& talk() { return talk_; }
  void SayRight(bool is_mutated);
  void SayWrong(uint64_t which);
  void ExpectAllTaken() {
    talk_.ExpectAllTaken();
    // Some 100 KB at most of each of eleven acts: within the window.
    EXPECT_EQ(talk_.peer->heard.num_tensors, num_sent_);
  }
  void Finish() { talk_.Finish(); }

 private:
  using Numbered = std::pair<const uint64_t, Arrivals::Parts>;

  // Bytes that leave as they are, or mutated; none when they are beyond the window.
  void Say(const std::string& bytes, bool is_mutated = false) {
    if (static_cast<int64_t>(bytes.size()) > talk_.left_of_window()) return;
    talk_.Say(is_mutated ? talk_.Mutated(bytes) : bytes);
  }
  int64_t Step() { return 7 + static_cast<int64_t>(talk_.Below(3)); }
  // One that is open; null when there is none.
  const Numbered* AnyTransfer() {
    const auto& open = talk_.said.transfers;
    if (open.empty()) return nullptr;
    return &*std::next(open.begin(), static_cast<std::ptrdiff_t>(talk_.Below(open.size())));
  }
  std::string Chunk(uint64_t transfer, uint64_t offset, uint64_t num_bytes);
  TensorEntry NewTransfer(uint64_t number, int64_t num_bytes);
  void SayTensors(bool is_mutated);
  void SayChunk(bool is_mutated);
  void Send();

  LinkTalk talk_;
  uint32_t next_index_ = 0;
  int64_t num_sent_ = 0;  // by the link
  int64_t held_ = 0;
};

std::string PartsPeer::Chunk(uint64_t transfer, uint64_t offset, uint64_t num_bytes) {
  std::string head;
  PutVarint64(&head, transfer);
  PutVarint64(&head, offset);
  std::string payload(static_cast<size_t>(num_bytes), static_cast<char>(talk_.Below(256)));
  if (!payload.empty()) payload.back() = static_cast<char>(talk_.Below(256));
  return RawFrame(static_cast<uint8_t>(FrameKind::kChunk), head, payload);
}

TensorEntry PartsPeer::NewTransfer(uint64_t number, int64_t num_bytes) {
  TensorEntry entry;
  entry.index = next_index_++;
  entry.transfer = number;
  entry.num_bytes = num_bytes;
  switch (talk_.Below(8)) {
    case 0:
      entry.form = WireTensor::Form::kProto;  // most bytes are none
      break;
    case 1:
      entry.form = WireTensor::Form::kNarrow;
      entry.dtype = DT_INT64;
      entry.shape = Shape{num_bytes / 4};
      break;
    default: {
      const DType dtypes[] = {DT_FLOAT, DT_INT64, DT_BOOL, DT_COMPLEX64};
      entry.dtype = dtypes[talk_.Below(std::size(dtypes))];
      entry.shape = Shape{num_bytes / static_cast<int64_t>(DTypeSize(entry.dtype))};
    }
  }
  return entry;
}

void PartsPeer::SayTensors(bool is_mutated) {
  const Arrivals& said = talk_.said;
  if (said.last_transfer > std::numeric_limits<uint64_t>::max() / 2) return;  // by mutated bytes
  TensorsFrame frame;
  frame.step_id = Step();
  if (talk_.OneIn(4)) frame.purpose = TensorsPurpose::kReport;
  uint64_t number = said.last_transfer;
  for (uint64_t i = talk_.Below(3); i > 0; --i) {
    // Twice as many as may arrive are dropped, and harm their steps only; more would end the link.
    const size_t open = said.transfers.size() + frame.tensors.size();
    if (open + 1 >= static_cast<size_t>(2 * Arrivals::kMaxTransfers)) break;
    int64_t num_bytes = 16 * (1 + static_cast<int64_t>(talk_.Below(8'000)));
    if (talk_.OneIn(12)) num_bytes = Arrivals::kMaxTensorBytes + 16;
    number += 1 + talk_.Below(3);
    frame.tensors.push_back(NewTransfer(number, num_bytes));
  }
  if (talk_.OneIn(2)) {
    frame.tensors.push_back(WholeEntry(next_index_++, Tensor::Vector<float>({1, 2, 3})));
  }
  Say(FrameBytes(frame), is_mutated);
}

void PartsPeer::SayChunk(bool is_mutated) {
  const Numbered* const open = AnyTransfer();
  if (open == nullptr) return SayTensors(is_mutated);
  const Arrivals::Parts& transfer = open->second;
  const uint64_t left = static_cast<uint64_t>(transfer.entry.num_bytes) - transfer.filled;
  const uint64_t most = std::min(left, kMaxFramePayloadBytes);
  const uint64_t num_bytes = talk_.OneIn(2) ? most : 1 + talk_.Below(most);
  Say(Chunk(open->first, transfer.filled, num_bytes), is_mutated);
}

// Whole or in parts.
void PartsPeer::Send() {
  ++num_sent_;
  const int64_t elements = talk_.OneIn(2) ? 10 : 17'000 + static_cast<int64_t>(talk_.Below(8'000));
  EXPECT_OK(talk_.link->Send(MessageOf(Step(), {FloatsOf(elements, 1)}, next_index_++)));
  talk_.Run();
}

void PartsPeer::SayRight(bool is_mutated) {
  const Status error = absl::AbortedError("the run is over");
  switch (talk_.Below(is_mutated ? 12 : 18)) {
    case 0:
    case 1:
    case 2:
      return SayTensors(is_mutated);
    case 3:
      return Say(FrameBytes(EndFrame{Step(), talk_.OneIn(2) ? error : absl::OkStatus(), 2, true}),
                 is_mutated);
    case 4:
      return Say(FrameBytes(CancelFrame{Step(), error}), is_mutated);
    case 5:
      return Say(FrameBytes(RunFrame{Step(), talk_.Below(3), true, true, 5, 1}) +
                     FrameBytes(BindFrame{talk_.Below(3), "session", "graph"}) +
                     FrameBytes(UnbindFrame{talk_.Below(3)}),
                 is_mutated);
    case 6: {
      const auto credit =
          static_cast<int64_t>(talk_.Below(static_cast<uint64_t>(talk_.taken()) + 1));
      return Say(FrameBytes(ReceivedFrame{credit, {{Step(), talk_.Below(5)}}}), is_mutated);
    }
    case 12:
      return Say(FrameBytes(PingFrame{1}) + FrameBytes(PongFrame{1, 1}));
    case 13:
      talk_.PassSeconds(1);
      return Say(FrameBytes(PongFrame{1, 1}));
    case 14:
      // An end that keeps too much, for a while.
      if (held_ == 0) {
        held_ = LinkTalk::kWindowBytes / 4;
        talk_.link->HoldCredit(held_);
      } else {
        talk_.link->LetGoOfCredit(std::exchange(held_, 0));
      }
      return talk_.Run();
    case 15:
    case 16:
      return Send();
    default:
      return SayChunk(is_mutated);
  }
}

void PartsPeer::SayWrong(uint64_t which) {
  const Arrivals& said = talk_.said;
  const uint64_t next = said.last_transfer + 1;
  // Of one that is open, else of one that never was.
  const Numbered* const open = AnyTransfer();
  const uint64_t number = open != nullptr ? open->first : next;
  const uint64_t filled = open != nullptr ? open->second.filled : 0;
  const uint64_t left =
      open != nullptr ? static_cast<uint64_t>(open->second.entry.num_bytes) - filled : 0;
  TensorsFrame frame;
  frame.step_id = 7;
  switch (which) {
    case 0:
      return talk_.Say(Chunk(next + talk_.Below(9), 0, 100));
    case 1:
      return talk_.Say(Chunk(number, filled + 1 + talk_.Below(1000), 1));
    case 2:
      return talk_.Say(Chunk(number, filled > 0 ? filled - 1 : 1, 1));
    case 3:
      return talk_.Say(Chunk(number, filled, left + 1));
    case 4:
      return talk_.Say(Chunk(number, std::numeric_limits<uint64_t>::max(), 1));
    case 5:
      return talk_.Say(Chunk(number, filled, 0));
    case 6:  // a number that has been
      if (said.last_transfer == 0) return talk_.Say(Chunk(next, 0, 1));
      frame.tensors = {NewTransfer(said.last_transfer, 16)};
      return talk_.Say(FrameBytes(frame));
    case 7:  // bytes of another shape; beyond a limit nobody looks at it
      if (!said.transfers.empty()) return talk_.Say(Chunk(next, 0, 1));
      frame.tensors = {NewTransfer(next, 1600)};
      frame.tensors[0].form = WireTensor::Form::kRaw;
      frame.tensors[0].dtype = DT_FLOAT;
      frame.tensors[0].shape = Shape{401};
      return talk_.Say(FrameBytes(frame));
    case 8:
      return talk_.Say(FrameBytes(LinkTalk::PsHello()));
    case 9:
      return talk_.Say(FrameBytes(SegmentFrame{1, static_cast<int64_t>(4096 * talk_.Below(2))}));
    case 10:
      return talk_.Say(FrameBytes(ReleaseFrame{{{1, 0}}}));
    case 11: {
      TensorEntry& entry = frame.tensors.emplace_back();
      entry.segment = 1;
      entry.dtype = DT_FLOAT;
      entry.shape = Shape{kLeastPooled / 4};
      entry.num_bytes = kLeastPooled;
      frame.credit_bytes = 1000;
      return talk_.Say(FrameBytes(frame));
    }
    case 12:
      return talk_.Say(FrameBytes(ReceivedFrame{talk_.taken() + 1, {}}));
    default:
      // More than the window, of which nothing is returned.
      talk_.link->HoldCredit(2 * LinkTalk::kWindowBytes);
      for (uint32_t i = 0; i < 20 && !talk_.is_lost(); ++i) {
        frame.tensors = {WholeEntry(i, FloatsOf(60'000, 1))};
        talk_.Say(FrameBytes(frame));
      }
  }
}

// covers: clusters: tensors in parts, their ends and credit, as a seeded fuzzer says them: what
//   comes whole is what was said, what breaks a rule ends the link, and nothing is left
TEST(LinksTest, AnyTensorsInParts) {
  constexpr int kInputs = 8'000;
  Outcomes outcomes;
  FuzzTalks(kInputs, {"-"}, [&](int64_t number, const std::string&, Mutator* random) {
    PartsPeer peer(random);
    TalkWith(&peer, number, &outcomes);
  });
  ExpectBoth(kInputs, outcomes);
  EXPECT_GT(outcomes.num_tensors, kInputs);
  EXPECT_GT(outcomes.num_refused, kInputs / 100);
}

// --- Tensors that are kept

// A peer without pools, which lets the link keep tensors, names them and forgets them.
class KeptPeer {
 public:
  static constexpr uint64_t kWrongs = 10;

  explicit KeptPeer(Mutator* random) : talk_(random, /*has_pools=*/false) {
    talk_.options.max_kept_bytes = Arrivals::kMaxKeptBytes;
    talk_.Open(LinkTalk::PsHello());
  }

  LinkTalk& talk() { return talk_; }
  void SayRight(bool is_mutated);
  void SayWrong(uint64_t which);
  void ExpectAllTaken() { talk_.ExpectAllTaken(); }
  void Finish() { talk_.Finish(); }

  int64_t num_named = 0;

 private:
  void Say(const std::string& bytes, bool is_mutated) {
    talk_.Say(is_mutated ? talk_.Mutated(bytes) : bytes);
  }
  int64_t kept_bytes() const {
    int64_t bytes = 0;
    for (const auto& [number, tensor] : talk_.said.kept) bytes += tensor.TotalBytes();
    return bytes;
  }
  // One that is kept; 0 when there is none.
  uint64_t AnyKept() {
    const auto& kept = talk_.said.kept;
    if (kept.empty()) return 0;
    return std::next(kept.begin(), static_cast<std::ptrdiff_t>(talk_.Below(kept.size())))->first;
  }
  TensorEntry Keep(uint64_t number, int64_t num_bytes);
  TensorEntry Kept(uint64_t number);
  // With all the credit that it may take, or none beyond its own bytes.
  std::string BytesOf(TensorsFrame frame, int64_t kept_bytes);
  void SayKeep(bool is_mutated);
  void SayKept(bool is_mutated);

  LinkTalk talk_;
  uint32_t next_index_ = 0;
  float next_value_ = 0;
};

TensorEntry KeptPeer::Keep(uint64_t number, int64_t num_bytes) {
  TensorEntry entry = WholeEntry(next_index_++, FloatsOf(num_bytes / 4, ++next_value_));
  entry.keep_number = number;
  return entry;
}

TensorEntry KeptPeer::Kept(uint64_t number) {
  TensorEntry entry;
  entry.index = next_index_++;
  entry.keep_number = number;
  entry.is_kept = true;
  return entry;
}

std::string KeptPeer::BytesOf(TensorsFrame frame, int64_t kept_bytes) {
  const auto frame_bytes = static_cast<int64_t>(FrameBytes(frame).size());
  frame.credit_bytes =
      talk_.OneIn(2) ? frame_bytes : CreditOf(frame_bytes, kept_bytes, LinkTalk::kWindowBytes);
  if (frame.credit_bytes > talk_.left_of_window()) frame.credit_bytes = frame_bytes;
  return FrameBytes(frame);
}

// Whole, or in one part.
void KeptPeer::SayKeep(bool is_mutated) {
  const Arrivals& said = talk_.said;
  const int64_t num_bytes =
      talk_.OneIn(4) ? kMinKeptBytes : kMinKeptBytes + 4 * static_cast<int64_t>(talk_.Below(8'000));
  if (num_bytes > Arrivals::kMaxKeptBytes - kept_bytes()) {
    return Say(FrameBytes(ForgetFrame{{AnyKept()}}), is_mutated);
  }
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max() / 2;
  if (said.last_kept > kMost || said.last_transfer > kMost) return;  // by mutated bytes
  TensorsFrame frame;
  frame.step_id = 7;
  frame.tensors = {Keep(said.last_kept + 1 + talk_.Below(3), num_bytes)};
  if (!talk_.OneIn(3)) return Say(FrameBytes(frame), is_mutated);
  TensorEntry& entry = frame.tensors[0];
  entry.value = {};
  entry.transfer = said.last_transfer + 1;
  entry.form = WireTensor::Form::kRaw;
  entry.dtype = DT_FLOAT;
  entry.shape = Shape{num_bytes / 4};
  entry.num_bytes = num_bytes;
  std::string head;
  PutVarint64(&head, entry.transfer);
  PutVarint64(&head, 0);
  const std::string payload(static_cast<size_t>(num_bytes), static_cast<char>(talk_.Below(256)));
  Say(FrameBytes(frame) + RawFrame(static_cast<uint8_t>(FrameKind::kChunk), head, payload),
      is_mutated);
}

void KeptPeer::SayKept(bool is_mutated) {
  TensorsFrame frame;
  frame.step_id = 7;
  int64_t bytes = 0;
  for (const auto& [number, tensor] : talk_.said.kept) {
    if (talk_.OneIn(2)) continue;
    frame.tensors.push_back(Kept(number));
    bytes += tensor.TotalBytes();
  }
  if (frame.tensors.empty()) return SayKeep(is_mutated);
  num_named += static_cast<int64_t>(frame.tensors.size());
  if (talk_.OneIn(2)) {
    frame.tensors.push_back(WholeEntry(next_index_++, Tensor::Vector<float>({1, 2, 3})));
  }
  Say(BytesOf(std::move(frame), bytes), is_mutated);
}

void KeptPeer::SayRight(bool is_mutated) {
  switch (talk_.Below(8)) {
    case 0:  // also of what is not kept
      return Say(FrameBytes(ForgetFrame{{AnyKept(), talk_.said.last_kept + 7}}), is_mutated);
    case 1:
    case 2:
    case 3:
      return SayKeep(is_mutated);
    default:
      return SayKept(is_mutated);
  }
}

void KeptPeer::SayWrong(uint64_t which) {
  while (AnyKept() == 0) SayKeep(/*is_mutated=*/false);
  const uint64_t number = AnyKept(), next = talk_.said.last_kept + 1;
  const int64_t bytes = talk_.said.kept.at(number).TotalBytes();
  TensorsFrame frame;
  frame.step_id = 7;
  switch (which) {
    case 0:  // never kept
      frame.tensors = {Kept(next + talk_.Below(9))};
      return talk_.Say(BytesOf(frame, kMinKeptBytes));
    case 1:  // kept no more
      talk_.Say(FrameBytes(ForgetFrame{{number}}));
      frame.tensors = {Kept(number)};
      return talk_.Say(BytesOf(frame, bytes));
    case 2:
      frame.tensors = {Kept(number), Kept(number)};
      return talk_.Say(BytesOf(frame, 2 * bytes));
    case 3:
      frame.tensors = {Keep(number, kMinKeptBytes)};
      return talk_.Say(FrameBytes(frame));
    case 4:
      frame.tensors = {Keep(next, kMinKeptBytes - 4)};
      return talk_.Say(FrameBytes(frame));
    case 5:
      frame.tensors = {Keep(next, Arrivals::kMaxKeptBytes - kept_bytes() + kMinKeptBytes)};
      return talk_.Say(FrameBytes(frame));
    case 6:  // in the message that brings it
      frame.tensors = {Keep(next, kMinKeptBytes), Kept(next)};
      return talk_.Say(BytesOf(frame, kMinKeptBytes));
    case 7:
      frame.tensors = {Kept(number)};
      frame.credit_bytes = 1;
      return talk_.Say(FrameBytes(frame));
    case 8:
      frame.tensors = {Kept(number)};
      frame.credit_bytes = 1 + CreditOf(static_cast<int64_t>(FrameBytes(frame).size()), bytes,
                                        LinkTalk::kWindowBytes);
      return talk_.Say(FrameBytes(frame));
    default:  // a number that is cut off
      return talk_.Say(RawFrame(static_cast<uint8_t>(FrameKind::kForget), std::string(1, '\x80')));
  }
}

// covers: clusters: tensors that a stranger lets this task keep, names and forgets, as a seeded
//   fuzzer says them: each that comes is the one of its number, what breaks a rule ends the link,
//   and nothing is left
TEST(LinksTest, AnyTensorsThatAreKept) {
  constexpr int kInputs = 8'000;
  Outcomes outcomes;
  int64_t num_named = 0;
  FuzzTalks(kInputs, {"-"}, [&](int64_t number, const std::string&, Mutator* random) {
    KeptPeer peer(random);
    TalkWith(&peer, number, &outcomes);
    num_named += peer.num_named;
  });
  ExpectBoth(kInputs, outcomes);
  EXPECT_GT(num_named, kInputs);
}

}  // namespace
}  // namespace millrace
