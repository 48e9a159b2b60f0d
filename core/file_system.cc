// SPDX-License-Identifier: Apache-2.0
#include "core/file_system.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/mutex.h"
#include "core/paced_thread.h"
#include "core/random_bits.h"

namespace millrace {
namespace {

constexpr size_t kWriteBuffer = size_t{64} << 10;
// Past the page cache (O_DIRECT): places, sizes and memory are multiples of kDirectAlignment, which
// is that of all devices (open(2)).
constexpr size_t kDirectAlignment = 4096;
constexpr size_t kDirectWrite = size_t{1} << 20;  // smaller writes go into the cache
constexpr size_t kDirectMemory = size_t{4} << 20;
// What ReadFileToString reads at a time.
constexpr size_t kReadPiece = size_t{1} << 20;
constexpr int kMaxLockTries = 100;
constexpr mode_t kFileMode = 0666;  // less the umask
constexpr mode_t kDirectoryMode = 0777;

Status ErrnoStatus(absl::string_view operation, absl::string_view path, int error) {
  absl::StatusCode code;
  switch (error) {
    case ENOENT:
      code = absl::StatusCode::kNotFound;
      break;
    case EEXIST:
      code = absl::StatusCode::kAlreadyExists;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = absl::StatusCode::kPermissionDenied;
      break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      code = absl::StatusCode::kResourceExhausted;
      break;
    case EISDIR:
    case ENOTDIR:
    case ENOTEMPTY:
      code = absl::StatusCode::kFailedPrecondition;
      break;
    default:
      code = absl::StatusCode::kUnknown;
  }
  char buffer[128];
  return Status(code, absl::StrCat("File '", path, "': ", operation, ": ",
                                   strerror_r(error, buffer, sizeof(buffer))));
}

template <typename Call>
auto RetryOnInterrupt(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// "" is the current directory: Dirname("c") gives it.
const char* DirectoryPath(const std::string& path) { return path.empty() ? "." : path.c_str(); }

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

class PosixWritableFile final : public WritableFile {
 public:
  // `may_seek`: the file is empty, and not open for appending only.
  PosixWritableFile(std::string path, int fd, bool may_seek)
      : path_(std::move(path)), fd_(fd), may_seek_(may_seek) {}
  ~PosixWritableFile() override { PosixWritableFile::Close().IgnoreError(); }

  Status Append(absl::string_view data) override {
    MR_RETURN_IF_ERROR(Usable("append"));
    if (buffer_.size() + data.size() <= kWriteBuffer) {
      buffer_.append(data.data(), data.size());
      return absl::OkStatus();
    }
    MR_RETURN_IF_ERROR(Flush());
    if (is_past_cache_ && data.size() >= kDirectWrite) return WriteAt(end_, data);
    if (data.size() >= kWriteBuffer) return WriteAll(data);
    buffer_.append(data.data(), data.size());
    return absl::OkStatus();
  }

  Status WriteAt(uint64_t offset, absl::string_view data) override {
    MR_RETURN_IF_ERROR(Usable("write"));
    if (!may_seek_) return WritableFile::WriteAt(offset, data);
    MR_RETURN_IF_ERROR(Flush());
    if (offset > static_cast<uint64_t>(INT64_MAX) - data.size()) {
      return Failed(WriteOf(data.size(), offset), EFBIG);
    }
    const bool past_cache = is_past_cache_ && data.size() >= kDirectWrite;
    while (!data.empty()) {
      const ssize_t n = past_cache ? WriteSomePastCache(offset, data) : WriteSome(offset, data);
      if (n < 0) return Failed(WriteOf(data.size(), offset), errno);
      data.remove_prefix(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    if (offset <= end_) return absl::OkStatus();
    end_ = offset;
    if (::lseek(fd_, static_cast<off_t>(end_), SEEK_SET) < 0) return Failed("seek", errno);
    return absl::OkStatus();
  }

  void WillNotBeReadSoon() override {
    if (!may_seek_ || fd_ < 0) return;
    flags_ = ::fcntl(fd_, F_GETFL);
    is_past_cache_ = flags_ >= 0;
  }

  Status Flush() override {
    MR_RETURN_IF_ERROR(Usable("flush"));
    MR_RETURN_IF_ERROR(WriteAll(buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }

  Status Sync() override {
    MR_RETURN_IF_ERROR(Flush());
    // What a failed fsync leaves in the page cache is unknown: the file stays unusable.
    if (RetryOnInterrupt([this] { return ::fsync(fd_); }) != 0) {
      return Failed(absl::StrCat("fsync of ", end_, " bytes"), errno);
    }
    return absl::OkStatus();
  }

  Status Close() override {
    if (fd_ < 0) return error_;
    Status status = error_.ok() ? Flush() : error_;
    const int fd = std::exchange(fd_, -1);
    // Not repeated when interrupted: Linux has closed it then.
    if (::close(fd) != 0 && errno != EINTR && status.ok()) status = Failed("close", errno);
    return status;
  }

 private:
  Status Usable(absl::string_view operation) const {
    if (!error_.ok()) return error_;
    if (fd_ >= 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("File '", path_, "': ", operation, ": the file is closed"));
  }

  static std::string WriteOf(uint64_t size, uint64_t offset) {
    return absl::StrCat("write of ", size, " bytes behind the first ", offset);
  }

  Status Failed(absl::string_view operation, int error) {
    error_ = ErrnoStatus(operation, path_, error);
    return error_;
  }

  // As pwrite: how many bytes it has written, or -1 and errno.
  ssize_t WriteSome(uint64_t offset, absl::string_view data) {
    return RetryOnInterrupt(
        [&] { return ::pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset)); });
  }

  // Whole blocks go past the cache. The parts of blocks before and behind them go into it: nobody
  // else's bytes of these blocks are written past it, so that both agree.
  ssize_t WriteSomePastCache(uint64_t offset, absl::string_view data) {
    const size_t in_block = static_cast<size_t>(offset % kDirectAlignment);
    if (in_block != 0) return WriteSome(offset, data.substr(0, kDirectAlignment - in_block));
    if (data.size() < kDirectAlignment || !is_past_cache_) return WriteSome(offset, data);
    data =
        data.substr(0, std::min(data.size(), kDirectMemory) / kDirectAlignment * kDirectAlignment);
    if (reinterpret_cast<uintptr_t>(data.data()) % kDirectAlignment != 0) {
      if (aligned_ == nullptr) {
        aligned_.reset(static_cast<char*>(std::aligned_alloc(kDirectAlignment, kDirectMemory)));
      }
      if (aligned_ != nullptr) {
        std::memcpy(aligned_.get(), data.data(), data.size());
        data = absl::string_view(aligned_.get(), data.size());
      }
    }
    ssize_t n = -1;
    const bool is_set = ::fcntl(fd_, F_SETFL, flags_ | O_DIRECT) == 0;
    if (is_set) {
      n = WriteSome(offset, data);
      const int error = errno;
      if (::fcntl(fd_, F_SETFL, flags_) != 0) is_past_cache_ = false;
      errno = error;
      if (n >= 0 || errno != EINVAL) return n;
    }
    // This file system does not let anybody past its cache.
    is_past_cache_ = false;
    return WriteSome(offset, data);
  }

  Status WriteAll(absl::string_view data) {
    while (!data.empty()) {
      const ssize_t n = RetryOnInterrupt([&] { return ::write(fd_, data.data(), data.size()); });
      if (n < 0) return Failed(WriteOf(data.size(), end_), errno);
      data.remove_prefix(static_cast<size_t>(n));
      end_ += static_cast<uint64_t>(n);
    }
    return absl::OkStatus();
  }

  const std::string path_;
  int fd_;  // -1 when closed
  const bool may_seek_;
  bool is_past_cache_ = false;
  int flags_ = 0;                        // of the descriptor, when writes go past the cache
  std::unique_ptr<char, Free> aligned_;  // what is written past it from memory that is not aligned
  uint64_t end_ =
      0;  // what this object has written; all of it, of a file that may be written anywhere
  std::string buffer_;
  Status error_;  // the first error; everything after it fails with it
};

class PosixRandomAccessFile final : public RandomAccessFile {
 public:
  PosixRandomAccessFile(std::string path, int fd, uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}
  ~PosixRandomAccessFile() override { ::close(fd_); }

  uint64_t size() const override { return size_; }

  Status Read(uint64_t offset, size_t n, char* out) const override {
    if (offset > static_cast<uint64_t>(INT64_MAX) ||
        n > static_cast<uint64_t>(INT64_MAX) - offset) {
      return Short(offset, n, 0);
    }
    size_t done = 0;
    while (done < n) {
      const ssize_t got = RetryOnInterrupt(
          [&] { return ::pread(fd_, out + done, n - done, static_cast<off_t>(offset + done)); });
      if (got < 0) return ErrnoStatus("read", path_, errno);
      if (got == 0) return Short(offset, n, done);
      done += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

  // The advice by itself costs as much as reading what is in memory already (the kernel looks every
  // page up): it is given only where the first byte would have to be waited for.
  void WillRead(uint64_t offset, size_t n) const override {
    char byte;
    iovec one = {&byte, 1};
    if (::preadv2(fd_, &one, 1, static_cast<off_t>(offset), RWF_NOWAIT) < 0 && errno == EAGAIN) {
      (void)::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(n),
                            POSIX_FADV_WILLNEED);
    }
  }

 private:
  Status Short(uint64_t offset, size_t n, size_t got) const {
    return absl::OutOfRangeError(absl::StrCat("File '", path_, "': read of ", n,
                                              " bytes at offset ", offset, " got ", got,
                                              ": the file ends before"));
  }

  const std::string path_;
  const int fd_;
  const uint64_t size_;
};

// A lock of an open file description (fcntl): the kernel gives it back with the last descriptor,
// and it excludes other descriptions of the same process, too.
class PosixFileLock final : public FileLock {
 public:
  PosixFileLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  // The name first: who opens it afterwards makes a file of their own, and who opened it before
  // finds that it has no name any more. Not the name of another's file: somebody may have deleted
  // this one, and the next one locked a file of their own.
  ~PosixFileLock() override {
    if (IsNamed(path_, fd_)) ::unlink(path_.c_str());
    ::close(fd_);
  }

  // Does `path` name the file that was opened?
  static bool IsNamed(const std::string& path, int fd) {
    struct stat opened, named;
    return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  }

 private:
  const std::string path_;
  const int fd_;
};

class PosixFileSystem final : public FileSystem {
 public:
  StatusOr<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    return OpenForWriting(path, O_TRUNC);
  }
  StatusOr<std::unique_ptr<WritableFile>> NewAppendableFile(const std::string& path) override {
    return OpenForWriting(path, O_APPEND);
  }
  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    return OpenForWriting(path, O_EXCL);
  }

  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    // O_NONBLOCK: a pipe without a writer must not hold us up.
    const int fd =
        RetryOnInterrupt([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (fd < 0) return ErrnoStatus("open", path, errno);
    struct stat info;
    Status status;
    if (::fstat(fd, &info) != 0) {
      status = ErrnoStatus("stat", path, errno);
    } else if (!S_ISREG(info.st_mode)) {
      status = absl::FailedPreconditionError(
          absl::StrCat("File '", path, "': open: must be a regular file, got ",
                       S_ISDIR(info.st_mode) ? "a directory" : "a device or pipe"));
    }
    if (!status.ok()) {
      ::close(fd);
      return status;
    }
    return std::make_unique<PosixRandomAccessFile>(path, fd, static_cast<uint64_t>(info.st_size));
  }

  bool FileExists(const std::string& path) override {
    return ::access(DirectoryPath(path), F_OK) == 0;
  }

  StatusOr<bool> IsDirectory(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(const struct stat info, Stat(path));
    return S_ISDIR(info.st_mode);
  }

  StatusOr<uint64_t> GetFileSize(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(const struct stat info, Stat(path));
    return static_cast<uint64_t>(info.st_size);
  }

  StatusOr<double> GetModificationTime(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(const struct stat info, Stat(path));
    return static_cast<double>(info.st_mtim.tv_sec) +
           static_cast<double>(info.st_mtim.tv_nsec) * 1e-9;
  }

  StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) override {
    DIR* const stream = ::opendir(DirectoryPath(directory));
    if (stream == nullptr) return ErrnoStatus("list", directory, errno);
    std::vector<std::string> names;
    int error = 0;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream);
      if (entry == nullptr) {
        error = errno;
        break;
      }
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    ::closedir(stream);
    if (error != 0) return ErrnoStatus("list", directory, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status CreateDirectory(const std::string& path) override {
    if (::mkdir(path.c_str(), kDirectoryMode) != 0) {
      return ErrnoStatus("create directory", path, errno);
    }
    return absl::OkStatus();
  }

  // Also when others create the same directories at the same time.
  Status RecursivelyCreateDirectory(const std::string& path) override {
    if (path.empty() || ::mkdir(path.c_str(), kDirectoryMode) == 0) return absl::OkStatus();
    int error = errno;
    if (error == ENOENT) {
      const std::string parent = Dirname(path);
      if (parent.empty() || parent == path) return ErrnoStatus("create directory", path, error);
      MR_RETURN_IF_ERROR(RecursivelyCreateDirectory(parent));
      if (::mkdir(path.c_str(), kDirectoryMode) == 0) return absl::OkStatus();
      error = errno;
    }
    if (error == EEXIST) {
      MR_ASSIGN_OR_RETURN(const bool is_directory, IsDirectory(path));
      if (is_directory) return absl::OkStatus();
      error = ENOTDIR;
    }
    return ErrnoStatus("create directory", path, error);
  }

  Status DeleteFile(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return ErrnoStatus("delete", path, errno);
    return absl::OkStatus();
  }

  Status DeleteDirectory(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0) return ErrnoStatus("delete directory", path, errno);
    return absl::OkStatus();
  }

  // A link is deleted, not what it points to.
  Status RecursivelyDelete(const std::string& path) override {
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0) return ErrnoStatus("delete", path, errno);
    if (!S_ISDIR(info.st_mode)) return DeleteFile(path);
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, GetChildren(path));
    for (const std::string& name : names)
      MR_RETURN_IF_ERROR(RecursivelyDelete(JoinPath(path, name)));
    return DeleteDirectory(path);
  }

  Status RenameFile(const std::string& source, const std::string& target) override {
    if (::rename(source.c_str(), target.c_str()) != 0) {
      return ErrnoStatus(absl::StrCat("rename to '", target, "'"), source, errno);
    }
    return absl::OkStatus();
  }

  Status SyncDirectory(const std::string& directory) override {
    const int fd = RetryOnInterrupt(
        [&] { return ::open(DirectoryPath(directory), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return ErrnoStatus("open directory", directory, errno);
    const int result = RetryOnInterrupt([fd] { return ::fsync(fd); });
    const int error = errno;
    ::close(fd);
    if (result != 0) return ErrnoStatus("fsync directory", directory, error);
    return absl::OkStatus();
  }

  StatusOr<std::unique_ptr<FileLock>> TryLockFile(const std::string& path,
                                                  absl::string_view holder) override {
    // Again when the file that was locked has just been given up, and its name with it: as often as
    // others take the lock in between.
    for (int tries = 0; tries < kMaxLockTries; ++tries) {
      const int fd = RetryOnInterrupt(
          [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kFileMode); });
      if (fd < 0) return ErrnoStatus("open to lock", path, errno);
      const StatusOr<bool> locked = LockOpened(path, fd, holder);
      if (locked.ok() && *locked) return std::make_unique<PosixFileLock>(path, fd);
      ::close(fd);
      if (!locked.ok()) return locked.status();
    }
    return absl::UnavailableError(absl::StrCat("File '", path, "': lock: must be free, got ",
                                               kMaxLockTries, " others before this one"));
  }

 private:
  // False: the file has no name any more.
  static StatusOr<bool> LockOpened(const std::string& path, int fd, absl::string_view holder) {
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (::fcntl(fd, F_OFD_SETLK, &whole) != 0) {
      const int error = errno;
      if (error == EAGAIN || error == EACCES) return HeldBy(path, fd);
      if (error == ESTALE) return false;
      const Status status = ErrnoStatus("lock", path, error);
      if (error != ENOLCK && error != EOPNOTSUPP && error != EINVAL && error != ENOSYS) {
        return status;
      }
      return absl::UnimplementedError(status.message());
    }
    if (!PosixFileLock::IsNamed(path, fd)) return false;
    // For people only: a full disk must not keep anybody from the lock.
    if (::ftruncate(fd, 0) == 0) (void)!::pwrite(fd, holder.data(), holder.size(), 0);
    return true;
  }

  static Status HeldBy(const std::string& path, int fd) {
    char text[256];
    const ssize_t n = ::pread(fd, text, sizeof(text), 0);
    return absl::UnavailableError(
        absl::StrCat("File '", path, "': lock: must be free, got it held by ",
                     n > 0 ? absl::CEscape(absl::string_view(text, static_cast<size_t>(n)))
                           : std::string("a process that has not said its name")));
  }

  static StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path,
                                                                int flags) {
    const int fd = RetryOnInterrupt(
        [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, kFileMode); });
    if (fd < 0) return ErrnoStatus("open for writing", path, errno);
    return std::make_unique<PosixWritableFile>(path, fd, (flags & O_APPEND) == 0);
  }

  static StatusOr<struct stat> Stat(const std::string& path) {
    struct stat info;
    if (::stat(DirectoryPath(path), &info) != 0) return ErrnoStatus("stat", path, errno);
    return info;
  }
};

constexpr absl::string_view kSchemeEnd = "://";
constexpr absl::string_view kFileScheme = "file";

// The registered file systems.
struct Schemes {
  Mutex mu;
  std::map<std::string, FileSystem*, std::less<>> by_name ABSL_GUARDED_BY(mu);

