// SPDX-License-Identifier: Apache-2.0
#include "stores/s3_file_system.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "stores/s3_service.h"
#include "stores/testing/fake_s3.h"

// covers: outside: files in a store of objects are read and written as those of this machine
// covers: outside: what a store of objects does wrong (503, SlowDown, resets, cut bodies, lost
//   answers, hangs, clocks) is repeated or told, and leaves no upload behind

namespace millrace {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kPart = 8 << 10;  // FakeS3::Options

std::string Pattern(size_t n) {
  std::string bytes(n, '\0');
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>((i * 31 + i / 251) & 0xff);
  return bytes;
}

class S3FileSystemTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    StatusOr<std::unique_ptr<FakeS3>> store = FakeS3::Start();
    ASSERT_OK(store);
    store_ = store->release();
  }
  static void TearDownTestSuite() {
    delete store_;
    store_ = nullptr;
  }
  void SetUp() override {
    ASSERT_NE(store_, nullptr);
    store_->Control(R"({"forget": true})");
    Use(store_->Options());
  }
  // Whatever a test did: nothing is left that costs and that nobody sees.
  void TearDown() override { EXPECT_THAT(store_->Control()["uploads"], ElementsAre()); }

  void Use(S3Options options) { fs_ = std::make_unique<S3FileSystem>(std::move(options)); }
  void Fault(absl::string_view fault) {
    store_->Control(absl::StrCat(R"({"faults": [)", fault, "]}"));
  }
  std::string Path(absl::string_view key) { return absl::StrCat("s3://bucket/", key); }
  Status Write(absl::string_view key, absl::string_view bytes) {
    MR_ASSIGN_OR_RETURN(const auto file, fs_->NewWritableFile(Path(key)));
    MR_RETURN_IF_ERROR(file->Append(bytes));
    return file->Close();
  }
  std::string Contents(absl::string_view key) {
    const StatusOr<std::string> bytes = ReadFileToString(fs_.get(), Path(key));
    EXPECT_OK(bytes);
    return bytes.value_or("");
  }
  std::vector<std::string> Keys() { return store_->Control()["keys"]; }

  static FakeS3* store_;
  std::unique_ptr<S3FileSystem> fs_;
};

FakeS3* S3FileSystemTest::store_ = nullptr;

TEST_F(S3FileSystemTest, FileAppearsWholeAtClose) {
  EXPECT_TRUE(fs_->FilesAppearWhole(Path("a")));
  ASSERT_OK_AND_ASSIGN(auto file, fs_->NewWritableFile(Path("dir/a")));
  EXPECT_OK(file->Append("hello "));
  EXPECT_OK(file->Sync());
  EXPECT_FALSE(fs_->FileExists(Path("dir/a")));
  EXPECT_OK(file->Append("world"));
  EXPECT_OK(file->Close());
  EXPECT_EQ(Contents("dir/a"), "hello world");
  EXPECT_EQ(*fs_->GetFileSize(Path("dir/a")), 11u);
  EXPECT_GT(*fs_->GetModificationTime(Path("dir/a")), 1e9);
  EXPECT_STATUS(file->Append("x"), absl::StatusCode::kFailedPrecondition, "after");
  EXPECT_OK(Write("empty", ""));
  EXPECT_EQ(Contents("empty"), "");
}

TEST_F(S3FileSystemTest, LargeFileGoesInParts) {
  for (const size_t size : {kPart - 1, kPart, kPart + 1, 5 * kPart, 5 * kPart + 17}) {
    SCOPED_TRACE(size);
    const std::string bytes = Pattern(size);
    ASSERT_OK_AND_ASSIGN(auto file, fs_->NewWritableFile(Path("big")));
    for (size_t at = 0; at < size; at += 3000) {
      ASSERT_OK(file->Append(absl::string_view(bytes).substr(at, 3000)));
    }
    ASSERT_OK(file->Close());
    EXPECT_EQ(Contents("big"), bytes);
  }
}

TEST_F(S3FileSystemTest, DroppedFileLeavesNeitherObjectNorUpload) {
  {
    ASSERT_OK_AND_ASSIGN(auto file, fs_->NewWritableFile(Path("dropped")));
    ASSERT_OK(file->Append(Pattern(3 * kPart)));
    EXPECT_EQ(store_->Control()["uploads"].size(), 1u);
  }
  EXPECT_THAT(Keys(), ElementsAre());
}

