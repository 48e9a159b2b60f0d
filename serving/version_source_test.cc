// SPDX-License-Identifier: Apache-2.0
#include "serving/version_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "saver/bundle_paths.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VersionSourceTest : public ::testing::Test {
 protected:
  // Files are written now, by the machine's clock: at the clock of the test, an hour later, they
  // are old. AtNow() is for those that are not.
  VersionSourceTest()
      : clock_(absl::Now() + absl::Hours(1)),
        base_(JoinPath(::testing::TempDir(), "versions_" + RandomHexName())) {
    EXPECT_OK(fs_->CreateDirectory(base_));
    options_.clock = &clock_;
  }
  ~VersionSourceTest() override { fs_->RecursivelyDelete(base_).IgnoreError(); }

  void Write(const std::string& path, absl::string_view data = "model") {
    const std::string file = JoinPath(base_, path);
    EXPECT_OK(fs_->RecursivelyCreateDirectory(Dirname(file)));
    EXPECT_OK(WriteFileAtomically(fs_, file, data));
  }
  void WriteVersion(const std::string& name) { Write(name + "/saved_model.pb"); }
  void WriteVariables(const std::string& name) {
    const std::string prefix = JoinPath(base_, name + "/variables/variables");
    ASSERT_OK_AND_ASSIGN(const auto writer, BundleWriter::Open(fs_, prefix));
    EXPECT_OK(writer->Add("w", TensorOf<float>({4}, {1, 2, 3, 4})));
    EXPECT_OK(writer->Finish());
  }
  void Mark(const std::string& name) {
    EXPECT_OK(fs_->RecursivelyCreateDirectory(JoinPath(base_, name)));
    EXPECT_OK(WriteExportMarker(fs_, JoinPath(base_, name)));
  }
  std::string Data(const std::string& name) {
    return BundleDataPath(JoinPath(base_, name + "/variables/variables"), 0, 1);
  }
  // At the clock's time files that are written from here on change in the future: it is before
  // their time, as where the clock of a file server is ahead.
  VersionSource::Options AtNow() {
    young_ = std::make_unique<FakeClock>(absl::Now() - absl::Hours(1));
    VersionSource::Options options = options_;
    options.clock = young_.get();
    return options;
  }

  std::unique_ptr<VersionSource> Source(VersionPolicy policy = {}) {
    return Source(policy, options_);
  }
  std::unique_ptr<VersionSource> Source(VersionPolicy policy, VersionSource::Options options) {
    return std::make_unique<VersionSource>("m", base_, std::move(policy), options);
  }
  static std::vector<int64_t> Wanted(const StatusOr<FoundVersions>& found) {
    EXPECT_OK(found.status());
    std::vector<int64_t> versions;
    if (found.ok()) {
      for (const FoundVersion& v : found->wanted) versions.push_back(v.version);
    }
    return versions;
  }
  static VersionPolicy Latest(int64_t n) {
    return {.kind = VersionPolicy::Kind::kLatest, .num_latest = n, .specific = {}};
  }
  static VersionPolicy All() {
    return {.kind = VersionPolicy::Kind::kAll, .num_latest = 1, .specific = {}};
  }
  static VersionPolicy Specific(std::vector<int64_t> versions) {
    return {
        .kind = VersionPolicy::Kind::kSpecific, .num_latest = 1, .specific = std::move(versions)};
  }

  FileSystem* const fs_ = FileSystem::Posix();
  FakeClock clock_;
  std::unique_ptr<FakeClock> young_;
  const std::string base_;
  VersionSource::Options options_;
};

// covers: serving: versions are the numbers in the base path by SimpleAtoi; policies latest, all
// and
//   specific choose among the complete ones
TEST_F(VersionSourceTest, PoliciesChooseAmongNumbers) {
  for (const char* name : {"1", "02", "10", "temp-11", "12.tmp"}) WriteVersion(name);
  EXPECT_THAT(Wanted(Source()->Poll()), ElementsAre(10));
  EXPECT_THAT(Wanted(Source(Latest(2))->Poll()), ElementsAre(2, 10));
  EXPECT_THAT(Wanted(Source(Latest(0))->Poll()), ElementsAre(10));
  EXPECT_THAT(Wanted(Source(Latest(7))->Poll()), ElementsAre(1, 2, 10));
  EXPECT_THAT(Wanted(Source(All())->Poll()), ElementsAre(1, 2, 10));
  EXPECT_THAT(Wanted(Source(Specific({10, 1, 10}))->Poll()), ElementsAre(1, 10));

  ASSERT_OK_AND_ASSIGN(const FoundVersions found, Source(Specific({2, 3}))->Poll());
  ASSERT_EQ(found.wanted.size(), 1u);
  EXPECT_EQ(found.wanted[0].directory, JoinPath(base_, "02"));
  EXPECT_THAT(found.warnings, ElementsAre(HasSubstr("version 3 is wanted")));
}

