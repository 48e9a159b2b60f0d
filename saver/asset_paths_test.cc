// SPDX-License-Identifier: Apache-2.0
#include "saver/asset_paths.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "saver/load_plan.h"
#include "saver/meta_graph.h"

// covers: values: the graph of a SavedModel is given the paths that its assets have now, or stays
//   as it is

namespace millrace {
namespace {

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Two texts, which may be assets, a number and a placeholder, which may not.
tensorflow::MetaGraphDef Made() {
  Scope root;
  Const(root.WithName("words"), Tensor::Scalar("/made/here/words.txt"));
  Const(root.WithName("label"), Tensor::Scalar("a text that is no file"));
  Const(root.WithName("number"), 1.5f);
  Placeholder(root.WithName("fed"), DT_STRING, {});
  const StatusOr<tensorflow::MetaGraphDef> meta = ExportMetaGraph(root);
  EXPECT_OK(meta.status());
  return meta.ok() ? *meta : tensorflow::MetaGraphDef();
}

// "" where there is no such text.
std::string TextIn(const tensorflow::MetaGraphDef& meta, absl::string_view tensor) {
  const StatusOr<Scope> scope = ImportMetaGraph(meta);
  EXPECT_OK(scope.status());
  if (!scope.ok()) return "";
  const StatusOr<Output> output = scope->Find(tensor);
  const Tensor* const value = output.ok() ? scope->constant_value(*output) : nullptr;
  return value == nullptr ? "" : value->scalar<std::string>();
}

TEST(AssetPathsTest, AssetsGetThePathsThatTheyHaveNow) {
  tensorflow::MetaGraphDef meta = Made();
  AddAssetFile("words:0", "words_1.txt", &meta);
  ASSERT_OK(SetAssetPaths("export/7", &meta));
  EXPECT_EQ(TextIn(meta, "words"), "export/7/assets/words_1.txt");
  EXPECT_EQ(TextIn(meta, "label"), "a text that is no file");
  ASSERT_OK(SetAssetPaths("/moved", &meta));
  EXPECT_EQ(TextIn(meta, "words"), "/moved/assets/words_1.txt");
}

TEST(AssetPathsTest, AModelWithoutAssetsStaysAsItIs) {
  tensorflow::MetaGraphDef meta = Made();
  ASSERT_OK(SetAssetPaths("export/7", &meta));
  EXPECT_EQ(TextIn(meta, "words"), "/made/here/words.txt");
}

TEST(AssetPathsTest, WhatCannotHaveAPathIsNamedAndChangesNothing) {
  const struct {
    const char *tensor, *file;
    absl::StatusCode code;
    const char* text;
  } kWrong[] = {
      {"fed:0", "words.txt", kInvalid,
       "SavedModel 'export/7': asset tensor 'fed' must be a constant text, which can be given a "
       "path, got a node 'Placeholder'"},
      {"number:0", "words.txt", kInvalid, "asset tensor 'number' must be a constant text"},
      {"elsewhere:0", "words.txt", kNotFound,
       "SavedModel 'export/7': asset tensor 'elsewhere:0' must be in the graph"},
      {"label:0", "../words.txt", kInvalid,
       "SavedModel 'export/7': an asset must be a file in 'assets', got '../words.txt'"},
  };
  for (const auto& [tensor, file, code, text] : kWrong) {
    tensorflow::MetaGraphDef meta = Made();
    AddAssetFile("words:0", "words.txt", &meta);
    AddAssetFile(tensor, file, &meta);
    EXPECT_STATUS(SetAssetPaths("export/7", &meta), code, text);
    EXPECT_EQ(TextIn(meta, "words"), "/made/here/words.txt") << tensor;
  }
}

}  // namespace
}  // namespace millrace
