// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/frame.h"

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/coding.h"
#include "core/status_kind.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/testing/frame_text.h"
#include "gtest/gtest.h"

// covers: clusters: frames of a link: bytes that come cut anywhere give the same frames; malformed,
//   oversized, doubled and unknown ones are refused by name, and nothing is read past an end

namespace millrace {
namespace {

// Keeps what comes. Chunks go into `memory`, at their offset.
class Kept : public FrameReader::Owner {
 public:
  Status OnFrame(LinkFrame frame, int64_t num_bytes) override {
    texts.push_back(FrameText(frame));
    frames.push_back(std::move(frame));
    bytes += num_bytes;
    return refuses_with;
  }
  StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame& chunk) override {
    if (skips) return absl::Span<char>();
    if (chunk.offset > memory.size() || chunk.num_bytes > memory.size() - chunk.offset) {
      return absl::InvalidArgumentError("no such place");
    }
    return absl::MakeSpan(memory.data() + chunk.offset, static_cast<size_t>(chunk.num_bytes));
  }

  std::vector<std::string> texts;
  std::vector<LinkFrame> frames;
  int64_t bytes = 0;
  std::vector<char> memory;
  bool skips = false;
  Status refuses_with;
};

TensorEntry EntryOf(uint32_t index, const Tensor& tensor) {
  TensorEntry entry;
  entry.index = index;
  const StatusOr<WireTensor> value = WireTensor::Of(tensor);
  EXPECT_OK(value);
  if (value.ok()) entry.value = *value;
  return entry;
}

// Two numbers, as int32.
TensorEntry NarrowEntry(uint32_t index, int32_t first, int32_t second) {
  TensorEntry entry;
  entry.index = index;
  StatusOr<WireTensor> value = WireTensor::For(WireTensor::Form::kNarrow, DT_INT64, Shape{2, 1}, 8);
  EXPECT_OK(value);
  if (!value.ok()) return entry;
  const int32_t numbers[] = {first, second};
  std::memcpy(value->mutable_bytes().data(), numbers, sizeof(numbers));
  entry.value = *value;
  return entry;
}

TensorEntry DeadEntry(uint32_t index) {
  TensorEntry entry;
  entry.index = index;
  entry.is_dead = true;
  return entry;
}

TensorEntry InLoop(TensorEntry entry, uint64_t frame_id, int64_t iteration) {
  entry.in_loop = true;
  entry.frame_id = frame_id;
  entry.iteration = iteration;
  return entry;
}

// All kinds but CHUNK, with small and large fields.
std::vector<LinkFrame> SomeFrames() {
  TensorsFrame tensors;
  tensors.step_id = -3;
  tensors.purpose = TensorsPurpose::kEdges;
  tensors.fingerprint = UINT64_MAX;
  tensors.tensors = {EntryOf(0, Tensor::Vector<float>({1, 2, 3})),
                     EntryOf(700, Tensor::Scalar(true)),
                     EntryOf(1, Tensor::Of({"a", "", "long enough for the heap, this one"})),
                     DeadEntry(5),
                     InLoop(DeadEntry(6), 9, 3),
                     InLoop(EntryOf(6, Tensor::Of<int64_t>({{1, 2}, {3, 4}})), 9, INT64_MAX)};
  tensors.tensors.push_back(EntryOf(8, *Tensor::Zeros(DT_DOUBLE, *Shape::Make({0, 3}))));
  TensorEntry parts;
  parts.index = 9;
  parts.transfer = 300;
  parts.dtype = DT_FLOAT;
  parts.shape = Shape{1 << 20, 3};
  parts.num_bytes = int64_t{12} << 20;
  tensors.tensors.push_back(parts);
  parts.index = 10;
  parts.form = WireTensor::Form::kProto;
  parts.dtype = DT_INVALID;
  parts.shape = Shape();
  tensors.tensors.push_back(parts);
  parts.index = 11;
  parts.form = WireTensor::Form::kNarrow;
  parts.dtype = DT_INT64;
  parts.shape = Shape{100, 200};
  parts.num_bytes = 80'000;
  tensors.tensors.push_back(parts);
  tensors.tensors.push_back(InLoop(NarrowEntry(12, INT32_MIN, INT32_MAX), 9, 3));
  for (TensorEntry entry :
       {EntryOf(13, Tensor::Scalar(true)), InLoop(DeadEntry(14), 9, 3), parts}) {
    entry.index += 20;
    entry.ready_ns = 1'700'000'000'000'000'000;
    entry.left_ns = entry.is_dead ? 0 : INT64_MIN;
    tensors.tensors.push_back(std::move(entry));
  }
  TensorEntry pooled;
  pooled.index = 13;
  pooled.segment = UINT64_MAX;
  pooled.offset = 1 << 20;
  pooled.dtype = DT_FLOAT;
  pooled.shape = Shape{1 << 20, 3};
  pooled.num_bytes = int64_t{12} << 20;
  tensors.tensors.push_back(pooled);
  pooled.index = 14;
  pooled.form = WireTensor::Form::kProto;
  pooled.dtype = DT_INVALID;
  pooled.shape = Shape();
  pooled.num_bytes = INT32_MAX;
  tensors.tensors.push_back(InLoop(pooled, 9, 4));
  pooled.index = 15;
  pooled.form = WireTensor::Form::kNarrow;
  pooled.dtype = DT_INT64;
  pooled.shape = Shape{100, 200};
  pooled.num_bytes = 80'000;
  tensors.tensors.push_back(pooled);
  tensors.credit_bytes = INT64_MAX;
  TensorEntry keep = EntryOf(50, Tensor::Vector<float>({4, 5}));
  keep.keep_number = 1;
  tensors.tensors.push_back(keep);
  parts.index = 51;
  parts.keep_number = uint64_t{1} << 40;
  tensors.tensors.push_back(parts);
  TensorEntry is_kept;
  is_kept.index = 52;
  is_kept.keep_number = UINT64_MAX;
  is_kept.is_kept = true;
  tensors.tensors.push_back(is_kept);
  is_kept.index = 53;
  is_kept.keep_number = 1;
  is_kept.left_ns = 3;
  tensors.tensors.push_back(is_kept);
  TensorsFrame none;
  none.purpose = TensorsPurpose::kReport;
  Status ended = absl::AbortedError("the run is over");
  ended.SetPayload(kRunEndKind, absl::Cord("why"));
  return {
      HelloFrame{kLinkVersion, "/job:ps/replica:0/task:0", 41, -1, int64_t{64} << 20, "", true},
      HelloFrame{kLinkVersion, "", 0, 0, 0, std::string(256, '\xff'), false, INT64_MAX, INT64_MAX},
      BindFrame{3, "session", "graph"},
      UnbindFrame{UINT64_MAX},
      RunFrame{INT64_MIN, 3, true, false, 1'000'000, 2},
      RunFrame{INT64_MAX, 0, false, true, 0, 0},
      tensors,
      none,
      EndFrame{7, absl::OkStatus(), 2, true},
      EndFrame{7, ended, 0, false},
      CancelFrame{7, absl::CancelledError("by \xff its caller")},
      ReceivedFrame{0, {}},
      ReceivedFrame{INT64_MAX, {{1, 2}, {-1, UINT64_MAX}}},
      PingFrame{INT64_MIN},
      PongFrame{1, 2},
      ByeFrame{absl::UnavailableError("the server stops")},
      SegmentFrame{1, int64_t{64} << 20},
      SegmentFrame{UINT64_MAX, 0},
      ReleaseFrame{{}},
      ReleaseFrame{{{1, 0}, {UINT64_MAX, UINT64_MAX}, {1, 0}}},
      ForgetFrame{{}},
      ForgetFrame{{1, UINT64_MAX, 0}},
  };
}

// `bytes` with the head's length and end moved by `by`: less of the head, or more of it.
std::string WithHeadChanged(const std::string& frame, int by) {
  absl::string_view in = frame;
  const uint8_t kind = static_cast<uint8_t>(in.front());
  in.remove_prefix(1);
  uint64_t head_bytes = 0, payload_bytes = 0;
  EXPECT_TRUE(GetVarint64(&in, &head_bytes) && GetVarint64(&in, &payload_bytes));
  std::string head(in.substr(0, static_cast<size_t>(head_bytes)));
  const absl::string_view payload = in.substr(static_cast<size_t>(head_bytes));
  head.resize(static_cast<size_t>(static_cast<int>(head.size()) + by));
  return RawFrame(kind, head, payload);
}

TEST(FrameTest, EachFrameComesBackHoweverItIsCut) {
  std::string all;
  std::vector<std::string> want;
  for (const LinkFrame& frame : SomeFrames()) {
    const std::string bytes = FrameBytes(frame);
    all += bytes;
    want.push_back(FrameText(frame));
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      SCOPED_TRACE(absl::StrCat(want.back(), ", cut at ", cut));
      Kept kept;
      FrameReader reader(&kept);
      ASSERT_OK(reader.Read(absl::string_view(bytes).substr(0, cut)));
      EXPECT_EQ(kept.texts.size(), cut == bytes.size() ? 1u : 0u);
      ASSERT_OK(reader.Read(absl::string_view(bytes).substr(cut)));
      EXPECT_OK(reader.End());
      ASSERT_EQ(kept.texts, std::vector<std::string>{want.back()});
      EXPECT_EQ(kept.bytes, static_cast<int64_t>(bytes.size()));
    }
  }
  Kept kept;
  FrameReader reader(&kept);
  for (const char& byte : all) ASSERT_OK(reader.Read(absl::string_view(&byte, 1)));
  EXPECT_EQ(kept.texts, want);
  Kept at_once;
  FrameReader second(&at_once);
  ASSERT_OK(second.Read(all));
  EXPECT_EQ(at_once.texts, want);
}