TEST_F(VersionSourceTest, OfTwoNamesOfOneNumberTheLastCounts) {
  WriteVersion("001");
  WriteVersion("1");
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, Source()->Poll());
  ASSERT_EQ(found.wanted.size(), 1u);
  EXPECT_EQ(found.wanted[0].directory, JoinPath(base_, "1"));
  EXPECT_THAT(found.warnings, ElementsAre(HasSubstr("got '001' and '1'; '1' counts")));
}

TEST_F(VersionSourceTest, NumbersThatAreNoVersionsAreNamed) {
  for (const char* name : {"-1", "9223372036854775808", "9223372036854775807"}) WriteVersion(name);
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, Source(All())->Poll());
  ASSERT_EQ(found.wanted.size(), 1u);
  EXPECT_EQ(found.wanted[0].version, INT64_MAX);
  EXPECT_THAT(found.warnings,
              ElementsAre(HasSubstr("got '-1'"), HasSubstr("got '9223372036854775808'")));
}

TEST_F(VersionSourceTest, FileInPlaceOfFolderIsNoVersion) {
  WriteVersion("1");
  Write("2");
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, Source()->Poll());
  ASSERT_EQ(found.wanted.size(), 1u);
  EXPECT_EQ(found.wanted[0].version, 1);
  ASSERT_EQ(found.incomplete.size(), 1u);
  EXPECT_EQ(found.incomplete[0].version, 2);
  EXPECT_FALSE(found.incomplete[0].settles);
  EXPECT_STATUS(found.incomplete[0].reason, absl::StatusCode::kFailedPrecondition,
                "Model 'm' version 2: not complete");
}

// covers: serving: an absent base path is an error of its model, an empty one wants nothing
TEST_F(VersionSourceTest, AbsentBasePathIsAnErrorAndAnEmptyOneWantsNothing) {
  const auto source = Source();
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, source->Poll());
  EXPECT_THAT(found.wanted, ElementsAre());
  EXPECT_THAT(found.warnings, ElementsAre(HasSubstr("must have a version")));

  WriteVersion("1");
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
  EXPECT_OK(fs_->RecursivelyDelete(base_));
  EXPECT_STATUS(source->Poll().status(), absl::StatusCode::kNotFound, "Model 'm': base path");
  EXPECT_OK(WriteFileAtomically(fs_, base_, "a file"));
  EXPECT_STATUS(source->Poll().status(), absl::StatusCode::kFailedPrecondition,
                "Model 'm': base path");
  EXPECT_OK(fs_->DeleteFile(base_));
  WriteVersion("1");
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
}

// covers: serving: a version counts only when it is complete: variables as long as their index
//   says, and a marker, quiet files, or an equal list in two polls
TEST_F(VersionSourceTest, VariablesMustBeAsLongAsTheirIndexSays) {
  WriteVersion("1");
  WriteVersion("2");
  WriteVariables("2");
  EXPECT_THAT(Wanted(Source()->Poll()), ElementsAre(2));

  // Cut, as while it is being copied.
  ASSERT_OK_AND_ASSIGN(const std::string data, ReadFileToString(fs_, Data("2")));
  EXPECT_OK(
      WriteFileAtomically(fs_, Data("2"), absl::string_view(data).substr(0, data.size() - 1)));
  const auto source = Source();
  ASSERT_OK_AND_ASSIGN(const FoundVersions cut, source->Poll());
  EXPECT_THAT(Wanted(cut), ElementsAre(1));
  ASSERT_EQ(cut.incomplete.size(), 1u);
  EXPECT_STATUS(cut.incomplete[0].reason, absl::StatusCode::kDataLoss, "it is cut off");
  // A marker does not help.
  Mark("2");
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
  EXPECT_OK(fs_->DeleteFile(JoinPath(base_, std::string("2/") + kExportIsComplete)));
  // The rest has come.
  EXPECT_OK(WriteFileAtomically(fs_, Data("2"), data));
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(2));

  // An index that is no index; none at all next to data.
  const std::string index = BundleIndexPath(JoinPath(base_, "2/variables/variables"));
  EXPECT_OK(WriteFileAtomically(fs_, index, "no index"));
  EXPECT_THAT(Wanted(Source()->Poll()), ElementsAre(1));
  EXPECT_OK(fs_->DeleteFile(index));
  EXPECT_THAT(Wanted(Source()->Poll()), ElementsAre(1));
  // What counted once goes on to count.
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(2));
}

