// SPDX-License-Identifier: Apache-2.0
#include "serving/front/model_catalog.h"

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "serving/front/front_path.h"

namespace millrace {
namespace {

class ModelCatalogTest : public ::testing::Test {
 protected:
  ModelCatalogTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("catalog_", RandomHexName()))) {}
  ~ModelCatalogTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }
  void SetUp() override {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_));
    ASSERT_OK(
        WriteFileAtomically(FileSystem::Posix(), JoinPath(dir_, "saved_model.pb"), "a model"));
    Open();
  }
  void Open() {
    catalog_.reset();
    ASSERT_OK_AND_ASSIGN(catalog_, ModelCatalog::Open({.path = JoinPath(dir_, "models.json"),
                                                       .now = [] { return int64_t{1'000}; },
                                                       .on_change =
                                                           [this](const CatalogContents& contents) {
                                                             told_ = CatalogText(contents);
                                                           }}));
  }
  std::string Text() const { return CatalogText(*catalog_->contents()); }
  std::string Body(const std::string& name) const {
    return absl::StrCat("{\"name\": \"", name, "\", \"deploymentUri\": \"", dir_,
                        "\", \"autoScaling\": {\"minNodes\": 1}, \"maxNodes\": 3}");
  }

  const std::string dir_;
  std::string told_;
  std::unique_ptr<ModelCatalog> catalog_;
};

// covers: serving: what the front has told of its models is in its file
TEST_F(ModelCatalogTest, WhatWasToldIsInTheFile) {
  ASSERT_OK(catalog_->CreateModel("p", "{\"name\": \"m\"}").status());
  ASSERT_OK(catalog_->CreateVersion("p", "m", Body("v1")).status());
  ASSERT_OK(catalog_->CreateVersion("p", "m", Body("v2")).status());
  ASSERT_OK(catalog_->SetDefault("p", "m", "v2"));
  const std::string before = Text();
  EXPECT_EQ(told_, before);
  Open();
  EXPECT_EQ(Text(), before);
  ASSERT_OK_AND_ASSIGN(const CatalogVersion* const version,
                       catalog_->contents()->FindVersion("p", "m", "v1"));
  EXPECT_EQ(version->min_nodes, 1);
  EXPECT_EQ(version->max_nodes, 3);
  EXPECT_EQ(version->create_seconds, 1'000);
}

TEST_F(ModelCatalogTest, AnIdIsNeverGivenAgain) {
  ASSERT_OK(catalog_->CreateModel("p", "{\"name\": \"m\"}").status());
  ASSERT_OK(catalog_->CreateVersion("p", "m", Body("v1")).status());
  const int64_t first = (*catalog_->contents()->FindVersion("p", "m", "v1"))->id;
  ASSERT_OK(catalog_->DeleteVersion("p", "m", "v1"));
  EXPECT_EQ(catalog_->contents()->models.at({"p", "m"}).default_version, "");
  Open();
  ASSERT_OK(catalog_->CreateVersion("p", "m", Body("v1")).status());
  EXPECT_GT((*catalog_->contents()->FindVersion("p", "m", "v1"))->id, first);
}

TEST_F(ModelCatalogTest, AfterAnErrorNothingHasChanged) {
  ASSERT_OK(catalog_->CreateModel("p", "{\"name\": \"m\"}").status());
  const std::string before = Text();
  EXPECT_FALSE(catalog_->CreateModel("p", "{\"name\": \"m\"}").ok());
  EXPECT_FALSE(catalog_->CreateVersion("p", "m", "{}").ok());
  EXPECT_FALSE(catalog_->CreateVersion("p", "nil", Body("v1")).ok());
  EXPECT_FALSE(catalog_->DeleteVersion("p", "m", "v1").ok());
  EXPECT_FALSE(catalog_->SetDefault("p", "m", "v1").ok());
  EXPECT_EQ(Text(), before);
  EXPECT_EQ(told_, before);
}

TEST_F(ModelCatalogTest, AFileThatIsCutAnywhereIsDataLoss) {
  ASSERT_OK(catalog_->CreateModel("p", "{\"name\": \"m\"}").status());
  ASSERT_OK(catalog_->CreateVersion("p", "m", Body("v1")).status());
  const std::string text = Text();
  EXPECT_OK(ReadCatalog(text).status());
  // The last byte is the end of the line, without which it is as good.
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_EQ(ReadCatalog(text.substr(0, size)).status().code(), absl::StatusCode::kDataLoss)
        << size;
  }
}

TEST_F(ModelCatalogTest, FilesThatNoCatalogWritesAreDataLoss) {
  for (const char* const text :
       {"[]", "{}", "{\"format\": 1, \"nextId\": 1}",
        "{\"format\": 2, \"nextId\": 1, \"models\": []}",
        "{\"format\": 1, \"nextId\": 0, \"models\": []}",
        "{\"format\": 1, \"nextId\": 1, \"models\": [], \"more\": 1}",
        "{\"format\": 1, \"nextId\": 1, \"models\": [{\"project\": \"p\", \"name\": \"m\"}]}",
        "{\"format\": 1, \"nextId\": 1, \"models\": [{\"project\": \"p\", \"name\": \"m\", "
        "\"defaultVersion\": \"v\", \"versions\": {}}]}",
        "{\"format\": 1, \"nextId\": 1, \"models\": [{\"project\": \"p\", \"name\": \"m\", "
        "\"defaultVersion\": \"v\", \"versions\": {\"v\": {}}}]}"}) {
    EXPECT_EQ(ReadCatalog(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

TEST(FrontPathTest, PathsNameWhatIsAskedFor) {
  using Kind = FrontTarget::Kind;
  const auto parse = [](const char* method, const char* path) {
    return ParseFrontPath(method, path, "home");
  };
  const auto expect = [&](const char* method, const char* path, const FrontTarget& target) {
    const StatusOr<FrontTarget> got = parse(method, path);
    ASSERT_OK(got.status());
    EXPECT_TRUE(*got == target) << method << " " << path;
  };
  expect("GET", "/v1/models", {Kind::kListModels, "home", "", ""});
  expect("POST", "/v1/projects/a-b/models", {Kind::kCreateModel, "a-b", "", ""});
  expect("GET", "/v1/models/m", {Kind::kGetModel, "home", "m", ""});
  expect("DELETE", "/v1/models/m", {Kind::kDeleteModel, "home", "m", ""});
  expect("POST", "/v1/models/m:predict", {Kind::kPredict, "home", "m", ""});
  expect("POST", "/v1/projects/p/models/m/versions/v:predict", {Kind::kPredict, "p", "m", "v"});
  expect("GET", "/v1/models/m/metadata", {Kind::kMetadata, "home", "m", ""});
  expect("GET", "/v1/projects/p/models/m/versions/v/metadata", {Kind::kMetadata, "p", "m", "v"});
  expect("GET", "/v1/models/m/versions/metadata", {Kind::kGetVersion, "home", "m", "metadata"});
  expect("GET", "/v1/models/metadata", {Kind::kGetModel, "home", "metadata", ""});
  expect("GET", "/v1/models/m/versions", {Kind::kListVersions, "home", "m", ""});
  expect("POST", "/v1/models/m/versions", {Kind::kCreateVersion, "home", "m", ""});
  expect("GET", "/v1/models/m/versions/v", {Kind::kGetVersion, "home", "m", "v"});
  expect("DELETE", "/v1/models/m/versions/v", {Kind::kDeleteVersion, "home", "m", "v"});
  expect("POST", "/v1/models/m/versions/v:setDefault", {Kind::kSetDefault, "home", "m", "v"});
  for (const char* const path :
       {"/", "/v1", "/v1/", "/v2/models", "/v1/model", "/v1/models/",
        "/v1/models/m:", "/v1/models/m:classify", "/v1/models/m/labels/l", "/v1/models/m/versions/",
        "/v1/models/m/versions:predict", "/v1/models/m/versions/v/w", "/v1/models/a%20b:predict",
        "/v1/projects//models", "/v1/projects/p", "/v1/models:predict",
        "/v1/models/m:setDefault"}) {
    EXPECT_EQ(parse("POST", path).status().message(),
              absl::StrCat("Malformed request: POST ", path));
  }
  EXPECT_FALSE(parse("GET", "/v1/models/m:predict").ok());
  EXPECT_FALSE(parse("POST", "/v1/models/m/metadata").ok());
  EXPECT_FALSE(parse("GET", "/v1/models/m/labels/l/metadata").ok());
  EXPECT_FALSE(parse("DELETE", "/v1/models").ok());
}

}  // namespace
}  // namespace millrace
