// SPDX-License-Identifier: Apache-2.0
#include "saver/tensor_bundle.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/allocator.h"
#include "core/clock.h"
#include "core/crc32c.h"
#include "core/fail_point.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/paced_thread.h"
#include "core/random_bits.h"
#include "core/resource_handle.h"
#include "core/table_reader.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "leveldb/env.h"
#include "leveldb/options.h"
#include "leveldb/table_builder.h"
#include "proto/tensor_bundle.pb.h"
#include "saver/file_parts.h"

// covers: values: checkpoints of both formats; a power cut at any moment leaves the old or the new
//   one
// covers: values: a flipped byte in the rows that are read from a large tensor is detected; small
//   tensors are written as TensorFlow writes them
// covers: variables: restores of slices read only their rows (bytes counted)

namespace millrace {
namespace {

class TensorBundleTest : public ::testing::Test {
 protected:
  TensorBundleTest()
      : directory_(JoinPath(::testing::TempDir(), "bundle_" + RandomHexName())),
        prefix_(JoinPath(directory_, "model.ckpt-1")) {}
  ~TensorBundleTest() override { fs_->RecursivelyDelete(directory_).IgnoreError(); }

  void Write(const std::string& prefix,
             const std::vector<std::pair<std::string, Tensor>>& tensors) {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix));
    for (const auto& [name, value] : tensors) ASSERT_OK(writer->Add(name, value));
    ASSERT_OK(writer->Finish());
  }
  std::string Bytes(const std::string& path) {
    StatusOr<std::string> bytes = ReadFileToString(fs_, path);
    EXPECT_OK(bytes.status());
    return bytes.ok() ? *bytes : "";
  }
  void Overwrite(const std::string& path, const std::string& bytes) {
    ASSERT_OK_AND_ASSIGN(auto file, fs_->NewWritableFile(path));
    ASSERT_OK(file->Append(bytes));
    ASSERT_OK(file->Close());
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string directory_;
  const std::string prefix_;
};

std::vector<std::pair<std::string, Tensor>> SmallModel() {
  return {{"dense/bias", TensorOf<float>({3}, {1, 2, 3})},
          {"dense/kernel", TensorOf<double>({2, 2}, {0.5, -1, 2, 3})},
          {"empty", TensorOf<float>({0, 4}, {})},
          {"flag", TensorOf<bool>({2}, {true, false})},
          {"global_step", TensorOf<int64_t>({}, {12})},
          {"words", TensorOf<std::string>({3}, {"a", "", "mill race"})}};
}

TEST_F(TensorBundleTest, EveryTensorComesBackAsItWas) {
  Write(prefix_, SmallModel());
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  EXPECT_EQ(reader->num_shards(), 1);
  ASSERT_EQ(reader->entries().size(), SmallModel().size());
  for (const auto& [name, value] : SmallModel()) {
    ASSERT_OK_AND_ASSIGN(const Tensor read, reader->Read(name));
    ExpectTensorEqual(read, value);
  }
  EXPECT_STATUS(reader->Read("nothing").status(), absl::StatusCode::kNotFound,
                "Key nothing not found in checkpoint");
  ASSERT_OK_AND_ASSIGN(const auto files, fs_->GetChildren(directory_));
  EXPECT_EQ(files,
            (std::vector<std::string>{"model.ckpt-1.data-00000-of-00001", "model.ckpt-1.index"}));
}

// The bytes that TensorFlow writes (tf-core: header of one shard, an entry with an empty shape).
TEST_F(TensorBundleTest, IndexEntriesAreTensorFlowsBytes) {
  Write(prefix_, {{"global_step", TensorOf<int64_t>({}, {12})}});
  const std::string index = Bytes(BundleIndexPath(prefix_));
  const std::string header("\x08\x01\x1a\x02\x08\x01", 6);
  EXPECT_NE(index.find(header), std::string::npos);
  const std::string entry("\x08\x09\x12\x00\x28\x08\x35", 7);
  EXPECT_NE(index.find(entry), std::string::npos);
}

TEST_F(TensorBundleTest, UnfinishedWriterLeavesNothing) {
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK(writer->Add("x", TensorOf<float>({1}, {1})));
  }
  ASSERT_OK_AND_ASSIGN(const auto files, fs_->GetChildren(directory_));
  EXPECT_TRUE(files.empty());
}

// Fills places with the bytes of their tensors, a few at a time, in turns.
void FillInTurns(BundleWriter* writer, const std::vector<std::pair<int, Tensor>>& places,
                 size_t piece) {
  bool more = true;
  for (size_t at = 0; more; at += piece) {
    more = false;
    for (const auto& [place, value] : places) {
      const absl::string_view bytes(value.bytes().data(), value.bytes().size());
      if (at >= bytes.size()) continue;
      ASSERT_OK(writer->Fill(place, bytes.substr(at, piece)));
      more = true;
    }
  }
}

TEST_F(TensorBundleTest, PiecesOfSeveralTensorsInTurnsMakeTheSameFilesAsTheTensors) {
  const Tensor w = TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor none = *Tensor::Zeros(DT_INT64, ShapeOf({0, 4}));
  const Tensor words = TensorOf<std::string>({2}, {"a", "bc"});
  ASSERT_OK_AND_ASSIGN(const TensorSlice slice, TensorSlice::Parse("3,3:-"));
  std::vector<std::string> files;
  for (const bool in_pieces : {false, true}) {
    const std::string prefix = prefix_ + (in_pieces ? "_pieces" : "_whole");
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix));
    if (in_pieces) {
      ASSERT_OK(writer->Reserve("none", DT_INT64, none.shape()).status());
      ASSERT_OK_AND_ASSIGN(const int w_place, writer->Reserve("w", DT_FLOAT, w.shape()));
      ASSERT_OK(writer->Add("words", words));
      ASSERT_OK_AND_ASSIGN(const int p_place,
                           writer->ReserveSlice("p", ShapeOf({6, 2}), slice, DT_FLOAT, w.shape()));
      FillInTurns(writer.get(), {{w_place, w}, {p_place, w}}, 7);
    } else {
      ASSERT_OK(writer->Add("none", none));
      ASSERT_OK(writer->Add("w", w));
      ASSERT_OK(writer->Add("words", words));
      ASSERT_OK(writer->AddSlice("p", ShapeOf({6, 2}), slice, w));
    }
    ASSERT_OK(writer->Finish());
    std::string bytes;
    ASSERT_OK_AND_ASSIGN(bytes, ReadFileToString(fs_, BundleIndexPath(prefix)));
    files.push_back(bytes);
    ASSERT_OK_AND_ASSIGN(bytes, ReadFileToString(fs_, BundleDataPath(prefix, 0, 1)));
    files.push_back(bytes);
  }
  EXPECT_EQ(files[0], files[2]);
  EXPECT_EQ(files[1], files[3]);
}