TEST_F(VersionSourceTest, QuietFilesCountAtOnceAndYoungOnesWhenTheListIsTheSameLater) {
  WriteVersion("1");
  EXPECT_THAT(Wanted(Source()->Poll()), ElementsAre(1));

  const auto source = Source({}, AtNow());
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, source->Poll());
  EXPECT_THAT(found.wanted, ElementsAre());
  ASSERT_EQ(found.incomplete.size(), 1u);
  EXPECT_TRUE(found.incomplete[0].settles);
  // Too soon after the first poll.
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre());
  young_->Advance(absl::Milliseconds(999));
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre());
  // One more file begins anew.
  Write("1/assets/vocabulary.txt");
  young_->Advance(absl::Milliseconds(1));
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre());
  young_->Advance(absl::Seconds(1));
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
}

// covers: serving: a version whose exporter listed its files is complete at once when they are
// there
//   in their sizes, and never when they are not
TEST_F(VersionSourceTest, MarkerDecidesAtOnce) {
  WriteVersion("1");
  const auto source = Source({}, AtNow());
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre());
  Mark("1");
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
  // Alone it is no model, and files must have the sizes that it says, however old they are.
  Mark("2");
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
  Write("3/saved_model.pb", "a whole model");
  Mark("3");
  Write("3/saved_model.pb", "a part");
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
  const auto late = Source();  // an hour later
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, late->Poll());
  EXPECT_THAT(Wanted(found), ElementsAre(1));
  ASSERT_EQ(found.incomplete.size(), 2u);
  EXPECT_STATUS(found.incomplete[1].reason, absl::StatusCode::kDataLoss, "must have 13 bytes");
  Write("3/saved_model.pb", "a whole model");
  EXPECT_THAT(Wanted(late->Poll()), ElementsAre(3));
  EXPECT_EQ(late->Poll()->wanted[0].num_bytes, 13);
}

// As `touch` makes it.
TEST_F(VersionSourceTest, AnEmptyMarkerIsNone) {
  WriteVersion("1");
  Write(std::string("1/") + kExportIsComplete, "");
  const auto source = Source({}, AtNow());
  ASSERT_OK_AND_ASSIGN(const FoundVersions young, source->Poll());
  EXPECT_THAT(young.wanted, ElementsAre());
  ASSERT_EQ(young.incomplete.size(), 1u);
  EXPECT_TRUE(young.incomplete[0].settles);
  young_->Advance(absl::Seconds(1));
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
  // One that is cut off is refused, with a way out.
  Write(std::string("1/") + kExportIsComplete, "millrace exp");
  ASSERT_OK_AND_ASSIGN(const FoundVersions cut, Source()->Poll());
  ASSERT_EQ(cut.incomplete.size(), 1u);
  EXPECT_STATUS(cut.incomplete[0].reason, absl::StatusCode::kDataLoss,
                "delete it when the export is complete without it");
}

// A copy brings the files in any order.
TEST_F(VersionSourceTest, AMarkerThatComesFirstWaitsForItsFiles) {
  Write("1/saved_model.pb", "a whole model");
  Write("1/assets/words.txt", "words");
  Mark("1");
  ASSERT_OK_AND_ASSIGN(
      const std::string marker,
      ReadFileToString(fs_, JoinPath(base_, std::string("1/") + kExportIsComplete)));
  EXPECT_OK(fs_->RecursivelyDelete(JoinPath(base_, "1")));
  EXPECT_OK(fs_->CreateDirectory(JoinPath(base_, "1")));
  Write(std::string("1/") + kExportIsComplete, marker);
  const auto source = Source({}, AtNow());
  const auto expect_settling = [&] {
    ASSERT_OK_AND_ASSIGN(const FoundVersions found, source->Poll());
    EXPECT_THAT(found.wanted, ElementsAre());
    ASSERT_EQ(found.incomplete.size(), 1u);
    EXPECT_TRUE(found.incomplete[0].settles) << found.incomplete[0].reason;
  };
  expect_settling();
  Write("1/saved_model.pb", "a part");
  expect_settling();
  Write("1/saved_model.pb", "a whole model");
  expect_settling();
  Write("1/assets/words.txt", "words");
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
  // What has stopped to come is not said to settle.
  EXPECT_OK(fs_->DeleteFile(JoinPath(base_, "1/assets/words.txt")));
  ASSERT_OK_AND_ASSIGN(const FoundVersions late, Source()->Poll());  // an hour later
  ASSERT_EQ(late.incomplete.size(), 1u);
  EXPECT_FALSE(late.incomplete[0].settles);
}

