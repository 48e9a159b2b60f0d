// SPDX-License-Identifier: Apache-2.0
#include "serving/version_source.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/fingerprint64.h"
#include "core/logging.h"
#include "core/paced_thread.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

constexpr char kVariablesPrefix[] = "variables/variables";

// "-1", "+9223372036854775808": a number to whoever made it, though none of a version.
bool LooksLikeNumber(absl::string_view name) {
  if (!name.empty() && (name[0] == '-' || name[0] == '+')) name.remove_prefix(1);
  return !name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

VersionSource::VersionSource(std::string model, std::string base_path, VersionPolicy policy,
                             Options options)
    : model_(std::move(model)),
      base_path_(std::move(base_path)),
      policy_(std::move(policy)),
      options_(options) {}

StatusOr<std::map<int64_t, std::string>> VersionSource::ListVersions(
    std::vector<std::string>* warnings) const {
  const auto where = [&] { return absl::StrCat("Model '", model_, "': base path"); };
  StatusOr<std::vector<std::string>> names = options_.file_system->GetChildren(base_path_);
  if (!names.ok()) return Prefixed(where(), names.status());
  if (names->size() > kMostNames) {
    return absl::ResourceExhaustedError(absl::StrCat(where(), " '", base_path_,
                                                     "' must have at most ", kMostNames,
                                                     " names, got ", names->size()));
  }
  std::map<int64_t, std::string> versions;
  for (std::string& name : *names) {
    int64_t version;
    if (!absl::SimpleAtoi(name, &version) || version < 0) {
      if (LooksLikeNumber(name)) {
        warnings->push_back(absl::StrCat("Model '", model_,
                                         "': a version must be in [0, 2^63), got '", name, "' in '",
                                         base_path_, "'; it is ignored"));
      }
      continue;
    }
    std::string& place = versions[version];
    if (!place.empty()) {
      warnings->push_back(absl::StrCat("Model '", model_, "': version ", version,
                                       " must have one directory in '", base_path_, "', got '",
                                       place, "' and '", name, "'; '", name, "' counts"));
    }
    place = std::move(name);
  }
  return versions;
}

Status VersionSource::List(FileSystem* fs, const std::string& directory,
                           const std::string& relative, int depth, Listing* listing) {
  if (depth > kMostDepth) {
    return absl::ResourceExhaustedError(absl::StrCat("'", directory, "' must be at most ",
                                                     kMostDepth, " levels deep in its version"));
  }
  MR_ASSIGN_OR_RETURN(const double changed, fs->GetModificationTime(directory));
  listing->newest = std::max(listing->newest, changed);
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->GetChildren(directory));
  for (const std::string& name : names) {
    if (++listing->num_entries > kMostFiles) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "it must have at most ", kMostFiles, " files and directories; see '", directory, "'"));
    }
    const std::string path = JoinPath(directory, name);
    const std::string inside = relative.empty() ? name : absl::StrCat(relative, "/", name);
    listing->fingerprint = FingerprintCat64(listing->fingerprint, Fingerprint64(inside));
    const StatusOr<bool> is_directory = fs->IsDirectory(path);
    // A link to nowhere, as editors leave, is no file; one that was just deleted changes the
    // listing.
    if (absl::IsNotFound(is_directory.status())) continue;
    if (listing->num_entries % 16 == 0) PacePoint();
    MR_RETURN_IF_ERROR(is_directory.status());
    if (*is_directory) {
      MR_RETURN_IF_ERROR(List(fs, path, inside, depth + 1, listing));
      continue;
    }
    MR_ASSIGN_OR_RETURN(const uint64_t size, fs->GetFileSize(path));
    MR_ASSIGN_OR_RETURN(const double time, fs->GetModificationTime(path));
    listing->newest = std::max(listing->newest, time);
    listing->fingerprint =
        FingerprintCat64(FingerprintCat64(listing->fingerprint, size), BitsOf(time));
    if (inside == kExportIsComplete) {
      listing->is_marked = size > 0;  // an empty one lists nothing: as if it were not there
      continue;                       // a marker alone is no model
    }
    ++listing->num_files;
    listing->num_bytes += size;
    if (inside == BundleIndexPath(kVariablesPrefix)) listing->has_index = true;
    if (absl::StartsWith(inside, kVariablesPrefix) &&
        IsDataSuffix(absl::string_view(inside).substr(std::strlen(kVariablesPrefix)))) {
      listing->has_data = true;
    }
  }
  return absl::OkStatus();
}

Status VersionSource::CheckVariables(const std::string& directory, const Listing& listing) const {
  if (listing.has_index) {
    MR_ASSIGN_OR_RETURN(
        const std::unique_ptr<BundleReader> bundle,
        BundleReader::Open(options_.file_system, JoinPath(directory, kVariablesPrefix)));
    return bundle->CheckFiles();
  }
  // An index is written last.
  if (listing.has_data) {
    return absl::NotFoundError(absl::StrCat("File '",
                                            JoinPath(directory, BundleIndexPath(kVariablesPrefix)),
                                            "' must be there, as the data of variables is"));
  }
  return absl::OkStatus();
}

Status VersionSource::CheckParts(const std::string& directory, const Listing& listing) const {
  MR_RETURN_IF_ERROR(CheckVariables(directory, listing));
  return listing.is_marked ? CheckExportMarker(options_.file_system, directory) : absl::OkStatus();
}