  static Schemes& Of() {
    static Schemes* const schemes = new Schemes;
    return *schemes;
  }
};

StatusOr<FileSystem*> FilesOf(absl::string_view path) {
  const absl::string_view scheme = PathScheme(path);
  if (scheme.empty() || scheme == kFileScheme) return FileSystem::Posix();
  Schemes& schemes = Schemes::Of();
  const MutexLock lock(&schemes.mu);
  const auto found = schemes.by_name.find(scheme);
  if (found != schemes.by_name.end()) return found->second;
  std::vector<std::string> known{std::string(kFileScheme)};
  for (const auto& [name, file_system] : schemes.by_name) known.push_back(name);
  return Unimplemented("File '", path, "': scheme must be one that this program knows (",
                       absl::StrJoin(known, ", "), "), got '", scheme, "'");
}

// What the path's file system calls the file: file:///a/b is /a/b.
std::string OwnName(const std::string& path) {
  if (PathScheme(path) != kFileScheme) return path;
  return path.substr(kFileScheme.size() + kSchemeEnd.size());
}

// Each call to the file system of its path.
class ByScheme : public FileSystem {
 public:
  StatusOr<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->NewWritableFile(OwnName(path));
  }
  StatusOr<std::unique_ptr<WritableFile>> NewAppendableFile(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->NewAppendableFile(OwnName(path));
  }
  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->NewExclusiveFile(OwnName(path));
  }
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->NewRandomAccessFile(OwnName(path));
  }
  bool FileExists(const std::string& path) override {
    const StatusOr<FileSystem*> files = FilesOf(path);
    return files.ok() && (*files)->FileExists(OwnName(path));
  }
  StatusOr<bool> IsDirectory(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->IsDirectory(OwnName(path));
  }
  StatusOr<uint64_t> GetFileSize(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->GetFileSize(OwnName(path));
  }
  StatusOr<double> GetModificationTime(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->GetModificationTime(OwnName(path));
  }
  StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(directory));
    return files->GetChildren(OwnName(directory));
  }
  Status CreateDirectory(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->CreateDirectory(OwnName(path));
  }
  Status RecursivelyCreateDirectory(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->RecursivelyCreateDirectory(OwnName(path));
  }
  Status DeleteFile(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->DeleteFile(OwnName(path));
  }
  Status DeleteDirectory(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->DeleteDirectory(OwnName(path));
  }
  Status RecursivelyDelete(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->RecursivelyDelete(OwnName(path));
  }
  Status RenameFile(const std::string& source, const std::string& target) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(source));
    MR_ASSIGN_OR_RETURN(FileSystem* const others, FilesOf(target));
    if (files != others) {
      return InvalidArgument("File '", source, "': a new name must have the same scheme, got '",
                             target, "'; copy the file");
    }
    return files->RenameFile(OwnName(source), OwnName(target));
  }
  Status SyncDirectory(const std::string& directory) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(directory));
    return files->SyncDirectory(OwnName(directory));
  }
  bool FilesAppearWhole(const std::string& path) override {
    const StatusOr<FileSystem*> files = FilesOf(path);
    return files.ok() && (*files)->FilesAppearWhole(OwnName(path));
  }
  StatusOr<std::unique_ptr<FileLock>> TryLockFile(const std::string& path,
                                                  absl::string_view holder) override {
    MR_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(path));
    return files->TryLockFile(OwnName(path), holder);
  }
};

}  // namespace

