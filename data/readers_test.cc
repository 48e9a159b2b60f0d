// SPDX-License-Identifier: Apache-2.0
#include "data/readers.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/control/queue.h"
#include "proto/config.pb.h"
#include "runtime/session.h"

// covers: training: readers give lines, records, fixed pieces and whole files with TensorFlow's
//   keys

namespace millrace {
namespace {

using absl::StatusCode;

class ReadersTest : public ::testing::Test {
 protected:
  ReadersTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("readers_", RandomHexName()))) {
    EXPECT_OK(fs_->RecursivelyCreateDirectory(dir_));
    queue_ =
        FIFOQueueV2(root_.WithName("files"), {DT_STRING}, {.shapes = {PartialShape::Scalar()}});
    name_ = Placeholder(root_.WithName("name"), DT_STRING, {});
    add_ = QueueEnqueueV2(root_.WithName("add"), queue_, {name_});
    close_ = QueueCloseV2(root_.WithName("close"), queue_);
  }
  ~ReadersTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  std::string File(const std::string& name, const std::string& text) {
    EXPECT_OK(WriteFileAtomically(fs_, JoinPath(dir_, name), text));
    return JoinPath(dir_, name);
  }
  void Start(const std::vector<std::string>& files, bool closed = true) {
    EXPECT_OK(root_.status());
    auto session = NewSession();
    ASSERT_OK(session.status());
    session_ = *std::move(session);
    ASSERT_OK(session_->Extend(root_));
    for (const std::string& file : files) {
      ASSERT_OK(session_->Run({{name_, Tensor::Scalar<std::string>(file)}}, {}, {add_}).status());
    }
    if (!closed) return;
    ASSERT_OK(session_->Run({}, {}, {close_}).status());
  }
  // "key=value" of all reads, with the directory as "D", and the error that ended them unless it is
  // the end of the data.
  std::string All(const KeyAndValue& read) {
    std::vector<std::string> rows;
    while (true) {
      const auto out = session_->Run({}, {read.key, read.value});
      if (absl::IsOutOfRange(out.status())) break;
      if (!out.ok()) {
        rows.push_back(absl::StrCat(StatusCodeToString(out.status().code())));
        continue;
      }
      for (int64_t i = 0; i < (*out)[0].num_elements(); ++i) {
        const size_t at = static_cast<size_t>(i);
        rows.push_back(absl::StrCat((*out)[0].flat<std::string>()[at], "=",
                                    (*out)[1].flat<std::string>()[at]));
      }
      if ((*out)[0].rank() == 1) rows.push_back("|");
    }
    return absl::StrReplaceAll(absl::StrJoin(rows, " "), {{dir_, "D"}});
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
  Scope root_;
  Output queue_, name_;
  Operation add_, close_;
  std::shared_ptr<Session> session_;
};

TEST_F(ReadersTest, LinesComeFileByFileWithTheirNumbers) {
  const Output reader = TextLineReaderV2(root_, {.skip_header_lines = 1});
  const KeyAndValue read = ReaderReadV2(root_, reader, queue_);
  const Output rows = ReaderNumRecordsProducedV2(root_, reader);
  const Output files = ReaderNumWorkUnitsCompletedV2(root_, reader);
  Start({File("a", "head\na1\r\n\na3"), File("empty", ""), File("b", "head\nb1\n")});
  EXPECT_EQ(All(read), "D/a:2=a1 D/a:3= D/a:4=a3 D/b:2=b1");
  ASSERT_OK_AND_ASSIGN(const auto counts, session_->Run({}, {rows, files}));
  EXPECT_EQ(counts[0].scalar<int64_t>(), 4);
  EXPECT_EQ(counts[1].scalar<int64_t>(), 3);
}

TEST_F(ReadersTest, LinesBeginBehindAByteOrderMark) {
  const KeyAndValue read = ReaderReadV2(root_, TextLineReaderV2(root_), queue_);
  Start({File("a", "\xef\xbb\xbfx\ny")});
  EXPECT_EQ(All(read), "D/a:1=x D/a:2=y");
}

TEST_F(ReadersTest, RecordsHaveTheirOffsetsAsKeys) {
  for (const std::string compression : {"", "GZIP"}) {
    SCOPED_TRACE(compression);
    const std::string path = JoinPath(dir_, absl::StrCat("records", compression));
    ASSERT_OK_AND_ASSIGN(const auto kind, ParseRecordCompression(compression));
    ASSERT_OK_AND_ASSIGN(auto writer, RecordWriter::Open(fs_, path, kind));
    ASSERT_OK(writer->Write("one"));
    ASSERT_OK(writer->Write("three"));
    ASSERT_OK(writer->Close());
    root_ = Scope();
    queue_ = FIFOQueueV2(root_.WithName("files"), {DT_STRING});
    name_ = Placeholder(root_.WithName("name"), DT_STRING, {});
    add_ = QueueEnqueueV2(root_.WithName("add"), queue_, {name_});
    close_ = QueueCloseV2(root_.WithName("close"), queue_);
    const KeyAndValue read =
        ReaderReadV2(root_, TFRecordReaderV2(root_, {.compression_type = compression}), queue_);
    Start({path});
    EXPECT_EQ(All(read), absl::StrReplaceAll("F:0=one F:19=three",
                                             {{"F", absl::StrCat("D/records", compression)}}));
  }
}

TEST_F(ReadersTest, FixedLengthRecordsLieBetweenHeaderAndFooter) {
  const KeyAndValue read = ReaderReadV2(
      root_,
      FixedLengthRecordReaderV2(root_, {.header_bytes = 2, .record_bytes = 3, .footer_bytes = 1}),
      queue_);
  Start({File("a", "HHabcdefF"), File("short", "H"), File("rest", "HHabcdF")});
  EXPECT_EQ(All(read), "D/a:0=abc D/a:1=def D/rest:0=abc");
}

TEST_F(ReadersTest, RecordsMayOverlapOrLieApart) {
  const KeyAndValue read = ReaderReadV2(
      root_, FixedLengthRecordReaderV2(root_, {.record_bytes = 3, .hop_bytes = 2}), queue_);
  Start({File("a", "abcdef")});
  EXPECT_EQ(All(read), "D/a:0=abc D/a:1=cde");
}

TEST_F(ReadersTest, WholeFilesAndWorkItself) {
  const KeyAndValue whole = ReaderReadV2(root_, WholeFileReaderV2(root_), queue_);
  const Output names = FIFOQueueV2(root_.WithName("names"), {DT_STRING});
  const Operation fill =
      QueueEnqueueV2(root_, names, {Const(root_, Tensor::Scalar<std::string>("work"))});
  const KeyAndValue same = ReaderReadV2(root_, IdentityReaderV2(root_), names);
  Start({File("a", "all\nof it")});
  EXPECT_EQ(All(whole), "D/a=all\nof it");
  ASSERT_OK(session_->Run({}, {}, {fill}).status());
  ASSERT_OK_AND_ASSIGN(const auto out, session_->Run({}, {same.key, same.value}));
  EXPECT_EQ(out[0].scalar<std::string>(), "work");
  EXPECT_EQ(out[1].scalar<std::string>(), "work");
}

TEST_F(ReadersTest, SeveralRowsAtATimeAreOfOneFile) {
  const Output reader = TextLineReaderV2(root_);
  const KeyAndValue read = ReaderReadUpToV2(root_, reader, queue_, Const(root_, int64_t{2}));
  Start({File("a", "1\n2\n3\n"), File("b", "4\n")});
  EXPECT_EQ(All(read), "D/a:1=1 D/a:2=2 | D/a:3=3 | D/b:1=4 |");
}

TEST_F(ReadersTest, AFileThatCannotBeReadFailsOneRead) {
  const KeyAndValue read = ReaderReadV2(root_, TFRecordReaderV2(root_), queue_);
  Start({dir_ + "/none", File("bad", std::string(40, 'x')), File("empty", "")});
  EXPECT_EQ(All(read), "NOT_FOUND DATA_LOSS");
}

TEST_F(ReadersTest, AResetLeavesTheRestOfTheFile) {
  const Output reader = TextLineReaderV2(root_);
  const KeyAndValue read = ReaderReadV2(root_, reader, queue_);
  const Operation reset = ReaderResetV2(root_, reader);
  const Output rows = ReaderNumRecordsProducedV2(root_, reader);
  Start({File("a", "1\n2\n3\n"), File("b", "4\n")});
  ASSERT_OK(session_->Run({}, {read.value}).status());
  ASSERT_OK(session_->Run({}, {}, {reset}).status());
  EXPECT_EQ(All(read), "D/b:1=4");
  ASSERT_OK_AND_ASSIGN(const auto count, session_->Run({}, {rows}));
  EXPECT_EQ(count[0].scalar<int64_t>(), 1);
}

// More reads than there are threads wait for files: they hold up nobody, end with their steps, and
// get what comes.
TEST_F(ReadersTest, ReadsThatWaitTakeNoThreadAndCanBeCancelled) {
  const Output reader = TextLineReaderV2(root_);
  const KeyAndValue read = ReaderReadV2(root_, reader, queue_);
  const Output one = Const(root_, 1.0f);
  Start({}, /*closed=*/false);
  tensorflow::RunOptions soon;
  soon.set_timeout_in_ms(20);
  std::vector<std::thread> threads;
  std::vector<Status> statuses(24);
  for (size_t i = 0; i < statuses.size(); ++i) {
    threads.emplace_back([&, i] {
      const std::vector<FetchName> fetches = {read.value};
      statuses[i] = session_->Run(soon, {}, fetches, {}, nullptr).status();
    });
  }
  EXPECT_OK(session_->Run({}, {one}).status());
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  }
  ASSERT_OK(
      session_->Run({{name_, Tensor::Scalar<std::string>(File("a", "1\n"))}}, {}, {add_}).status());
  ASSERT_OK_AND_ASSIGN(const auto out, session_->Run({}, {read.value}));
  EXPECT_EQ(out[0].scalar<std::string>(), "1");
}