TEST_F(VersionSourceTest, DirectoryWithoutFilesIsNotComplete) {
  EXPECT_OK(fs_->RecursivelyCreateDirectory(JoinPath(base_, "1/variables")));
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, Source()->Poll());
  EXPECT_THAT(found.wanted, ElementsAre());
  ASSERT_EQ(found.incomplete.size(), 1u);
  EXPECT_STATUS(found.incomplete[0].reason, absl::StatusCode::kNotFound, "must have files");
}

// As editors leave as locks.
TEST_F(VersionSourceTest, ALinkToNowhereIsNoFile) {
  WriteVersion("1");
  ASSERT_EQ(symlink("nobody@nowhere", JoinPath(base_, "1/.#saved_model.pb").c_str()), 0);
  VersionSource source("m", base_, {}, options_);
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, source.Poll());
  EXPECT_EQ(found.wanted.size(), 1u);
}

// Who waits for it does not wait for ever.
TEST_F(VersionSourceTest, WhatDoesNotSettleIsNotSaidToSettleForEver) {
  ASSERT_OK(fs_->CreateDirectory(JoinPath(base_, "1")));
  VersionSource source("m", base_, {}, options_);
  ASSERT_OK_AND_ASSIGN(const FoundVersions first, source.Poll());
  ASSERT_EQ(first.incomplete.size(), 1u);
  EXPECT_TRUE(first.incomplete[0].settles);
  clock_.Advance(VersionSource::kSettleTimes * options_.settle_time);
  ASSERT_OK_AND_ASSIGN(const FoundVersions later, source.Poll());
  ASSERT_EQ(later.incomplete.size(), 1u);
  EXPECT_FALSE(later.incomplete[0].settles);
}

TEST_F(VersionSourceTest, TrustedVersionsCountAtOnce) {
  WriteVersion("1");
  EXPECT_OK(fs_->CreateDirectory(JoinPath(base_, "2")));
  VersionSource::Options options = AtNow();
  options.trust_new_versions = true;
  EXPECT_THAT(Wanted(Source(All(), options)->Poll()), ElementsAre(1, 2));
}

TEST_F(VersionSourceTest, FingerprintChangesWithTheFiles) {
  WriteVersion("1");
  WriteVersion("2");
  const auto source = Source(All());
  ASSERT_OK_AND_ASSIGN(const FoundVersions first, source->Poll());
  ASSERT_OK_AND_ASSIGN(const FoundVersions same, source->Poll());
  ASSERT_EQ(first.wanted.size(), 2u);
  EXPECT_EQ(first.wanted[0].fingerprint, same.wanted[0].fingerprint);

  Write("1/saved_model.pb", "longer than before");
  Write("2/saved_model.pb", "longer than before");
  // Version 2 is loaded: nobody asks.
  ASSERT_OK_AND_ASSIGN(const FoundVersions changed, source->Poll({2}));
  ASSERT_EQ(changed.wanted.size(), 2u);
  EXPECT_NE(first.wanted[0].fingerprint, changed.wanted[0].fingerprint);
  EXPECT_EQ(first.wanted[1].fingerprint, changed.wanted[1].fingerprint);
}

TEST_F(VersionSourceTest, VersionThatWasGoneBeginsAnew) {
  WriteVersion("1");
  const auto source = Source();
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre(1));
  EXPECT_OK(fs_->RecursivelyDelete(JoinPath(base_, "1")));
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre());
  EXPECT_OK(fs_->CreateDirectory(JoinPath(base_, "1")));
  EXPECT_THAT(Wanted(source->Poll()), ElementsAre());
}

TEST_F(VersionSourceTest, DeepDirectoriesAreRefused) {
  std::string path = "1";
  for (int i = 0; i <= VersionSource::kMostDepth; ++i) path += "/d";
  WriteVersion(path);
  ASSERT_OK_AND_ASSIGN(const FoundVersions found, Source()->Poll());
  EXPECT_THAT(found.wanted, ElementsAre());
  ASSERT_EQ(found.incomplete.size(), 1u);
  EXPECT_STATUS(found.incomplete[0].reason, absl::StatusCode::kResourceExhausted, "levels deep");
}

}  // namespace
}  // namespace millrace