TEST(FrameTest, AFrameThatEndsEarlyIsRefused) {
  for (const LinkFrame& frame : SomeFrames()) {
    const std::string bytes = FrameBytes(frame);
    SCOPED_TRACE(FrameText(frame));
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      Kept kept;
      FrameReader reader(&kept);
      ASSERT_OK(reader.Read(absl::string_view(bytes).substr(0, cut)));
      EXPECT_STATUS(reader.End(), absl::StatusCode::kInvalidArgument, "an end in the middle of it");
      EXPECT_STATUS(reader.Read("x"), absl::StatusCode::kInvalidArgument, "in the middle");
      EXPECT_TRUE(kept.texts.empty());
    }
  }
}

TEST(FrameTest, AHeadThatIsShorterOrLongerThanItsFieldsIsRefused) {
  for (const LinkFrame& frame : SomeFrames()) {
    const std::string bytes = FrameBytes(frame);
    SCOPED_TRACE(FrameText(frame));
    absl::string_view in = bytes;
    in.remove_prefix(1);
    uint64_t head_bytes = 0;
    ASSERT_TRUE(GetVarint64(&in, &head_bytes));
    for (int shorter = 1; shorter <= static_cast<int>(head_bytes); ++shorter) {
      Kept kept;
      FrameReader reader(&kept);
      EXPECT_STATUS(reader.Read(WithHeadChanged(bytes, -shorter)),
                    absl::StatusCode::kInvalidArgument, "must be well formed, got ");
      EXPECT_TRUE(kept.texts.empty());
    }
    Kept kept;
    FrameReader reader(&kept);
    EXPECT_STATUS(reader.Read(WithHeadChanged(bytes, 1)), absl::StatusCode::kInvalidArgument,
                  "bytes after the last field");
  }
}