TEST_F(TensorBundleTest, PlacesThatAreNotFullOrTooFullEndTheWriter) {
  ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
  ASSERT_OK_AND_ASSIGN(const int place, writer->Reserve("w", DT_FLOAT, ShapeOf({3})));
  ASSERT_OK(writer->Fill(place, "8 bytes."));
  EXPECT_STATUS(writer->Finish(), absl::StatusCode::kInternal,
                "the pieces of tensor 'w' must be 12 bytes, got 8");
  EXPECT_STATUS(writer->Fill(place, "more"), absl::StatusCode::kInternal, "got 8");
  ASSERT_OK_AND_ASSIGN(auto other, BundleWriter::Open(fs_, prefix_));
  ASSERT_OK(other->Reserve("w", DT_FLOAT, ShapeOf({3})).status());
  EXPECT_STATUS(other->Fill(0, "thirteen byte"), absl::StatusCode::kInternal,
                "the pieces of tensor 'w' must be 12 bytes, got 13");
  ASSERT_OK_AND_ASSIGN(auto third, BundleWriter::Open(fs_, prefix_));
  EXPECT_STATUS(third->Reserve("s", DT_STRING, ShapeOf({3})).status(),
                absl::StatusCode::kUnimplemented, "got dtype string");
  EXPECT_STATUS(third->Fill(0, ""), absl::StatusCode::kInternal, "must be in [0, 0)");
}

TEST_F(TensorBundleTest, WriterRefusesWhatCannotBeStored) {
  ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
  EXPECT_STATUS(writer->Add("", TensorOf<float>({1}, {1})), absl::StatusCode::kInvalidArgument,
                "must have a name");
  ASSERT_OK(writer->Add("x", TensorOf<float>({1}, {1})));
  EXPECT_STATUS(writer->Add("x", TensorOf<float>({1}, {1})), absl::StatusCode::kInvalidArgument,
                "must be added once");
  EXPECT_STATUS(writer->Add("h", Tensor::Scalar<ResourceHandle>({})),
                absl::StatusCode::kUnimplemented, "got dtype resource");
  ASSERT_OK_AND_ASSIGN(const TensorSlice slice, TensorSlice::Parse("2,2"));
  ASSERT_OK_AND_ASSIGN(const Shape three, Shape::Make({3}));
  EXPECT_STATUS(writer->AddSlice("s", three, slice, TensorOf<float>({2}, {1, 2})),
                absl::StatusCode::kInvalidArgument, "must lie in shape [3]");
  // The keys of the header and of other slices.
  ASSERT_OK_AND_ASSIGN(const TensorSlice two, TensorSlice::Parse("0,2"));
  for (const std::string& name : {std::string(), std::string("\0w", 2)}) {
    EXPECT_STATUS(writer->AddSlice(name, three, two, TensorOf<float>({2}, {1, 2})),
                  absl::StatusCode::kInvalidArgument, "must have a name");
  }
  ASSERT_OK(writer->Finish());
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  ASSERT_EQ(reader->entries().size(), 1u);
}

TEST_F(TensorBundleTest, SlicesArePutTogetherWhateverWayTheyWereCut) {
  const Tensor whole = TensorOf<int32_t>({4, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK_AND_ASSIGN(const TensorSlice top, TensorSlice::Parse("0,1:-"));
    ASSERT_OK_AND_ASSIGN(const TensorSlice rest, TensorSlice::Parse("1,3:-"));
    ASSERT_OK(writer->AddSlice("table", whole.shape(), top, whole.Rows(0, 1)));
    ASSERT_OK(writer->AddSlice("table", whole.shape(), rest, whole.Rows(1, 4)));
    ASSERT_OK(writer->Finish());
  }
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  ASSERT_OK_AND_ASSIGN(const Tensor read, reader->Read("table"));
  ExpectTensorEqual(read, whole);
  ASSERT_OK_AND_ASSIGN(const TensorSlice columns, TensorSlice::Parse("0,2:1,2"));
  ASSERT_OK_AND_ASSIGN(const Tensor part, reader->ReadSlice("table", columns));
  ExpectTensorEqual(part, TensorOf<int32_t>({2, 2}, {1, 2, 4, 5}));
  ASSERT_EQ(reader->entries().size(), 1u);
  EXPECT_EQ(reader->entries()[0].slices.size(), 2u);
}

TEST_F(TensorBundleTest, MissingSliceIsDataLoss) {
  const Tensor whole = TensorOf<int32_t>({4}, {0, 1, 2, 3});
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK_AND_ASSIGN(const TensorSlice top, TensorSlice::Parse("0,1"));
    ASSERT_OK(writer->AddSlice("table", whole.shape(), top, whole.Rows(0, 1)));
    ASSERT_OK(writer->Finish());
  }
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  EXPECT_STATUS(reader->Read("table").status(), absl::StatusCode::kDataLoss,
                "Does not have sufficient slices for partitioned tensor table");
}

TEST_F(TensorBundleTest, OnlySlicesThatAreAskedForAreRead) {
  const Tensor whole = TensorOf<int32_t>({4}, {0, 1, 2, 3});
  ASSERT_OK_AND_ASSIGN(const TensorSlice top, TensorSlice::Parse("0,2"));
  ASSERT_OK_AND_ASSIGN(const TensorSlice rest, TensorSlice::Parse("2,2"));
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK(writer->AddSlice("table", whole.shape(), top, whole.Rows(0, 2)));
    ASSERT_OK(writer->AddSlice("table", whole.shape(), rest, whole.Rows(2, 4)));
    ASSERT_OK(writer->Finish());
  }
  // The other one is damaged.
  std::string data = Bytes(BundleDataPath(prefix_, 0, 1));
  ASSERT_EQ(data.size(), 16u);
  data[15] = 1;
  Overwrite(BundleDataPath(prefix_, 0, 1), data);
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  ASSERT_OK_AND_ASSIGN(const Tensor part, reader->ReadSlice("table", top));
  ExpectTensorEqual(part, TensorOf<int32_t>({2}, {0, 1}));
  EXPECT_STATUS(reader->ReadSlice("table", rest).status(), absl::StatusCode::kDataLoss,
                "fails its checksum");
  EXPECT_STATUS(reader->Read("table").status(), absl::StatusCode::kDataLoss, "fails its checksum");
}

