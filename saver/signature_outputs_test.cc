// SPDX-License-Identifier: Apache-2.0
#include "saver/signature_outputs.h"

#include <gtest/gtest.h>

#include <string>

#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"

// covers: values: the names of a signature lead to tensors of the graph; others are named

namespace millrace {
namespace {

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// x, and the two halves of a split; signatures of these and of what is wrong.
struct Halves {
  Halves() {
    const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {4});
    Split(root.WithName("halves"), x, 2, 0);
    tensorflow::SignatureDef& serving = (*meta.mutable_signature_def())["serving_default"];
    (*serving.mutable_inputs())["x"].set_name("x:0");
    (*serving.mutable_outputs())["first"].set_name("halves:0");
    (*serving.mutable_outputs())["second"].set_name("halves:1");
    (*serving.mutable_outputs())["third"].set_name("halves:2");
    (*serving.mutable_outputs())["elsewhere"].set_name("quarters:0");
    (*serving.mutable_outputs())["nameless"];
    (*serving.mutable_outputs())["sparse"].mutable_coo_sparse()->set_values_tensor_name("x:0");
    (*meta.mutable_signature_def())["empty"];
    (*meta.mutable_signature_def())[kInitOpSignature];
  }
  Scope root;
  tensorflow::MetaGraphDef meta;
};

TEST(SignatureOutputsTest, NamesLeadToTensors) {
  const Halves model;
  ASSERT_OK(model.root.status());
  ASSERT_OK_AND_ASSIGN(const ModelSignature signature,
                       SignatureOf(model.meta, kDefaultServingSignature));
  ASSERT_OK_AND_ASSIGN(const Output x, InputOf(model.root, signature, "x"));
  EXPECT_EQ(x.name(), "x:0");
  ASSERT_OK_AND_ASSIGN(const Output first, OutputOf(model.root, signature, "first"));
  EXPECT_EQ(first.name(), "halves:0");
  ASSERT_OK_AND_ASSIGN(const Output second, OutputOf(model.root, signature, "second"));
  EXPECT_EQ(second.name(), "halves:1");
}

TEST(SignatureOutputsTest, WhatIsNotThereIsNamed) {
  const Halves model;
  ASSERT_OK_AND_ASSIGN(const ModelSignature signature,
                       SignatureOf(model.meta, kDefaultServingSignature));
  EXPECT_STATUS(SignatureOf(model.meta, "serving_defualt").status(), kNotFound,
                "Signature: key 'serving_defualt' must be one of 'empty', 'serving_default'; did "
                "you mean 'serving_default'?");
  EXPECT_STATUS(SignatureOf(model.meta, kInitOpSignature).status(), kNotFound, "must be one of");
  EXPECT_STATUS(SignatureOf({}, "x").status(), kNotFound, "Signature: key 'x' must be one of none");
  EXPECT_STATUS(InputOf(model.root, signature, "first").status(), kNotFound,
                "Signature: input 'first' must be one of 'x'");
  EXPECT_STATUS(OutputOf(model.root, signature, "secnod").status(), kNotFound,
                "'sparse', 'third'; did you mean 'second'?");
  ASSERT_OK_AND_ASSIGN(const ModelSignature empty, SignatureOf(model.meta, "empty"));
  EXPECT_STATUS(OutputOf(model.root, empty, "y").status(), kNotFound,
                "Signature: output 'y' must be one of none");
  const struct {
    const char *output, *text;
  } kWrong[] = {
      {"third", "output 'third' must be a tensor of the graph, got 'halves:2'"},
      {"elsewhere", "output 'elsewhere' must be a tensor of the graph, got 'quarters:0'"},
      {"nameless", "output 'nameless' must be one tensor, got one that is sparse or has no name"},
      {"sparse", "output 'sparse' must be one tensor, got one that is sparse or has no name"},
  };
  for (const auto& [output, text] : kWrong) {
    EXPECT_STATUS(OutputOf(model.root, signature, output).status(), kInvalid, text);
  }
  EXPECT_OK(model.root.status()) << "errors of look-ups are no errors of the scope";
}

}  // namespace
}  // namespace millrace
