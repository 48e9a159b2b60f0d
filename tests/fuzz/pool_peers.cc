// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/pool_peers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <variant>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/credit.h"
#include "distributed/link/link.h"
#include "distributed/link/outgoing_tensors.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/wire_tensor.h"
#include "gtest/gtest.h"
#include "tests/fuzz/link_arrivals.h"

namespace millrace {
namespace {

constexpr int64_t kKiB = int64_t{1} << 10;
constexpr int64_t kLeastPooled = OutgoingTensors::kMinPooledBytes;
constexpr int kSealFutureWrite = 0x0010;  // F_SEAL_FUTURE_WRITE, Linux 5.1
constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

HelloFrame HelloWithPool() {
  HelloFrame hello = LinkTalk::PsHello();
  hello.pool_bytes = LinkTalk::kPoolBytes;
  return hello;
}

// Linux before 6.7 shares no file that is sealed against its owner, too.
bool MayBeRead(const SealedFile& file) {
  const auto size = static_cast<size_t>(file.bytes());
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd()->get(), 0);
  if (data == MAP_FAILED) return false;
  ::munmap(data, size);
  return true;
}

}  // namespace

// --- The files

const int SealedFile::kPoolSeals = F_SEAL_SHRINK | F_SEAL_GROW | kSealFutureWrite | F_SEAL_SEAL;

SealedFile::SealedFile(int64_t bytes, int seals)
    : fd_(std::make_shared<const OwnedFd>(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING))),
      bytes_(bytes) {
  EXPECT_EQ(::ftruncate(fd_->get(), bytes), 0);
  if ((seals & F_SEAL_WRITE) == 0 && bytes > 0) {
    void* const data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                              MAP_SHARED, fd_->get(), 0);
    EXPECT_NE(data, MAP_FAILED);
    if (data != MAP_FAILED) data_ = static_cast<char*>(data);
  }
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd_->get(), F_ADD_SEALS, seals), 0);
  }
  if (data_ == nullptr) zeros_.assign(static_cast<size_t>(bytes), '\0');
}

SealedFile::~SealedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

SharedFiles::SharedFiles() {
  for (const int64_t kib : {256, 256, 384}) {
    right.push_back(std::make_unique<SealedFile>(kib * kKiB, SealedFile::kPoolSeals));
  }
  auto sealed = std::make_unique<SealedFile>(
      128 * kKiB, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  if (MayBeRead(*sealed)) right.push_back(std::move(sealed));
  for (const int seals :
       {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
        F_SEAL_SHRINK | F_SEAL_GROW | kSealFutureWrite,
        F_SEAL_GROW | kSealFutureWrite | F_SEAL_SEAL,
        F_SEAL_SHRINK | kSealFutureWrite | F_SEAL_SEAL}) {
    badly_sealed.push_back(std::make_unique<SealedFile>(128 * kKiB, seals));
  }
  for (const char* const path : {"/dev/null", "/proc/version", "/"}) {
    others.push_back(std::make_shared<const OwnedFd>(::open(path, O_RDONLY | O_CLOEXEC)));
  }
  int pipe[2] = {-1, -1};
  EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  for (const int fd : pipe) others.push_back(std::make_shared<const OwnedFd>(fd));
  for (const auto& fd : others) EXPECT_TRUE(fd->open());
  std::mt19937_64 random(1);
  for (const auto& file : right) {
    if (file->mutable_data() == nullptr) continue;
    std::generate_n(file->mutable_data(), file->bytes(),
                    [&random] { return static_cast<char>(random() >> 56); });
  }
}

// --- PoolOwner

PoolOwner::PoolOwner(const SharedFiles* files, Mutator* random)
    : files_(*files), talk_(random, /*has_pools=*/true) {
  talk_.on_said = [this](const LinkFrame& frame) { NoteSaid(frame); };
  talk_.on_heard = [this](const LinkFrame& frame) { NoteHeard(frame); };
  talk_.said.region = [this](const TensorEntry& entry) { return Region(entry); };
  talk_.end->on_tensor = [this](const SentTensor& tensor) {
    if (talk_.OneIn(2)) kept_.push_back(tensor.value);
  };
  talk_.Open(HelloWithPool());
  SayNewSegment(/*is_mutated=*/false);
}

void PoolOwner::SayRight(bool is_mutated) {
  switch (talk_.Below(is_mutated ? 6 : 12)) {
    case 0:
      return SayNewSegment(is_mutated);
    case 1:
      return SayGone(is_mutated);
    case 2:
      return Say(FrameBytes(ReceivedFrame{0, {{7, talk_.Below(100)}, {-1, kMost}}}), is_mutated);
    case 6:
      return Say(FrameBytes(PingFrame{1}));
    case 7:
      talk_.PassSeconds(1);
      return Say(FrameBytes(PongFrame{1, 1}));
    case 8:
    case 9:
      while (!kept_.empty() && !talk_.OneIn(3)) {
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(talk_.Below(kept_.size())));
      }
      talk_.link->Flush();
      return talk_.Run();
    default:
      return SayTensors(is_mutated);
  }
}