TEST_F(S3FileSystemTest, PlacesAreWrittenInAnyOrderButNotTwiceOnceSent) {
  const std::string bytes = Pattern(4 * kPart + 100);
  const absl::string_view view = bytes;
  ASSERT_OK_AND_ASSIGN(auto file, fs_->NewWritableFile(Path("places")));
  EXPECT_OK(file->WriteAt(3 * kPart + 5, view.substr(3 * kPart + 5)));
  EXPECT_OK(file->WriteAt(kPart / 2, view.substr(kPart / 2, 2 * kPart)));
  EXPECT_OK(file->WriteAt(0, view.substr(0, kPart / 2)));
  EXPECT_OK(
      file->WriteAt(kPart / 2 + 2 * kPart, view.substr(kPart / 2 + 2 * kPart, kPart / 2 + 5)));
  EXPECT_OK(file->Close());
  EXPECT_EQ(Contents("places"), bytes);

  ASSERT_OK_AND_ASSIGN(auto holes, fs_->NewWritableFile(Path("holes")));
  EXPECT_OK(holes->WriteAt(2 * kPart + 1, "x"));
  EXPECT_OK(holes->Append("y"));
  EXPECT_OK(holes->Close());
  EXPECT_EQ(Contents("holes"), std::string(2 * kPart + 1, '\0') + "xy");

  ASSERT_OK_AND_ASSIGN(auto twice, fs_->NewWritableFile(Path("twice")));
  EXPECT_OK(twice->Append(view.substr(0, 2 * kPart)));
  EXPECT_STATUS(twice->WriteAt(1, "x"), absl::StatusCode::kUnimplemented, "were not sent");
}

TEST_F(S3FileSystemTest, BytesThatWaitForOthersAreBounded) {
  S3Options options = store_->Options();
  options.max_held_bytes = 2 * kPart;
  Use(options);
  ASSERT_OK_AND_ASSIGN(auto file, fs_->NewWritableFile(Path("f")));
  EXPECT_OK(file->WriteAt(1, std::string(kPart - 1, 'x')));
  EXPECT_STATUS(file->WriteAt(kPart + 1, std::string(3 * kPart, 'x')),
                absl::StatusCode::kResourceExhausted, "write in order");
}

TEST_F(S3FileSystemTest, ExclusiveFileIsRefusedAtOpenAndAtClose) {
  ASSERT_OK_AND_ASSIGN(auto first, fs_->NewExclusiveFile(Path("x")));
  ASSERT_OK_AND_ASSIGN(auto second, fs_->NewExclusiveFile(Path("x")));
  ASSERT_OK_AND_ASSIGN(auto large, fs_->NewExclusiveFile(Path("x")));
  ASSERT_OK(large->Append(Pattern(2 * kPart)));
  ASSERT_OK(first->Append("first"));
  ASSERT_OK(second->Append("second"));
  EXPECT_OK(first->Close());
  EXPECT_STATUS(second->Close(), absl::StatusCode::kAlreadyExists, "exists already");
  EXPECT_STATUS(large->Close(), absl::StatusCode::kAlreadyExists, "exists already");
  EXPECT_STATUS(fs_->NewExclusiveFile(Path("x")), absl::StatusCode::kAlreadyExists, "exists");
  EXPECT_EQ(Contents("x"), "first");

  store_->Control(R"({"no_conditions": true})");
  ASSERT_OK_AND_ASSIGN(auto old, fs_->NewExclusiveFile(Path("old")));
  EXPECT_OK(old->Close());
}

TEST_F(S3FileSystemTest, LostAnswerOfAnExclusiveWriteIsNotAnotherWriter) {
  Fault(R"({"kind": "lost", "method": "PUT"})");
  ASSERT_OK_AND_ASSIGN(auto small, fs_->NewExclusiveFile(Path("small")));
  EXPECT_OK(small->Append("mine"));
  EXPECT_OK(small->Close());
  EXPECT_EQ(Contents("small"), "mine");

  for (const bool exclusive : {false, true}) {
    Fault(R"({"kind": "lost", "method": "POST", "after": 1})");  // not the start of the upload
    const std::string path = Path(absl::StrCat("large", exclusive));
    auto large = exclusive ? fs_->NewExclusiveFile(path) : fs_->NewWritableFile(path);
    ASSERT_OK(large);
    EXPECT_OK((*large)->Append(Pattern(2 * kPart)));
    EXPECT_OK((*large)->Close());
    EXPECT_EQ(*fs_->GetFileSize(path), 2 * kPart);
  }
}

