// SPDX-License-Identifier: Apache-2.0
//
// Damaged checkpoints, restored through Saver and Session: an error that names the file, and
// variables that keep their values; or, proven by comparison, no damage at all.
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/coding.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/table_reader.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "leveldb/env.h"
#include "leveldb/options.h"
#include "leveldb/table_builder.h"
#include "ops/array/constant.h"
#include "proto/tensor_bundle.pb.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "tests/errors/error_case.h"

namespace millrace {
namespace {

using absl::StatusCode;

const std::vector<std::pair<std::string, Tensor>>& Values() {
  static const auto* const values = new std::vector<std::pair<std::string, Tensor>>{
      {"bias", TensorOf<float>({3}, {1, 2, 3})},
      {"kernel", TensorOf<double>({2, 2}, {0.5, -1, 2, 3})},
      {"step", TensorOf<int64_t>({}, {12})},
      {"words", TensorOf<std::string>({2}, {"mill", "race"})}};
  return *values;
}

// The most memory that this process ever had mapped, in bytes.
int64_t PeakVirtualBytes() {
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("VmPeak:", 0) != 0) continue;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (words.size() >= 2 && absl::SimpleAtoi(words[words.size() - 2], &kilobytes)) {
      return kilobytes * 1024;
    }
  }
  ADD_FAILURE() << "/proc/self/status has no VmPeak";
  return 0;
}

// A saved model of four variables and a session in which they have other values.
class CheckpointErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(::testing::TempDir(), absl::StrCat("errors_", RandomHexName()));
    for (const auto& [name, value] : Values()) {
      MakeVariable(root_.WithName(name), Const(root_, value));
    }
    const Operation init = GlobalVariablesInitializer(root_);
    for (const Variable& variable : VariablesOf(root_)) {
      zeros_.push_back(*Tensor::Zeros(variable.dtype, *variable.shape.ToShape()));
      zero_initializers_.push_back(variable.initializer);
      zero_feeds_.emplace_back(TensorNameOfInput(variable.initializer, 1), zeros_.back());
      reads_.push_back(variable.value);
    }
    ASSERT_OK_AND_ASSIGN(saver_, Saver::Make(root_));
    ASSERT_OK_AND_ASSIGN(session_, NewSession());
    ASSERT_OK(session_->Extend(root_));
    ASSERT_OK(session_->Run({}, {}, {init}));
    ASSERT_OK_AND_ASSIGN(checkpoint_,
                         saver_->Save(session_.get(), JoinPath(directory_, "model.ckpt"), 12));
    index_ = BundleIndexPath(checkpoint_);
    data_ = BundleDataPath(checkpoint_, 0, 1);
    ASSERT_OK(SetZeros());
  }
  void TearDown() override { fs_->RecursivelyDelete(directory_).IgnoreError(); }

  static std::string TensorNameOfInput(Operation op, int i) {
    return TensorNameString(*op.node()->input(i).node, op.node()->input(i).index);
  }
  Status SetZeros() { return session_->Run(zero_feeds_, {}, zero_initializers_).status(); }
  bool Hold(const std::vector<Tensor>& want) {
    const auto got = session_->Run({}, reads_);
    EXPECT_OK(got.status());
    if (!got.ok()) return false;
    for (size_t i = 0; i < want.size(); ++i) {
      if (!((*got)[i] == want[i])) return false;
    }
    return true;
  }
  bool HoldZeros() { return Hold(zeros_); }
  bool HoldSaved() {
    std::vector<Tensor> want;
    for (const auto& [name, value] : Values()) want.push_back(value);
    return Hold(want);
  }
  std::string Bytes(const std::string& path) {
    const StatusOr<std::string> bytes = ReadFileToString(fs_, path);
    EXPECT_OK(bytes.status());
    return bytes.value_or("");
  }
  void Overwrite(const std::string& path, const std::string& bytes) {
    ASSERT_OK_AND_ASSIGN(const auto file, fs_->NewWritableFile(path));
    ASSERT_OK(file->Append(bytes));
    ASSERT_OK(file->Close());
  }
  // Restores; an error must leave the variables alone, and the whole file must restore afterwards.
  void ExpectRestoreError(const WantedError& want) {
    const ExpectSoon soon;
    ExpectError(saver_->Restore(session_.get(), checkpoint_), want);
    EXPECT_TRUE(HoldZeros());
  }
  void ExpectRestores() {
    EXPECT_OK(saver_->Restore(session_.get(), checkpoint_));
    EXPECT_TRUE(HoldSaved());
    EXPECT_OK(SetZeros());
  }

  FileSystem* const fs_ = FileSystem::Posix();
  std::string directory_, checkpoint_, index_, data_;
  Scope root_;
  std::vector<Tensor> zeros_;
  std::vector<Feed> zero_feeds_;
  std::vector<FetchName> zero_initializers_, reads_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<Session> session_;
};

