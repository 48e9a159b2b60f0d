// SPDX-License-Identifier: Apache-2.0
//
// The join against one in memory, and the program on small logs and on one that is larger than what
// it may take.
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/peak_memory.h"
#include "core/testing/tensor_testing.h"
#include "data/row_files.h"
#include "examples/clicks/click_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"

// covers: article 4-1, 4-2: impressions, clicks and users are joined and added up by region, in
//   less memory than they take, whatever the order of the rows

namespace millrace {
namespace {

using ::testing::HasSubstr;

FileSystem* const kFiles = FileSystem::Posix();

class Clicks : public ::testing::Test {
 protected:
  Clicks() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("clicks_", RandomHexName()))) {
    EXPECT_OK(kFiles->RecursivelyCreateDirectory(dir_));
  }
  ~Clicks() override { kFiles->RecursivelyDelete(dir_).IgnoreError(); }
  void Write(const std::string& name, const std::string& text) const {
    EXPECT_OK(WriteFileAtomically(kFiles, JoinPath(dir_, name), text));
  }
  std::string Read(const std::string& name) const {
    const auto text = ReadFileToString(kFiles, JoinPath(dir_, name));
    EXPECT_OK(text.status());
    return text.value_or("");
  }
  // "$" is the test's directory.
  std::string WithDirectory(std::string flags) const {
    for (size_t at; (at = flags.find('$')) != std::string::npos;) flags.replace(at, 1, dir_);
    return flags;
  }
  // The program's exit code and what it says.
  std::pair<int, std::string> Run(const std::string& flags) const {
    FILE* const pipe =
        popen(absl::StrCat("examples/clicks/clicks ", WithDirectory(flags), " 2>&1").c_str(), "r");
    std::string text;
    char buffer[4096];
    for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
    return {WEXITSTATUS(pclose(pipe)), text};
  }

  const std::string dir_;
};

// Rows as "user region ad clicked" and regions as "region impressions clicks users".
struct Joined {
  std::vector<std::string> examples, regions;
  ClickTotals totals;
  int64_t num_runs = 0;
};

