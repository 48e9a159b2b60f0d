// SPDX-License-Identifier: Apache-2.0
#include "core/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/testing/faulty_file_system.h"
#include "gtest/gtest.h"

// covers: values: data written past the page cache is in the file and not in the cache, for all
//   offsets and sizes

namespace millrace {
namespace {

class FileSystemTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    if (fs_->FileExists(dir_)) {
      ASSERT_EQ(fs_->RecursivelyDelete(dir_), absl::OkStatus());
    }
    ASSERT_EQ(fs_->RecursivelyCreateDirectory(dir_), absl::OkStatus());
  }
  std::string Path(absl::string_view name) const { return JoinPath(dir_, name); }
  void Write(const std::string& path, absl::string_view data) {
    auto file = fs_->NewWritableFile(path);
    ASSERT_EQ(file.status(), absl::OkStatus());
    ASSERT_EQ((*file)->Append(data), absl::OkStatus());
    ASSERT_EQ((*file)->Close(), absl::OkStatus());
  }
  std::string Read(const std::string& path) {
    auto contents = ReadFileToString(fs_, path);
    return contents.ok() ? *contents : contents.status().ToString();
  }

  FileSystem* const fs_ = FileSystem::Posix();
  std::string dir_;
};

TEST_F(FileSystemTest, WhatIsAppendedIsRead) {
  std::string expected;
  auto file = fs_->NewWritableFile(Path("f"));
  ASSERT_EQ(file.status(), absl::OkStatus());
  for (const size_t n : {0u, 1u, 100u, 65'535u, 65'536u, 65'537u, 300'000u, 3u}) {
    const std::string piece(n, static_cast<char>('a' + n % 26));
    ASSERT_EQ((*file)->Append(piece), absl::OkStatus());
    expected += piece;
  }
  ASSERT_EQ((*file)->Sync(), absl::OkStatus());
  EXPECT_EQ(Read(Path("f")), expected) << "synced, not yet closed";
  ASSERT_EQ((*file)->Close(), absl::OkStatus());
  EXPECT_EQ(*fs_->GetFileSize(Path("f")), expected.size());
}

