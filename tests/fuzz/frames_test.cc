// SPDX-License-Identifier: Apache-2.0
//
// The frames of a link, as strangers send them (fuzz.h).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/frame.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/unix_offer.h"
#include "distributed/link/wire_tensor.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutator.h"

// covers: clusters: the reader of a link's frames survives a seeded mutator, in pieces of any size,
//   and what it accepts is written again as the same frame

namespace millrace {
namespace {

// What is accepted must be bounded, and be a frame that the writer takes.
class Checker : public FrameReader::Owner {
 public:
  Status OnFrame(LinkFrame frame, int64_t num_bytes) override {
    EXPECT_LE(num_bytes, kMaxFrameBytes);
    ++frames;
    const auto* const chunk = std::get_if<ChunkFrame>(&frame);
    const auto* const hello = std::get_if<HelloFrame>(&frame);
    const bool is_whole = chunk == nullptr && (hello == nullptr || hello->version == kLinkVersion);
    if (is_whole) {
      Again again;
      FrameReader reader(&again);
      EXPECT_OK(reader.Read(FrameBytes(frame)));
      EXPECT_EQ(again.text, FrameText(frame));
    }
    if (auto* const got = std::get_if<TensorsFrame>(&frame)) {
      int64_t splat_bytes = int64_t{1} << 20, bytes = 0;
      for (TensorEntry& entry : got->tensors) {
        if (entry.is_dead || entry.is_kept) continue;
        if (entry.transfer != 0 || entry.segment != 0) continue;
        const StatusOr<Tensor> tensor = entry.value.TakeTensor(&splat_bytes);
        if (tensor.ok() && tensor->has_value()) bytes += tensor->TotalBytes();
        tensors += tensor.ok() ? 1 : 0;
      }
      EXPECT_LE(bytes, kMaxFuzzedTensorBytes);
    }
    return absl::OkStatus();
  }
  StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame& chunk) override {
    EXPECT_LE(chunk.num_bytes, kMaxFramePayloadBytes);
    if (chunk.transfer % 2 == 0) return absl::Span<char>();
    memory.assign(static_cast<size_t>(chunk.num_bytes), '\0');
    return absl::MakeSpan(memory);
  }

  int64_t frames = 0, tensors = 0;
  std::vector<char> memory;

 private:
  struct Again : public FrameReader::Owner {
    Status OnFrame(LinkFrame frame, int64_t) override {
      text = FrameText(frame);
      return absl::OkStatus();
    }
    StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame&) override { return absl::Span<char>(); }
    std::string text;
  };
};