std::string Bytes(std::initializer_list<int> bytes) {
  std::string result;
  for (const int byte : bytes) result.push_back(static_cast<char>(byte));
  return result;
}

constexpr uint8_t NumberOf(FrameKind kind) { return static_cast<uint8_t>(kind); }
constexpr uint8_t kHello = NumberOf(FrameKind::kHello), kBind = NumberOf(FrameKind::kBind),
                  kRun = NumberOf(FrameKind::kRun), kTensors = NumberOf(FrameKind::kTensors),
                  kChunk = NumberOf(FrameKind::kChunk), kEnd = NumberOf(FrameKind::kEnd),
                  kCancel = NumberOf(FrameKind::kCancel),
                  kReceived = NumberOf(FrameKind::kReceived), kBye = NumberOf(FrameKind::kBye),
                  kSegment = NumberOf(FrameKind::kSegment),
                  kRelease = NumberOf(FrameKind::kRelease), kForget = NumberOf(FrameKind::kForget);
using Flags = EntryFlags;

// Step 7, of edges, fingerprint 0, `count` entries, then `entries`.
std::string TensorsHead(uint64_t count, std::initializer_list<int> entries, int purpose = 0) {
  std::string head;
  PutFixed64(&head, 7);
  head.push_back(static_cast<char>(purpose));
  PutFixed64(&head, 0);
  PutVarint64(&head, count);
  return head + Bytes(entries);
}

std::string WithStep(std::initializer_list<int> rest) {
  std::string head;
  PutFixed64(&head, 7);
  return head + Bytes(rest);
}