void PoolOwner::ExpectAllTaken() { talk_.ExpectAllTaken(); }

void PoolOwner::Finish() {
  talk_.Finish();
  kept_.clear();
}

void PoolOwner::Say(const std::string& bytes, bool is_mutated, std::shared_ptr<const OwnedFd> fd) {
  talk_.Say(is_mutated ? talk_.Mutated(bytes) : bytes, std::move(fd));
}

void PoolOwner::SayFile(const std::string& bytes, const SealedFile& file, bool is_mutated) {
  coming_ = &file;
  Say(bytes, is_mutated, file.fd());
}

// --- PoolOwner: what was said and heard

void PoolOwner::NoteSaid(const LinkFrame& frame) {
  if (const auto* const segment = std::get_if<SegmentFrame>(&frame)) {
    const auto it = segments_.find(segment->segment);
    if (segment->num_bytes > 0 && coming_ != nullptr && it == segments_.end()) {
      segments_[segment->segment].file = coming_;
      last_segment_ = std::max(last_segment_, segment->segment);
      coming_ = nullptr;
    } else if (segment->num_bytes == 0 && it != segments_.end() && it->second.blocks.empty()) {
      segments_.erase(it);
    }
  } else if (const auto* const tensors = std::get_if<TensorsFrame>(&frame)) {
    for (const TensorEntry& entry : tensors->tensors) {
      if (entry.segment == 0 || entry.num_bytes < kLeastPooled) continue;
      if (Region(entry) == nullptr) continue;
      segments_[entry.segment].blocks.emplace(entry.offset, entry.num_bytes);
    }
  }
}

const char* PoolOwner::Region(const TensorEntry& entry) const {
  const auto it = segments_.find(entry.segment);
  if (it == segments_.end()) return nullptr;
  const SealedFile& file = *it->second.file;
  if (entry.num_bytes > file.bytes() ||
      entry.offset > static_cast<uint64_t>(file.bytes() - entry.num_bytes)) {
    return nullptr;
  }
  return file.data() + entry.offset;
}

void PoolOwner::NoteHeard(const LinkFrame& frame) {
  const auto* const release = std::get_if<ReleaseFrame>(&frame);
  if (release == nullptr) return;
  for (const ReleaseFrame::Block& block : release->blocks) {
    const auto it = segments_.find(block.segment);
    const bool is_there = it != segments_.end() && it->second.blocks.erase(block.offset) == 1;
    EXPECT_TRUE(is_there) << "segment " << block.segment << " at " << block.offset;
  }
}

// --- PoolOwner: what may be said