TEST_F(TensorBundleTest, OverlappingSlicesDoNotHideAHole) {
  struct Case {
    const char* full;
    std::vector<const char*> slices;
    const char* want;  // nullptr: sound
  };
  const std::vector<Case> cases = {
      // As many elements as there should be, but element 2 twice and element 5 not at all.
      {"6", {"0,3", "2,3"}, "its slices must not overlap, got '0,3' and '2,3'"},
      {"2,4", {"0,1:-", "1,1:0,2", "0,1:0,2"}, "its slices must not overlap"},
      {"2,2", {"-:0,1", "-:1,1"}, nullptr},
      {"3,3", {"0,2:0,1", "0,1:1,2", "1,2:2,1", "2,1:0,2", "1,1:1,1"}, nullptr},
      {"0,3", {"-:0,1"}, nullptr},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.full);
    std::vector<int64_t> dims;
    for (absl::string_view dim : absl::StrSplit(c.full, ',')) {
      dims.push_back(0);
      ASSERT_TRUE(absl::SimpleAtoi(dim, &dims.back()));
    }
    ASSERT_OK_AND_ASSIGN(const Shape full, Shape::Make(dims));
    {
      ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
      for (const char* text : c.slices) {
        ASSERT_OK_AND_ASSIGN(const TensorSlice slice, TensorSlice::Parse(text));
        ASSERT_OK_AND_ASSIGN(const Shape shape, slice.SliceShape(full));
        ASSERT_OK_AND_ASSIGN(const Tensor zeros, Tensor::Zeros(DT_FLOAT, shape));
        ASSERT_OK(writer->AddSlice("table", full, slice, zeros));
      }
      ASSERT_OK(writer->Finish());
    }
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
    const auto read = reader->Read("table");
    if (c.want != nullptr) {
      EXPECT_STATUS(read.status(), absl::StatusCode::kDataLoss, c.want);
    } else {
      ASSERT_OK(read.status());
      ExpectTensorEqual(*read, *Tensor::Zeros(DT_FLOAT, full));
    }
  }
}

// A table of 2^43 bytes and more of which the file has a few: refused, and not because of a lack of
// memory.
TEST_F(TensorBundleTest, ATableIsNotAllocatedBeforeItsSlicesAreThere) {
  ASSERT_OK_AND_ASSIGN(const Shape huge, Shape::Make({int64_t{1} << 40}));
  for (const DType dtype : {DT_DOUBLE, DT_STRING}) {
    {
      ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
      ASSERT_OK_AND_ASSIGN(const TensorSlice slice, TensorSlice::Parse("5,2"));
      ASSERT_OK_AND_ASSIGN(const Shape two, Shape::Make({2}));
      ASSERT_OK_AND_ASSIGN(const Tensor zeros, Tensor::Zeros(dtype, two));
      ASSERT_OK(writer->AddSlice("table", huge, slice, zeros));
      ASSERT_OK(writer->Finish());
    }
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
    EXPECT_STATUS(reader->Read("table").status(), absl::StatusCode::kDataLoss,
                  "Does not have sufficient slices for partitioned tensor table");
  }
}

// The place in the file of an entry with slices is none, and is not looked at; that of a slice is.
TEST_F(TensorBundleTest, ASliceWithSlicesOfItsOwnIsRefused) {
  Write(prefix_, {{"b", TensorOf<float>({1}, {1})}});
  const TensorSlice half = *TensorSlice::Parse("0,50"), other = *TensorSlice::Parse("50,50");
  tensorflow::BundleHeaderProto header;
  header.set_num_shards(1);
  header.mutable_version()->set_producer(1);
  tensorflow::BundleEntryProto table;
  table.set_dtype(tensorflow::DT_FLOAT);
  ShapeOf({100}).ToProto(table.mutable_shape());
  half.ToProto(table.add_slices());
  other.ToProto(table.add_slices());
  tensorflow::BundleEntryProto slice;  // of 50 floats in no bytes, with their checksum
  slice.set_dtype(tensorflow::DT_FLOAT);
  ShapeOf({50}).ToProto(slice.mutable_shape());
  slice.set_crc32c(MaskCrc32c(0));
  half.ToProto(slice.add_slices());
  leveldb::WritableFile* file = nullptr;
  ASSERT_TRUE(leveldb::Env::Default()->NewWritableFile(BundleIndexPath(prefix_), &file).ok());
  const std::unique_ptr<leveldb::WritableFile> owned(file);
  leveldb::TableBuilder builder(leveldb::Options(), file);
  builder.Add("", header.SerializeAsString());
  builder.Add(half.BundleKey("table"), slice.SerializeAsString());
  builder.Add(other.BundleKey("table"), slice.SerializeAsString());
  builder.Add("table", table.SerializeAsString());
  ASSERT_TRUE(builder.Finish().ok() && file->Close().ok());
  EXPECT_STATUS(BundleReader::Open(fs_, prefix_).status(), absl::StatusCode::kDataLoss,
                "tensor '(a slice)': it must have no slices of its own, got 1");
}

// Files of which the indexes of bundles cannot be read for want of something.
class NoMoreDescriptors : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    if (absl::EndsWith(path, ".index")) {
      return absl::ResourceExhaustedError("Too many open files");
    }
    return FaultyFileSystem::NewRandomAccessFile(path);
  }
};

// How many data files it has is not known: the new ones could take their names.
TEST_F(TensorBundleTest, ABundleWhoseIndexCannotBeReadNowIsNotReplaced) {
  Write(prefix_, {{"x", TensorOf<float>({1}, {1})}});
  ASSERT_OK_AND_ASSIGN(const auto before, fs_->GetChildren(directory_));
  NoMoreDescriptors files(fs_, directory_);
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(&files, prefix_));
    ASSERT_OK(writer->Add("x", TensorOf<float>({1}, {2})));
    EXPECT_STATUS(writer->Finish(), absl::StatusCode::kResourceExhausted, "Too many open files");
  }
  ASSERT_OK_AND_ASSIGN(const auto after, fs_->GetChildren(directory_));
  EXPECT_EQ(after, before);
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  ASSERT_OK_AND_ASSIGN(const Tensor read, reader->Read("x"));
  ExpectTensorEqual(read, TensorOf<float>({1}, {1}));
  // One that is damaged is.
  Overwrite(BundleIndexPath(prefix_), "no index");
  Write(prefix_, {{"x", TensorOf<float>({1}, {3})}});
  EXPECT_OK(BundleReader::Open(fs_, prefix_).status());
}

