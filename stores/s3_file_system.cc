// SPDX-License-Identifier: Apache-2.0
#include "stores/s3_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/logging.h"
#include "stores/s3_credentials.h"
#include "stores/s3_file.h"

namespace millrace {
namespace {

constexpr size_t kMostDeletes = 1000;  // of one request

Status NoDirectory(const S3Path& path) {
  return absl::NotFoundError(
      absl::StrCat("File '", path.ToString(), "': must exist, got no such object or directory"));
}

Status IsADirectory(const S3Path& path) {
  return FailedPrecondition("File '", path.ToString(), "': must be a file, got a directory");
}

// The path of a file to write: a key, not a bucket or "a/".
StatusOr<S3Path> FileToWrite(const std::string& path) {
  MR_ASSIGN_OR_RETURN(S3Path parsed, ParseS3Path(path));
  if (parsed.key.empty() || path.back() == '/') return IsADirectory(parsed);
  return parsed;
}

std::string PrefixOf(const S3Path& path) {
  return path.key.empty() ? "" : absl::StrCat(path.key, "/");
}

std::string NameMade(const S3Path& path) { return absl::StrCat(path.bucket, "/", PrefixOf(path)); }

int64_t DepthOf(const std::string& name) { return std::count(name.begin(), name.end(), '/'); }

void SortByDepth(std::vector<std::string>* names) {
  std::stable_sort(names->begin(), names->end(), [](const std::string& a, const std::string& b) {
    return DepthOf(a) < DepthOf(b);
  });
}

}  // namespace

S3Service* S3FileSystem::Service() {
  std::call_once(once_, [this] {
    service_ = std::make_unique<S3Service>(options_.has_value() ? *options_
                                                                : S3OptionsOf(ProcessEnvironment));
  });
  return service_.get();
}

bool S3FileSystem::WasMade(const S3Path& path) {
  const std::string name = NameMade(path);
  const MutexLock lock(&mu_);
  const auto found = made_.lower_bound(name);
  return found != made_.end() && absl::StartsWith(*found, name);
}

void S3FileSystem::Forget(const S3Path& path) {
  const std::string name = NameMade(path);
  const MutexLock lock(&mu_);
  auto found = made_.lower_bound(name);
  while (found != made_.end() && absl::StartsWith(*found, name)) found = made_.erase(found);
}

StatusOr<bool> S3FileSystem::HasObjects(const S3Path& path) {
  MR_ASSIGN_OR_RETURN(const S3Listing listing,
                      Service()->List({path.bucket, PrefixOf(path)}, false, "", 1));
  return !listing.objects.empty();
}

StatusOr<S3Object> S3FileSystem::Find(const S3Path& path) {
  if (path.key.empty()) return IsADirectory(path);
  StatusOr<S3Object> object = Service()->Head(path);
  if (!absl::IsNotFound(object.status())) return object;
  if (WasMade(path)) return IsADirectory(path);
  const StatusOr<bool> is_directory = HasObjects(path);
  // A bucket that is missing says so here: an answer to HEAD cannot.
  MR_RETURN_IF_ERROR(is_directory.status());
  return *is_directory ? IsADirectory(path) : NoDirectory(path);
}

StatusOr<std::unique_ptr<WritableFile>> S3FileSystem::NewWritableFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(S3Path parsed, FileToWrite(path));
  return std::make_unique<S3WritableFile>(Service(), std::move(parsed), /*exclusive=*/false);
}

StatusOr<std::unique_ptr<WritableFile>> S3FileSystem::NewExclusiveFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(S3Path parsed, FileToWrite(path));
  const Status status = Service()->Head(parsed).status();
  if (status.ok()) {
    return absl::AlreadyExistsError(absl::StrCat("File '", path, "': create: exists already"));
  }
  if (!absl::IsNotFound(status)) return status;
  return std::make_unique<S3WritableFile>(Service(), std::move(parsed), /*exclusive=*/true);
}

StatusOr<std::unique_ptr<WritableFile>> S3FileSystem::NewAppendableFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(S3Path parsed, FileToWrite(path));
  const StatusOr<S3Object> object = Service()->Head(parsed);
  std::string bytes;
  if (object.ok() && object->size > 0) {
    if (object->size > Service()->options().max_held_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "File '", path, "': a file that is appended must have at most ",
          Service()->options().max_held_bytes, " bytes in a store, got ", object->size));
    }
    MR_ASSIGN_OR_RETURN(bytes, Service()->Get(parsed, 0, object->size, object->etag));
  } else if (!object.ok() && !absl::IsNotFound(object.status())) {
    return object.status();
  }
  return std::make_unique<S3AppendableFile>(Service(), std::move(parsed), std::move(bytes));
}