void PoolOwner::SayNewSegment(bool is_mutated) {
  int64_t shared_bytes = 0;
  std::vector<const SealedFile*> free;
  for (const auto& file : files_.right) free.push_back(file.get());
  for (const auto& [number, segment] : segments_) {
    shared_bytes += segment.file->bytes();
    free.erase(std::remove(free.begin(), free.end(), segment.file), free.end());
  }
  if (free.empty()) return;
  const SealedFile& file = *free[talk_.Below(free.size())];
  if (file.bytes() > LinkTalk::kPoolBytes - shared_bytes) return;
  if (last_segment_ > kMost / 2) return;  // by a mutated frame
  // The numbers need only grow.
  const uint64_t number = last_segment_ + 1 + (talk_.OneIn(4) ? talk_.Below(1000) : 0);
  SayFile(FrameBytes(SegmentFrame{number, file.bytes()}), file, is_mutated);
}

void PoolOwner::SayGone(bool is_mutated) {
  for (const auto& [number, segment] : segments_) {
    if (!segment.blocks.empty()) continue;
    return Say(FrameBytes(SegmentFrame{number, 0}), is_mutated);
  }
}

void PoolOwner::SayTensors(bool is_mutated) {
  TensorsFrame frame;
  frame.step_id = 7 + static_cast<int64_t>(talk_.Below(2));
  for (uint64_t i = 1 + talk_.Below(3); i > 0; --i) AddPooled(&frame);
  if (talk_.OneIn(2)) {
    frame.tensors.push_back(WholeEntry(next_index_++, Tensor::Vector<float>({1, 2, 3})));
  }
  if (talk_.OneIn(4)) {
    TensorEntry dead;
    dead.index = next_index_++;
    dead.is_dead = true;
    frame.tensors.push_back(dead);
  }
  if (frame.tensors.empty()) return;
  const auto num_bytes = static_cast<int64_t>(FrameBytes(frame).size());
  const int64_t left = talk_.left_of_window();
  if (num_bytes > left) return;
  int64_t pooled = 0;
  for (const TensorEntry& entry : frame.tensors) {
    if (entry.segment != 0) pooled += entry.num_bytes;
  }
  if (pooled > 0) {
    const int64_t most = std::min(CreditOf(num_bytes, pooled, LinkTalk::kWindowBytes), left);
    frame.credit_bytes = talk_.OneIn(2) ? most : num_bytes;
  }
  Say(FrameBytes(frame), is_mutated);
}

void PoolOwner::AddPooled(TensorsFrame* frame) {
  if (segments_.empty()) return;
  const auto it =
      std::next(segments_.begin(), static_cast<std::ptrdiff_t>(talk_.Below(segments_.size())));
  const SealedFile& file = *it->second.file;
  TensorEntry entry;
  entry.segment = it->first;
  const std::string proto = Describe(&entry);
  for (int tries = 0; tries < 8; ++tries) {
    if (entry.num_bytes > file.bytes()) return;
    // As a rule from the begin on, so that there is room for others.
    const auto places = static_cast<uint64_t>((file.bytes() - entry.num_bytes) / 64) + 1;
    entry.offset = 64 * (talk_.OneIn(2) ? 0 : talk_.Below(places));
    if (!IsFree(entry, *frame)) continue;
    Fill(entry, proto, file);
    entry.index = next_index_++;
    frame->tensors.push_back(entry);
    return;
  }
}