TEST(FrameTest, MalformedFramesAreRefusedByName) {
  const std::string ones(9, '\xff');
  struct {
    std::string what;
    std::string bytes;
    std::string message;
  } const cases[] = {
      {"kind 0", Bytes({0}), "frame of no kind must be well formed, got kind 0"},
      {"kind of a later version", Bytes({kForget + 1}), "got kind 16"},
      {"kind 255", Bytes({255}), "got kind 255"},
      {"head of eleven bytes' varint", Bytes({kRun}) + ones + Bytes({0x81, 0}),
       "frame RUN must be well formed, got a varint of more than 64 bits"},
      {"head of 2^64 + ...", Bytes({kRun}) + ones + Bytes({2}), "a varint of more than 64 bits"},
      {"payload of eleven bytes' varint", Bytes({kChunk, 2}) + ones + Bytes({0x81, 0}),
       "a varint of more than 64 bits"},
      {"head of 2^64 - 1", Bytes({kRun}) + ones + Bytes({1}),
       "a head of 18446744073709551615 bytes, more than 65536"},
      {"head of 65,537", Bytes({kTensors, 0x81, 0x80, 0x04}), "a head of 65537 bytes"},
      {"payload of 262,145", Bytes({kChunk, 2, 0x81, 0x80, 0x10}),
       "a payload of 262145 bytes, more than 262144"},
      {"RUN with a payload", Bytes({kRun, 12, 1}), "frame RUN must be well formed, got a payload"},
      {"no head", Bytes({kBind, 0, 0}), "frame BIND must be well formed, got an end within"},
      {"name too long", RawFrame(kBind, Bytes({1, 0x81, 0x20}) + std::string(4097, 'a')),
       "a text that is too long"},
      {"name longer than the head", RawFrame(kBind, Bytes({1, 9, 'a'})), "an end within a text"},
      {"name of 2^64 - 1", RawFrame(kBind, Bytes({1}) + ones + Bytes({1})),
       "a text that is too long"},
      {"varint of eleven bytes in a head", RawFrame(kBind, ones + Bytes({0x81, 0, 0, 0})),
       "a varint of more than 64 bits"},
      {"window of 2^63",
       RawFrame(kHello, Bytes({kLinkVersion, 0}) + std::string(16, '\0') + std::string(9, '\x80') +
                            Bytes({1})),
       "a count of more than 63 bits"},
      {"HELLO without an offer",
       RawFrame(kHello, Bytes({kLinkVersion, 0}) + std::string(16, '\0') + Bytes({1, 0})),
       "an end within a field"},
      {"offer of 257 bytes",
       RawFrame(kHello, Bytes({kLinkVersion, 0}) + std::string(16, '\0') +
                            Bytes({1, 0, 0x81, 0x02}) + std::string(258, 'a')),
       "a text that is too long"},
      {"offer taken twice",
       RawFrame(kHello, Bytes({kLinkVersion, 0}) + std::string(16, '\0') + Bytes({1, 0, 0, 2})),
       "a flag of another version"},
      {"version of 33 bits", RawFrame(kHello, Bytes({0x80, 0x80, 0x80, 0x80, 0x10})),
       "a number of more than 32 bits"},
      {"flag of RUN", RawFrame(kRun, WithStep({1, RunFlags::kGraphs << 1, 0, 0})),
       "a flag of another version"},
      {"flag of END", RawFrame(kEnd, WithStep({0, 0, 0, 0, 2})), "a flag of another version"},
      {"status code 17", RawFrame(kEnd, WithStep({17, 0, 0, 0, 0})), "a status code that is none"},
      {"status text too long",
       RawFrame(kCancel, WithStep({1, 0x81, 0x80, 0x01}) + std::string(16385, 'a') + Bytes({0})),
       "a text that is too long"},
      {"CANCEL without a reason", RawFrame(kCancel, WithStep({0, 0, 0})),
       "a status that is no error"},
      {"BYE without a reason", RawFrame(kBye, Bytes({0, 0, 0})), "a status that is no error"},
      {"more steps than bytes", RawFrame(kReceived, Bytes({0, 0xff, 0xff, 0xff, 0x7f})),
       "more things than there are bytes"},
      {"more tensors than bytes", RawFrame(kTensors, TensorsHead(UINT64_MAX, {})),
       "more things than there are bytes"},
      {"purpose", RawFrame(kTensors, TensorsHead(0, {}, 4)), "a purpose of another version"},
      {"flag of a tensor", RawFrame(kTensors, TensorsHead(1, {0, 0x80, 0x04, 1, 0, 0})),
       "a flag of another version"},
      {"flags of 33 bits", RawFrame(kTensors, TensorsHead(1, {0, 0x80, 0x80, 0x80, 0x80, 0x10})),
       "a number of more than 32 bits"},
      {"keep of a dead tensor",
       RawFrame(kTensors, TensorsHead(1, {0, 0x80 | Flags::kDead, 0x01, 1})),
       "a kept tensor of another kind"},
      {"keep in a loop",
       RawFrame(kTensors,
                TensorsHead(1, {0, 0x80 | Flags::kLoop, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
                                DT_FLOAT, 0, 4}),
                "abcd"),
       "a kept tensor of another kind"},
      {"keep of a proto",
       RawFrame(kTensors, TensorsHead(1, {0, 0x80 | Flags::kProto, 0x01, 1, 4}), "abcd"),
       "a kept tensor of another kind"},
      {"keep of one in a pool",
       RawFrame(kTensors, TensorsHead(1, {0, 0x80 | Flags::kPooled, 0x01, 1, DT_FLOAT, 0, 1, 0, 4,
                                          0, 0, 0, 0, 0, 0, 0, 0})),
       "a kept tensor of another kind"},
      {"keep of one that is kept", RawFrame(kTensors, TensorsHead(1, {0, 0x80, 0x03, 1})),
       "a kept tensor of another kind"},
      {"kept in parts",
       RawFrame(kTensors, TensorsHead(1, {0, 0x80 | Flags::kParts, 0x02, 1, DT_FLOAT, 0, 1, 4})),
       "a kept tensor of another kind"},
      {"kept narrow", RawFrame(kTensors, TensorsHead(1, {0, 0x80 | Flags::kNarrow, 0x02, 1})),
       "a kept tensor of another kind"},
      {"keep without a number",
       RawFrame(kTensors, TensorsHead(1, {0, 0x80, 0x01, 0, DT_FLOAT, 0, 4}), "abcd"),
       "a kept tensor without a number"},
      {"kept without a number", RawFrame(kTensors, TensorsHead(1, {0, 0x80, 0x02, 0})),
       "a kept tensor without a number"},
      {"kept report", RawFrame(kTensors, TensorsHead(1, {0, 0x80, 0x02, 1}, 3)),
       "a kept tensor that is no edge"},
      {"kept without credit", RawFrame(kTensors, TensorsHead(1, {0, 0x80, 0x02, 1})),
       "an end within a field"},
      {"kept with bytes",
       RawFrame(kTensors, TensorsHead(1, {0, 0x80, 0x02, 1, 0, 0, 0, 0, 0, 0, 0, 0}), "abcd"),
       "a payload of more bytes than its tensors"},
      {"dead in parts", RawFrame(kTensors, TensorsHead(1, {0, Flags::kDead | Flags::kParts})),
       "bytes of a dead tensor"},
      {"dead proto", RawFrame(kTensors, TensorsHead(1, {0, Flags::kDead | Flags::kProto})),
       "bytes of a dead tensor"},
      {"dead narrow", RawFrame(kTensors, TensorsHead(1, {0, Flags::kDead | Flags::kNarrow})),
       "bytes of a dead tensor"},
      {"narrow proto",
       RawFrame(kTensors, TensorsHead(1, {0, Flags::kProto | Flags::kNarrow, 4}), "abcd"),
       "a proto of narrow bytes"},
      {"narrow string",
       RawFrame(kTensors, TensorsHead(1, {0, Flags::kNarrow, DT_STRING, 0, 4}), "abcd"),
       "a dtype that has no raw form"},
      {"dtype 0", RawFrame(kTensors, TensorsHead(1, {0, 0, 0, 0, 4})),
       "a dtype that has no raw form"},
      {"dtype 200", RawFrame(kTensors, TensorsHead(1, {0, 0, 200, 0, 4})),
       "a dtype that has no raw form"},
      {"raw string", RawFrame(kTensors, TensorsHead(1, {0, 0, DT_STRING, 0, 4})),
       "a dtype that has no raw form"},
      {"raw reference", RawFrame(kTensors, TensorsHead(1, {0, 0, DT_FLOAT_REF, 0, 4})),
       "a dtype that has no raw form"},
      {"rank 255", RawFrame(kTensors, TensorsHead(1, {0, 0, DT_FLOAT, 255, 4})),
       "a shape of too many dimensions"},
      {"shape of 2^41 elements",
       RawFrame(kTensors,
                TensorsHead(1, {0, 0, DT_FLOAT, 2, 0x80, 0x80, 0x80, 0x80, 0x08, 0x80, 0x08, 4})),
       "a shape that is none"},
      {"dimension of 2^63",
       RawFrame(kTensors, TensorsHead(1, {0, 0, DT_FLOAT, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                                          0x80, 0x80, 0x80, 0x01, 4})),
       "a count of more than 63 bits"},
      {"transfer 0", RawFrame(kTensors, TensorsHead(1, {0, Flags::kParts, DT_FLOAT, 0, 0, 4})),
       "a transfer without a number"},
      {"transfer of 0 bytes",
       RawFrame(kTensors, TensorsHead(1, {0, Flags::kParts, DT_FLOAT, 1, 0, 1, 0})),
       "a transfer without bytes"},
      {"tensor longer than the payload",
       RawFrame(kTensors, TensorsHead(1, {0, 0, DT_FLOAT, 0, 4}), "abc"),
       "tensors of more bytes than its payload"},
      {"tensors of 2^64 bytes",
       RawFrame(kTensors, TensorsHead(2, {0, Flags::kProto, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                          0xff, 0xff, 0x7f, 1, 4, 1})),
       "tensors of more bytes than its payload"},
      {"payload longer than the tensor",
       RawFrame(kTensors, TensorsHead(1, {0, 0, DT_FLOAT, 0, 4}), "abcde"),
       "a payload of more bytes than its tensors"},
      {"doubled tensor",
       RawFrame(kTensors, TensorsHead(3, {5, Flags::kDead, 2, Flags::kDead, 5, Flags::kDead})),
       "tensor number 5 twice"},
      {"CHUNK without bytes", RawFrame(kChunk, Bytes({1, 0})), "no payload"},
      {"dead in a pool", RawFrame(kTensors, TensorsHead(1, {0, Flags::kDead | Flags::kPooled})),
       "bytes of a dead tensor"},
      {"in a pool and in parts",
       RawFrame(kTensors,
                TensorsHead(1, {0, Flags::kParts | Flags::kPooled, DT_FLOAT, 0, 1, 1, 0, 4})),
       "a transfer of pooled bytes"},
      {"in segment 0",
       RawFrame(kTensors, TensorsHead(1, {0, Flags::kPooled, DT_FLOAT, 0, 0, 0, 4})),
       "a segment without a number"},
      {"no bytes in a pool",
       RawFrame(kTensors, TensorsHead(1, {0, Flags::kPooled, DT_FLOAT, 1, 0, 1, 0, 0})),
       "a pooled tensor without bytes"},
      {"in a pool without credit",
       RawFrame(kTensors,
                TensorsHead(1, {0, Flags::kPooled, DT_FLOAT, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0})),
       "an end within a field"},
      {"bytes next to those in a pool",
       RawFrame(kTensors,
                TensorsHead(1, {0, Flags::kPooled, DT_FLOAT, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0}),
                "abcd"),
       "a payload of more bytes than its tensors"},
      {"segment 0", RawFrame(kSegment, Bytes({0, 1})), "a segment without a number"},
      {"segment of 2^63", RawFrame(kSegment, Bytes({1}) + std::string(9, '\x80') + Bytes({1})),
       "a count of more than 63 bits"},
      {"SEGMENT with a payload", RawFrame(kSegment, Bytes({1, 1}), "a"), "got a payload"},
      {"more blocks than bytes", RawFrame(kRelease, Bytes({0xff, 0xff, 0xff, 0x7f})),
       "more things than there are bytes"},
      {"HELLO that does not say what it keeps",
       RawFrame(kHello, Bytes({kLinkVersion, 0}) + std::string(16, '\0') + Bytes({1, 0, 0, 0})),
       "an end within a field"},
      {"more numbers than bytes", RawFrame(kForget, Bytes({0xff, 0xff, 0xff, 0x7f})),
       "more things than there are bytes"},
      {"FORGET with a payload", RawFrame(kForget, Bytes({0}), "a"), "got a payload"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Kept kept;
    FrameReader reader(&kept);
    EXPECT_STATUS(reader.Read(c.bytes), absl::StatusCode::kInvalidArgument, c.message);
    EXPECT_STATUS(reader.Read(FrameBytes(PingFrame{1})), absl::StatusCode::kInvalidArgument,
                  c.message);
    EXPECT_TRUE(kept.texts.empty());
    // However the bytes come.
    Kept again;
    FrameReader by_bytes(&again);
    Status status;
    for (const char& byte : c.bytes) {
      status = by_bytes.Read(absl::string_view(&byte, 1));
      if (!status.ok()) break;
    }
    EXPECT_STATUS(status, absl::StatusCode::kInvalidArgument, c.message);
    EXPECT_TRUE(again.texts.empty());
  }
}

// A size that is not the shape's: found before memory is taken for it.
TEST(FrameTest, BytesThatAreNotThoseOfTheShapeAreRefused) {
  const struct {
    std::string head, message;
  } cases[] = {
      {TensorsHead(1, {0, 0, DT_FLOAT, 1, 2, 4}),
       "Link: a tensor float[2] must have 8 bytes, got 4"},
      {TensorsHead(1, {0, Flags::kNarrow, DT_INT64, 1, 2, 4}),
       "Link: a narrow tensor int64[2] must have 8 bytes, got 4"},
      {TensorsHead(1, {0, Flags::kNarrow, DT_FLOAT, 1, 1, 4}),
       "Link: narrow bytes must be of int64, got float"},
      {TensorsHead(1, {0, Flags::kNarrow, DT_INT64, 1, 0x81, 0x80, 0x08, 4}),
       "Link: a narrow tensor must have at most 1048576 bytes, got int64[131073]"},
  };
  // In a pool.
  Kept pooled;
  FrameReader of_pool(&pooled);
  EXPECT_STATUS(of_pool.Read(RawFrame(kTensors, TensorsHead(1, {0, Flags::kPooled, DT_FLOAT, 1, 2,
                                                                1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0}))),
                absl::StatusCode::kInvalidArgument,
                "Link: a tensor float[2] must have 8 bytes, got 4");
  EXPECT_TRUE(pooled.texts.empty());
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    Kept kept;
    FrameReader reader(&kept);
    EXPECT_STATUS(reader.Read(RawFrame(kTensors, c.head, "abcd")),
                  absl::StatusCode::kInvalidArgument, c.message);
    EXPECT_TRUE(kept.texts.empty());
  }
}