TEST_F(CheckpointErrors, ATruncatedFileOfAnyLengthIsDataLoss) {
  for (const std::string& path : {index_, data_}) {
    const std::string good = Bytes(path);
    ASSERT_GT(good.size(), 40u);
    for (size_t length = 0; length < good.size(); ++length) {
      SCOPED_TRACE(absl::StrCat(path, " cut to ", length, " of ", good.size()));
      Overwrite(path, good.substr(0, length));
      ExpectRestoreError({StatusCode::kDataLoss, {path}});
    }
    Overwrite(path, good);
    ExpectRestores();
  }
}

TEST_F(CheckpointErrors, EveryFlippedByteIsDetectedOrProvenHarmless) {
  for (const std::string& path : {index_, data_}) {
    const std::string good = Bytes(path);
    int detected = 0, harmless = 0;
    for (size_t i = 0; i < good.size(); ++i) {
      for (const int mask : {0x01, 0x80, 0xff}) {
        SCOPED_TRACE(absl::StrCat(path, " byte ", i, " xor ", mask));
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ mask);
        Overwrite(path, bad);
        const Status status = saver_->Restore(session_.get(), checkpoint_);
        if (status.ok()) {
          EXPECT_TRUE(HoldSaved()) << "a wrong value was restored";
          EXPECT_OK(SetZeros());
          ++harmless;
          continue;
        }
        ++detected;
        EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) << status;
        EXPECT_TRUE(absl::StrContains(status.message(), checkpoint_)) << status;
        EXPECT_TRUE(HoldZeros()) << "an error left a changed variable";
      }
    }
    Overwrite(path, good);
    ExpectRestores();
    // Two numbers, never added: our own writer's files have no byte without a checksum.
    EXPECT_EQ(detected, 3 * static_cast<int>(good.size())) << path;
    EXPECT_EQ(harmless, 0) << path;
    RecordProperty(path == index_ ? "index_bytes_detected" : "data_bytes_detected", detected);
    RecordProperty(path == index_ ? "index_bytes_harmless" : "data_bytes_harmless", harmless);
  }
}

TEST_F(CheckpointErrors, EveryFlippedByteOfTheStateFileIsDetectedOrProvenHarmless) {
  // There is an older checkpoint that a flipped digit could name.
  const std::string path = JoinPath(directory_, "checkpoint");
  ASSERT_OK_AND_ASSIGN(const std::string newer,
                       saver_->Save(session_.get(), JoinPath(directory_, "model.ckpt"), 13));
  const std::string good = Bytes(path);
  int detected = 0, harmless = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      SCOPED_TRACE(absl::StrCat("byte ", i, " bit ", bit));
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      Overwrite(path, bad);
      const auto state = ReadCheckpointState(fs_, directory_);
      if (state) {
        EXPECT_EQ(state->latest, newer);
        EXPECT_EQ(state->all, (std::vector<std::string>{checkpoint_, newer}));
        ++harmless;
      } else {
        ++detected;
      }
      EXPECT_EQ(LatestCheckpoint(fs_, directory_), newer);
    }
  }
  EXPECT_GT(detected, 0);
  EXPECT_EQ(detected + harmless, 8 * static_cast<int>(good.size()));
  RecordProperty("state_bits_detected", detected);
  RecordProperty("state_bits_harmless", harmless);
}