TEST_F(ReadersTest, WhatCannotBeReadIsRefused) {
  {
    Scope root;
    FixedLengthRecordReaderV2(root, {.record_bytes = 0});
    EXPECT_STATUS(root.status(), StatusCode::kInvalidArgument, "record_bytes must be 1 to ");
  }
  {
    Scope root;
    TextLineReaderV2(root, {.skip_header_lines = -1});
    EXPECT_STATUS(root.status(), StatusCode::kInvalidArgument,
                  "skip_header_lines must be >= 0, got -1");
  }
  {
    Scope root;
    TFRecordReaderV2(root, {.compression_type = "LZ4"});
    EXPECT_STATUS(root.status(), StatusCode::kInvalidArgument, "LZ4");
  }
  const Output numbers = FIFOQueueV2(root_, {DT_INT32});
  const KeyAndValue read = ReaderReadV2(root_, TextLineReaderV2(root_), numbers);
  const KeyAndValue none =
      ReaderReadUpToV2(root_, TextLineReaderV2(root_), queue_, Const(root_, int64_t{0}));
  Start({}, /*closed=*/false);
  EXPECT_STATUS(session_->Run({}, {read.key}).status(), StatusCode::kInvalidArgument,
                "has component types [int32], got [string]");
  EXPECT_STATUS(session_->Run({}, {none.key}).status(), StatusCode::kInvalidArgument,
                "num_records must be > 0, got 0");
}

}  // namespace
}  // namespace millrace