TEST_F(Clicks, JoinAsInMemoryWhateverFits) {
  std::mt19937_64 random(11);
  struct Impression {
    std::string user, ad;
  };
  std::map<std::string, Impression> impressions;
  std::map<std::string, int> clicks;
  std::map<std::string, std::string> users;
  std::vector<std::pair<std::string, Impression>> impression_rows;
  std::vector<std::string> click_rows;
  for (int i = 0; i < 400; ++i) {
    users[absl::StrCat("u", i)] = absl::StrCat("region ", random() % 7);
  }
  for (int i = 0; i < 6000; ++i) {
    const std::string id = absl::StrCat("i", random() % 100'000);
    // Some users are not known.
    const Impression one = {absl::StrCat("u", random() % 440), absl::StrCat("ad", random() % 20)};
    if (!impressions.emplace(id, one).second) continue;
    impression_rows.emplace_back(id, one);
    if (random() % 4 == 0) {
      const int times = random() % 5 == 0 ? 2 : 1;
      for (int k = 0; k < times; ++k) click_rows.push_back(id);
      clicks[id] = times;
    }
  }
  for (int i = 0; i < 50; ++i) click_rows.push_back(absl::StrCat("orphan", i));
  // In memory.
  std::multiset<std::string> examples;
  std::map<std::string, std::vector<int64_t>> regions;
  std::map<std::string, std::set<std::string>> users_of;
  for (const auto& [id, one] : impressions) {
    const auto user = users.find(one.user);
    const std::string region = user == users.end() ? "" : user->second;
    const bool clicked = clicks.count(id) == 1;
    examples.insert(absl::StrCat(one.user, " ", region, " ", one.ad, " ", clicked));
    std::vector<int64_t>& sums = regions.emplace(region, std::vector<int64_t>{0, 0}).first->second;
    ++sums[0];
    if (clicked) ++sums[1];
    users_of[region].insert(one.user);
  }

  std::vector<std::string> first_order;
  for (const size_t max_bytes : {size_t{64} << 20, size_t{60} << 10}) {
    std::shuffle(impression_rows.begin(), impression_rows.end(), random);
    std::shuffle(click_rows.begin(), click_rows.end(), random);
    ClickJoin join({.max_bytes = max_bytes, .directory = dir_});
    for (const std::string& id : click_rows) ASSERT_OK(join.AddClick(id));
    for (const auto& [id, one] : impression_rows) {
      ASSERT_OK(join.AddImpression(id, one.user, one.ad));
    }
    for (const auto& [user, region] : users) ASSERT_OK(join.AddUser(user, region));
    std::vector<std::string> order;
    std::map<std::string, std::vector<int64_t>> got;
    ASSERT_OK(join.Run(
        [&](const JoinedClick& one) {
          order.push_back(
              absl::StrCat(one.user_id, " ", one.region, " ", one.ad, " ", one.clicked));
          return absl::OkStatus();
        },
        [&](const RegionCounts& counts) {
          got[counts.region] = {counts.impressions, counts.clicks};
          EXPECT_EQ(counts.users, static_cast<int64_t>(users_of[counts.region].size()));
          return absl::OkStatus();
        }));
    EXPECT_EQ(got, regions);
    EXPECT_EQ(std::multiset<std::string>(order.begin(), order.end()), examples);
    if (first_order.empty()) first_order = order;
    EXPECT_EQ(order, first_order) << "whatever the order of the rows";
    EXPECT_EQ(join.num_runs() > 0, max_bytes < size_t{1} << 20);
    EXPECT_EQ(join.totals().orphan_clicks, 50);
    int64_t repeated = 0;
    for (const auto& [id, times] : clicks) repeated += times - 1;
    EXPECT_EQ(join.totals().repeated_clicks, repeated);
    EXPECT_EQ(join.totals().unknown_users, static_cast<int64_t>(users_of[""].size()));
  }
  EXPECT_EQ(kFiles->GetChildren(dir_)->size(), 0u);
}

TEST_F(Clicks, OneUserTwiceIsRefusedOneImpressionTwiceIsCounted) {
  const auto none = [](const auto&) { return absl::OkStatus(); };
  ClickJoin twice({.directory = dir_});
  ASSERT_OK(twice.AddUser("u", "north"));
  ASSERT_OK(twice.AddUser("u", "south"));
  EXPECT_STATUS(twice.Run(none, none), absl::StatusCode::kInvalidArgument,
                "users: user_id 'u' must be there once, got it twice");
  ClickJoin join({.directory = dir_});
  ASSERT_OK(join.AddImpression("i", "u", "a"));
  ASSERT_OK(join.AddImpression("i", "u", "a"));
  ASSERT_OK(join.Run(none, none));
  EXPECT_EQ(join.totals().impressions, 1);
  EXPECT_EQ(join.totals().repeated_impressions, 1);
}

TEST_F(Clicks, TheProgramWritesRegionsAndExamples) {
  Write("impressions-1.csv",
        "impression_id,user_id,ad,time\ni1,ann,shoes,1\ni2,bob,shoes,2\ni3,ann,hats,3\n");
  Write("impressions-2.csv", "impression_id,user_id,ad,time\ni4,cleo,hats,4\ni5,zoe,hats,5\n");
  Write("clicks.csv", "time,impression_id\n9,i3\n9,i2\n9,i3\n9,i9\n");
  Write("users.csv", "user_id,region\nann,north\nbob,\"south,\nfar\"\ncleo,north\ndan,east\n");
  const auto [code, text] =
      Run("--impressions='$/impressions-*.csv' --clicks=$/clicks.csv --users=$/users.csv "
          "--regions=$/out/regions.csv --examples=$/out/examples --examples_compression=GZIP");
  EXPECT_EQ(code, 0) << text;
  EXPECT_THAT(text, HasSubstr("5 impressions, 2 clicks, 4 users"));
  EXPECT_THAT(text,
              HasSubstr("0 repeated impressions, 1 repeated clicks, 1 clicks of no impression; "
                        "1 users with impressions are unknown"));
  EXPECT_EQ(Read("out/regions.csv"),
            "region,impressions,clicks,users,ctr\n"
            ",1,0,1,0.000000\n"
            "north,3,1,2,0.333333\n"
            "\"south,\nfar\",1,1,1,1.000000\n");
  ASSERT_OK_AND_ASSIGN(const auto rows,
                       data::RowFiles::Open({JoinPath(dir_, "out/examples")},
                                            {.format = data::RowFormat::kExamples}));
  std::vector<std::string> examples;
  while (*rows->Next()) {
    tensorflow::Example example;
    ASSERT_TRUE(example.ParseFromString(std::string(rows->row())));
    const auto& features = example.features().feature();
    examples.push_back(absl::StrCat(features.at("user_id").bytes_list().value(0), " ",
                                    features.at("region").bytes_list().value(0), " ",
                                    features.at("ad").bytes_list().value(0), " ",
                                    features.at("clicked").int64_list().value(0)));
  }
  EXPECT_EQ(examples, (std::vector<std::string>{"ann north hats 1", "ann north shoes 0",
                                                "bob south,\nfar shoes 1", "cleo north hats 0",
                                                "zoe  hats 0"}));
}

TEST_F(Clicks, TheProgramTakesTheMemoryThatItMay) {
  Write("users.csv", "user_id,region\nu1,north\n");
  Write("clicks.csv", "impression_id\n");
  Write("one.csv", "impression_id,user_id,ad\ni,u1,a\n");
  const auto peak_mb = [&](const std::string& flags) {
    return PeakMemoryOf(absl::StrCat(
        "examples/clicks/clicks ",
        WithDirectory("--clicks=$/clicks.csv --users=$/users.csv --regions=$/regions.csv "),
        WithDirectory(flags)));
  };
  const int64_t base_mb = peak_mb("--impressions=$/one.csv");
  {
    std::string text = "impression_id,user_id,ad\n";
    for (int i = 0; i < 600'000; ++i) {
      absl::StrAppend(&text, "impression ", i, ",a user with a long name ", i % 300'000,
                      ",an ad\n");
    }
    ASSERT_GT(text.size(), size_t{30} << 20);
    Write("many.csv", text);
  }
  EXPECT_LT(peak_mb("--impressions=$/many.csv --max_memory_mb=6 --temp_dir=$/temp"),
            base_mb + 6 + 10);
  EXPECT_EQ(kFiles->GetChildren(JoinPath(dir_, "temp"))->size(), 0u);
  const std::string regions = "region,impressions,clicks,users,ctr\n,600000,0,300000,0.000000\n";
  EXPECT_EQ(Read("regions.csv"), regions);
  EXPECT_GT(peak_mb("--impressions=$/many.csv --max_memory_mb=1000"), base_mb + 40);
  EXPECT_EQ(Read("regions.csv"), regions);
}

TEST_F(Clicks, TheProgramSaysWhatIsWrong) {
  Write("impressions.csv", "impression_id,user_id,ad\ni1,u1,a\n");
  Write("clicks.csv", "impression_id\ni1\n\n");
  Write("users.csv", "user,region\nu1,north\n");
  const std::string flags =
      "--impressions=$/impressions.csv --clicks=$/clicks.csv --users=$/users.csv "
      "--regions=$/regions.csv ";
  for (const auto& [more, message] : std::vector<std::pair<std::string, std::string>>{
           {"", absl::StrCat("'", dir_, "/clicks.csv' line 3: a record must have 1 fields, got 0")},
           {"--clicks=$/impressions.csv", "--users: column 'user_id' must be one of user, region"},
           {"--clicks=", "--clicks must name files, got ''"},
           {"--clicks='$/none*'", "it must name files, got none"},
           {"--max_memory_mb=0", "--max_memory_mb must be in [1,"},
       }) {
    const auto [code, text] = Run(absl::StrCat(flags, more));
    EXPECT_EQ(code, 1) << more;
    EXPECT_THAT(text, HasSubstr(message)) << more;
  }
  EXPECT_FALSE(kFiles->FileExists(JoinPath(dir_, "regions.csv")));
}

}  // namespace
}  // namespace millrace