TEST_F(TensorBundleTest, MergeRefusesAnEntryOfAShardThatIsNotThere) {
  const std::string twin = JoinPath(directory_, "twin");
  for (const int shard : {-1, 1, std::numeric_limits<int>::max()}) {
    const std::string part = JoinPath(directory_, absl::StrCat("part", shard));
    Write(twin, {{"b", TensorOf<float>({1}, {1})}});
    Write(part, {{"a", TensorOf<float>({1}, {1})}});
    tensorflow::BundleHeaderProto header;
    header.set_num_shards(1);
    header.mutable_version()->set_producer(1);
    tensorflow::BundleEntryProto entry;
    entry.set_dtype(tensorflow::DT_FLOAT);
    entry.set_shard_id(shard);
    leveldb::WritableFile* file = nullptr;
    ASSERT_TRUE(leveldb::Env::Default()->NewWritableFile(BundleIndexPath(part), &file).ok());
    const std::unique_ptr<leveldb::WritableFile> owned(file);
    leveldb::TableBuilder builder(leveldb::Options(), file);
    builder.Add("", header.SerializeAsString());
    builder.Add("a", entry.SerializeAsString());
    ASSERT_TRUE(builder.Finish().ok() && file->Close().ok());
    const std::string parts[] = {twin, part};
    EXPECT_STATUS(MergeBundles(fs_, parts, prefix_, true), absl::StatusCode::kDataLoss,
                  absl::StrCat("tensor 'a': its shard must be in [0, 1), got ", shard));
    EXPECT_OK(BundleReader::Open(fs_, twin).status());
  }
}

TEST_F(TensorBundleTest, MergeMakesOneCheckpointOfParts) {
  const Tensor whole = TensorOf<float>({4}, {0, 1, 2, 3});
  const std::string parts[] = {JoinPath(directory_, "t_temp/part-00000-of-00002"),
                               JoinPath(directory_, "t_temp/part-00001-of-00002")};
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, parts[i]));
    ASSERT_OK(writer->Add(i == 0 ? "a" : "b", TensorOf<float>({1}, {static_cast<float>(i)})));
    ASSERT_OK_AND_ASSIGN(const TensorSlice half, TensorSlice::Parse(i == 0 ? "0,2" : "2,2"));
    ASSERT_OK(writer->AddSlice("table", whole.shape(), half, whole.Rows(2 * i, 2 * i + 2)));
    ASSERT_OK(writer->Finish());
  }
  ASSERT_OK(MergeBundles(fs_, parts, prefix_, /*delete_parts=*/true));
  ASSERT_OK_AND_ASSIGN(const auto files, fs_->GetChildren(directory_));
  EXPECT_EQ(files,
            (std::vector<std::string>{"model.ckpt-1.data-00000-of-00002",
                                      "model.ckpt-1.data-00001-of-00002", "model.ckpt-1.index"}));
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  EXPECT_EQ(reader->num_shards(), 2);
  ASSERT_OK_AND_ASSIGN(const Tensor table, reader->Read("table"));
  ExpectTensorEqual(table, whole);
  ASSERT_OK_AND_ASSIGN(const Tensor b, reader->Read("b"));
  ExpectTensorEqual(b, TensorOf<float>({1}, {1}));
}

// Two chiefs, of which one is deposed, have the same task merge the same step.
TEST_F(TensorBundleTest, TwoMergesOfOneNameAtOnceLeaveOneOfThemWhole) {
  for (int round = 0; round < 20; ++round) {
    const std::string merged = JoinPath(directory_, absl::StrCat("m-", round));
    const auto part = [&](int chief) { return absl::StrCat(merged, "_temp_", chief, "/part"); };
    for (int chief = 0; chief < 2; ++chief) {
      Write(part(chief), {{"w", TensorOf<float>({1}, {static_cast<float>(chief)})}});
    }
    const auto merge = [&](int chief) {
      const std::string parts[] = {part(chief)};
      return MergeBundles(fs_, parts, merged, /*delete_parts=*/true);
    };
    std::future<Status> other = std::async(std::launch::async, [&] { return merge(1); });
    const Status first = merge(0);
    const Status second = other.get();
    ASSERT_OK(first);
    ASSERT_OK(second);
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, merged));
    // Not the data of one under the index of the other.
    ASSERT_OK(reader->Read("w").status());
  }
}

// Two tasks of one name, or saves of two chiefs on two machines. The first one is slow between the
// names of its data and of its index, where the second one comes.
TEST_F(TensorBundleTest, TwoProcessesThatMergeOneNameAtOnceLeaveOneOfThemWhole) {
  const char* const slow[] = {"saver/after_merge_data=sleep_ms:20",
                              "saver/merge_before_data_rename=sleep_ms:5"};
  for (int round = 0; round < 10; ++round) {
    const std::string merged = JoinPath(directory_, absl::StrCat("m-", round));
    const auto part = [&](int chief) { return absl::StrCat(merged, "_temp_", chief, "/part"); };
    for (int chief = 0; chief < 2; ++chief) {
      Write(part(chief), {{"w", TensorOf<float>({1}, {static_cast<float>(chief)})}});
    }
    int start[2];
    ASSERT_EQ(::pipe(start), 0);
    pid_t children[2];
    for (int chief = 0; chief < 2; ++chief) {
      children[chief] = ::fork();
      if (children[chief] != 0) continue;
      ::close(start[1]);
      char byte;
      (void)!::read(start[0], &byte, 1);  // until the parent closes the other end
      const std::string parts[] = {part(chief)};
      const bool merges = SetFailPoints(slow[chief]).ok() &&
                          MergeBundles(fs_, parts, merged, /*delete_parts=*/true).ok();
      ::_exit(merges ? 0 : 1);
    }
    ::close(start[0]);
    ::close(start[1]);
    for (const pid_t child : children) {
      int status = -1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, merged));
    // Not the data of one under the index of the other.
    EXPECT_OK(reader->Read("w").status());
    EXPECT_FALSE(fs_->FileExists(BundleLockPath(merged)));
  }
}

// From the look at what stands there until the index has its name.
TEST_F(TensorBundleTest, FilesGetTheirNamesUnderALock) {
  std::vector<std::string> seen;
  SetFailPointHook([&](absl::string_view name) {
    if (fs_->FileExists(BundleLockPath(prefix_))) {
      EXPECT_STATUS(fs_->TryLockFile(BundleLockPath(prefix_), "x").status(),
                    absl::StatusCode::kUnavailable, "must be free");
      seen.emplace_back(name);
    }
    return absl::OkStatus();
  });
  Write(prefix_, SmallModel());
  const std::string part = JoinPath(directory_, "t/part");
  Write(part, SmallModel());
  const Status merged = MergeBundles(fs_, absl::MakeConstSpan(&part, 1), prefix_, true);
  SetFailPointHook(nullptr);
  EXPECT_OK(merged);
  EXPECT_EQ(seen, (std::vector<std::string>{
                      "saver/before_data_rename", "saver/after_data_rename", "saver/before_index",
                      "saver/after_index_sync", "saver/after_index_rename",
                      "saver/merge_before_data_rename", "saver/after_merge_data",
                      "saver/before_index", "saver/after_index_sync", "saver/after_index_rename"}));
}

