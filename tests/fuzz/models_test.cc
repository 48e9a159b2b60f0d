// SPDX-License-Identifier: Apache-2.0
//
// Models of bytes, opened and asked (fuzz.h): one of the files is nearly right, the others are.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/memory_files.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/freeze_model.h"
#include "saver/model.h"
#include "saver/servable_model.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutator.h"

// covers: outside: models of damaged bytes are opened and asked without a crash or a hang

namespace millrace {
namespace {

constexpr char kIndex[] = "variables/variables.index";
constexpr char kData[] = "variables/variables.data-00000-of-00001";
constexpr char kWords[] = "assets/words.txt";
constexpr char kGraph[] = "saved_model.pb";

class ModelsTest : public ::testing::Test {
 protected:
  // Words -> rows of a variable, by a vocabulary in a file.
  void SetUp() override {
    FileSystem* const fs = FileSystem::Posix();
    const std::string dir =
        JoinPath(::testing::TempDir(), absl::StrCat("fuzz_models_", RandomHexName()));
    ASSERT_OK(fs->RecursivelyCreateDirectory(dir));
    const std::string vocabulary = JoinPath(dir, "words.txt");
    ASSERT_OK(WriteFileAtomically(fs, vocabulary, "tea\ncoffee\n"));
    Scope root;
    const Output words = Placeholder(root.WithName("words"), DT_STRING, {-1});
    const IndexTable ids = IndexTableFromFile(root.WithName("ids"), vocabulary);
    const Variable rows = MakeVariable(root.WithName("rows"),
                                       Const(root, Tensor::Of<float>({{1, 2}, {3, 4}, {5, 6}})));
    const Output row = Gather(root.WithName("row"), rows.value,
                              Maximum(root, Lookup(root, ids, words), Const<int64_t>(root, 0)));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {rows.initializer}).status());
    ASSERT_OK(ExportModel(session.get(), root,
                          {.inputs = {{"words", words}}, .outputs = {{"row", row}}},
                          JoinPath(dir, "model")));
    for (const char* name : {kIndex, kData, kWords, kGraph}) {
      ASSERT_OK_AND_ASSIGN(whole_[name],
                           ReadFileToString(fs, JoinPath(JoinPath(dir, "model"), name)));
    }
    ASSERT_OK(fs->RecursivelyDelete(dir));
    SetMinLogLevel(LogLevel::kError);
  }
  void TearDown() override { SetMinLogLevel(LogLevel::kInfo); }

  // Returns whether the model answers with `file` as its `name`.
  bool Answers(const std::string& name, const std::string& file) {
    NamedBytes files = whole_;
    files[name] = file;
    const auto model = ReadModelFromBytes(files);
    // No error without a word on where it is.
    if (!model.ok()) {
      EXPECT_GT(model.status().message().size(), 20u) << model.status();
      return false;
    }
    const auto served = ServableModel::Load(*model);
    if (!served.ok()) return false;
    bool answered = false;
    for (int i = 0; i < served->num_signatures(); ++i) {
      const ServableSignature& signature = served->signature(i);
      const std::vector<Tensor> inputs(signature.inputs.size(),
                                       Tensor::Vector<std::string>({"coffee", "?"}));
      std::vector<Tensor> outputs(signature.outputs.size());
      if (!served->Predict(i, inputs, absl::MakeSpan(outputs)).ok()) continue;
      answered = true;
      for (const Tensor& output : outputs) EXPECT_LE(output.TotalBytes(), kMaxFuzzedTensorBytes);
    }
    return answered;
  }

  NamedBytes whole_;
};

TEST_F(ModelsTest, FilesOfACheckpoint) {
  for (const char* name : {kIndex, kData}) {
    int asked = 0, answered = 0;
    Fuzz(600, {whole_.at(name)}, [&](const std::string& bytes, Mutator*) {
      ++asked;
      answered += Answers(name, bytes) ? 1 : 0;
    });
    EXPECT_GE(answered, 37) << name;
    // Nearly all that changes is under a checksum.
    EXPECT_LE(answered * 2, asked) << name;
  }
}

TEST_F(ModelsTest, Assets) {
  int answered = 0;
  Fuzz(600, {whole_.at(kWords)},
       [&](const std::string& bytes, Mutator*) { answered += Answers(kWords, bytes) ? 1 : 0; });
  EXPECT_GE(answered, 37);
}

TEST_F(ModelsTest, Graphs) {
  int answered = 0;
  Fuzz(1'600, {whole_.at(kGraph)},
       [&](const std::string& bytes, Mutator*) { answered += Answers(kGraph, bytes) ? 1 : 0; });
  EXPECT_GE(answered, 100);
}

TEST_F(ModelsTest, GraphsThatAreFrozen) {
  int frozen = 0;
  Fuzz(600, {whole_.at(kGraph)}, [&](const std::string& bytes, Mutator*) {
    NamedBytes files = whole_;
    files[kGraph] = bytes;
    const auto model = ReadModelFromBytes(files);
    if (model.ok() && FreezeModel(*model).ok()) ++frozen;
  });
  EXPECT_GE(frozen, 37);
}

}  // namespace
}  // namespace millrace