Status WritableFile::WriteAt(uint64_t offset, absl::string_view data) {
  return FailedPrecondition("a file must be opened for writing anywhere to get ", data.size(),
                            " bytes at offset ", offset, ", got one that only grows");
}

StatusOr<std::unique_ptr<WritableFile>> FileSystem::NewExclusiveFile(const std::string& path) {
  if (FileExists(path)) {
    return absl::AlreadyExistsError(absl::StrCat("File '", path, "': create: exists already"));
  }
  return NewWritableFile(path);
}

StatusOr<std::unique_ptr<FileLock>> FileSystem::TryLockFile(const std::string& path,
                                                            absl::string_view) {
  return Unimplemented("File '", path, "': lock: this file system has no locks");
}

FileSystem* FileSystem::Posix() {
  static PosixFileSystem* const file_system = new PosixFileSystem;
  return file_system;
}

FileSystem* FileSystem::Default() {
  static ByScheme* const file_system = new ByScheme;
  return file_system;
}

absl::string_view PathScheme(absl::string_view path) {
  const size_t end = path.find(kSchemeEnd);
  if (end == absl::string_view::npos || end == 0) return "";
  if (!absl::ascii_isalpha(static_cast<unsigned char>(path[0]))) return "";
  for (const char c : path.substr(0, end)) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '+' && c != '-' && c != '.')
      return "";
  }
  return path.substr(0, end);
}