TEST_F(S3FileSystemTest, AppendedFileIsPutAgainAtMostOncePerPeriod) {
  ASSERT_OK(Write("log", "old "));
  ASSERT_OK_AND_ASSIGN(auto log, fs_->NewAppendableFile(Path("log")));
  EXPECT_OK(log->Append("new "));
  EXPECT_OK(log->Flush());
  EXPECT_EQ(Contents("log"), "old new ");
  EXPECT_OK(log->Append("more"));
  EXPECT_OK(log->Flush());  // within the period
  EXPECT_EQ(Contents("log"), "old new ");
  EXPECT_OK(log->Sync());
  EXPECT_EQ(Contents("log"), "old new more");
  EXPECT_OK(log->Append("."));
  EXPECT_OK(log->Close());
  EXPECT_EQ(Contents("log"), "old new more.");
  ASSERT_OK_AND_ASSIGN(auto fresh, fs_->NewAppendableFile(Path("fresh")));
  EXPECT_OK(fresh->Close());
  EXPECT_EQ(Contents("fresh"), "");
}

TEST_F(S3FileSystemTest, ReadsAreExactInAnyOrder) {
  const std::string bytes = Pattern(300 << 10);
  ASSERT_OK(Write("f", bytes));
  ASSERT_OK_AND_ASSIGN(auto file, fs_->NewRandomAccessFile(Path("f")));
  std::string out(bytes.size(), '\0');
  const std::vector<std::pair<uint64_t, size_t>> reads = {
      {0, 1}, {1, 100}, {299 << 10, 1024}, {100, 200 << 10}, {5, 0}, {0, bytes.size()}};
  for (const auto& [offset, n] : reads) {
    ASSERT_OK(file->Read(offset, n, out.data()));
    EXPECT_TRUE(out.substr(0, n) == bytes.substr(offset, n)) << offset << " " << n;
  }
  EXPECT_STATUS(file->Read(1, bytes.size(), out.data()), absl::StatusCode::kOutOfRange, "within");

  // In order, in small pieces: fetched in few.
  store_->Control(R"({"requests": {}})");
  ASSERT_OK_AND_ASSIGN(file, fs_->NewRandomAccessFile(Path("f")));
  for (size_t at = 0; at < bytes.size(); at += 1024) ASSERT_OK(file->Read(at, 1024, &out[at]));
  EXPECT_TRUE(out == bytes);
  EXPECT_LE(store_->Control()["requests"]["GET"].get<int>(), 4);
}

TEST_F(S3FileSystemTest, ReplacedObjectIsNeverMixed) {
  ASSERT_OK(Write("f", Pattern(200 << 10)));
  ASSERT_OK_AND_ASSIGN(auto file, fs_->NewRandomAccessFile(Path("f")));
  char c = 0;
  ASSERT_OK(file->Read(0, 1, &c));
  ASSERT_OK(Write("f", std::string(200 << 10, 'x')));
  EXPECT_STATUS(file->Read(150 << 10, 1, &c), absl::StatusCode::kFailedPrecondition, "replaced");
}

TEST_F(S3FileSystemTest, DirectoriesAreWhatKeysSay) {
  ASSERT_OK(Write("d/a", "1"));
  ASSERT_OK(Write("d/e/b", "2"));
  ASSERT_OK(Write("d/e/c", "3"));
  ASSERT_OK(Write("dd", "4"));
  EXPECT_TRUE(*fs_->IsDirectory(Path("d")));
  EXPECT_TRUE(*fs_->IsDirectory(Path("d/")));
  EXPECT_FALSE(*fs_->IsDirectory(Path("d/a")));
  EXPECT_TRUE(*fs_->IsDirectory("s3://bucket"));
  EXPECT_STATUS(fs_->IsDirectory(Path("none")), absl::StatusCode::kNotFound, "none");
  EXPECT_STATUS(fs_->NewRandomAccessFile(Path("d")), absl::StatusCode::kFailedPrecondition,
                "must be a file");
  for (const int page : {1000, 2, 1}) {
    store_->Control(absl::StrCat(R"({"page": )", page, "}"));
    EXPECT_THAT(*fs_->GetChildren(Path("d")), ElementsAre("a", "e"));
    EXPECT_THAT(*fs_->GetChildren("s3://bucket"), ElementsAre("d", "dd"));
  }
  EXPECT_STATUS(fs_->GetChildren(Path("none")), absl::StatusCode::kNotFound, "none");
  EXPECT_STATUS(fs_->GetChildren(Path("dd")), absl::StatusCode::kFailedPrecondition, "directory");
  EXPECT_STATUS(fs_->CreateDirectory(Path("d")), absl::StatusCode::kAlreadyExists, "exists");
  EXPECT_STATUS(fs_->DeleteDirectory(Path("d")), absl::StatusCode::kFailedPrecondition, "empty");
  EXPECT_OK(fs_->RecursivelyDelete(Path("d")));
  EXPECT_THAT(Keys(), ElementsAre("dd"));
  EXPECT_STATUS(fs_->RecursivelyDelete(Path("d")), absl::StatusCode::kNotFound, "d");
}