StatusOr<std::unique_ptr<RandomAccessFile>> S3FileSystem::NewRandomAccessFile(
    const std::string& path) {
  MR_ASSIGN_OR_RETURN(S3Path parsed, ParseS3Path(path));
  MR_ASSIGN_OR_RETURN(S3Object object, Find(parsed));
  return std::make_unique<S3RandomAccessFile>(Service(), std::move(parsed), std::move(object));
}

bool S3FileSystem::FileExists(const std::string& path) {
  const StatusOr<bool> found = IsDirectory(path);
  if (!found.ok() && !absl::IsNotFound(found.status())) {
    LogWarning("S3: whether a file exists must be known, got '", found.status().message(), "'");
  }
  return found.ok();
}

StatusOr<bool> S3FileSystem::IsDirectory(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(path));
  if (parsed.key.empty()) {
    MR_RETURN_IF_ERROR(HasObjects(parsed).status());
    return true;
  }
  const Status status = Find(parsed).status();
  if (status.ok()) return false;
  if (absl::IsFailedPrecondition(status) &&
      (WasMade(parsed) || HasObjects(parsed).value_or(false))) {
    return true;
  }
  return status;
}

StatusOr<uint64_t> S3FileSystem::GetFileSize(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(path));
  MR_ASSIGN_OR_RETURN(const S3Object object, Find(parsed));
  return object.size;
}

StatusOr<double> S3FileSystem::GetModificationTime(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(path));
  const auto seconds = [](absl::Time time) {
    return absl::ToDoubleSeconds(time - absl::UnixEpoch());
  };
  if (!parsed.key.empty()) {
    const StatusOr<S3Object> object = Service()->Head(parsed);
    if (object.ok()) return seconds(object->modified);
    if (!absl::IsNotFound(object.status())) return object.status();
  }
  // A directory: its youngest file, of a thousand. Nobody takes a live one for an old one.
  MR_ASSIGN_OR_RETURN(const S3Listing listing,
                      Service()->List({parsed.bucket, PrefixOf(parsed)}, false, ""));
  if (listing.objects.empty()) {
    if (!WasMade(parsed) && !parsed.key.empty()) return NoDirectory(parsed);
    return seconds(Service()->clock()->Now());
  }
  absl::Time newest = absl::UnixEpoch();
  for (const auto& [key, object] : listing.objects) newest = std::max(newest, object.modified);
  return seconds(newest);
}

StatusOr<std::vector<std::string>> S3FileSystem::GetChildren(const std::string& directory) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(directory));
  const std::string prefix = PrefixOf(parsed);
  std::set<std::string> names;
  bool exists = parsed.key.empty();
  std::string token;
  do {
    MR_ASSIGN_OR_RETURN(const S3Listing listing,
                        Service()->List({parsed.bucket, prefix}, true, token));
    for (const auto& [key, object] : listing.objects) {
      exists = true;
      // The prefix itself: what other programs write for a directory.
      if (key.size() > prefix.size()) names.insert(key.substr(prefix.size()));
    }
    for (const std::string& below : listing.prefixes) {
      exists = true;
      const absl::string_view name =
          absl::StripSuffix(absl::string_view(below).substr(prefix.size()), "/");
      if (!name.empty()) names.insert(std::string(name));
    }
    token = listing.next;
  } while (!token.empty());
  {
    const std::string made = NameMade(parsed);
    const MutexLock lock(&mu_);
    for (auto it = made_.lower_bound(made); it != made_.end() && absl::StartsWith(*it, made);
         ++it) {
      exists = true;
      const std::string rest = it->substr(made.size());
      if (!rest.empty()) names.insert(rest.substr(0, rest.find('/')));
    }
  }
  if (!exists) {
    if (Service()->Head(parsed).ok()) {
      return FailedPrecondition("File '", directory, "': must be a directory, got a file");
    }
    return NoDirectory(parsed);
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Status S3FileSystem::CreateDirectory(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(path));
  const Status status = IsDirectory(path).status();
  if (status.ok()) {
    return absl::AlreadyExistsError(absl::StrCat("File '", path, "': create: exists already"));
  }
  if (!absl::IsNotFound(status)) return status;
  const MutexLock lock(&mu_);
  made_.insert(NameMade(parsed));
  return absl::OkStatus();
}