TEST_F(TensorBundleTest, MergeRefusesOneTensorInTwoPartsAndTouchesNothing) {
  const std::string parts[] = {JoinPath(directory_, "p0"), JoinPath(directory_, "p1")};
  for (const std::string& part : parts) Write(part, {{"a", TensorOf<float>({1}, {1})}});
  EXPECT_STATUS(MergeBundles(fs_, parts, prefix_, true), absl::StatusCode::kInvalidArgument,
                "tensor 'a' must be in one part");
  for (const std::string& part : parts) EXPECT_OK(BundleReader::Open(fs_, part).status());
}

// Reads everything; OK only when all is as in SmallModel().
Status ReadSmallModel(FileSystem* fs, const std::string& prefix, bool* equal) {
  MR_ASSIGN_OR_RETURN(auto reader, BundleReader::Open(fs, prefix));
  *equal = reader->entries().size() == SmallModel().size();
  for (const auto& [name, value] : SmallModel()) {
    MR_ASSIGN_OR_RETURN(const Tensor read, reader->Read(name));
    *equal = *equal && read == value;
  }
  return absl::OkStatus();
}

TEST_F(TensorBundleTest, EveryFlippedByteIsDetected) {
  Write(prefix_, SmallModel());
  for (const std::string& path : {BundleIndexPath(prefix_), BundleDataPath(prefix_, 0, 1)}) {
    const std::string good = Bytes(path);
    int detected = 0, harmless = 0;
    for (size_t i = 0; i < good.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
        Overwrite(path, bad);
        bool equal = false;
        const Status status = ReadSmallModel(fs_, prefix_, &equal);
        if (status.ok()) {
          EXPECT_TRUE(equal) << path << " byte " << i << " bit " << bit;
          ++harmless;
        } else {
          ++detected;
        }
      }
    }
    Overwrite(path, good);
    EXPECT_EQ(harmless, 0) << path;
    EXPECT_EQ(detected, static_cast<int>(good.size()) * 8);
  }
}

TEST_F(TensorBundleTest, EveryTruncationIsDetected) {
  Write(prefix_, SmallModel());
  for (const std::string& path : {BundleIndexPath(prefix_), BundleDataPath(prefix_, 0, 1)}) {
    const std::string good = Bytes(path);
    for (size_t length = 0; length < good.size(); ++length) {
      Overwrite(path, good.substr(0, length));
      bool equal = false;
      EXPECT_FALSE(ReadSmallModel(fs_, prefix_, &equal).ok()) << path << " cut to " << length;
    }
    Overwrite(path, good);
  }
}

TEST_F(TensorBundleTest, MissingFilesAreNamed) {
  EXPECT_STATUS(BundleReader::Open(fs_, prefix_).status(), absl::StatusCode::kNotFound,
                "model.ckpt-1.index");
  Write(prefix_, SmallModel());
  ASSERT_OK(fs_->DeleteFile(BundleDataPath(prefix_, 0, 1)));
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  EXPECT_STATUS(reader->Read("dense/bias").status(), absl::StatusCode::kNotFound,
                "model.ckpt-1.data-00000-of-00001");
}

TEST(TensorSliceTest, BundleKeyIsTensorFlowsOrderedCode) {
  ASSERT_OK_AND_ASSIGN(const TensorSlice slice, TensorSlice::Parse("0,2:-"));
  EXPECT_EQ(slice.BundleKey("w"), std::string("\x00w\x00\x01\x01\x02\x80\x82\x80\x7f", 10));
}

TEST(TensorSliceTest, SpecsAreReadAndBadOnesRefused) {
  ASSERT_OK_AND_ASSIGN(const ShapeAndSlice spec, ParseShapeAndSlice("4 3 1,2:-"));
  EXPECT_EQ(spec.full_shape.ToString(), "[4,3]");
  EXPECT_EQ(spec.slice_shape.ToString(), "[2,3]");
  EXPECT_EQ(spec.slice.ToString(), "1,2:-");
  ASSERT_OK_AND_ASSIGN(const ShapeAndSlice whole, ParseShapeAndSlice(""));
  EXPECT_TRUE(whole.is_whole);
  for (const char* bad : {"4 3", "4 3 1,4:-", "4 x 1,2:-", "-1 0,1", "4 0,-1", "4 1", "4 0,1:-",
                          "4 0,9223372036854775807", "4 9223372036854775807,1"}) {
    EXPECT_STATUS(ParseShapeAndSlice(bad).status(), absl::StatusCode::kInvalidArgument, "") << bad;
  }
}

// Real checkpoints: written again by our writer, the index has the same bytes.
TEST_F(TensorBundleTest, RewrittenCheckpointOfTensorFlowHasTheSameBytes) {
  const std::string directory = SharedDataPath("saved_models/half_plus_two/variables");
  if (directory.empty()) GTEST_SKIP() << "MILLRACE_SHARED names no folder with TensorFlow's files";
  const std::string prefix = JoinPath(directory, "variables");
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix));
  ASSERT_GT(reader->entries().size(), 0u);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& entry : reader->entries()) {
    ASSERT_OK_AND_ASSIGN(Tensor value, reader->Read(entry.name));
    tensors.emplace_back(entry.name, std::move(value));
  }
  Write(prefix_, tensors);
  EXPECT_EQ(Bytes(BundleIndexPath(prefix_)), Bytes(BundleIndexPath(prefix)));
  EXPECT_EQ(Bytes(BundleDataPath(prefix_, 0, 1)), Bytes(BundleDataPath(prefix, 0, 1)));
}

// Counts the bytes that are read of data files.
class CountingFiles : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    MR_ASSIGN_OR_RETURN(auto file, FaultyFileSystem::NewRandomAccessFile(path));
    if (!absl::StrContains(path, ".data-")) return file;
    return std::make_unique<File>(std::move(file), &bytes_read);
  }
  std::atomic<uint64_t> bytes_read{0};

 private:
  class File : public RandomAccessFile {
   public:
    File(std::unique_ptr<RandomAccessFile> base, std::atomic<uint64_t>* count)
        : base_(std::move(base)), count_(count) {}
    uint64_t size() const override { return base_->size(); }
    Status Read(uint64_t offset, size_t n, char* out) const override {
      *count_ += n;
      return base_->Read(offset, n, out);
    }

   private:
    const std::unique_ptr<RandomAccessFile> base_;
    std::atomic<uint64_t>* const count_;
  };
};

Tensor Numbers(int64_t rows, int64_t columns) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, ShapeOf({rows, columns}));
  float next = 0;
  for (float& x : t.mutable_flat<float>()) x = next++;
  return t;
}