TEST_F(FileSystemTest, WritableTruncatesAppendableKeepsExclusiveRefuses) {
  Write(Path("f"), "old contents");
  Write(Path("f"), "new");
  EXPECT_EQ(Read(Path("f")), "new");
  auto more = fs_->NewAppendableFile(Path("f"));
  ASSERT_EQ(more.status(), absl::OkStatus());
  ASSERT_EQ((*more)->Append("er"), absl::OkStatus());
  ASSERT_EQ((*more)->Flush(), absl::OkStatus());
  EXPECT_EQ(Read(Path("f")), "newer");
  EXPECT_EQ(fs_->NewExclusiveFile(Path("f")).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(fs_->NewExclusiveFile(Path("g")).status(), absl::OkStatus());
}

TEST_F(FileSystemTest, WritesAtPlacesFillHolesAndAppendGoesOnAtTheEnd) {
  auto file = fs_->NewExclusiveFile(Path("f"));
  ASSERT_EQ(file.status(), absl::OkStatus());
  ASSERT_EQ((*file)->Append("ab"), absl::OkStatus());
  ASSERT_EQ((*file)->WriteAt(5, "fg"), absl::OkStatus());
  ASSERT_EQ((*file)->Append("hi"), absl::OkStatus());
  ASSERT_EQ((*file)->WriteAt(3, "d"), absl::OkStatus());
  ASSERT_EQ((*file)->WriteAt(0, "A"), absl::OkStatus());
  ASSERT_EQ((*file)->Append("j"), absl::OkStatus());
  EXPECT_EQ((*file)->WriteAt(uint64_t{1} << 63, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ((*file)->Append("x").code(), absl::StatusCode::kResourceExhausted);
  file->reset();
  EXPECT_EQ(*ReadFileToString(fs_, Path("f")), std::string("Ab\0d\0fghij", 10));

  auto log = fs_->NewAppendableFile(Path("f"));
  ASSERT_EQ(log.status(), absl::OkStatus());
  EXPECT_EQ((*log)->WriteAt(0, "x").code(), absl::StatusCode::kFailedPrecondition);
}

// Pieces that begin and end within blocks, in memory that is aligned and not; in two directories:
// temporary memory may have no way past its cache.
TEST_F(FileSystemTest, WhatIsWrittenPastTheCacheIsInTheFile) {
  constexpr size_t kMost = size_t{6} << 20;
  std::mt19937 random(1);
  std::string source(kMost + 8192, '\0');
  for (char& c : source) c = static_cast<char>(random());
  const auto piece_of = [&](size_t size) {
    return absl::string_view(source).substr(random() % 8192, size);
  };
  for (const std::string& path :
       {Path("f"), JoinPath("/dev/shm", absl::StrCat("file_system_test_", getpid()))}) {
    if (!fs_->FileExists(Dirname(path))) continue;
    auto file = fs_->NewExclusiveFile(path);
    ASSERT_EQ(file.status(), absl::OkStatus());
    std::string expected;
    ASSERT_EQ((*file)->Append("not a whole block"), absl::OkStatus());
    expected = "not a whole block";
    (*file)->WillNotBeReadSoon();
    for (const size_t size : {kMost, size_t{1} << 20, size_t{4096}, size_t{3}, kMost - 1}) {
      const absl::string_view appended = piece_of(size);
      ASSERT_EQ((*file)->Append(appended), absl::OkStatus());
      absl::StrAppend(&expected, appended);
    }
    for (const size_t size : {size_t{2} << 20, (size_t{1} << 20) + 5, size_t{100}}) {
      const size_t at = random() % (expected.size() - size);
      const absl::string_view placed = piece_of(size);
      ASSERT_EQ((*file)->WriteAt(at, placed), absl::OkStatus());
      expected.replace(at, size, placed.data(), placed.size());
    }
    const size_t beyond = expected.size() + 8191;
    ASSERT_EQ((*file)->WriteAt(beyond, piece_of(kMost)), absl::OkStatus());
    expected.resize(beyond + kMost);
    auto written = fs_->NewRandomAccessFile(path);
    ASSERT_EQ(written.status(), absl::OkStatus());
    ASSERT_EQ((*written)->size(), expected.size());
    ASSERT_EQ((*written)->Read(beyond, kMost, &expected[beyond]), absl::OkStatus());
    EXPECT_NE(source.find(expected.substr(beyond)), std::string::npos);
    ASSERT_EQ((*file)->Append("end"), absl::OkStatus());
    expected += "end";
    ASSERT_EQ((*file)->Sync(), absl::OkStatus());
    file->reset();
    EXPECT_TRUE(Read(path) == expected) << path;
    EXPECT_EQ(fs_->DeleteFile(path), absl::OkStatus());
  }
}

TEST_F(FileSystemTest, WhatWillNotBeReadSoonIsNotInTheCache) {
  const std::string path = Path("f");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (fd < 0) GTEST_SKIP() << "no way past the cache in " << dir_;
  close(fd);
  // Reads the byte in the middle without waiting for the device: 0 or the error.
  const auto read_from_cache = [&] {
    const int reader = open(path.c_str(), O_RDONLY);
    char byte;
    iovec one = {&byte, 1};
    const int error = preadv2(reader, &one, 1, 1 << 20, RWF_NOWAIT) == 1 ? 0 : errno;
    close(reader);
    return error;
  };
  for (const bool soon : {true, false}) {
    auto file = fs_->NewWritableFile(path);
    ASSERT_EQ(file.status(), absl::OkStatus());
    if (!soon) (*file)->WillNotBeReadSoon();
    ASSERT_EQ((*file)->Append(std::string(size_t{2} << 20, 'x')), absl::OkStatus());
    ASSERT_EQ((*file)->Sync(), absl::OkStatus());
    const int error = read_from_cache();
    if (error == EOPNOTSUPP) GTEST_SKIP() << "no reads without waiting in " << dir_;
    EXPECT_EQ(error, soon ? 0 : EAGAIN);
  }
}

TEST_F(FileSystemTest, AClosedFileRefusesMore) {
  auto file = fs_->NewWritableFile(Path("f"));
  ASSERT_EQ((*file)->Close(), absl::OkStatus());
  EXPECT_EQ((*file)->Append("x").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*file)->Sync().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*file)->Close(), absl::OkStatus());
}

TEST_F(FileSystemTest, AFullDeviceIsResourceExhaustedAndStaysSo) {
  if (!fs_->FileExists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  auto file = fs_->NewAppendableFile("/dev/full");
  ASSERT_EQ(file.status(), absl::OkStatus());
  ASSERT_EQ((*file)->Append("x"), absl::OkStatus());
  const Status status = (*file)->Flush();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("'/dev/full'"), std::string::npos);
  EXPECT_NE(status.message().find("write of 1 bytes behind the first 0: No space left"),
            std::string::npos)
      << status;
  EXPECT_EQ((*file)->Append("y"), status);
  EXPECT_EQ((*file)->Close(), status);
}

TEST_F(FileSystemTest, ALockKeepsOthersOutAndSaysWhoHasIt) {
  const std::string path = Path("x.lock");
  {
    auto lock = fs_->TryLockFile(path, "process 4711 on host7");
    ASSERT_EQ(lock.status(), absl::OkStatus());
    const Status other = fs_->TryLockFile(path, "another").status();
    EXPECT_EQ(other.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(other.message().find("'" + path +
                                   "': lock: must be free, got it held by process "
                                   "4711 on host7"),
              std::string::npos)
        << other;
  }
  EXPECT_FALSE(fs_->FileExists(path));
  // A file that a killed process left is as good as none, whatever it says.
  Write(path, "process 4711 on host7, which was killed and had a lot to say");
  auto lock = fs_->TryLockFile(path, "me");
  ASSERT_EQ(lock.status(), absl::OkStatus());
  EXPECT_EQ(*ReadFileToString(fs_, path), "me");
  EXPECT_EQ(fs_->TryLockFile(Path("none/x.lock"), "me").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(FileSystemTest, WhoseLockFileWasDeletedDoesNotEndTheLockOfTheNext) {
  const std::string path = Path("x.lock");
  auto first = fs_->TryLockFile(path, "the first");
  ASSERT_EQ(first.status(), absl::OkStatus());
  ASSERT_EQ(fs_->DeleteFile(path), absl::OkStatus());
  auto second = fs_->TryLockFile(path, "the second");
  ASSERT_EQ(second.status(), absl::OkStatus());
  first->reset();
  const Status third = fs_->TryLockFile(path, "the third").status();
  EXPECT_EQ(third.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(third.message().find("held by the second"), std::string::npos) << third;
}

// Also where one opens the file that another is about to delete.
TEST_F(FileSystemTest, OneAtATimeHasALock) {
  const std::string path = Path("x.lock");
  std::atomic<int> holders{0}, most{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int done = 0; done < 300;) {
        const std::string name = "thread " + std::to_string(i);
        auto lock = fs_->TryLockFile(path, name);
        if (!lock.ok()) {
          EXPECT_EQ(lock.status().code(), absl::StatusCode::kUnavailable) << lock.status();
          std::this_thread::yield();
          continue;
        }
        const int now = ++holders;
        if (now > most) most = now;
        std::this_thread::yield();
        // Nobody has taken its name away, which would give the lock to the next one as well.
        EXPECT_EQ(ReadFileToString(fs_, path).value_or("no file"), name);
        --holders;
        ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_FALSE(fs_->FileExists(path));
}

TEST_F(FileSystemTest, WhatWillBeReadIsReadAllTheSame) {
  Write(Path("f"), "0123456789");
  auto file = fs_->NewRandomAccessFile(Path("f"));
  ASSERT_EQ(file.status(), absl::OkStatus());
  (*file)->WillRead(0, 10);
  (*file)->WillRead(5, 1'000'000);
  (*file)->WillRead(1'000'000, 10);
  char out[2];
  EXPECT_EQ((*file)->Read(5, 2, out), absl::OkStatus());
  EXPECT_EQ(std::string(out, 2), "56");
}

TEST_F(FileSystemTest, RandomAccessReadsExactly) {
  Write(Path("f"), "0123456789");
  auto file = fs_->NewRandomAccessFile(Path("f"));
  ASSERT_EQ(file.status(), absl::OkStatus());
  EXPECT_EQ((*file)->size(), 10u);
  char out[10];
  ASSERT_EQ((*file)->Read(3, 4, out), absl::OkStatus());
  EXPECT_EQ(std::string(out, 4), "3456");
  EXPECT_EQ((*file)->Read(10, 0, out), absl::OkStatus());
  const struct {
    uint64_t offset;
    size_t n;
  } bad[] = {{7, 4}, {10, 1}, {1000, 1}, {UINT64_MAX, 1}, {1, SIZE_MAX}, {INT64_MAX, 10}};
  for (const auto& b : bad) {
    EXPECT_EQ((*file)->Read(b.offset, b.n, out).code(), absl::StatusCode::kOutOfRange) << b.offset;
  }
}

TEST_F(FileSystemTest, ErrorsNamePathOperationAndReason) {
  Write(Path("file"), "x");
  ASSERT_EQ(fs_->CreateDirectory(Path("full")), absl::OkStatus());
  Write(Path("full/inside"), "x");
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const std::string missing = Path("missing");
  const struct {
    const char* what;
    Status status;
    absl::StatusCode code;
    std::string path;
  } cases[] = {
      {"open a missing file", fs_->NewRandomAccessFile(missing).status(),
       absl::StatusCode::kNotFound, missing},
      {"open a directory", fs_->NewRandomAccessFile(Path("full")).status(),
       absl::StatusCode::kFailedPrecondition, Path("full")},
      {"open a pipe", fs_->NewRandomAccessFile(Path("pipe")).status(),
       absl::StatusCode::kFailedPrecondition, Path("pipe")},
      {"write to a directory", fs_->NewWritableFile(Path("full")).status(),
       absl::StatusCode::kFailedPrecondition, Path("full")},
      {"write below a file", fs_->NewWritableFile(Path("file/x")).status(),
       absl::StatusCode::kFailedPrecondition, Path("file/x")},
      {"write below nothing", fs_->NewWritableFile(Path("missing/x")).status(),
       absl::StatusCode::kNotFound, Path("missing/x")},
      {"size", fs_->GetFileSize(missing).status(), absl::StatusCode::kNotFound, missing},
      {"time", fs_->GetModificationTime(missing).status(), absl::StatusCode::kNotFound, missing},
      {"is directory", fs_->IsDirectory(missing).status(), absl::StatusCode::kNotFound, missing},
      {"list", fs_->GetChildren(missing).status(), absl::StatusCode::kNotFound, missing},
      {"list a file", fs_->GetChildren(Path("file")).status(),
       absl::StatusCode::kFailedPrecondition, Path("file")},
      {"create a directory that exists", fs_->CreateDirectory(Path("full")),
       absl::StatusCode::kAlreadyExists, Path("full")},
      {"create a directory over a file", fs_->RecursivelyCreateDirectory(Path("file")),
       absl::StatusCode::kFailedPrecondition, Path("file")},
      {"delete a missing file", fs_->DeleteFile(missing), absl::StatusCode::kNotFound, missing},
      {"delete a directory that is not empty", fs_->DeleteDirectory(Path("full")),
       absl::StatusCode::kFailedPrecondition, Path("full")},
      {"delete a missing tree", fs_->RecursivelyDelete(missing), absl::StatusCode::kNotFound,
       missing},
      {"rename a missing file", fs_->RenameFile(missing, Path("y")), absl::StatusCode::kNotFound,
       missing},
      {"sync a missing directory", fs_->SyncDirectory(missing), absl::StatusCode::kNotFound,
       missing},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.status.code(), c.code) << c.what << ": " << c.status;
    EXPECT_NE(c.status.message().find("'" + c.path + "'"), std::string::npos)
        << c.what << ": " << c.status;
  }
  EXPECT_EQ(fs_->NewRandomAccessFile("/nowhere/x").status().message(),
            "File '/nowhere/x': open: No such file or directory");
}

TEST_F(FileSystemTest, ChildrenAreSortedNames) {
  for (const char* name : {"b", "a", ".hidden", "c"}) Write(Path(name), "");
  ASSERT_EQ(fs_->CreateDirectory(Path("d")), absl::OkStatus());
  auto names = fs_->GetChildren(dir_);
  ASSERT_EQ(names.status(), absl::OkStatus());
  EXPECT_EQ(*names, (std::vector<std::string>{".hidden", "a", "b", "c", "d"}));
}

TEST_F(FileSystemTest, RecursiveCreateAndDelete) {
  ASSERT_EQ(fs_->RecursivelyCreateDirectory(Path("a/b/c")), absl::OkStatus());
  ASSERT_EQ(fs_->RecursivelyCreateDirectory(Path("a/b/c/")), absl::OkStatus());
  EXPECT_TRUE(*fs_->IsDirectory(Path("a/b/c")));
  Write(Path("a/b/file"), "x");
  Write(Path("kept"), "x");
  ASSERT_EQ(symlink(Path("kept").c_str(), Path("a/link").c_str()), 0);
  ASSERT_EQ(symlink(dir_.c_str(), Path("a/loop").c_str()), 0);
  ASSERT_EQ(fs_->RecursivelyDelete(Path("a")), absl::OkStatus());
  EXPECT_FALSE(fs_->FileExists(Path("a")));
  EXPECT_EQ(Read(Path("kept")), "x");
}

TEST_F(FileSystemTest, ManyThreadsMayCreateTheSameDirectories) {
  std::vector<std::thread> threads;
  std::vector<Status> results(8);
  for (size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back(
        [&, t] { results[t] = fs_->RecursivelyCreateDirectory(Path("p/q/r/s/t")); });
  }
  for (auto& thread : threads) thread.join();
  for (const Status& status : results) EXPECT_EQ(status, absl::OkStatus());
}

TEST_F(FileSystemTest, RenameReplaces) {
  Write(Path("from"), "new");
  Write(Path("to"), "old");
  ASSERT_EQ(fs_->RenameFile(Path("from"), Path("to")), absl::OkStatus());
  EXPECT_EQ(Read(Path("to")), "new");
  EXPECT_FALSE(fs_->FileExists(Path("from")));
  EXPECT_EQ(fs_->SyncDirectory(dir_), absl::OkStatus());
  EXPECT_EQ(fs_->SyncDirectory(""), absl::OkStatus()) << "the current directory";
}

TEST_F(FileSystemTest, ModificationTimeHasAFraction) {
  Write(Path("f"), "x");
  const timespec times[2] = {{1'500'000'000, 250'000'000}, {1'500'000'000, 250'000'000}};
  ASSERT_EQ(utimensat(AT_FDCWD, Path("f").c_str(), times, 0), 0);
  EXPECT_DOUBLE_EQ(*fs_->GetModificationTime(Path("f")), 1'500'000'000.25);
}

TEST_F(FileSystemTest, ReadFileToStringRefusesWhatIsTooLong) {
  Write(Path("f"), "12345");
  EXPECT_EQ(*ReadFileToString(fs_, Path("f"), 5), "12345");
  EXPECT_EQ(ReadFileToString(fs_, Path("f"), 4).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(FileSystemTest, AtomicWriteReplacesAndLeavesNothingElse) {
  ASSERT_EQ(WriteFileAtomically(fs_, Path("state"), "one"), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(fs_, Path("state"), "two"), absl::OkStatus());
  EXPECT_EQ(Read(Path("state")), "two");
  EXPECT_EQ(*fs_->GetChildren(dir_), std::vector<std::string>{"state"});
  EXPECT_FALSE(WriteFileAtomically(fs_, Path("missing/state"), "x").ok());
}

TEST_F(FileSystemTest, AtomicWriteOverADirectoryFailsAndLeavesNothingElse) {
  ASSERT_EQ(fs_->RecursivelyCreateDirectory(Path("state/inside")), absl::OkStatus());
  EXPECT_FALSE(WriteFileAtomically(fs_, Path("state"), "x").ok());
  EXPECT_EQ(*fs_->GetChildren(dir_), std::vector<std::string>{"state"});
}

TEST_F(FileSystemTest, ChildProcessesInheritNoFile) {
  Write(Path("f"), "x");
  auto reader = fs_->NewRandomAccessFile(Path("f"));
  auto writer = fs_->NewWritableFile(Path("g"));
  int ours = 0;
  for (int fd = 0; fd < 64; ++fd) {
    char target[4096];
    const ssize_t n =
        readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof(target));
    if (n <= 0 || std::string(target, static_cast<size_t>(n)).find(dir_) != 0) continue;
    ++ours;
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << fd;
  }
  EXPECT_EQ(ours, 2);
}

TEST(PathTest, APathWithASchemeIsAbsoluteAndItsBucketHasNoParent) {
  EXPECT_EQ(PathScheme("s3://bucket/a"), "s3");
  EXPECT_EQ(PathScheme("a+b-c.1://x"), "a+b-c.1");
  for (const char* const none : {"", "a/b", "/s3://x", "://x", "1s://x", "a b://x", "s3:/x"}) {
    EXPECT_EQ(PathScheme(none), "") << none;
  }
  EXPECT_TRUE(IsAbsolutePath("s3://bucket"));
  EXPECT_TRUE(IsAbsolutePath("/a"));
  EXPECT_FALSE(IsAbsolutePath("a/b"));
  EXPECT_FALSE(IsAbsolutePath(""));
  EXPECT_EQ(JoinPath("run", "s3://bucket/a"), "s3://bucket/a");
  EXPECT_EQ(JoinPath("s3://bucket", "a/b"), "s3://bucket/a/b");
  EXPECT_EQ(Dirname("s3://bucket/a/b"), "s3://bucket/a");
  EXPECT_EQ(Dirname("s3://bucket//a"), "s3://bucket");
  EXPECT_EQ(Dirname("s3://bucket"), "s3://bucket");
  EXPECT_EQ(Dirname("s3://"), "s3://");
  EXPECT_EQ(Basename("s3://bucket/a"), "a");
}

// Notes the paths that it gets; files appear whole in it.
class NotingFiles final : public FaultyFileSystem {
 public:
  NotingFiles() : FaultyFileSystem(FileSystem::Posix(), JoinPath(testing::TempDir(), "noted")) {}
  bool FileExists(const std::string& path) override {
    asked.push_back(path);
    return false;
  }
  bool FilesAppearWhole(const std::string&) override { return true; }
  StatusOr<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    asked.push_back(path);
    return FileSystem::Posix()->NewWritableFile("/dev/null");
  }
  std::vector<std::string> asked;
};

TEST_F(FileSystemTest, TheSchemeChoosesTheFileSystem) {
  static NotingFiles* const noting = new NotingFiles;
  RegisterFileScheme("noting", noting);
  FileSystem* const all = FileSystem::Default();
  EXPECT_FALSE(all->FileExists("noting://bucket/a"));
  EXPECT_EQ(noting->asked, std::vector<std::string>{"noting://bucket/a"});

  Write(Path("plain"), "here");
  EXPECT_TRUE(all->FileExists(Path("plain")));
  EXPECT_TRUE(all->FileExists(absl::StrCat("file://", Path("plain"))));
  const auto read = ReadFileToString(all, absl::StrCat("file://", Path("plain")));
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_EQ(*read, "here");
  EXPECT_EQ(all->RenameFile(absl::StrCat("file://", Path("plain")), Path("other")),
            absl::OkStatus());
  EXPECT_EQ(Read(Path("other")), "here");
  EXPECT_EQ(all->RenameFile(Path("other"), "noting://bucket/b").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(all->FilesAppearWhole(Path("other")));
  EXPECT_TRUE(all->FilesAppearWhole("noting://bucket/b"));

  // What appears whole is written in its place.
  noting->asked.clear();
  EXPECT_EQ(WriteFileAtomically(all, "noting://bucket/c", "data"), absl::OkStatus());
  EXPECT_EQ(noting->asked, std::vector<std::string>{"noting://bucket/c"});

  EXPECT_EQ(CheckPathScheme("noting://x"), absl::OkStatus());
  EXPECT_EQ(CheckPathScheme("a/b"), absl::OkStatus());
  const Status unknown = all->DeleteFile("gopher://host/a");
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(unknown.message(),
            "File 'gopher://host/a': scheme must be one that this program knows (file, noting), "
            "got 'gopher'");
  EXPECT_EQ(CheckPathScheme("gopher://host/a"), unknown);
}

TEST(PathTest, JoinDirnameBasename) {
  const struct {
    const char *a, *b, *joined;
  } joins[] = {{"a/b", "c", "a/b/c"}, {"a/", "b", "a/b"}, {"a", "/b", "/b"}, {"", "b", "b"},
               {"a", "", "a"},        {"/", "b", "/b"},   {"", "", ""}};
  for (const auto& j : joins) EXPECT_EQ(JoinPath(j.a, j.b), j.joined);
  const struct {
    const char *path, *directory, *base;
  } splits[] = {{"a/b/c", "a/b", "c"}, {"c", "", "c"}, {"/c", "/", "c"},  {"a//b", "a", "b"},
                {"a/b/", "a/b", ""},   {"/", "/", ""}, {"//x", "/", "x"}, {"", "", ""}};
  for (const auto& s : splits) {
    EXPECT_EQ(Dirname(s.path), s.directory) << s.path;
    EXPECT_EQ(Basename(s.path), s.base) << s.path;
  }
}

}  // namespace
}  // namespace millrace