TEST_F(CheckpointErrors, HugeSizesInAFooterAreRefusedBeforeAnythingIsAllocated) {
  const std::string good = Bytes(index_);
  constexpr size_t kFooterBytes = 48;
  const std::string magic = good.substr(good.size() - 8);
  const uint64_t size = good.size();
  struct FooterCase {
    const char* name;
    uint64_t meta_offset, meta_size, index_offset, index_size;
  };
  const std::vector<FooterCase> cases = {
      {"IndexOfHalfTheAddressSpace", 0, 8, 0, uint64_t{1} << 62},
      {"IndexOf8Gigabytes", 0, 8, 0, uint64_t{8} << 30},
      {"IndexNear2To63", 0, 8, 0, (uint64_t{1} << 63) - 1},
      {"IndexOffsetPlusSizeOverflows", 0, 8, ~uint64_t{0} - 3, 8},
      {"IndexBehindTheEnd", 0, 8, size, 8},
      {"IndexOverlapsTheFooter", 0, 8, 0, size},
      {"MetaindexOf8Gigabytes", 0, uint64_t{8} << 30, 0, 8},
      {"MetaindexOffsetOverflows", ~uint64_t{0}, ~uint64_t{0}, 0, 8},
  };
  const int64_t peak = PeakVirtualBytes();
  for (const FooterCase& c : cases) {
    SCOPED_TRACE(c.name);
    std::string footer;
    for (const uint64_t value : {c.meta_offset, c.meta_size, c.index_offset, c.index_size}) {
      PutVarint64(&footer, value);
    }
    footer.resize(kFooterBytes - magic.size(), '\0');
    Overwrite(index_, good.substr(0, good.size() - kFooterBytes) + footer + magic);
    ExpectRestoreError({StatusCode::kDataLoss, {index_}});
  }
  EXPECT_LT(PeakVirtualBytes() - peak, int64_t{256} << 20);
  Overwrite(index_, good);
  ExpectRestores();
}

// An index whose checksums are right and whose content is wrong.
class IndexFile {
 public:
  IndexFile() {
    header_.set_num_shards(1);
    header_.set_endianness(tensorflow::BundleHeaderProto::LITTLE);
    header_.mutable_version()->set_producer(1);
  }
  tensorflow::BundleHeaderProto& header() { return header_; }
  tensorflow::BundleEntryProto& entry(const std::string& name) { return entries_[name]; }

  Status Write(const std::string& path) const {
    leveldb::WritableFile* file = nullptr;
    if (!leveldb::Env::Default()->NewWritableFile(path, &file).ok()) {
      return absl::UnknownError(path);
    }
    const std::unique_ptr<leveldb::WritableFile> owned(file);
    leveldb::Options options;
    options.compression = leveldb::kNoCompression;
    leveldb::TableBuilder builder(options, file);
    builder.Add("", header_.SerializeAsString());
    for (const auto& [name, entry] : entries_) builder.Add(name, entry.SerializeAsString());
    const bool ok = builder.Finish().ok() && file->Close().ok();
    return ok ? absl::OkStatus() : absl::UnknownError(path);
  }

 private:
  tensorflow::BundleHeaderProto header_;
  std::map<std::string, tensorflow::BundleEntryProto> entries_;
};