TEST_F(S3FileSystemTest, CreatedDirectoryIsNoObject) {
  EXPECT_OK(fs_->CreateDirectory(Path("m")));
  EXPECT_OK(fs_->RecursivelyCreateDirectory(Path("m/n/o")));
  EXPECT_TRUE(fs_->FileExists(Path("m")));
  EXPECT_TRUE(*fs_->IsDirectory(Path("m/n")));
  EXPECT_THAT(*fs_->GetChildren(Path("m")), ElementsAre("n"));
  EXPECT_THAT(Keys(), ElementsAre());
  EXPECT_OK(fs_->RecursivelyDelete(Path("m/n")));
  EXPECT_OK(fs_->DeleteDirectory(Path("m")));
  EXPECT_FALSE(fs_->FileExists(Path("m")));
}

TEST_F(S3FileSystemTest, RenameMovesFilesAndDirectories) {
  ASSERT_OK(Write("a", "1"));
  ASSERT_OK(Write("b", "2"));
  EXPECT_OK(fs_->RenameFile(Path("a"), Path("b")));
  EXPECT_EQ(Contents("b"), "1");
  EXPECT_THAT(Keys(), ElementsAre("b"));
  EXPECT_STATUS(fs_->RenameFile(Path("a"), Path("c")), absl::StatusCode::kNotFound, "a");

  for (int i = 0; i < 5; ++i) ASSERT_OK(Write(absl::StrCat("d/v/", i), "x"));
  ASSERT_OK(Write("d/saved_model.pb", "y"));
  store_->Control(R"({"page": 2})");
  EXPECT_STATUS(fs_->RenameFile(Path("d"), Path("d/e")), absl::StatusCode::kInvalidArgument,
                "outside");
  EXPECT_OK(fs_->RenameFile(Path("d"), Path("e")));
  EXPECT_THAT(Keys(),
              ElementsAre("b", "e/saved_model.pb", "e/v/0", "e/v/1", "e/v/2", "e/v/3", "e/v/4"));
  ASSERT_OK(Write("f/a", "z"));
  EXPECT_STATUS(fs_->RenameFile(Path("f"), Path("e")), absl::StatusCode::kFailedPrecondition,
                "empty");
}

TEST_F(S3FileSystemTest, DirectoryThatIsRenamedHasItsTopFileLast) {
  ASSERT_OK(Write("d/saved_model.pb", "y"));
  ASSERT_OK(Write("d/variables/v", "x"));
  // The second copy never works: the top file must not be there.
  Fault(R"({"kind": "500", "method": "PUT", "after": 1, "times": 99})");
  EXPECT_STATUS(fs_->RenameFile(Path("d"), Path("e")), absl::StatusCode::kUnavailable, "500");
  EXPECT_THAT(Keys(), ElementsAre("d/saved_model.pb", "d/variables/v", "e/variables/v"));
}

TEST_F(S3FileSystemTest, LargeObjectIsCopiedInParts) {
  S3Options options = store_->Options();
  options.copy_bytes = 10000;
  Use(options);
  const std::string bytes = Pattern(25000);
  ASSERT_OK(Write("a", bytes));
  EXPECT_OK(fs_->RenameFile(Path("a"), Path("b")));
  EXPECT_EQ(Contents("b"), bytes);
  Fault(R"({"kind": "500", "method": "PUT", "after": 1, "times": 99})");
  EXPECT_STATUS(fs_->RenameFile(Path("b"), Path("c")), absl::StatusCode::kUnavailable, "copy");
  EXPECT_THAT(Keys(), ElementsAre("b"));
}