std::vector<std::string> Corpus() {
  TensorsFrame tensors;
  tensors.step_id = 7;
  for (const Tensor& tensor :
       {Tensor::Vector<float>({1, 2, 3}), Tensor::Scalar(true),
        Tensor::Vector<std::string>({"a", "", "long enough for the heap, this one"}),
        *Tensor::Zeros(DT_DOUBLE, *Shape::Make({0, 3}))}) {
    TensorEntry& entry = tensors.tensors.emplace_back();
    entry.index = static_cast<uint32_t>(tensors.tensors.size());
    const StatusOr<WireTensor> value = WireTensor::Of(tensor);
    EXPECT_OK(value);
    if (value.ok()) entry.value = *value;
  }
  StatusOr<WireTensor> narrow = WireTensor::For(WireTensor::Form::kNarrow, DT_INT64, Shape{3}, 12);
  EXPECT_OK(narrow);
  if (narrow.ok()) {
    const absl::Span<char> numbers = narrow->mutable_bytes();
    std::fill(numbers.begin(), numbers.end(), '\x81');
    TensorEntry& entry = tensors.tensors.emplace_back();
    entry.index = 8;
    entry.value = *narrow;
  }
  TensorEntry parts;
  parts.index = 9;
  parts.transfer = 3;
  parts.dtype = DT_FLOAT;
  parts.shape = Shape{100};
  parts.num_bytes = 400;
  tensors.tensors.push_back(parts);
  TensorEntry pooled = parts;
  pooled.index = 10;
  pooled.transfer = 0;
  pooled.segment = 2;
  pooled.offset = 4096;
  tensors.tensors.push_back(pooled);
  TensorEntry keep = parts;
  keep.index = 11;
  keep.keep_number = 6;
  tensors.tensors.push_back(keep);
  TensorEntry is_kept;
  is_kept.index = 12;
  is_kept.keep_number = 6;
  is_kept.is_kept = true;
  tensors.tensors.push_back(is_kept);
  TensorEntry dead;
  dead.is_dead = dead.in_loop = true;
  dead.frame_id = 5;
  tensors.tensors.push_back(dead);
  dead.index = 1;
  dead.ready_ns = dead.left_ns = 1'700'000'000'000'000'000;
  tensors.tensors.push_back(dead);
  FrameWriter chunks;
  const BufferRef buffer = Buffer::Allocate(DefaultAllocator(), 400);
  const absl::Span<char> zeros(static_cast<char*>(buffer->data()), buffer->size());
  std::fill(zeros.begin(), zeros.end(), '\0');
  EXPECT_OK(
      chunks.Add(ChunkFrame{3, 0, 400}, buffer, absl::string_view(zeros.data(), zeros.size())));
  const Status error = absl::AbortedError("the run is over");
  return {
      FrameBytes(HelloFrame{kLinkVersion, "/job:ps/replica:0/task:0", 41, 5, int64_t{64} << 20}) +
          FrameBytes(HelloFrame{kLinkVersion, "/job:ps/replica:0/task:0", 41, 5, int64_t{64} << 20,
                                UnixOffer().Encode(), true, int64_t{1} << 30}),
      FrameBytes(BindFrame{3, "session", "graph"}) + FrameBytes(UnbindFrame{3}),
      FrameBytes(RunFrame{7, 3, true, false, 1'000'000, 2}),
      FrameBytes(tensors),
      chunks.Finish().ToString(),
      FrameBytes(EndFrame{7, error, 2, true}),
      FrameBytes(CancelFrame{7, error}),
      FrameBytes(ReceivedFrame{1 << 20, {{1, 2}, {-1, 3}}}),
      FrameBytes(PingFrame{1}) + FrameBytes(PongFrame{1, 2}),
      FrameBytes(ByeFrame{error}),
      FrameBytes(SegmentFrame{2, int64_t{64} << 20}) + FrameBytes(SegmentFrame{1, 0}) +
          FrameBytes(ReleaseFrame{{{2, 4096}, {2, 0}}}) + FrameBytes(ForgetFrame{{6, 7}}),
  };
}

TEST(FramesTest, AnyBytesInAnyPieces) {
  int64_t frames = 0, tensors = 0, refused = 0;
  Fuzz(100'000, Corpus(), [&](const std::string& bytes, Mutator* mutator) {
    Checker checker;
    FrameReader reader(&checker);
    Status status;
    absl::string_view left = bytes;
    while (!left.empty() && status.ok()) {
      const size_t n = std::min<size_t>(left.size(), 1 + mutator->Below(1 + bytes.size()));
      const absl::Span<char> place = reader.Direct();
      if (!place.empty() && mutator->Below(2) == 0) {
        // As a transport that reads into place.
        const size_t here = std::min(place.size(), n);
        std::copy_n(left.data(), here, place.data());
        status = reader.Filled(here);
        left.remove_prefix(here);
      } else {
        status = reader.Read(left.substr(0, n));
        left.remove_prefix(n);
      }
    }
    if (status.ok()) status = reader.End();
    if (!status.ok()) {
      ++refused;
      EXPECT_FALSE(reader.Read("x").ok());
    }
    frames += checker.frames;
    tensors += checker.tensors;
  });
  // The 6,250 valid inputs have 16 frames in 11 members, and one member of eight tensors.
  EXPECT_GT(frames, 6'250);
  EXPECT_GT(tensors, 2'000);
  EXPECT_GT(refused, 10'000);
}

// covers: clusters: the reader of offers of Unix links survives a seeded mutator, and what it
//   accepts is written again as it came
TEST(UnixOffersTest, AnyBytes) {
  UnixOffer numbered;
  for (size_t i = 0; i < UnixOffer::kRandomBytes; ++i) {
    numbered.host[i] = static_cast<char>(2 * i);
    numbered.socket[i] = static_cast<char>(i);
    numbered.nonce[i] = static_cast<char>(0xff - i);
  }
  int64_t accepted = 0, refused = 0;
  Fuzz(100'000, {UnixOffer().Encode(), numbered.Encode()}, [&](const std::string& bytes, Mutator*) {
    const StatusOr<UnixOffer> offer = UnixOffer::Decode(bytes);
    if (!offer.ok()) {
      ++refused;
      return;
    }
    ++accepted;
    EXPECT_EQ(offer->Encode(), bytes);
    EXPECT_EQ(offer->SocketName().size(), 46u);
  });
  EXPECT_GT(accepted, 5'000);
  EXPECT_GT(refused, 5'000);
}

}  // namespace
}  // namespace millrace