TEST_F(CheckpointErrors, EntriesThatCannotBeTrueAreRefusedBeforeAnythingIsAllocated) {
  // The entries that the saver wrote, to change one thing at a time.
  const std::string good = Bytes(index_);
  IndexFile original;
  {
    ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(fs_, index_));
    for (const auto& [name, value] : Values()) {
      ASSERT_OK_AND_ASSIGN(const std::optional<std::string> entry, table->Get(name));
      ASSERT_TRUE(entry && original.entry(name).ParseFromString(*entry)) << name;
    }
  }
  ASSERT_OK(original.Write(index_));
  ExpectRestores();  // so it is the one thing that is refused
  struct EntryCase {
    const char* name;
    std::function<void(IndexFile&)> change;
    WantedError want;
  };
  const StatusCode kDataLoss = StatusCode::kDataLoss;
  const std::vector<EntryCase> cases = {
      {"NoShards",
       [](IndexFile& f) { f.header().set_num_shards(0); },
       {kDataLoss, {checkpoint_, "got 0"}}},
      {"NegativeShards",
       [](IndexFile& f) { f.header().set_num_shards(-5); },
       {kDataLoss, {checkpoint_, "got -5"}}},
      {"NewerVersion",
       [](IndexFile& f) { f.header().mutable_version()->set_min_consumer(99); },
       {StatusCode::kFailedPrecondition, {"99"}}},
      {"BigEndian",
       [](IndexFile& f) { f.header().set_endianness(tensorflow::BundleHeaderProto::BIG); },
       {StatusCode::kUnimplemented, {"endian"}}},
      {"NegativeOffset",
       [](IndexFile& f) { f.entry("bias").set_offset(-8); },
       {kDataLoss, {"bias"}}},
      {"OffsetBehindTheEnd",
       [](IndexFile& f) { f.entry("bias").set_offset(int64_t{1} << 40); },
       {kDataLoss, {"bias"}}},
      {"OffsetPlusSizeOverflows",
       [](IndexFile& f) { f.entry("bias").set_offset(INT64_MAX - 3); },
       {kDataLoss, {"bias"}}},
      {"NegativeSize", [](IndexFile& f) { f.entry("bias").set_size(-12); }, {kDataLoss, {"bias"}}},
      {"SizeOf8Gigabytes",
       [](IndexFile& f) { f.entry("bias").set_size(int64_t{8} << 30); },
       {kDataLoss, {"bias"}}},
      {"ShapeOf8Gigabytes",
       [](IndexFile& f) {
         f.entry("bias").mutable_shape()->mutable_dim(0)->set_size(int64_t{2} << 30);
         f.entry("bias").set_size(int64_t{8} << 30);
       },
       {kDataLoss, {"bias"}}},
      {"ShapeOverflows",
       [](IndexFile& f) {
         f.entry("bias").mutable_shape()->mutable_dim(0)->set_size(int64_t{1} << 40);
         f.entry("bias").mutable_shape()->add_dim()->set_size(int64_t{1} << 40);
       },
       {kDataLoss, {"bias"}}},
      {"NegativeDimension",
       [](IndexFile& f) { f.entry("bias").mutable_shape()->mutable_dim(0)->set_size(-1); },
       {kDataLoss, {"bias"}}},
      {"UnknownDtype",
       [](IndexFile& f) { f.entry("bias").set_dtype(static_cast<tensorflow::DataType>(77)); },
       {kDataLoss, {"bias"}}},
      {"ShardThatIsNotThere",
       [](IndexFile& f) { f.entry("bias").set_shard_id(7); },
       {kDataLoss, {"bias"}}},
      {"SizeThatIsNotTheShapes",
       [](IndexFile& f) { f.entry("bias").set_size(8); },
       {kDataLoss, {"bias"}}},
      {"StringsThatCannotFit",
       [](IndexFile& f) {
         f.entry("words").mutable_shape()->mutable_dim(0)->set_size(int64_t{1} << 36);
       },
       {kDataLoss, {"words"}}},
  };
  const int64_t peak = PeakVirtualBytes();
  for (const EntryCase& c : cases) {
    SCOPED_TRACE(c.name);
    IndexFile file = original;
    c.change(file);
    ASSERT_OK(file.Write(index_));
    ExpectRestoreError(c.want);
  }
  EXPECT_LT(PeakVirtualBytes() - peak, int64_t{256} << 20);
  Overwrite(index_, good);
  ExpectRestores();
}

TEST_F(CheckpointErrors, MissingFilesAreNamed) {
  ASSERT_OK(fs_->DeleteFile(data_));
  ExpectRestoreError({StatusCode::kNotFound, {data_}});
  ASSERT_OK(fs_->DeleteFile(index_));
  ExpectRestoreError({StatusCode::kNotFound, {checkpoint_}});
}

TEST_F(CheckpointErrors, ADirectoryInPlaceOfAFileIsNoCrash) {
  ASSERT_OK(fs_->DeleteFile(data_));
  ASSERT_OK(fs_->CreateDirectory(data_));
  ExpectRestoreError({StatusCode::kFailedPrecondition, {data_}});
}

// The file is fine; the graph wants something else.
struct OtherGraphCase {
  const char* name;
  const char* variable;
  Tensor value;
  WantedError want;
};

TEST_F(CheckpointErrors, AGraphThatDisagreesWithTheFileSeesBothSides) {
  const std::vector<OtherGraphCase> cases = {
      {"Dtype",
       "bias",
       TensorOf<int32_t>({3}, {1, 2, 3}),
       {StatusCode::kInvalidArgument, {"bias", "int32", "float"}}},
      {"Shape",
       "bias",
       TensorOf<float>({2}, {1, 2}),
       {StatusCode::kInvalidArgument, {"[2]", "[3]"}}},
      {"Name",
       "biass",
       TensorOf<float>({3}, {1, 2, 3}),
       {StatusCode::kNotFound, {"Key biass not found in checkpoint"}}},
  };
  for (const OtherGraphCase& c : cases) {
    SCOPED_TRACE(c.name);
    const ExpectSoon soon;
    Scope root;
    MakeVariable(root.WithName(c.variable), Const(root, c.value));
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(root));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}));
    ExpectError(saver->Restore(session.get(), checkpoint_), c.want);
    const auto kept = session->Run({}, {absl::StrCat(c.variable, "/Read/ReadVariableOp")});
    ASSERT_OK(kept.status());
    ExpectTensorEqual((*kept)[0], c.value);
  }
  ExpectRestores();
}

}  // namespace
}  // namespace millrace