TEST(FrameTest, ValuesComeBackAsTensors) {
  TensorsFrame frame;
  const std::vector<Tensor> values = {
      Tensor::Vector<float>({1.5f, -2}),
      Tensor::Of({"a", "b"}),
      Tensor::Scalar(true),
      Tensor::Vector<int64_t>(std::vector<int64_t>(128, -5)),
      Tensor::Vector<int64_t>(std::vector<int64_t>(128, int64_t{5} << 40)),
      *Tensor::Zeros(DT_INT32, *Shape::Make({3, 0})),
      *Tensor::Zeros(DT_STRING, Shape{0})};
  for (const Tensor& value : values) {
    frame.tensors.push_back(EntryOf(static_cast<uint32_t>(frame.tensors.size()), value));
  }
  Kept kept;
  FrameReader reader(&kept);
  ASSERT_OK(reader.Read(FrameBytes(frame)));
  ASSERT_EQ(kept.frames.size(), 1u);
  auto& got = std::get<TensorsFrame>(kept.frames[0]);
  ASSERT_EQ(got.tensors.size(), values.size());
  int64_t splat_bytes = 1 << 20;  // what the messages within take while they are read
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const Tensor tensor, got.tensors[i].value.TakeTensor(&splat_bytes));
    ExpectTensorEqual(tensor, values[i]);
  }
}