TEST_F(S3FileSystemTest, KeysAreNamesWhateverIsInThem) {
  const std::vector<std::string> keys = {"a b",
                                         "a%2Fb",
                                         "a+b",
                                         "../x",
                                         "x/../y",
                                         "./z",
                                         "\xc3\xa9\xe6\xbc\xa2",
                                         "q?r=1&s#t",
                                         "a//b",
                                         "<&>\"'",
                                         "tab\there",
                                         std::string(1000, 'k')};
  for (const std::string& key : keys) {
    SCOPED_TRACE(key);
    EXPECT_OK(Write("k/" + key, key));
    EXPECT_EQ(Contents("k/" + key), key);
    EXPECT_OK(fs_->RenameFile(Path("k/" + key), Path("l/" + key)));
    EXPECT_FALSE(fs_->FileExists(Path("k/" + key)));
    EXPECT_EQ(Contents("l/" + key), key);
  }
  std::vector<std::string> want;
  for (const std::string& key : keys) want.push_back("l/" + key);
  std::sort(want.begin(), want.end());
  std::vector<std::string> got = Keys();
  std::sort(got.begin(), got.end());  // by bytes
  EXPECT_EQ(got, want);
  EXPECT_OK(fs_->RecursivelyDelete(Path("l")));
  EXPECT_THAT(Keys(), ElementsAre());
}

TEST_F(S3FileSystemTest, WrongPathsAreRefused) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"s3://", "bucket"},
      {"s3:///a", "bucket"},
      {"s3://b@d/a", "bucket"},
      {Path(std::string(1025, 'k')), "1024"},
  };
  for (const auto& [path, what] : wrong) {
    EXPECT_STATUS(fs_->NewRandomAccessFile(path), absl::StatusCode::kInvalidArgument, what);
    EXPECT_STATUS(fs_->NewWritableFile(path), absl::StatusCode::kInvalidArgument, what);
  }
  EXPECT_STATUS(fs_->NewWritableFile(Path("a/")), absl::StatusCode::kFailedPrecondition, "file");
  EXPECT_STATUS(fs_->NewWritableFile("s3://bucket"), absl::StatusCode::kFailedPrecondition, "file");
  EXPECT_STATUS(fs_->NewRandomAccessFile("s3://other/a"), absl::StatusCode::kNotFound,
                "NoSuchBucket");
  EXPECT_STATUS(fs_->TryLockFile(Path("a"), "me"), absl::StatusCode::kUnimplemented, "locks");
}

// Each fault twice, at each kind of request: everything is there in the end, and nothing else.
TEST_F(S3FileSystemTest, FaultsThatPassAreRepeated) {
  const std::string bytes = Pattern(3 * kPart + 5);
  // Not "lost": an upload that was begun and never named stays (docs/storage.md).
  for (const absl::string_view kind : {"500", "503", "SlowDown", "RequestTimeout", "reset"}) {
    for (const absl::string_view method : {"HEAD", "GET", "PUT", "POST", "DELETE"}) {
      if (kind == "RequestTimeout" && method == "HEAD") continue;  // it waits for a body
      SCOPED_TRACE(absl::StrCat(kind, " ", method));
      Fault(absl::StrCat(R"({"kind": ")", kind, R"(", "method": ")", method, R"(", "times": 2})"));
      EXPECT_OK(Write("f", bytes));
      EXPECT_EQ(Contents("f"), bytes);
      EXPECT_THAT(*fs_->GetChildren("s3://bucket"), ElementsAre("f"));
      EXPECT_OK(fs_->DeleteFile(Path("f")));
      EXPECT_THAT(Keys(), ElementsAre());
    }
  }
}

TEST_F(S3FileSystemTest, CutBodiesLostAnswersAndHangsAreRepeated) {
  ASSERT_OK(Write("f", "bytes"));
  for (const absl::string_view kind : {"cut", "lost", "hang"}) {
    SCOPED_TRACE(kind);
    Fault(absl::StrCat(R"({"kind": ")", kind, R"(", "method": "GET"})"));
    EXPECT_EQ(Contents("f"), "bytes");
  }
  for (const absl::string_view method : {"PUT", "DELETE"}) {
    Fault(absl::StrCat(R"({"kind": "lost", "method": ")", method, R"("})"));
    EXPECT_OK(Write("g", "more"));
    EXPECT_EQ(Contents("g"), "more");
    EXPECT_OK(fs_->DeleteFile(Path("g")));
  }
}

