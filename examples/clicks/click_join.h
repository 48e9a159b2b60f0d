// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_CLICKS_CLICK_JOIN_H_
#define MILLRACE_EXAMPLES_CLICKS_CLICK_JOIN_H_

// ClickJoin: what people were shown and what they clicked, joined with who they are, added up by
// region; and the joined rows as examples to train on. All of it larger than memory.
//
//   impressions: impression_id, user_id, ad      clicks: impression_id      users: user_id, region
//
//   1. impressions and clicks are sorted together by impression_id: an impression is clicked when a
//      click of its id stands next to it;
//   2. the result and the users are sorted together by user_id: that gives each its region;
//   3. counts are added up by region.
//
// Each sort goes through temporary files where memory does not suffice (data/external_sort.h), so
// rows may come in any order, and results do not depend on it.
//
// Rows without a partner are counted, not errors: logs are cut at midnight. Impressions of users
// that nobody knows are of region "". A user that is there twice is InvalidArgument.
//
// Thread-safety: thread-compatible. Failure: of the sorts and of `examples`.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "data/external_sort.h"
#include "data/spilling_counter.h"

namespace millrace {

struct JoinedClick {
  absl::string_view user_id, region, ad;
  bool clicked = false;
};
struct RegionCounts {
  std::string region;
  int64_t impressions = 0, clicks = 0, users = 0;
};
struct ClickTotals {
  int64_t impressions = 0, clicks = 0, users = 0;
  int64_t repeated_impressions = 0;  // of an id that was there: left out
  int64_t repeated_clicks = 0;       // on an impression that was clicked: left out
  int64_t orphan_clicks = 0;         // of no impression: left out
  int64_t unknown_users = 0;         // who have impressions
};

class ClickJoin {
 public:
  explicit ClickJoin(const data::ExternalSortOptions& memory);

  Status AddImpression(absl::string_view impression_id, absl::string_view user_id,
                       absl::string_view ad);
  Status AddClick(absl::string_view impression_id);
  Status AddUser(absl::string_view user_id, absl::string_view region);

  // Once. Calls `example` for each impression, by user and then by ad, and `region` for each
  // region, by its name.
  Status Run(const std::function<Status(const JoinedClick&)>& example,
             const std::function<Status(const RegionCounts&)>& region);
  const ClickTotals& totals() const { return totals_; }
  // Sorted runs that went through temporary files.
  int64_t num_runs() const { return by_impression_.num_runs() + by_user_.num_runs(); }

 private:
  Status JoinImpressions();
  Status JoinUsers(const std::function<Status(const JoinedClick&)>& example);

  data::ExternalSort by_impression_, by_user_;
  data::SpillingCounter by_region_;
  ClickTotals totals_;
  std::string record_;
};

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_CLICKS_CLICK_JOIN_H_