// Bools of any byte become 0 or 1; a proto that stands for more than it has is counted.
TEST(FrameTest, BytesOfStrangersBecomeLegalTensors) {
  Kept kept;
  FrameReader reader(&kept);
  // int32, shape [100], one value.
  const std::string splat = Bytes({0x08, 3, 0x12, 4, 0x12, 2, 0x08, 100, 0x3a, 1, 7});
  ASSERT_OK(reader.Read(RawFrame(
      kTensors,
      TensorsHead(3, {0, 0, DT_BOOL, 1, 3, 3, 1, 4, static_cast<int>(splat.size()), 2, 4, 2}),
      Bytes({0, 1, 200}) + splat + "no")));
  auto& got = std::get<TensorsFrame>(kept.frames.at(0));
  int64_t splat_bytes = 1000;
  ASSERT_OK_AND_ASSIGN(const Tensor bools, got.tensors[0].value.TakeTensor(&splat_bytes));
  ExpectTensorEqual(bools, Tensor::Of({false, true, true}));
  WireTensor again = got.tensors[1].value;
  // 99 elements that are not listed.
  ASSERT_OK_AND_ASSIGN(const Tensor sevens, got.tensors[1].value.TakeTensor(&splat_bytes));
  EXPECT_EQ(sevens.num_elements(), 100);
  // Besides, what its shape takes while it is read.
  EXPECT_LE(splat_bytes, 1000 - 99 * 4);
  EXPECT_GE(splat_bytes, 0);
  splat_bytes = 99 * 4 - 1;
  EXPECT_STATUS(again.TakeTensor(&splat_bytes), absl::StatusCode::kResourceExhausted,
                "max_splat_bytes");
  EXPECT_STATUS(got.tensors[2].value.TakeTensor(&splat_bytes), absl::StatusCode::kInvalidArgument,
                "must be a TensorProto");
}

std::string ChunkBytes(uint64_t transfer, uint64_t offset, absl::string_view bytes) {
  FrameWriter writer;
  const BufferRef buffer = Buffer::Allocate(DefaultAllocator(), bytes.size());
  std::memcpy(buffer->data(), bytes.data(), bytes.size());
  EXPECT_OK(writer.Add(ChunkFrame{transfer, offset, bytes.size()}, buffer,
                       absl::string_view(static_cast<const char*>(buffer->data()), bytes.size())));
  return writer.Finish().ToString();
}

TEST(FrameTest, ChunksGoWhereTheOwnerSays) {
  const std::string bytes = ChunkBytes(4, 2, "abc") + ChunkBytes(4, 5, "de");
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    Kept kept;
    kept.memory.assign(8, '.');
    FrameReader reader(&kept);
    ASSERT_OK(reader.Read(absl::string_view(bytes).substr(0, cut)));
    ASSERT_OK(reader.Read(absl::string_view(bytes).substr(cut)));
    EXPECT_EQ(std::string(kept.memory.begin(), kept.memory.end()), "..abcde.");
    EXPECT_EQ(kept.texts, (std::vector<std::string>{"CHUNK transfer=4 offset=2 bytes=3",
                                                    "CHUNK transfer=4 offset=5 bytes=2"}));
  }
  Kept outside;
  FrameReader reader(&outside);
  EXPECT_STATUS(reader.Read(ChunkBytes(4, UINT64_MAX, "abc")), absl::StatusCode::kInvalidArgument,
                "no such place");
  // Of no use to the owner: skipped, counted, and what follows is read.
  Kept skipping;
  skipping.skips = true;
  FrameReader skipped(&skipping);
  ASSERT_OK(skipped.Read(bytes + FrameBytes(PingFrame{1})));
  EXPECT_EQ(skipping.texts.size(), 3u);
  EXPECT_EQ(skipping.bytes, static_cast<int64_t>(bytes.size() + FrameBytes(PingFrame{1}).size()));
}

