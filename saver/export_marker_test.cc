// SPDX-License-Identifier: Apache-2.0
#include "saver/export_marker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/tensor_testing.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class ExportMarkerTest : public ::testing::Test {
 protected:
  ExportMarkerTest() : base_(JoinPath(::testing::TempDir(), "marker_" + RandomHexName())) {
    EXPECT_OK(fs_->CreateDirectory(base_));
  }
  ~ExportMarkerTest() override { fs_->RecursivelyDelete(base_).IgnoreError(); }

  void Write(const std::string& path, absl::string_view data) {
    const std::string file = JoinPath(base_, path);
    EXPECT_OK(fs_->RecursivelyCreateDirectory(Dirname(file)));
    EXPECT_OK(WriteFileAtomically(fs_, file, data));
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string base_;
};

// covers: serving: the list of an export's files names each with its size, and shows each cut
TEST_F(ExportMarkerTest, ListsTheFilesAndShowsWhatIsMissing) {
  Write("saved_model.pb", "12345");
  Write("assets/two words\n.txt", "");
  Write("variables/variables.index", "123");
  EXPECT_OK(WriteExportMarker(fs_, base_));
  ASSERT_OK_AND_ASSIGN(const auto sizes, ReadExportMarker(fs_, base_));
  EXPECT_THAT(sizes, ElementsAre(Pair("assets/two words\n.txt", 0), Pair("saved_model.pb", 5),
                                 Pair("variables/variables.index", 3)));
  EXPECT_OK(CheckExportMarker(fs_, base_));
  // A second time it does not list itself.
  EXPECT_OK(WriteExportMarker(fs_, base_));
  ASSERT_OK_AND_ASSIGN(const auto again, ReadExportMarker(fs_, base_));
  EXPECT_EQ(again, sizes);

  // Files that came later.
  Write("assets.extra/requests", "1");
  EXPECT_OK(CheckExportMarker(fs_, base_));
  Write("saved_model.pb", "1234");
  EXPECT_STATUS(CheckExportMarker(fs_, base_), absl::StatusCode::kDataLoss,
                "saved_model.pb' must have 5 bytes, as 'export_is_complete' says, got 4");
  EXPECT_OK(fs_->DeleteFile(JoinPath(base_, "saved_model.pb")));
  EXPECT_STATUS(CheckExportMarker(fs_, base_), absl::StatusCode::kNotFound, "saved_model.pb");

  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadFileToString(fs_, JoinPath(base_, kExportIsComplete)));
  for (size_t length = 0; length < text.size(); ++length) {
    Write(kExportIsComplete, absl::string_view(text).substr(0, length));
    EXPECT_STATUS(ReadExportMarker(fs_, base_), absl::StatusCode::kDataLoss, "must begin with")
        << length;
  }
  Write(kExportIsComplete, "millrace export 1\nfive saved_model.pb\nend\n");
  EXPECT_STATUS(ReadExportMarker(fs_, base_), absl::StatusCode::kDataLoss,
                "line 2 must be a size and a name, got 'five saved_model.pb'");
}

}  // namespace
}  // namespace millrace