std::string PoolOwner::Describe(TensorEntry* entry) {
  int64_t num_bytes = kLeastPooled;
  if (talk_.OneIn(2)) num_bytes += 128 * static_cast<int64_t>(talk_.Below(512));
  if (talk_.OneIn(16)) num_bytes = Arrivals::kMaxTensorBytes + 128;  // harms its step only
  const DType dtypes[] = {DT_FLOAT, DT_FLOAT, DT_HALF, DT_BFLOAT16,  DT_DOUBLE,
                          DT_INT32, DT_INT64, DT_BOOL, DT_COMPLEX64, DT_UINT8};
  entry->num_bytes = num_bytes;
  switch (talk_.Below(16)) {
    case 0:  // bytes of no TensorProto, mostly
      entry->form = WireTensor::Form::kProto;
      return "";
    case 1: {
      entry->form = WireTensor::Form::kProto;
      const std::string text(70'000 + talk_.Below(1000), static_cast<char>('a' + talk_.Below(26)));
      const StatusOr<WireTensor> value =
          WireTensor::Of(Tensor::Vector<std::string>({text, "", "short"}));
      EXPECT_OK(value);
      if (!value.ok()) return "";
      entry->num_bytes = value->num_bytes();
      return std::string(value->bytes());
    }
    case 2:
    case 3:
      entry->form = WireTensor::Form::kNarrow;
      entry->dtype = DT_INT64;
      entry->shape = Shape{num_bytes / 4};
      return "";
    default:
      entry->dtype = dtypes[talk_.Below(std::size(dtypes))];
      const int64_t elements = num_bytes / static_cast<int64_t>(DTypeSize(entry->dtype));
      entry->shape = talk_.OneIn(2) ? Shape{elements} : Shape{2, elements / 2, 1};
      return "";
  }
}

bool PoolOwner::IsFree(const TensorEntry& entry, const TensorsFrame& frame) const {
  const auto overlaps = [&entry](uint64_t offset, int64_t num_bytes) {
    return offset < entry.offset + static_cast<uint64_t>(entry.num_bytes) &&
           entry.offset < offset + static_cast<uint64_t>(num_bytes);
  };
  for (const auto& [offset, num_bytes] : segments_.find(entry.segment)->second.blocks) {
    if (overlaps(offset, num_bytes)) return false;
  }
  for (const TensorEntry& other : frame.tensors) {
    if (other.segment == entry.segment && overlaps(other.offset, other.num_bytes)) return false;
  }
  return true;
}

// All of a file are random bytes; those that are said have some of their own.
void PoolOwner::Fill(const TensorEntry& entry, const std::string& proto, const SealedFile& file) {
  if (file.mutable_data() == nullptr) return;
  char* const to = file.mutable_data() + entry.offset;
  if (!proto.empty()) {
    std::memcpy(to, proto.data(), proto.size());
    return;
  }
  const int64_t last = entry.num_bytes - 8;
  for (const int64_t at : {int64_t{0}, last, last / 2}) {
    const uint64_t word = talk_.Below(kMost);
    std::memcpy(to + at, &word, sizeof(word));
  }
}

// --- PoolOwner: what may not be said

void PoolOwner::SayFloats(uint64_t segment, uint64_t offset, int64_t num_bytes, int64_t more_credit,
                          std::shared_ptr<const OwnedFd> fd) {
  TensorsFrame frame;
  frame.step_id = 7;
  TensorEntry& entry = frame.tensors.emplace_back();
  entry.index = next_index_++;
  entry.dtype = DT_FLOAT;
  entry.shape = Shape{num_bytes / 4};
  entry.num_bytes = num_bytes;
  entry.segment = segment;
  entry.offset = offset;
  frame.credit_bytes = static_cast<int64_t>(FrameBytes(frame).size()) + more_credit;
  Say(FrameBytes(frame), /*is_mutated=*/false, std::move(fd));
}

void PoolOwner::SayWrong(uint64_t which) {
  const uint64_t next = last_segment_ + 1;
  const SealedFile& right = *files_.right[talk_.Below(files_.right.size())];
  // One that is there, if any is; and a block that is in use, if there is one.
  const uint64_t segment = segments_.empty() ? next : segments_.begin()->first;
  const uint64_t size =
      segments_.empty() ? 0 : static_cast<uint64_t>(segments_.begin()->second.file->bytes());
  std::optional<SharedSegments::Block> used;
  for (const auto& [number, of] : segments_) {
    if (!of.blocks.empty()) used = {number, of.blocks.begin()->first};
  }
  switch (which) {
    case 0: {
      const auto& files = files_.badly_sealed;
      const SealedFile& file = *files[talk_.Below(files.size())];
      return SayFile(FrameBytes(SegmentFrame{next, file.bytes()}), file);
    }
    case 1: {
      const int64_t sizes[] = {right.bytes() / 2,
                               right.bytes() - 1,
                               right.bytes() + 1,
                               2 * right.bytes(),
                               1,
                               std::numeric_limits<int64_t>::max()};
      return SayFile(FrameBytes(SegmentFrame{next, sizes[talk_.Below(std::size(sizes))]}), right);
    }
    case 2:
      return SayFile(FrameBytes(SegmentFrame{next, 4096}), files_.empty);
    case 3:
      return Say(FrameBytes(SegmentFrame{next, 4096}), false,
                 files_.others[talk_.Below(files_.others.size())]);
    case 4:
      return Say(FrameBytes(SegmentFrame{next, right.bytes()}));
    case 5: {
      const std::string bytes = FrameBytes(SegmentFrame{next, right.bytes()});
      Say(bytes.substr(0, 1), false, right.fd());
      return Say(bytes.substr(1), false, right.fd());
    }
    case 6:  // a number that was there
      return SayFile(FrameBytes(SegmentFrame{last_segment_, right.bytes()}), right);
    case 7:
      return SayFile(FrameBytes(SegmentFrame{next, files_.too_large.bytes()}), files_.too_large);
    case 8:
      return Say(FrameBytes(SegmentFrame{next, 0}));
    case 9:  // while it is in use
      return Say(FrameBytes(SegmentFrame{used.has_value() ? used->segment : next, 0}));
    case 10:
      return SayFloats(next, 0, kLeastPooled);
    case 11:
      return SayFloats(segment, size, kLeastPooled);
    case 12:
      return SayFloats(segment, size - 64, kLeastPooled);
    case 13:
      return SayFloats(segment, kMost - 63, kLeastPooled);
    case 14:
      return SayFloats(segment, 4 + talk_.Below(60) / 4 * 4, kLeastPooled);
    case 15:
      return SayFloats(segment, 0, int64_t{1} << 40);
    case 16:  // where another one lies
      return SayFloats(used.has_value() ? used->segment : next, used.has_value() ? used->offset : 0,
                       kLeastPooled);
    case 17:
      return SayFloats(segment, 0, kLeastPooled - 4);
    case 18:
      return SayFloats(segment, 0, kLeastPooled,
                       talk_.OneIn(2) ? -1 : std::numeric_limits<int64_t>::min());
    case 19:
      return SayFloats(segment, 0, kLeastPooled, kLeastPooled + 1);
    case 20:  // of a pool that is empty
      return Say(FrameBytes(ReleaseFrame{{{talk_.Below(3), 64 * talk_.Below(3)}}}));
    case 21:
      return Say(
          FrameBytes(ReceivedFrame{talk_.OneIn(2) ? 1 : std::numeric_limits<int64_t>::max(), {}}));
    case 22:
      return Say(FrameBytes(PingFrame{1}), false, right.fd());
    default:
      return SayFloats(segment, 0, kLeastPooled, 0, right.fd());
  }
}

// --- PoolReader

PoolReader::PoolReader(Mutator* random)
    : segments_(SharedSegments::Make(LinkTalk::kPoolBytes)), talk_(random, /*has_pools=*/true) {
  talk_.on_said = [this](const LinkFrame& frame) { NoteSaid(frame); };
  talk_.on_heard = [this](const LinkFrame& frame) { NoteHeard(frame); };
  talk_.peer->heard.region = [this](const TensorEntry& entry) { return Region(entry); };
  talk_.Open(HelloWithPool());
}

void PoolReader::SayRight(bool is_mutated) {
  switch (talk_.Below(is_mutated ? 4 : 12)) {
    case 0:
    case 1:
      SayReleased(/*all=*/false, is_mutated);
      break;
    case 2:
    case 3: {
      // Perhaps not all of it.
      const auto taken = static_cast<uint64_t>(talk_.taken());
      const auto credit = static_cast<int64_t>(talk_.OneIn(2) ? taken : talk_.Below(taken + 1));
      Say(ReceivedFrame{credit, {{7, talk_.Below(4)}, {8, kMost}}}, is_mutated);
      break;
    }
    case 4:
      Say(PingFrame{1});
      break;
    case 5:
      talk_.PassSeconds(5);  // empty segments go after ten
      Say(PongFrame{1, 1});
      break;
    case 6:
      Cancel();
      break;
    default:
      Send();
  }
  Compare();
}

Tensor PoolReader::Draw() {
  const auto number = static_cast<float>(next_index_);
  const int64_t elements = kLeastPooled / 4 + static_cast<int64_t>(talk_.Below(16'000));
  switch (talk_.Below(8)) {
    case 0:
      return FloatsOf(10, number);
    case 1:
      return FloatsOf(kLeastPooled / 4 - 1, number);  // in its frame
    case 2: {
      // Narrow half of the time.
      Tensor ids = *Tensor::Allocate(DT_INT64, Shape{elements});
      int64_t next = talk_.OneIn(2) ? int64_t{1} << 40 : 0;
      for (int64_t& id : ids.mutable_flat<int64_t>()) id = next++;
      return ids;
    }
    case 3:
      return Tensor::Vector<std::string>({std::string(70'000, 's'), "", "short"});
    default:
      return FloatsOf(elements, number);
  }
}

void PoolReader::Send() {
  const int64_t step_id = 7 + static_cast<int64_t>(talk_.Below(3));
  SentTensors message;
  message.step_id = step_id;
  if (talk_.OneIn(4)) message.purpose = TensorsPurpose::kResults;
  for (uint64_t i = 1 + talk_.Below(3); i > 0; --i) {
    SentTensor& tensor = message.tensors.emplace_back();
    tensor.value = Draw();
    tensor.index = next_index_++;
    sent_[tensor.index] = {step_id, tensor.value};
  }
  EXPECT_OK(talk_.link->Send(std::move(message)));
  talk_.Run();
}

// What has not left of the step never comes.
void PoolReader::Cancel() {
  Compare();
  const int64_t step_id = 7 + static_cast<int64_t>(talk_.Below(3));
  EXPECT_OK(talk_.link->Send(CancelFrame{step_id, absl::CancelledError("enough")}));
  talk_.Run();
  for (auto it = sent_.begin(); it != sent_.end();) {
    it = it->second.step_id == step_id ? sent_.erase(it) : std::next(it);
  }
}

void PoolReader::Say(const LinkFrame& frame, bool is_mutated) {
  const std::string bytes = FrameBytes(frame);
  talk_.Say(is_mutated ? talk_.Mutated(bytes) : bytes);
}

void PoolReader::SayReleased(bool all, bool is_mutated) {
  ReleaseFrame release;
  for (const auto& [place, block] : blocks_) {
    if (all || talk_.OneIn(2)) release.blocks.push_back({place.first, place.second});
  }
  if (!release.blocks.empty()) Say(release, is_mutated);
}

void PoolReader::NoteSaid(const LinkFrame& frame) {
  const auto* const release = std::get_if<ReleaseFrame>(&frame);
  if (release == nullptr) return;
  for (const ReleaseFrame::Block& block : release->blocks) {
    if (blocks_.erase({block.segment, block.offset}) == 0) break;  // the link ends there
  }
  segments_->TakeReleased();
}

// What the link shares is what the reader of a link takes.
void PoolReader::NoteHeard(const LinkFrame& frame) {
  const auto* const segment = std::get_if<SegmentFrame>(&frame);
  if (segment == nullptr) return;
  if (segment->num_bytes == 0) {
    EXPECT_OK(segments_->Remove(segment->segment));
  } else {
    EXPECT_OK(
        segments_->Add(segment->segment, segment->num_bytes, std::move(talk_.peer->descriptor)));
  }
}

const char* PoolReader::Region(const TensorEntry& entry) {
  StatusOr<BufferRef> block = segments_->Take(entry.segment, entry.offset, entry.num_bytes);
  EXPECT_OK(block);
  if (!block.ok()) return nullptr;
  const auto* const data = static_cast<const char*>((*block)->data());
  blocks_[{entry.segment, entry.offset}] = *std::move(block);
  ++num_pooled;
  return data;
}

void PoolReader::Compare() {
  Arrivals& heard = talk_.peer->heard;
  EXPECT_EQ(heard.num_refused, 0);
  for (; !heard.tensors.empty(); heard.tensors.pop_front()) {
    const Arrivals::Arrival& came = heard.tensors.front();
    const auto it = sent_.find(came.tensor.index);
    EXPECT_NE(it, sent_.end()) << came.tensor.index;
    if (it == sent_.end()) continue;
    EXPECT_EQ(came.step_id, it->second.step_id);
    EXPECT_TRUE(IsSame(came.tensor.value, it->second.value)) << came.tensor.index;
    sent_.erase(it);
  }
}

// With its credit all comes that waits, and without a reader nothing stays in the pool.
void PoolReader::ExpectAllTaken() {
  for (int i = 0; i < 100 && !sent_.empty(); ++i) {
    Say(ReceivedFrame{talk_.taken(), {}});
    Compare();
  }
  EXPECT_TRUE(sent_.empty()) << sent_.size() << " did not come";
  EXPECT_EQ(talk_.link->queued_bytes(), 0);
  SayReleased(/*all=*/true, /*is_mutated=*/false);
  EXPECT_EQ(talk_.pools->block_bytes->load(), 0);
  talk_.ExpectAllTaken();
}

void PoolReader::Finish() {
  talk_.Finish();
  Compare();
  blocks_.clear();
  segments_->Close();
}

// A block that was not given: in the middle of one, or nowhere.
ReleaseFrame::Block PoolReader::Unknown() {
  if (!blocks_.empty() && talk_.OneIn(2)) {
    const BlockPlace& place = blocks_.begin()->first;
    return {place.first, place.second + 64};
  }
  return {1 + talk_.Below(3), kLeastPooled / 2};
}

void PoolReader::SayWrong(uint64_t which) {
  constexpr int64_t kMostCredit = std::numeric_limits<int64_t>::max();
  ReleaseFrame release;
  switch (which) {
    case 0:
      release.blocks = {Unknown()};
      return Say(release);
    case 1:
      release.blocks = {{talk_.OneIn(2) ? 0 : kMost, 0}};
      return Say(release);
    case 2:
      release.blocks = {{1, talk_.OneIn(2) ? kMost : kMost / 2 + 1}};
      return Say(release);
    case 3:  // twice at once, and what is right before it
      for (const auto& [place, block] : blocks_) {
        release.blocks.push_back({place.first, place.second});
      }
      release.blocks.push_back(release.blocks.empty() ? Unknown() : release.blocks.front());
      return Say(release);
    case 4: {  // and once more
      if (blocks_.empty()) return Say(ReleaseFrame{{Unknown()}});
      const BlockPlace place = blocks_.begin()->first;
      release.blocks = {{place.first, place.second}};
      Say(release);
      // What waited for room may have it now.
      if (blocks_.count(place) > 0) Say(release);
      return Say(release);
    }
    case 5:
      return Say(ReceivedFrame{talk_.taken() + 1, {}});
    case 6:
      return Say(ReceivedFrame{kMostCredit, {{7, 1}}});
    case 7:
      return Say(SegmentFrame{1 + talk_.Below(3), 0});
    default:
      return Say(SegmentFrame{1 + talk_.Below(3), LinkTalk::kPoolBytes});
  }
}

}  // namespace millrace