TEST_F(TensorBundleTest, APartReadsOnlyTheBytesOfItsRows) {
  const Tensor whole = Numbers(1000, 8);
  const Tensor half = Numbers(500, 8);
  ASSERT_OK_AND_ASSIGN(const TensorSlice first, TensorSlice::Parse("0,500:-"));
  ASSERT_OK_AND_ASSIGN(const TensorSlice second, TensorSlice::Parse("500,500:-"));
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK(writer->Add("whole", whole));
    ASSERT_OK(writer->AddSlice("halves", whole.shape(), first, half));
    ASSERT_OK(writer->AddSlice("halves", whole.shape(), second, half));
    ASSERT_OK(writer->Finish());
  }
  CountingFiles files(fs_, directory_);
  const struct {
    const char *name, *slice;
    uint64_t rows;  // that are read
    float begin, end;
  } cases[] = {
      {"whole", "100,10:-", 10, 800, 879},     {"whole", "0,1:-", 1, 0, 7},
      {"whole", "990,10:0,8", 10, 7920, 7999}, {"whole", "20,5:2,3", 5, 162, 196},
      {"halves", "100,10:-", 10, 800, 879},    {"halves", "499,2:-", 2, 3992, 7},
      {"halves", "600,4:7,1", 4, 807, 831},    {"whole", "-:3,1", 1000, 3, 7995},
  };
  for (const auto& c : cases) {
    ASSERT_OK_AND_ASSIGN(auto reader,
                         BundleReader::Open(&files, prefix_, nullptr, /*whole_bytes=*/0));
    ASSERT_OK_AND_ASSIGN(const TensorSlice slice, TensorSlice::Parse(c.slice));
    files.bytes_read = 0;
    ASSERT_OK_AND_ASSIGN(const Tensor part, reader->ReadSlice(c.name, slice));
    EXPECT_EQ(part.flat<float>().front(), c.begin) << c.name << " " << c.slice;
    EXPECT_EQ(part.flat<float>().back(), c.end) << c.name << " " << c.slice;
    EXPECT_EQ(files.bytes_read, c.rows * 8 * sizeof(float)) << c.name << " " << c.slice;
  }
}

TEST_F(TensorBundleTest, PartsThatMakeUpATensorAreCheckedTogether) {
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK(writer->Add("w", Numbers(1000, 8)));
    ASSERT_OK(writer->Finish());
  }
  const std::string path = BundleDataPath(prefix_, 0, 1);
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(fs_, path));
  for (const bool damaged : {false, true}) {
    if (damaged) bytes[17'000] ^= 4;
    ASSERT_OK(WriteFileAtomically(fs_, path, bytes));
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_, nullptr, /*whole_bytes=*/0));
    for (const char* const part : {"700,300:-", "0,400:-", "700,300:-"}) {
      ASSERT_OK(reader->ReadSlice("w", *TensorSlice::Parse(part)).status());
    }
    const Status last = reader->ReadSlice("w", *TensorSlice::Parse("400,300:-")).status();
    if (damaged) {
      EXPECT_STATUS(last, absl::StatusCode::kDataLoss, "tensor 'w': its data fails its checksum");
    } else {
      EXPECT_OK(last);
    }
  }
}