TEST_F(S3FileSystemTest, FaultThatStaysIsToldAndLeavesNoUpload) {
  Fault(R"({"kind": "SlowDown", "method": "PUT", "times": 99, "after": 1})");
  EXPECT_STATUS(Write("f", Pattern(3 * kPart)), absl::StatusCode::kUnavailable,
                "503 SlowDown after 4 attempts");
  EXPECT_THAT(Keys(), ElementsAre());
  Fault(R"({"kind": "reset", "times": 99})");
  EXPECT_STATUS(Write("f", "x"), absl::StatusCode::kUnavailable, "tried 4 times");
}

TEST_F(S3FileSystemTest, InterruptedUploadsLeaveNothing) {
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK_AND_ASSIGN(auto file, fs_->NewWritableFile(Path(absl::StrCat("f", i))));
    ASSERT_OK(file->Append(Pattern(kPart + 1)));
  }
  EXPECT_THAT(Keys(), ElementsAre());
  EXPECT_THAT(store_->Control()["uploads"], ElementsAre());
}

TEST_F(S3FileSystemTest, StaleListingDoesNotHideAFile) {
  ASSERT_OK(Write("d/old", "1"));
  store_->Control(R"({"omit_newest": true})");
  ASSERT_OK(Write("d/new", "2"));
  EXPECT_THAT(*fs_->GetChildren(Path("d")), ElementsAre("old"));
  EXPECT_TRUE(fs_->FileExists(Path("d/new")));
  EXPECT_EQ(Contents("d/new"), "2");
  EXPECT_STATUS(fs_->NewExclusiveFile(Path("d/new")), absl::StatusCode::kAlreadyExists, "exists");
}

TEST_F(S3FileSystemTest, ClockThatIsWrongIsCorrected) {
  for (const int skew : {3600, -7200}) {
    store_->Control(absl::StrCat(R"({"skew": )", skew, "}"));
    Use(store_->Options());
    EXPECT_OK(Write("f", "x"));
    Use(store_->Options());
    EXPECT_EQ(*fs_->GetFileSize(Path("f")), 1u);  // HEAD first, which has no body
  }
}

TEST_F(S3FileSystemTest, WrongKeysSayWhatToDo) {
  const auto use = [&](const std::string& id, const std::string& secret) {
    S3Options options = store_->Options();
    options.environment = [id, secret](const char* name) -> std::string {
      if (absl::string_view(name) == "AWS_ACCESS_KEY_ID") return id;
      if (absl::string_view(name) == "AWS_SECRET_ACCESS_KEY") return secret;
      if (absl::string_view(name) == "AWS_EC2_METADATA_DISABLED") return "true";
      return "";
    };
    Use(options);
  };
  use("AKIAFAKE", "wrong");
  EXPECT_STATUS(Write("f", "x"), absl::StatusCode::kPermissionDenied,
                "SignatureDoesNotMatch; check AWS_SECRET_ACCESS_KEY");
  EXPECT_STATUS(fs_->GetFileSize(Path("f")), absl::StatusCode::kPermissionDenied,
                "SignatureDoesNotMatch; check AWS_SECRET_ACCESS_KEY");  // HEAD first
  use("AKIAOTHER", "fake-secret");
  EXPECT_STATUS(Write("f", "x"), absl::StatusCode::kPermissionDenied, "check AWS_ACCESS_KEY_ID");
  use("AKIAFAKE", "");
  EXPECT_STATUS(Write("f", "x"), absl::StatusCode::kFailedPrecondition, "must be set together");
  use("", "");
  EXPECT_STATUS(Write("f", "x"), absl::StatusCode::kPermissionDenied, "credentials file");
}

TEST_F(S3FileSystemTest, MissingServerIsUnavailable) {
  S3Options options = store_->Options();
  options.endpoint = "http://127.0.0.1:1";
  Use(options);
  EXPECT_STATUS(Write("f", "x"), absl::StatusCode::kUnavailable, "127.0.0.1:1");
}

}  // namespace
}  // namespace millrace
