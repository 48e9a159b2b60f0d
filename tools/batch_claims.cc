// SPDX-License-Identifier: Apache-2.0
#include "tools/batch_claims.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/random_bits.h"

namespace millrace {
namespace {

constexpr char kBeat[] = ".", kGivenUp[] = "!";
// Beats in the time after which a claim is silent: some may be late.
constexpr int kBeatsInTakeover = 5;

absl::string_view HolderIn(absl::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace

BatchClaim::~BatchClaim() {
  if (file_ == nullptr) return;
  if (file_->Append(kGivenUp).ok()) file_->Close().IgnoreError();
}

void BatchClaim::Beat() {
  const absl::Time now = clock_->Now();
  if (now - beaten_ < period_) return;
  beaten_ = now;
  // Synced: only then do other machines see it.
  if (file_->Append(kBeat).ok()) file_->Sync().IgnoreError();
}

BatchClaims::BatchClaims(FileSystem* fs, std::string directory, std::string holder,
                         absl::Duration takeover, Clock* clock)
    : fs_(fs),
      directory_(std::move(directory)),
      holder_(std::move(holder)),
      token_(RandomHexName()),
      takeover_(takeover),
      clock_(clock) {}

std::string BatchClaims::PathOf(const std::string& item, int number) const {
  return JoinPath(directory_, absl::StrFormat("%s.%05d", item, number));
}

Status BatchClaims::Look(absl::FunctionRef<bool(absl::string_view item)> open) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->GetChildren(directory_));
  for (const std::string& name : names) {
    const size_t dot = name.rfind('.');
    int number = 0;
    if (dot == std::string::npos || !absl::SimpleAtoi(name.substr(dot + 1), &number)) continue;
    Seen& seen = seen_[name.substr(0, dot)];
    if (number > seen.number) seen = {.number = number};
  }
  const absl::Time now = clock_->Now();
  for (auto& [item, seen] : seen_) {
    if (!open(item)) continue;
    MR_ASSIGN_OR_RETURN(std::string text, ReadFileToString(fs_, PathOf(item, seen.number)));
    if (seen.is_read && text == seen.text) continue;
    seen = {.number = seen.number, .is_read = true, .text = std::move(text), .since = now};
  }
  return absl::OkStatus();
}

bool BatchClaims::IsFree(const std::string& item) const {
  const auto found = seen_.find(item);
  if (found == seen_.end()) return true;
  const Seen& seen = found->second;
  if (!seen.is_read) return false;
  const bool is_own = HolderIn(seen.text) == holder_ && !absl::StrContains(seen.text, token_);
  return is_own || absl::EndsWith(seen.text, kGivenUp) || clock_->Now() - seen.since >= takeover_;
}

std::string BatchClaims::HolderOf(const std::string& item) const {
  const auto found = seen_.find(item);
  if (found == seen_.end()) return "";
  const absl::string_view holder = HolderIn(found->second.text);
  return holder.empty() ? "another task" : std::string(holder);
}

absl::Time BatchClaims::LastSignOf(const std::string& item) const {
  const auto found = seen_.find(item);
  return found == seen_.end() || !found->second.is_read ? absl::InfinitePast()
                                                        : found->second.since;
}

StatusOr<std::optional<BatchClaim>> BatchClaims::TryClaim(const std::string& item) {
  if (!IsFree(item)) return std::optional<BatchClaim>();
  Seen& seen = seen_[item];
  const std::string text = absl::StrCat(holder_, "\n", token_, "\n");
  StatusOr<std::unique_ptr<WritableFile>> file =
      fs_->NewExclusiveFile(PathOf(item, seen.number + 1));
  // Whoever created it: it is another file than the one that was read.
  seen = {.number = seen.number + 1};
  if (absl::IsAlreadyExists(file.status())) return std::optional<BatchClaim>();
  MR_RETURN_IF_ERROR(file.status());
  MR_RETURN_IF_ERROR((*file)->Append(text));
  MR_RETURN_IF_ERROR((*file)->Sync());
  return std::make_optional<BatchClaim>(*std::move(file), takeover_ / kBeatsInTakeover, clock_);
}

}  // namespace millrace