StatusOr<uint64_t> VersionSource::FingerprintOf(FileSystem* file_system,
                                                const std::string& directory) {
  Listing listing;
  MR_RETURN_IF_ERROR(List(file_system, directory, "", 1, &listing));
  return listing.fingerprint;
}

Status VersionSource::Look(int64_t version, const std::string& directory, Known* known,
                           bool* settles) const {
  *settles = false;
  const auto incomplete = [&](const Status& reason) {
    return Prefixed(absl::StrCat("Model '", model_, "' version ", version, ": not complete"),
                    reason);
  };
  Listing listing;
  if (const Status status = List(options_.file_system, directory, "", 1, &listing); !status.ok()) {
    known->is_seen = false;
    // The files come and go: what could not be found may be there next time.
    *settles = absl::IsNotFound(status);
    if (!options_.trust_new_versions || *settles) return incomplete(status);
  }
  if (!options_.trust_new_versions) {
    const absl::Time now = options_.clock->Now();
    if (!known->is_seen || known->seen != listing.fingerprint || now < known->seen_since) {
      known->is_seen = true;
      known->seen = listing.fingerprint;
      known->seen_since = now;
    }
    const absl::Duration age = now - (absl::UnixEpoch() + absl::Seconds(listing.newest));
    const bool is_quiet =
        age >= options_.settle_time || now - known->seen_since >= options_.settle_time / 2;
    if (listing.num_files == 0) {
      *settles = !listing.is_marked || !is_quiet;
      return incomplete(absl::NotFoundError(
          absl::StrCat("directory '", directory, "' must have files, got none")));
    }
    if (!known->is_checked || known->checked != listing.fingerprint) {
      known->parts = CheckParts(directory, listing);
      known->checked = listing.fingerprint;
      // Other errors may pass.
      known->is_checked =
          known->parts.ok() || absl::IsDataLoss(known->parts) || absl::IsNotFound(known->parts);
    }
    if (!known->parts.ok()) {
      // While files come, the list or the index may have come first.
      *settles = known->is_checked && !is_quiet;
      return incomplete(known->parts);
    }
    if (!listing.is_marked && !is_quiet) {
      *settles = true;
      return incomplete(absl::UnavailableError(absl::StrCat(
          "its files must not have changed for ", absl::FormatDuration(options_.settle_time),
          ", or have '", kExportIsComplete, "' among them; they changed ",
          absl::FormatDuration(absl::Trunc(age, absl::Milliseconds(1))), " ago")));
    }
  }
  known->counts = true;
  known->num_bytes = static_cast<int64_t>(listing.num_bytes);
  known->fingerprint = listing.fingerprint;
  return absl::OkStatus();
}

StatusOr<FoundVersions> VersionSource::Poll(absl::Span<const int64_t> loaded) {
  FoundVersions found;
  MR_ASSIGN_OR_RETURN(const auto versions, ListVersions(&found.warnings));
  // Gone, or under another name: then it begins anew.
  std::erase_if(known_, [&](const auto& entry) {
    const auto place = versions.find(entry.first);
    return place == versions.end() || place->second != entry.second.name;
  });

  std::vector<int64_t> asked;  // in the order in which they are looked at
  if (policy_.kind == VersionPolicy::Kind::kSpecific) {
    const std::set<int64_t> distinct(policy_.specific.begin(), policy_.specific.end());
    for (const int64_t version : distinct) {
      if (versions.contains(version)) {
        asked.push_back(version);
      } else {
        found.warnings.push_back(absl::StrCat("Model '", model_, "': version ", version,
                                              " is wanted and must be in '", base_path_,
                                              "'; it is not there"));
      }
    }
  } else {
    for (auto it = versions.rbegin(); it != versions.rend(); ++it) asked.push_back(it->first);
  }
  const size_t most = policy_.kind == VersionPolicy::Kind::kLatest
                          ? static_cast<size_t>(std::max<int64_t>(policy_.num_latest, 1))
                          : asked.size();

  for (const int64_t version : asked) {
    if (found.wanted.size() >= most) break;
    const std::string& name = versions.at(version);
    const std::string directory = JoinPath(base_path_, name);
    Known& known = known_[version];
    known.name = name;
    // What is loaded was complete, also to a source that has not seen it before.
    if (std::binary_search(loaded.begin(), loaded.end(), version)) {
      known.counts = true;
    } else {
      bool settles;
      const Status status = Look(version, directory, &known, &settles);
      const absl::Time now = options_.clock->Now();
      known.since = std::min(known.since, now);
      settles = settles && now - known.since < kSettleTimes * options_.settle_time;
      if (!known.counts) {
        found.incomplete.push_back({version, directory, status, settles});
        continue;
      }
    }
    found.wanted.push_back({version, directory, known.fingerprint, known.num_bytes});
  }
  const auto by_version = [](const auto& a, const auto& b) { return a.version < b.version; };
  std::sort(found.wanted.begin(), found.wanted.end(), by_version);
  std::sort(found.incomplete.begin(), found.incomplete.end(), by_version);
  if (versions.empty()) {
    found.warnings.push_back(absl::StrCat("Model '", model_, "': base path '", base_path_,
                                          "' must have a version, got none; nothing is served"));
  }
  Warn(found.warnings);
  return found;
}

void VersionSource::Warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    if (!warned_.contains(warning)) LogWarning(warning);
  }
  warned_ = std::set<std::string>(warnings.begin(), warnings.end());
}

}  // namespace millrace