// A flipped byte in the rows that are read, however the tensor came into the checkpoint.
TEST_F(TensorBundleTest, APartOfALargeTensorIsCheckedByTheChecksumsOfItsBlocks) {
  constexpr uint64_t kWhole = uint64_t{1} << 20;
  constexpr int64_t kRows = 70'001;  // 17 MiB and a bit, rows of 256 bytes
  const Tensor w = Numbers(kRows, 64);
  const absl::string_view data(w.bytes().data(), w.bytes().size());
  const Shape twice({2 * kRows, 64});
  std::vector<std::string> parts;
  for (int i = 0; i < 3; ++i) {
    parts.push_back(absl::StrCat(prefix_, "_part", i));
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, parts.back(), kWhole));
    if (i == 0) {
      ASSERT_OK(writer->Add("whole", w));
    } else if (i == 1) {
      ASSERT_OK_AND_ASSIGN(const int place, writer->Reserve("pieces", DT_FLOAT, w.shape()));
      for (absl::string_view rest = data; !rest.empty();
           rest.remove_prefix(std::min<size_t>(rest.size(), 300'001))) {
        ASSERT_OK(writer->Fill(place, rest.substr(0, 300'001)));
      }
    } else {
      ASSERT_OK(writer->AddSlice("slice", twice,
                                 *TensorSlice::Parse(absl::StrCat(kRows, ",", kRows, ":-")), w));
    }
    ASSERT_OK(writer->Finish());
  }
  ASSERT_OK(MergeBundles(fs_, parts, prefix_, /*delete_parts=*/true));
  int shard = 0;
  for (const char* const name : {"whole", "pieces", "slice"}) {
    const int64_t first = name == std::string("slice") ? kRows : 0;
    const auto read = [&](int64_t row, int64_t rows, const char* columns) -> StatusOr<Tensor> {
      MR_ASSIGN_OR_RETURN(auto reader, BundleReader::Open(fs_, prefix_, nullptr, kWhole));
      return reader->ReadSlice(
          name, *TensorSlice::Parse(absl::StrCat(first + row, ",", rows, ":", columns)));
    };
    for (const auto& [row, rows] : {std::pair<int64_t, int64_t>{0, 1},
                                    {1000, 5000},
                                    {1024, 1024},
                                    {30'000, 20'000},
                                    {kRows - 1, 1}}) {
      ASSERT_OK_AND_ASSIGN(const Tensor part, read(row, rows, "-"));
      ExpectTensorEqual(part, w.Rows(row, row + rows));
      ASSERT_OK_AND_ASSIGN(const Tensor columns, read(row, rows, "3,2"));
      EXPECT_EQ(columns.flat<float>()[0], w.flat<float>()[static_cast<size_t>(row) * 64 + 3]);
      EXPECT_EQ(columns.flat<float>().back(),
                w.flat<float>()[static_cast<size_t>(row + rows - 1) * 64 + 4]);
    }
    const std::string path = BundleDataPath(prefix_, shard++, 3);
    const std::string intact = Bytes(path);
    std::string bytes = intact;
    bytes[30'000 * 256 + 100] ^= 1;
    Overwrite(path, bytes);
    for (const char* const columns : {"-", "3,2"}) {
      EXPECT_STATUS(read(29'990, 20, columns).status(), absl::StatusCode::kDataLoss,
                    absl::StrCat("tensor '", name,
                                 "': bytes [7602176, 7864320) of its data fail their checksum"));
      EXPECT_OK(read(100, 20'000, columns).status());
      EXPECT_OK(read(32'000, 20'000, columns).status());
    }
    EXPECT_STATUS(read(0, kRows, "-").status(), absl::StatusCode::kDataLoss, "fails its checksum");
    // The last block is shorter.
    bytes = intact;
    bytes.back() ^= 1;
    Overwrite(path, bytes);
    EXPECT_STATUS(read(kRows - 1, 1, "-").status(), absl::StatusCode::kDataLoss,
                  "': bytes [17825792, 17920256) of its data fail their checksum");
    EXPECT_OK(read(kRows / 2, 20'000, "-").status());
    Overwrite(path, intact);
  }
}

// So that what TensorFlow would write is written byte for byte.
TEST_F(TensorBundleTest, SmallTensorsHaveNoChecksumsOfBlocks) {
  Write(prefix_, {{"w", Numbers(100'000, 8)}});
  ASSERT_OK_AND_ASSIGN(auto table, TableReader::Open(fs_, BundleIndexPath(prefix_)));
  ASSERT_OK_AND_ASSIGN(const auto bytes, table->Get("w"));
  tensorflow::BundleEntryProto entry;
  ASSERT_TRUE(bytes && entry.ParseFromString(*bytes));
  EXPECT_EQ(entry.GetReflection()->GetUnknownFields(entry).field_count(), 0);
}

// The damage is in a row that nobody asks for.
TEST_F(TensorBundleTest, APartOfASmallTensorOrMostOfAnyIsCheckedWithTheWhole) {
  Write(prefix_, {{"w", Numbers(1000, 8)}});
  const std::string path = BundleDataPath(prefix_, 0, 1);
  std::string bytes = Bytes(path);
  const TensorSlice few = *TensorSlice::Parse("10,5:-");
  const TensorSlice most = *TensorSlice::Parse("0,501:-");
  const TensorSlice half = *TensorSlice::Parse("0,500:2,3");
  {
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
    ASSERT_OK_AND_ASSIGN(const Tensor part, reader->ReadSlice("w", half));
    EXPECT_EQ(part.flat<float>().front(), 2);
    EXPECT_EQ(part.flat<float>().back(), 499 * 8 + 4);
  }
  bytes[999 * 32] ^= 4;
  Overwrite(path, bytes);
  ASSERT_OK_AND_ASSIGN(auto small, BundleReader::Open(fs_, prefix_));
  ASSERT_OK_AND_ASSIGN(auto large, BundleReader::Open(fs_, prefix_, nullptr, /*whole_bytes=*/0));
  for (const TensorSlice& slice : {few, most, half}) {
    EXPECT_STATUS(small->ReadSlice("w", slice).status(), absl::StatusCode::kDataLoss,
                  "tensor 'w': its data fails its checksum");
  }
  EXPECT_STATUS(large->ReadSlice("w", most).status(), absl::StatusCode::kDataLoss,
                "tensor 'w': its data fails its checksum");
  EXPECT_OK(large->ReadSlice("w", few).status());
  EXPECT_OK(large->ReadSlice("w", half).status());
}

TEST_F(TensorBundleTest, LargeTensorsAreReadByThreadsOfAPoolAndChecked) {
  const Tensor large = Numbers(70'001, 64);  // 17 MiB and a bit
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK(writer->Add("w", large));
    ASSERT_OK(writer->Finish());
  }
  IoPool pool(3);
  {
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_, &pool));
    ASSERT_OK_AND_ASSIGN(const Tensor read, reader->Read("w"));
    ExpectTensorEqual(read, large);
  }
  const std::string path = BundleDataPath(prefix_, 0, 1);
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(fs_, path));
  bytes[bytes.size() - 5] ^= 1;
  ASSERT_OK(WriteFileAtomically(fs_, path, bytes));
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_, &pool));
  EXPECT_STATUS(reader->Read("w").status(), absl::StatusCode::kDataLoss, "fails its checksum");
}

// covers: serving: what a load reads is read in pieces of a MiB at most, with a pace point after
// each A restore reads blocks of kChecksumBlockBytes or less, each with a point of its own; strings
// are put together with points of their own, too. Helpers on a pool that is not paced would have
// none.
TEST_F(TensorBundleTest, PacedRestoresHaveAPointForEachMiB) {
  const Tensor large = Numbers(70'001, 64);  // 17 MiB and a bit
  Tensor strings = *Tensor::Allocate(DT_STRING, *Shape::Make({3}));
  for (std::string& s : strings.mutable_raw<std::string>()) s = std::string(2 << 20, 'x');
  Write(prefix_, {{"s", strings}, {"w", large}});
  constexpr int64_t kMiB = int64_t{1} << 20;
  for (const bool with_pool : {false, true}) {
    std::thread load([&] {
      BecomePacedThread();
      IoPool* const pool = with_pool ? IoPool::Default() : nullptr;
      ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_, pool));
      int64_t before = NumPacePointsForTesting();
      ASSERT_OK_AND_ASSIGN(const Tensor read, reader->Read("w"));
      EXPECT_GE(NumPacePointsForTesting() - before,
                static_cast<int64_t>(large.bytes().size()) / kMiB);
      ExpectTensorEqual(read, large);
      before = NumPacePointsForTesting();
      ASSERT_OK(reader->Read("s").status());
      EXPECT_GE(NumPacePointsForTesting() - before, 6);  // MiB
      // As a frozen model's file.
      before = NumPacePointsForTesting();
      ASSERT_OK_AND_ASSIGN(const std::string bytes,
                           ReadFileToString(fs_, BundleDataPath(prefix_, 0, 1)));
      EXPECT_GE(NumPacePointsForTesting() - before, static_cast<int64_t>(bytes.size()) / kMiB);
    });
    load.join();
  }
}

// Any part of a tensor that is stored in any parts is what its elements are in the whole.
TEST_F(TensorBundleTest, EveryPartHasTheElementsThatItHasInTheWhole) {
  std::mt19937 random(20261123);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  // Of blocks (256 KiB) and chunks (4 MiB) less, more, and no multiple.
  const std::vector<std::vector<int64_t>> shapes = {
      {1'300'001}, {9, 300'007}, {70'001, 17}, {3, 5, 70'003}, {40, 190, 151}, {11, 13}, {}};
  IoPool pool(3);
  for (const std::vector<int64_t>& dims : shapes) {
    ASSERT_OK_AND_ASSIGN(const Shape shape, Shape::Make(dims));
    ASSERT_OK_AND_ASSIGN(Tensor whole, Tensor::Allocate(DT_INT32, shape));
    int32_t next = 0;
    for (int32_t& x : whole.mutable_flat<int32_t>()) x = next++;
    // A part, by its first element and its size in each dimension.
    struct Box {
      std::vector<int64_t> begin, size;
    };
    const auto text = [&](const Box& box) {
      if (dims.empty()) return TensorSlice::Full(0);
      std::vector<std::string> words;
      for (size_t d = 0; d < dims.size(); ++d) {
        words.push_back(box.size[d] == dims[d] ? "-"
                                               : absl::StrCat(box.begin[d], ",", box.size[d]));
      }
      return *TensorSlice::Parse(absl::StrJoin(words, ":"));
    };
    const auto elements = [&](const Box& box) {
      Tensor part = *Tensor::Allocate(DT_INT32, *Shape::Make(box.size));
      std::vector<int64_t> at = box.begin;
      for (int32_t& x : part.mutable_flat<int32_t>()) {
        int64_t index = 0;
        for (size_t d = 0; d < dims.size(); ++d) index = index * dims[d] + at[d];
        x = static_cast<int32_t>(index);
        for (size_t d = dims.size(); d-- > 0;) {
          if (++at[d] < box.begin[d] + box.size[d]) break;
          at[d] = box.begin[d];
        }
      }
      return part;
    };
    const auto all = Box{std::vector<int64_t>(dims.size(), 0), dims};
    // Stored whole, and in two parts along each dimension.
    {
      ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
      ASSERT_OK(writer->Add("whole", whole));
      for (size_t d = 0; d < dims.size(); ++d) {
        Box one = all, other = all;
        one.size[d] = other.begin[d] = 1 + below(dims[d] - 1);
        other.size[d] -= one.size[d];
        for (const Box& box : {one, other}) {
          ASSERT_OK(writer->AddSlice(absl::StrCat("cut", d), shape, text(box), elements(box)));
        }
      }
      ASSERT_OK(writer->Finish());
    }
    for (int round = 0; round < 8; ++round) {
      ASSERT_OK_AND_ASSIGN(auto reader,
                           BundleReader::Open(fs_, prefix_, round % 3 == 0 ? nullptr : &pool,
                                              round % 2 == 0 ? 0 : BundleReader::kWholeBytes));
      std::vector<BundleReader::Part> parts;
      std::vector<Tensor> want;
      for (const BundleReader::Entry& entry : reader->entries()) {
        Box box = all;
        for (size_t d = 0; d < dims.size(); ++d) {
          if (below(2) == 0) continue;
          box.begin[d] = below(dims[d]);
          box.size[d] = 1 + below(dims[d] - box.begin[d]);
        }
        parts.push_back({entry.name, text(box)});
        want.push_back(elements(box));
      }
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> read, reader->ReadParts(parts));
      for (size_t i = 0; i < parts.size(); ++i) {
        ASSERT_TRUE(read[i] == want[i])
            << shape.ToString() << " " << parts[i].name << " " << parts[i].slice.ToString();
      }
    }
  }
}

TEST_F(TensorBundleTest, APartTakesNoMemoryBesideItsOwn) {
  Write(prefix_, {{"w", Numbers(150'000, 64)}});  // 37 MiB
  IoPool pool(3);
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_, &pool));
  for (const char* const slice : {"10,1000:-", "0,100000:-", "-:3,5", "5,90000:60,4"}) {
    const TensorSlice part = *TensorSlice::Parse(slice);
    ASSERT_OK_AND_ASSIGN(const Shape shape, part.SliceShape(ShapeOf({150'000, 64})));
    SetDefaultAllocatorLimit(DefaultAllocatorStats().bytes_in_use + shape.num_elements() * 4 +
                             (int64_t{2} << 20));
    const Status read = reader->ReadSlice("w", part).status();
    SetDefaultAllocatorLimit(0);
    EXPECT_OK(read) << slice;
  }
}

// Files whose reads wait until two are under way.
class MeetingFiles : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    MR_ASSIGN_OR_RETURN(auto file, FaultyFileSystem::NewRandomAccessFile(path));
    if (!absl::StrContains(path, ".data-")) return file;
    return std::make_unique<File>(std::move(file), this);
  }

 private:
  class File : public RandomAccessFile {
   public:
    File(std::unique_ptr<RandomAccessFile> base, MeetingFiles* files)
        : base_(std::move(base)), files_(files) {}
    uint64_t size() const override { return base_->size(); }
    Status Read(uint64_t offset, size_t n, char* out) const override {
      {
        MutexLock lock(&files_->mu_);
        if (++files_->reads_ == 2) files_->met_.SignalAll();
        const absl::Time deadline = absl::Now() + absl::Seconds(60);
        while (files_->reads_ < 2) {
          if (Clock::Real()->WaitUntil(&files_->met_, &files_->mu_, deadline)) {
            return absl::DeadlineExceededError("nobody reads beside this one");
          }
        }
      }
      return base_->Read(offset, n, out);
    }

   private:
    const std::unique_ptr<RandomAccessFile> base_;
    MeetingFiles* const files_;
  };
  Mutex mu_;
  CondVar met_;
  int reads_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(TensorBundleTest, SmallTensorsAreReadSideBySide) {
  Write(prefix_, {{"a", Numbers(10, 10)}, {"b", Numbers(20, 20)}});
  MeetingFiles files(fs_, directory_);
  IoPool pool(1);
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(&files, prefix_, &pool));
  const BundleReader::Part parts[] = {{"a", TensorSlice::Full(2)}, {"b", TensorSlice::Full(2)}};
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> read, reader->ReadParts(parts));
  ExpectTensorEqual(read[0], Numbers(10, 10));
  ExpectTensorEqual(read[1], Numbers(20, 20));
}

TEST_F(TensorBundleTest, ReadingEndsWhenItIsToldTo) {
  Write(prefix_, {{"a", Numbers(10, 10)}, {"b", Numbers(20, 20)}});
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(fs_, prefix_));
  const BundleReader::Part parts[] = {{"a", TensorSlice::Full(2)}, {"b", TensorSlice::Full(2)}};
  int asked = 0;
  const auto read = reader->ReadParts(
      parts, [&] { return ++asked < 2 ? absl::OkStatus() : absl::CancelledError("enough"); });
  EXPECT_STATUS(read.status(), absl::StatusCode::kCancelled, "enough");
}

TEST(FilePartsTest, AFullPoolDoesNotHoldItsOwnTaskUp) {
  IoPool pool(1);
  std::atomic<int> done{0};
  std::promise<Status> result;
  pool.Schedule([&] {
    result.set_value(RunParts(&pool, 4, 100, [&](int64_t) {
      ++done;
      return absl::OkStatus();
    }));
  });
  EXPECT_OK(result.get_future().get());
  EXPECT_EQ(done, 100);
}

TEST(FilePartsTest, TheFirstErrorEndsThePartsThatHaveNotBegun) {
  IoPool pool(4);
  for (IoPool* const p : {&pool, static_cast<IoPool*>(nullptr)}) {
    std::atomic<int> done{0};
    EXPECT_STATUS(RunParts(p, 4, 1'000'000,
                           [&](int64_t) {
                             ++done;
                             return absl::DataLossError("gone");
                           }),
                  absl::StatusCode::kDataLoss, "gone");
    EXPECT_LE(done, 4);
    EXPECT_STATUS(RunParts(p, 4, 3, [](int64_t) -> Status { throw std::bad_alloc(); }),
                  absl::StatusCode::kResourceExhausted, "out of memory");
  }
}

}  // namespace
}  // namespace millrace