TEST(FrameTest, ATransportMayPutPayloadsInPlaceItself) {
  const std::string bytes = ChunkBytes(1, 0, "abcd");
  const absl::string_view before = absl::string_view(bytes).substr(0, bytes.size() - 4);
  Kept kept;
  kept.memory.assign(4, '.');
  FrameReader reader(&kept);
  EXPECT_TRUE(reader.Direct().empty());
  ASSERT_OK(reader.Read(before));
  ASSERT_EQ(reader.Direct().size(), 4u);
  EXPECT_EQ(reader.Direct().data(), kept.memory.data());
  std::memcpy(reader.Direct().data(), "abc", 3);
  ASSERT_OK(reader.Filled(3));
  ASSERT_OK(reader.Filled(0));
  ASSERT_EQ(reader.Direct().size(), 1u);
  ASSERT_OK(reader.Read("d"));  // both ways in turns
  EXPECT_EQ(std::string(kept.memory.begin(), kept.memory.end()), "abcd");
  EXPECT_EQ(kept.texts.size(), 1u);
  EXPECT_TRUE(reader.Direct().empty());
  EXPECT_STATUS(reader.Filled(1), absl::StatusCode::kInternal, "Direct gave, 0 bytes, got 1");
}

TEST(FrameTest, LargeTensorsAreReferredToAndSmallOnesCopied) {
  const Tensor large = *Tensor::Zeros(DT_FLOAT, Shape{1024});
  TensorsFrame frame;
  frame.tensors = {EntryOf(0, Tensor::Vector<float>({1})), EntryOf(1, large)};
  FrameWriter writer;
  ASSERT_OK(writer.Add(frame));
  ASSERT_OK(writer.Add(PingFrame{1}));
  EXPECT_FALSE(large.BufferIsUnique());
  frame.tensors.clear();
  {
    const ByteChain chain = writer.Finish();
    ASSERT_EQ(chain.pieces().size(), 3u);
    EXPECT_FALSE(chain.pieces()[0].is_reference());
    EXPECT_EQ(chain.pieces()[1].bytes().data(), static_cast<const char*>(large.raw_data()));
    EXPECT_EQ(chain.pieces()[1].bytes().size(), 4096u);
    EXPECT_FALSE(large.BufferIsUnique());
    EXPECT_EQ(chain.num_bytes(), static_cast<int64_t>(chain.ToString().size()));
    EXPECT_EQ(writer.num_bytes(), 0);
  }
  EXPECT_TRUE(large.BufferIsUnique());
}