void RegisterFileScheme(absl::string_view scheme, FileSystem* file_system) {
  Schemes& schemes = Schemes::Of();
  const MutexLock lock(&schemes.mu);
  schemes.by_name[std::string(scheme)] = file_system;
}

Status CheckPathScheme(absl::string_view path) { return FilesOf(path).status(); }

StatusOr<std::string> ReadFileToString(FileSystem* fs, const std::string& path,
                                       uint64_t max_bytes) {
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, fs->NewRandomAccessFile(path));
  if (file->size() > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("File '", path, "': size must be at most ",
                                                     max_bytes, " bytes, got ", file->size()));
  }
  const size_t size = static_cast<size_t>(file->size());
  std::string contents;
  contents.reserve(size);
  while (contents.size() < size) {
    const size_t begin = contents.size();
    const size_t n = std::min(size - begin, kReadPiece);
    contents.resize(begin + n);  // piece by piece, for it touches new pages
    MR_RETURN_IF_ERROR(file->Read(begin, n, contents.data() + begin));
    PacePoint();
  }
  return contents;
}

Status WriteFileAtomically(FileSystem* fs, const std::string& path, absl::string_view data) {
  if (fs->FilesAppearWhole(path)) {
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs->NewWritableFile(path));
    MR_RETURN_IF_ERROR(file->Append(data));
    return file->Close();
  }
  const std::string temporary = absl::StrCat(path, ".tmp", RandomHexName());
  const Status status = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs->NewExclusiveFile(temporary));
    MR_RETURN_IF_ERROR(file->Append(data));
    MR_RETURN_IF_ERROR(file->Sync());
    MR_RETURN_IF_ERROR(file->Close());
    return fs->RenameFile(temporary, path);
  }();
  if (!status.ok()) {
    if (fs->FileExists(temporary)) fs->DeleteFile(temporary).IgnoreError();
    return status;
  }
  return fs->SyncDirectory(Dirname(path));
}

bool IsAbsolutePath(absl::string_view path) {
  return !path.empty() && (path[0] == '/' || !PathScheme(path).empty());
}

std::string JoinPath(absl::string_view a, absl::string_view b) {
  if (a.empty() || IsAbsolutePath(b)) return std::string(b);
  if (b.empty() || a.back() == '/') return absl::StrCat(a, b);
  return absl::StrCat(a, "/", b);
}

std::string Dirname(absl::string_view path) {
  const absl::string_view scheme = PathScheme(path);
  // What ends no directory: the slashes of "s3://".
  const size_t first = scheme.empty() ? 0 : scheme.size() + kSchemeEnd.size();
  size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return "";
  if (!scheme.empty() && slash < first) return std::string(path);
  while (slash > first && path[slash - 1] == '/') --slash;
  return std::string(path.substr(0, slash == 0 ? 1 : slash));
}

std::string Basename(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

}  // namespace millrace