Status S3FileSystem::RecursivelyCreateDirectory(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(path));
  if (WasMade(parsed)) return absl::OkStatus();
  const StatusOr<bool> found = IsDirectory(path);
  if (found.ok() && !*found) {
    return FailedPrecondition("File '", path, "': must be a directory, got a file");
  }
  if (found.ok()) return absl::OkStatus();
  if (!absl::IsNotFound(found.status())) return found.status();
  const MutexLock lock(&mu_);
  made_.insert(NameMade(parsed));
  return absl::OkStatus();
}

Status S3FileSystem::DeleteFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(path));
  MR_RETURN_IF_ERROR(Find(parsed).status());  // a store deletes what is not there
  return Service()->Delete(parsed.bucket, {parsed.key});
}

Status S3FileSystem::DeleteDirectory(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(path));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, GetChildren(path));
  if (!names.empty()) {
    return FailedPrecondition("File '", path, "': a directory must be empty, got '", names[0],
                              "' in it");
  }
  Forget(parsed);
  // What other programs write for a directory.
  return parsed.key.empty() ? absl::OkStatus()
                            : Service()->Delete(parsed.bucket, {PrefixOf(parsed)});
}

StatusOr<std::vector<std::string>> S3FileSystem::AllBelow(const S3Path& path) {
  const std::string prefix = PrefixOf(path);
  std::vector<std::string> names;
  std::string token;
  do {
    MR_ASSIGN_OR_RETURN(const S3Listing listing,
                        Service()->List({path.bucket, prefix}, false, token));
    for (const auto& [key, object] : listing.objects) names.push_back(key.substr(prefix.size()));
    token = listing.next;
  } while (!token.empty());
  return names;
}

Status S3FileSystem::DeleteBelow(const S3Path& path, std::vector<std::string> names) {
  SortByDepth(&names);
  std::vector<std::string> keys;
  for (size_t i = 0; i < names.size(); ++i) {
    keys.push_back(PrefixOf(path) + names[i]);
    const bool is_last = i + 1 == names.size() || DepthOf(names[i]) != DepthOf(names[i + 1]);
    if (!is_last && keys.size() < kMostDeletes) continue;
    MR_RETURN_IF_ERROR(Service()->Delete(path.bucket, keys));
    keys.clear();
  }
  return absl::OkStatus();
}

Status S3FileSystem::RecursivelyDelete(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const S3Path parsed, ParseS3Path(path));
  MR_ASSIGN_OR_RETURN(const bool is_directory, IsDirectory(path));
  if (!is_directory) return Service()->Delete(parsed.bucket, {parsed.key});
  MR_ASSIGN_OR_RETURN(std::vector<std::string> names, AllBelow(parsed));
  MR_RETURN_IF_ERROR(DeleteBelow(parsed, std::move(names)));
  Forget(parsed);
  return absl::OkStatus();
}

Status S3FileSystem::RenameFile(const std::string& source, const std::string& target) {
  MR_ASSIGN_OR_RETURN(const S3Path from, ParseS3Path(source));
  MR_ASSIGN_OR_RETURN(const S3Path to, FileToWrite(target));
  if (from.bucket == to.bucket && from.key == to.key) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const bool is_directory, IsDirectory(source));
  if (!is_directory) {
    MR_RETURN_IF_ERROR(Service()->Copy(from, to));
    return Service()->Delete(from.bucket, {from.key});
  }
  if (absl::StartsWith(PrefixOf(to), PrefixOf(from)) && from.bucket == to.bucket) {
    return InvalidArgument("File '", source, "': a directory's new name must be outside of it, ",
                           "got '", target, "'");
  }
  MR_ASSIGN_OR_RETURN(const bool is_taken, HasObjects(to));
  if (is_taken) {
    return FailedPrecondition("File '", target, "': a directory to replace must be empty, got one ",
                              "with objects");
  }
  MR_ASSIGN_OR_RETURN(std::vector<std::string> names, AllBelow(from));
  SortByDepth(&names);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    MR_RETURN_IF_ERROR(
        Service()->Copy({from.bucket, PrefixOf(from) + *name}, {to.bucket, PrefixOf(to) + *name}));
  }
  MR_RETURN_IF_ERROR(DeleteBelow(from, std::move(names)));
  if (WasMade(from)) {
    const MutexLock lock(&mu_);
    made_.insert(NameMade(to));
  }
  Forget(from);
  return absl::OkStatus();
}

}  // namespace millrace