TEST(FrameTest, WhatTheReaderWouldRefuseIsNotWritten) {
  FrameWriter writer;
  EXPECT_STATUS(writer.Add(BindFrame{1, std::string(4097, 'a'), "g"}),
                absl::StatusCode::kInvalidArgument,
                "Link: frame BIND: the session handle must be at most 4096 bytes, got 4097");
  EXPECT_STATUS(writer.Add(HelloFrame{3, "", 0, 0, -1}), absl::StatusCode::kInvalidArgument,
                "the window must be >= 0, got -1");
  EXPECT_STATUS(writer.Add(HelloFrame{3, "", 0, 0, 1, std::string(257, 'a')}),
                absl::StatusCode::kInvalidArgument, "the offer must be at most 256 bytes, got 257");
  EXPECT_STATUS(writer.Add(CancelFrame{}), absl::StatusCode::kInvalidArgument, "must be an error");
  EXPECT_STATUS(writer.Add(ByeFrame{}), absl::StatusCode::kInvalidArgument, "must be an error");
  EXPECT_STATUS(writer.Add(ChunkFrame{1, 0, 0}, BufferRef(), ""),
                absl::StatusCode::kInvalidArgument, "one at least, got 0 of 0");
  TensorsFrame frame;
  frame.tensors = {EntryOf(0, *Tensor::Zeros(DT_UINT8, Shape{(256 << 10) + 1}))};
  EXPECT_STATUS(writer.Add(frame), absl::StatusCode::kInvalidArgument,
                "its payload must be at most 262144 bytes, got 262145");
  frame.tensors = {DeadEntry(3), DeadEntry(2), DeadEntry(3)};
  EXPECT_STATUS(writer.Add(frame), absl::StatusCode::kInvalidArgument,
                "each tensor must be there once, got number 3 twice");
  frame.tensors = {TensorEntry()};
  EXPECT_STATUS(writer.Add(frame), absl::StatusCode::kInvalidArgument, "must have a value");
  frame.tensors[0].is_kept = true;
  EXPECT_STATUS(writer.Add(frame), absl::StatusCode::kInvalidArgument,
                "a kept tensor must have a number, got none");
  for (TensorEntry entry : {DeadEntry(3), InLoop(EntryOf(3, Tensor::Scalar(1.5f)), 1, 1),
                            EntryOf(3, Tensor::Of({"a"}))}) {
    entry.keep_number = 7;
    frame.tensors = {entry};
    EXPECT_STATUS(writer.Add(frame), absl::StatusCode::kInvalidArgument,
                  "a kept tensor must be an edge with a value of its own");
  }
  frame.tensors.clear();
  for (uint32_t i = 0; i < 40'000; ++i) frame.tensors.push_back(DeadEntry(i));
  EXPECT_STATUS(writer.Add(frame), absl::StatusCode::kInvalidArgument,
                "its head must be at most 65536 bytes");
  EXPECT_TRUE(writer.Finish().empty());
}

TEST(FrameTest, ALongErrorIsCutAndKeepsItsKind) {
  Status status = absl::AbortedError(std::string(20'000, 'a'));
  status.SetPayload(kRunEndKind, absl::Cord("why"));
  Kept kept;
  FrameReader reader(&kept);
  ASSERT_OK(reader.Read(FrameBytes(EndFrame{1, status, 0, false})));
  const Status got = std::get<EndFrame>(kept.frames.at(0)).status;
  EXPECT_EQ(got.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(got.message().size(), 16384u);
  EXPECT_TRUE(absl::EndsWith(got.message(), "aaa ... [truncated]"));
  EXPECT_TRUE(got.GetPayload(kRunEndKind).has_value());
}

TEST(FrameTest, AHelloOfAnotherVersionIsReadAsFarAsItsVersion) {
  Kept kept;
  FrameReader reader(&kept);
  ASSERT_OK(reader.Read(RawFrame(kHello, Bytes({kLinkVersion + 1, 0xff, 0xff, 0xff}))));
  EXPECT_EQ(kept.texts,
            std::vector<std::string>{absl::StrCat("HELLO version=", kLinkVersion + 1,
                                                  " task= incarnation=0 clock=0 window=0")});
}

TEST(FrameTest, TheFirstErrorStays) {
  Kept kept;
  kept.refuses_with = absl::AbortedError("enough");
  FrameReader reader(&kept);
  const std::string ping = FrameBytes(PingFrame{1});
  EXPECT_STATUS(reader.Read(ping + ping), absl::StatusCode::kAborted, "enough");
  kept.refuses_with = absl::OkStatus();
  EXPECT_STATUS(reader.Read(ping), absl::StatusCode::kAborted, "enough");
  EXPECT_STATUS(reader.Filled(0), absl::StatusCode::kAborted, "enough");
  EXPECT_STATUS(reader.End(), absl::StatusCode::kAborted, "enough");
  EXPECT_EQ(kept.texts.size(), 1u);
}

TEST(FrameTest, EntriesTakeNoMoreOfTheHeadThanSaid) {
  TensorEntry entry =
      InLoop(EntryOf(UINT32_MAX, Tensor::Of<float>({{1, 2}, {3, 4}})), UINT64_MAX, INT64_MAX);
  entry.ready_ns = entry.left_ns = INT64_MAX;
  TensorsFrame one;
  one.tensors = {entry};
  const std::string bytes = FrameBytes(one);
  absl::string_view in = absl::string_view(bytes).substr(1);
  uint64_t head_bytes = 0;
  ASSERT_TRUE(GetVarint64(&in, &head_bytes));
  EXPECT_LE(head_bytes, 64 + FrameWriter::MaxEntryHeadBytes(entry));
  TensorEntry pooled;
  pooled.index = UINT32_MAX;
  pooled.segment = pooled.offset = UINT64_MAX;
  pooled.dtype = DT_FLOAT;
  pooled.shape = Shape{int64_t{1} << 38, 1, 1};
  pooled.num_bytes = INT64_MAX;
  pooled = InLoop(pooled, UINT64_MAX, INT64_MAX);
  one.tensors = {pooled};
  const std::string pooled_bytes = FrameBytes(one);
  in = absl::string_view(pooled_bytes).substr(1);
  ASSERT_TRUE(GetVarint64(&in, &head_bytes));
  EXPECT_LE(head_bytes, 64 + FrameWriter::MaxEntryHeadBytes(pooled));
  TensorEntry keep;
  keep.index = UINT32_MAX;
  keep.transfer = keep.keep_number = UINT64_MAX;
  keep.dtype = DT_FLOAT;
  keep.shape = Shape{int64_t{1} << 38, 1, 1};
  keep.num_bytes = INT64_MAX;
  keep.ready_ns = INT64_MAX;
  one.tensors = {keep};
  const std::string keep_bytes = FrameBytes(one);
  in = absl::string_view(keep_bytes).substr(1);
  ASSERT_TRUE(GetVarint64(&in, &head_bytes));
  EXPECT_LE(head_bytes, 64 + FrameWriter::MaxEntryHeadBytes(keep));
}

// The reader knows within which frame it is, so that what came with its first byte can be told from
// what nobody has announced.
TEST(FrameTest, AFrameThatHasBegunIsKnownByItsKind) {
  Kept kept;
  FrameReader reader(&kept);
  const std::string bytes = FrameBytes(SegmentFrame{1, 4096});
  EXPECT_FALSE(reader.IsWithin(FrameKind::kSegment));
  ASSERT_OK(reader.Read(absl::string_view(bytes).substr(0, 1)));
  EXPECT_TRUE(reader.IsWithin(FrameKind::kSegment));
  EXPECT_FALSE(reader.IsWithin(FrameKind::kHello));
  ASSERT_OK(reader.Read(absl::string_view(bytes).substr(1)));
  EXPECT_FALSE(reader.IsWithin(FrameKind::kSegment));
}

}  // namespace
}  // namespace millrace
