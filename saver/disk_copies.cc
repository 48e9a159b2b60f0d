// SPDX-License-Identifier: Apache-2.0
#include "saver/disk_copies.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/paced_thread.h"

namespace millrace {
namespace {

// What is copied at a time: a file may be larger than what is worth holding twice.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

}  // namespace

Status CopyBytes(const RandomAccessFile& from, WritableFile* to) {
  std::string piece;
  for (uint64_t done = 0; done < from.size(); done += piece.size()) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, from.size() - done)));
    MR_RETURN_IF_ERROR(from.Read(done, piece.size(), piece.data()));
    MR_RETURN_IF_ERROR(to->Append(piece));
    PacePoint();
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<DiskCopies>> DiskCopies::Make() {
  const char* const given = std::getenv("TMPDIR");
  std::string directory =
      JoinPath(given == nullptr || *given == '\0' ? "/tmp" : given, "millrace-model-XXXXXX");
  if (::mkdtemp(directory.data()) == nullptr) {
    return FailedPrecondition("the place for copies of files must be a directory to write in, got ",
                              Dirname(directory), ": ", std::strerror(errno),
                              "; set TMPDIR to another one");
  }
  return std::unique_ptr<DiskCopies>(new DiskCopies(std::move(directory)));
}

DiskCopies::DiskCopies(std::string directory) : directory_(std::move(directory)) {}
DiskCopies::~DiskCopies() { FileSystem::Posix()->RecursivelyDelete(directory_).IgnoreError(); }

Status DiskCopies::Add(FileSystem* files, const std::string& path, const std::string& name) {
  MR_ASSIGN_OR_RETURN(const auto from, files->NewRandomAccessFile(path));
  MR_ASSIGN_OR_RETURN(const auto to,
                      FileSystem::Posix()->NewExclusiveFile(JoinPath(directory_, name)));
  MR_RETURN_IF_ERROR(CopyBytes(*from, to.get()));
  return to->Close();
}

}  // namespace millrace
