// SPDX-License-Identifier: Apache-2.0
#include "examples/clicks/click_join.h"

#include <utility>

#include "core/coding.h"

namespace millrace {
namespace {

// Records: the key that they are joined by, what they are, and the rest. Of one key the one that
// others wait for comes first.
constexpr char kImpression = '0', kClick = '1';  // by impression_id
constexpr char kUser = '0', kShown = '1';        // by user_id

// A third of the memory for each of the two sorts and the counts.
data::ExternalSortOptions Third(data::ExternalSortOptions options) {
  options.max_bytes /= 3;
  return options;
}

Status Broken() {
  return absl::DataLossError("a sorted record must be as it was written, got another");
}

// A record's key, kind and the rest.
struct Record {
  std::string key;
  char kind = 0;
  absl::string_view rest;
};
Status Read(absl::string_view bytes, Record* record) {
  if (!GetOrderedString(&bytes, &record->key) || bytes.empty()) return Broken();
  record->kind = bytes[0];
  record->rest = bytes.substr(1);
  return absl::OkStatus();
}

}  // namespace

ClickJoin::ClickJoin(const data::ExternalSortOptions& memory)
    : by_impression_(Third(memory)), by_user_(Third(memory)), by_region_(3, Third(memory)) {}

Status ClickJoin::AddImpression(absl::string_view impression_id, absl::string_view user_id,
                                absl::string_view ad) {
  record_.clear();
  PutOrderedString(&record_, impression_id);
  record_ += kImpression;
  PutOrderedString(&record_, user_id);
  record_.append(ad.data(), ad.size());
  return by_impression_.Add(record_);
}

Status ClickJoin::AddClick(absl::string_view impression_id) {
  record_.clear();
  PutOrderedString(&record_, impression_id);
  record_ += kClick;
  return by_impression_.Add(record_);
}

Status ClickJoin::AddUser(absl::string_view user_id, absl::string_view region) {
  record_.clear();
  PutOrderedString(&record_, user_id);
  record_ += kUser;
  record_.append(region.data(), region.size());
  return by_user_.Add(record_);
}

// Each impression, with whether it was clicked, goes to by_user_.
Status ClickJoin::JoinImpressions() {
  MR_RETURN_IF_ERROR(by_impression_.Finish());
  Record record;
  std::string id, user, ad;  // of the impression at hand
  bool has_impression = false, is_clicked = false;
  const auto pass_on = [&]() -> Status {
    if (!std::exchange(has_impression, false)) return absl::OkStatus();
    ++totals_.impressions;
    if (is_clicked) ++totals_.clicks;
    record_.clear();
    PutOrderedString(&record_, user);
    record_ += kShown;
    PutOrderedString(&record_, ad);
    record_ += is_clicked ? '1' : '0';
    return by_user_.Add(record_);
  };
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool more, by_impression_.Next());
    if (!more) return pass_on();
    MR_RETURN_IF_ERROR(Read(by_impression_.record(), &record));
    const bool is_same = has_impression && record.key == id;
    if (record.kind == kClick) {
      if (!is_same) {
        ++totals_.orphan_clicks;
      } else if (std::exchange(is_clicked, true)) {
        ++totals_.repeated_clicks;
      }
      continue;
    }
    if (is_same) {
      ++totals_.repeated_impressions;
      continue;
    }
    MR_RETURN_IF_ERROR(pass_on());
    id = record.key;
    if (!GetOrderedString(&record.rest, &user)) return Broken();
    ad.assign(record.rest.data(), record.rest.size());
    has_impression = true;
    is_clicked = false;
  }
}

Status ClickJoin::JoinUsers(const std::function<Status(const JoinedClick&)>& example) {
  MR_RETURN_IF_ERROR(by_user_.Finish());
  Record record;
  std::string user, region, ad;
  bool has_user = false, is_known = false, was_shown = false;
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool more, by_user_.Next());
    if (!more) return absl::OkStatus();
    MR_RETURN_IF_ERROR(Read(by_user_.record(), &record));
    const bool is_new = !has_user || record.key != user;
    if (is_new) {
      user = record.key;
      region.clear();
      has_user = true;
      is_known = was_shown = false;
    }
    if (record.kind == kUser) {
      if (is_known) {
        return InvalidArgument("users: user_id '", user, "' must be there once, got it twice");
      }
      ++totals_.users;
      region.assign(record.rest.data(), record.rest.size());
      is_known = true;
      continue;
    }
    if (!GetOrderedString(&record.rest, &ad) || record.rest.size() != 1) return Broken();
    const bool clicked = record.rest[0] == '1';
    const int64_t is_first = std::exchange(was_shown, true) ? 0 : 1;
    if (!is_known) totals_.unknown_users += is_first;
    MR_RETURN_IF_ERROR(by_region_.Add(region, {1, clicked ? 1 : 0, is_first}));
    MR_RETURN_IF_ERROR(example({.user_id = user, .region = region, .ad = ad, .clicked = clicked}));
  }
}

Status ClickJoin::Run(const std::function<Status(const JoinedClick&)>& example,
                      const std::function<Status(const RegionCounts&)>& region) {
  MR_RETURN_IF_ERROR(JoinImpressions());
  MR_RETURN_IF_ERROR(JoinUsers(example));
  MR_RETURN_IF_ERROR(by_region_.Finish());
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool more, by_region_.Next());
    if (!more) return absl::OkStatus();
    MR_RETURN_IF_ERROR(region({.region = by_region_.key(),
                               .impressions = by_region_.counts()[0],
                               .clicks = by_region_.counts()[1],
                               .users = by_region_.counts()[2]}));
  }
}

}  // namespace millrace
